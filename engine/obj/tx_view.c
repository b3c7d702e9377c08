/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a commit sees, under the lock: its own changes, the overlays, and what the index has said.
 *
 * The index is never asked under the lock. A question it would have to answer is noted as a want
 * and answered with "nothing" for now; a commit that had wants is computed again once they are
 * filled. What the index said holds while pool->turn stays the same (O2).
 */
#include "obj/obj_int.h"

#define RANGE_BYTES (1u << 20)  /* of one range */
#define KNOWN_BYTES                                                                                \
    (64u << 20) /* old values of one commit; snapshots of 10,000 long values hit it */

void tx_forget(struct obj_tx *tx)
{
    smap_clear(&tx->known);
    smap_clear(&tx->asked);
    tx->n_want = 0;
    tx->want_keys.len = 0;
}

/* A new question; its bounds are copied. */
static int want_add(struct obj_tx *tx, const void *lo, size_t lo_len, const void *hi, size_t hi_len,
                    uint32_t limit)
{
    struct tx_want *w;
    int rc;

    if (tx->n_want == tx->cap_want) {
        uint32_t cap = tx->cap_want ? tx->cap_want * 2 : 16;
        w = realloc(tx->want, cap * sizeof(*w));
        if (!w)
            return -ENOMEM;
        tx->want = w;
        tx->cap_want = cap;
    }
    rc = bytes_room(&tx->want_keys, lo_len + hi_len);
    if (rc < 0)
        return rc;
    w = &tx->want[tx->n_want++];
    *w = (struct tx_want){.lo_len = (uint16_t)lo_len, .hi_len = (uint16_t)hi_len, .limit = limit};
    w->lo_off = (uint32_t)tx->want_keys.len;
    bytes_add(&tx->want_keys, lo, lo_len);
    w->hi_off = (uint32_t)tx->want_keys.len;
    bytes_add(&tx->want_keys, hi, hi_len);
    tx->wanting = true;
    return 0;
}

/* The want of a range, made where there is none. */
static int want_range(struct obj_tx *tx, const struct key *lo, const struct key *hi, uint32_t limit,
                      uint32_t *out)
{
    uint8_t q[2 * DFE_KEY_BYTES + 4];
    size_t n = lo->len + hi->len + 4u, vlen;
    const void *val;
    int rc;

    memcpy(q, lo->b, lo->len);
    memcpy(q + lo->len, hi->b, hi->len);
    put_le32(q + n - 4, limit);
    if (smap_get(&tx->asked, q, n, &val, &vlen) == OVERLAY_VALUE) {
        memcpy(out, val, sizeof(*out));
        return 0;
    }
    rc = want_add(tx, lo->b, lo->len, hi->b, hi->len, limit);
    *out = tx->n_want - 1;
    return rc < 0 ? rc : smap_put(&tx->asked, q, n, out, sizeof(*out), OVERLAY_VALUE);
}

int tx_old(struct obj_tx *tx, const void *key, size_t klen, const void **val, size_t *vlen,
           enum overlay_state *state)
{
    struct obj_pool *pool = tx->pool;

    *state = smap_get(&tx->delta, key, klen, val, vlen);
    if (*state == OVERLAY_NONE)
        *state = overlay_get(pool->active, key, klen, val, vlen);
    if (*state == OVERLAY_NONE && pool->frozen)
        *state = overlay_get(pool->frozen, key, klen, val, vlen);
    if (*state == OVERLAY_NONE)
        *state = smap_get(&tx->known, key, klen, val, vlen);
    if (*state != OVERLAY_NONE)
        return 0;
    return want_add(tx, key, klen, NULL, 0, 0);
}

/* One source of a merged walk. */
struct source {
    const struct overlay *o;
    const struct smap *m;
    struct overlay_cur cur;
    uint32_t at;
    bool has;
};

static void source_load(struct source *s, const struct key *hi, bool has)
{
    if (s->m) {
        s->has = s->at < s->m->n;
        if (s->has) {
            const struct smap_ent *e = &s->m->e[s->at];
            s->cur = (struct overlay_cur){.key = smap_key(s->m, s->at), .klen = e->klen,
                                          .val = smap_val(s->m, s->at), .vlen = e->vlen,
                                          .state = (enum overlay_state)e->state};
        }
    } else {
        s->has = has;
    }
    s->has = s->has && key_cmp(s->cur.key, s->cur.klen, hi->b, hi->len) < 0;
}

static void source_seek(struct source *s, const struct key *lo, const struct key *hi)
{
    bool has = false;

    if (s->m)
        s->at = smap_seek(s->m, lo->b, lo->len);
    else
        has = s->o && overlay_seek(s->o, lo->b, lo->len, &s->cur) == 1;
    source_load(s, hi, has);
}

static void source_next(struct source *s, const struct key *hi)
{
    bool has = false;

    if (s->m)
        s->at++;
    else
        has = overlay_next(s->o, &s->cur) == 1;
    source_load(s, hi, has);
}

/*
 * The entries of [lo, hi), all layers merged, into tx->found: at most limit keys are looked at,
 * tombstones included; *more: there may be others, after tx->last.
 */
int tx_collect(struct obj_tx *tx, const struct key *lo, const struct key *hi, uint32_t limit,
               bool *more)
{
    struct source src[4] = {{.m = &tx->delta}, {.o = tx->pool->active}, {.o = tx->pool->frozen},
                            {.m = &tx->known}};
    uint32_t n = 0, w;
    int rc = want_range(tx, lo, hi, limit, &w);

    *more = false;
    tx->last = *lo;
    smap_clear(&tx->found);
    if (rc < 0)
        return rc;
    if (!tx->want[w].filled) {
        tx->wanting = true;
        return 0;
    }
    *more = tx->want[w].more;
    for (unsigned i = 0; i < 4; i++)
        source_seek(&src[i], lo, hi);
    for (;;) {
        struct source *first = NULL;
        struct overlay_cur e;
        for (unsigned i = 0; i < 4; i++)
            if (src[i].has && (!first || key_cmp(src[i].cur.key, src[i].cur.klen, first->cur.key,
                                                 first->cur.klen) < 0))
                first = &src[i];
        if (!first)
            break;
        /* what the index holds behind the last key it was asked for is not known */
        if (n++ >= limit || tx->found.data.len > OBJ_PUNCH_BYTES ||
            (tx->want[w].more && !src[3].has)) {
            *more = true;
            break;
        }
        e = first->cur;
        tx->last.len = (uint16_t)e.klen;
        memcpy(tx->last.b, e.key, e.klen);
        if (e.state == OVERLAY_VALUE)
            rc = smap_put(&tx->found, e.key, e.klen, e.val, e.vlen, OVERLAY_VALUE);
        if (rc < 0)
            return rc;
        for (unsigned i = 0; i < 4; i++)
            while (src[i].has && key_cmp(src[i].cur.key, src[i].cur.klen, e.key, e.klen) == 0)
                source_next(&src[i], hi);
    }
    return 0;
}

/* -- asking the index (no lock held) --------------------------------------------------------- */

struct filling {
    struct obj_tx *tx;
    struct tx_want *w;
    uint32_t n;
    size_t start;
};

static int fill_entry(const void *key, size_t klen, const void *val, size_t vlen, void *arg)
{
    struct filling *f = arg;

    if (f->n++ >= f->w->limit || f->tx->known.data.len - f->start > RANGE_BYTES) {
        f->w->more = true;
        return 1;
    }
    if (vlen < FMT_BIRTH_BYTES)
        return -EUCLEAN;
    return smap_put(&f->tx->known, key, klen, val, vlen, OVERLAY_VALUE);
}

static int fill_point(struct obj_tx *tx, const struct tx_want *w)
{
    uint8_t small[FMT_EXT_MAX], *v = small;
    const uint8_t *key = tx->want_keys.p + w->lo_off;
    size_t have = sizeof(small), vlen;
    int rc = index_get(tx->pool->index, key, w->lo_len, v, have, &vlen);

    if (rc == 0 && vlen > have) {
        v = malloc(vlen);
        if (!v)
            return -ENOMEM;
        have = vlen;
        rc = index_get(tx->pool->index, key, w->lo_len, v, have, &vlen);
        if (rc == 0 && vlen > have)
            rc = -EAGAIN; /* it grew meanwhile, so turn has changed: asked again */
    }
    if (rc == -ENOENT)
        rc = smap_put(&tx->known, key, w->lo_len, NULL, 0, OVERLAY_TOMB);
    else if (rc == 0 && vlen < FMT_BIRTH_BYTES)
        rc = -EUCLEAN;
    else if (rc == 0)
        rc = smap_put(&tx->known, key, w->lo_len, v, vlen, OVERLAY_VALUE);
    else if (rc == -EAGAIN)
        rc = 0;
    if (v != small)
        free(v);
    return rc;
}

int tx_fill(struct obj_tx *tx)
{
    int rc = 0;

    for (uint32_t i = 0; rc >= 0 && i < tx->n_want; i++) {
        struct tx_want *w = &tx->want[i];
        struct filling f = {.tx = tx, .w = w, .start = tx->known.data.len};
        if (w->filled)
            continue;
        if (tx->known.data.len > KNOWN_BYTES)
            return base_refuse(-E2BIG, "a transaction replaces over %u bytes of old values",
                               KNOWN_BYTES);
        if (w->hi_len == 0)
            rc = fill_point(tx, w);
        else
            rc = index_scan(tx->pool->index, tx->want_keys.p + w->lo_off, w->lo_len,
                            tx->want_keys.p + w->hi_off, w->hi_len, fill_entry, &f, NULL);
        w->filled = rc >= 0;
    }
    return rc < 0 ? rc : 0;
}
