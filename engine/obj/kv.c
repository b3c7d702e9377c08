/* SPDX-License-Identifier: Apache-2.0 */
/* Reading keys: get, scan, the list of objects. */
#include "obj/obj_int.h"

#define GET_BYTES 2048u /* a first try on the stack; longer values are fetched again */

static int copy_out(const void *val, size_t vlen, void *value, size_t cap, size_t *len)
{
    vlen -= FMT_BIRTH_BYTES;
    if (len)
        *len = vlen;
    if (cap > 0 && vlen > 0)
        memcpy(value, val, vlen < cap ? vlen : cap);
    return 0;
}

/* The overlays' answer: 0, -ENOENT, or 1: ask the index, where entries born before *gone are dead.
 */
static int get_overlays(struct obj_pool *pool, const struct key *k, void *value, size_t cap,
                        size_t *len, uint64_t *gone)
{
    enum overlay_state st;
    const void *val = NULL;
    size_t vlen = 0;
    int rc = 1;

    pthread_mutex_lock(&pool->lock);
    *gone = list_empty(&pool->works) ? 0 : works_gone(pool, k->b, k->len, OBJ_LIVE);
    st = overlay_get(pool->active, k->b, k->len, &val, &vlen);
    if (st == OVERLAY_NONE && pool->frozen)
        st = overlay_get(pool->frozen, k->b, k->len, &val, &vlen);
    if (st == OVERLAY_TOMB || (st == OVERLAY_VALUE && value_birth(val, vlen) < *gone))
        rc = -ENOENT;
    else if (st == OVERLAY_VALUE)
        rc = copy_out(val, vlen, value, cap, len);
    pthread_mutex_unlock(&pool->lock);
    return rc;
}

static int get_index(struct obj_pool *pool, const struct key *k, void *value, size_t cap,
                     size_t *len, uint64_t gone)
{
    uint8_t small[GET_BYTES], *big = NULL, *v = small;
    size_t have = sizeof(small), vlen;
    int rc;

    for (;;) {
        rc = index_get(pool->index, k->b, k->len, v, have, &vlen);
        if (rc < 0 || vlen <= have)
            break;
        free(big);
        big = v = malloc(vlen);
        have = vlen;
        if (!big)
            return -ENOMEM;
    }
    if (rc == 0 && vlen < FMT_BIRTH_BYTES)
        rc = base_fail(-EUCLEAN, "index: a value of %zu bytes is shorter than its birth", vlen);
    if (rc == 0 && value_birth(v, vlen) < gone)
        rc = -ENOENT;
    if (rc == 0)
        rc = copy_out(v, vlen, value, cap, len);
    free(big);
    return rc;
}

/* At a snapshot: the live entry if it is old enough, else the first that died after the snapshot.
 */
static int get_snap(struct obj_cont *cont, const struct key *k, void *value, size_t cap,
                    size_t *len)
{
    struct reader *r = reader_get(cont->pool);
    struct page *live, *side;
    struct smap *m;
    int rc = 0;

    if (!r)
        return -ENOMEM;
    live = &r->page[0];
    side = &r->page[1];
    live->lo = live->hi = *k;
    live->hi.len = KEY_OBJ_BYTES;
    key_after_prefix(&live->hi);
    rc = key_side(&side->lo, k, cont->snap + 1);
    if (rc == 0)
        rc = key_side(&side->hi, k, UINT64_MAX);
    live->after = side->after = false;
    live->limit = side->limit = 1;
    if (rc == 0)
        rc = reader_fill(cont->pool, r, 2);
    /* a limit of 1 may stop at another layer's tombstone of the side key: go on */
    while (rc == 0 && side->out.n == 0 && side->more) {
        side->limit *= 2;
        rc = reader_fill(cont->pool, r, 2);
    }
    if (rc < 0)
        goto out;
    rc = -ENOENT;
    m = &live->out;
    if (m->n > 0 && key_cmp(smap_key(m, 0), m->e[0].klen, k->b, k->len) == 0 &&
        reader_visible(r, k->b, k->len, value_birth(smap_val(m, 0), m->e[0].vlen), cont->snap)) {
        rc = copy_out(smap_val(m, 0), m->e[0].vlen, value, cap, len);
        goto out;
    }
    m = &side->out;
    if (m->n > 0 && value_birth(smap_val(m, 0), m->e[0].vlen) <= cont->snap)
        rc = copy_out(smap_val(m, 0), m->e[0].vlen, value, cap, len);
out:
    reader_put(cont->pool, r);
    return rc;
}

int kv_get_key(struct obj_pool *pool, const struct key *k, void *value, size_t cap, size_t *len)
{
    uint64_t gone;
    int rc = get_overlays(pool, k, value, cap, len, &gone);

    return rc == 1 ? get_index(pool, k, value, cap, len, gone) : rc;
}

int obj_kv_get(struct obj_cont *cont, struct obj_id oid, const struct obj_key *key, void *value,
               size_t cap, size_t *len)
{
    struct key k;
    int rc = key_kv(&k, cont->number, oid, key);

    if (rc < 0)
        return rc;
    return cont->snap == OBJ_LIVE ? kv_get_key(cont->pool, &k, value, cap, len)
                                  : get_snap(cont, &k, value, cap, len);
}

int obj_kv_get_nowait(struct obj_cont *cont, struct obj_id oid, const struct obj_key *key,
                      void *value, size_t cap, size_t *len)
{
    struct key k;
    uint64_t gone;
    int rc = key_kv(&k, cont->number, oid, key);

    if (rc < 0)
        return rc;
    if (cont->snap != OBJ_LIVE)
        return -EINPROGRESS;
    rc = get_overlays(cont->pool, &k, value, cap, len, &gone);
    return rc == 1 ? -EINPROGRESS : rc;
}

/* -- scans ----------------------------------------------------------------------------------- */

struct scan {
    struct obj_cont *cont;
    struct reader *r;
    uint64_t left; /* keys */
    obj_scan_fn fn;
    void *arg;
};

static int scan_entry(struct scan *s, const struct key *k, const void *val, size_t vlen)
{
    uint8_t scratch[DFE_KEY_BYTES];
    struct obj_key ok;
    int rc = key_parse_kv(k->b, k->len, &ok, scratch);

    if (rc < 0)
        return base_fail(rc, "index: a key of table KV is malformed (container %u)",
                         s->cont->number);
    rc = s->fn(&ok, val, vlen - FMT_BIRTH_BYTES, s->arg);
    if (rc == 0 && --s->left == 0)
        rc = 1;
    return rc;
}

/* The side entry at i of the page, as its live key; whether the snapshot sees it. */
static int side_at(const struct scan *s, const struct smap *m, uint32_t i, struct key *k,
                   bool *seen)
{
    uint64_t death;
    int rc = key_parse_side(smap_key(m, i), m->e[i].klen, k, &death);

    *seen = rc == 0 && death > s->cont->snap &&
            value_birth(smap_val(m, i), m->e[i].vlen) <= s->cont->snap;
    return rc;
}

/* Hands out a page of live entries merged with one of side entries, below `end` (NULL: all). */
static int scan_merge(struct scan *s, const struct smap *live, const struct smap *side,
                      const struct key *end)
{
    struct key k, sk;
    uint32_t i = 0, j = 0;
    bool seen = false;
    int rc = 0, c;

    while (rc == 0) {
        const struct smap_ent *e = i < live->n ? &live->e[i] : NULL;
        if (j < side->n && (rc = side_at(s, side, j, &sk, &seen)) < 0)
            break;
        if (!e && j >= side->n)
            break;
        c = !e ? 1 : j >= side->n ? -1 : key_cmp(smap_key(live, i), e->klen, sk.b, sk.len);
        if (c <= 0) {
            k.len = e->klen;
            memcpy(k.b, smap_key(live, i), k.len);
        }
        if (end && key_cmp(c <= 0 ? k.b : sk.b, c <= 0 ? k.len : sk.len, end->b, end->len) >= 0)
            break;
        if (c > 0) {
            if (seen)
                rc = scan_entry(s, &sk, smap_val(side, j), side->e[j].vlen);
            j++;
            continue;
        }
        if (reader_visible(s->r, k.b, k.len, value_birth(smap_val(live, i), e->vlen),
                           s->cont->snap))
            rc = scan_entry(s, &k, smap_val(live, i), e->vlen);
        i++;
    }
    return rc;
}

static int scan_live(struct scan *s)
{
    static const struct smap none;
    struct page *pg = &s->r->page[0];
    int rc;

    do {
        rc = reader_fill(s->cont->pool, s->r, 1);
        if (rc == 0)
            rc = scan_merge(s, &pg->out, &none, NULL);
        pg->lo = pg->next;
        pg->after = true;
    } while (rc == 0 && pg->more);
    return rc;
}

/* The live key at which a page of side entries was cut short. */
static int side_end(const struct page *side, struct key *end)
{
    uint64_t death;

    return key_parse_side(side->next.b, side->next.len, end, &death);
}

static int scan_snap(struct scan *s, struct key at)
{
    struct page *live = &s->r->page[0], *side = &s->r->page[1];
    struct key end, other;
    bool bounded;
    int rc = 0;

    side->hi = live->hi;
    side->hi.b[0] = KEY_SKV;
    side->after = false;
    side->lo = live->lo;
    side->lo.b[0] = KEY_SKV;
    for (bool first = true; rc == 0; first = false) {
        if (!first || at.len > KEY_OBJ_BYTES)
            rc = key_side(&side->lo, &at, 0);
        live->lo = at;
        live->after = false;
        if (rc == 0)
            rc = reader_fill(s->cont->pool, s->r, 2);
        if (rc < 0)
            break;
        bounded = live->more || side->more;
        if (live->more)
            end = live->next;
        if (side->more && (rc = side_end(side, &other)) < 0)
            break;
        if (side->more && (!live->more || key_cmp(other.b, other.len, end.b, end.len) < 0))
            end = other;
        if (bounded && key_cmp(end.b, end.len, at.b, at.len) <= 0) {
            /* one key with more versions, or tombstones, than a page: a longer page */
            side->limit *= 2;
            live->limit *= 2;
            continue;
        }
        rc = scan_merge(s, &live->out, &side->out, bounded ? &end : NULL);
        if (!bounded)
            break;
        at = end;
    }
    return rc;
}

int obj_kv_scan(struct obj_cont *cont, struct obj_id oid, const struct obj_key *from,
                uint64_t limit, obj_scan_fn fn, void *arg)
{
    struct scan s = {.cont = cont, .left = limit ? limit : UINT64_MAX, .fn = fn, .arg = arg};
    struct page *pg;
    int rc = 0;

    s.r = reader_get(cont->pool);
    if (!s.r)
        return -ENOMEM;
    pg = &s.r->page[0];
    key_obj(&pg->lo, KEY_KV, cont->number, oid);
    pg->hi = pg->lo;
    key_after_prefix(&pg->hi);
    if (from)
        rc = key_kv(&pg->lo, cont->number, oid, from);
    pg->after = false;
    pg->limit = s.r->page[1].limit = limit && limit < OBJ_PAGE_KEYS ? (uint32_t)limit + 1
                                                                     : OBJ_PAGE_KEYS;
    if (rc == 0)
        rc = cont->snap == OBJ_LIVE ? scan_live(&s) : scan_snap(&s, pg->lo);
    reader_put(cont->pool, s.r);
    return rc == 1 && s.left == 0 ? 0 : rc;
}
