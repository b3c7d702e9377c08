/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computing what a commit does to ranges: writes and holes of arrays, punched keys, steps of
 * continuations.
 *
 * Extents are cut exactly where a write or a hole begins and ends: the checksums are per block, so
 * that pieces need no reading. An extent that overlaps [a, b) begins in (a - DFE_EXTENT_BLOCKS, b).
 * Where a question is still with the index, found is empty and the commit will be computed again.
 */
#include "obj/obj_int.h"

#define REACH (DFE_EXTENT_BLOCKS - 1)
#define CUT_MAX (2 * DFE_EXTENT_BLOCKS) /* keys within reach of one extent's range, all of them */
static_assert(CUT_MAX <= OBJ_PUNCH_MAX, "a write never needs a continuation");

/* Removes entry i of found from the live table. */
static int kill_found(struct obj_tx *tx, uint32_t i)
{
    const struct smap_ent *e = &tx->found.e[i];
    const uint8_t *key = smap_key(&tx->found, i);
    int rc = emit_del(tx, key, e->klen);

    return rc < 0 ? rc : emit_death(tx, key, e->klen, smap_val(&tx->found, i), e->vlen);
}

/* Takes [a, b) out of the extent in entry i of found. */
static int cut_found(struct obj_tx *tx, struct obj_id oid, uint32_t i, uint64_t a, uint64_t b)
{
    const struct smap_ent *se = &tx->found.e[i];
    const uint8_t *key = smap_key(&tx->found, i);
    uint8_t v[FMT_EXT_MAX];
    uint64_t from, to, end;
    struct ext e;
    struct key k;
    size_t len;
    int rc = ext_parse(key, se->klen, smap_val(&tx->found, i), se->vlen, &e);

    if (rc < 0)
        return base_fail(rc, "extent entry of container %u, object %016llx%016llx is malformed",
                         tx->number, (unsigned long long)oid.hi, (unsigned long long)oid.lo);
    end = e.off + e.n;
    if (end <= a || e.off >= b)
        return 0;
    from = e.off > a ? e.off : a;
    to = end < b ? end : b;
    if (from > e.off) {
        len = ext_encode(v, &e, 0, (uint32_t)(from - e.off));
        rc = emit_put(tx, key, se->klen, v, len, NULL);
    } else {
        rc = emit_del(tx, key, se->klen);
    }
    if (rc == 0 && to < end) {
        key_ext(&k, tx->number, oid, to);
        len = ext_encode(v, &e, (uint32_t)(to - e.off), (uint32_t)(end - to));
        rc = emit_put(tx, k.b, k.len, v, len, NULL);
    }
    if (rc < 0)
        return rc;
    key_ext(&k, tx->number, oid, from);
    len = ext_encode(v, &e, (uint32_t)(from - e.off), (uint32_t)(to - from));
    return emit_death(tx, k.b, k.len, v, len);
}

/* Cuts [a, b) out of the extents that begin in [lo, hi). *more: too many to do so; nothing done. */
static int cut_within(struct obj_tx *tx, struct obj_id oid, uint64_t lo, uint64_t hi, uint64_t a,
                      uint64_t b, bool *more)
{
    struct key klo, khi;
    int rc;

    key_ext(&klo, tx->number, oid, lo);
    key_ext(&khi, tx->number, oid, hi);
    if (hi == UINT64_MAX) {
        key_obj(&khi, KEY_EXT, tx->number, oid);
        key_after_prefix(&khi);
    }
    rc = tx_collect(tx, &klo, &khi, OBJ_PUNCH_MAX, more);
    for (uint32_t i = 0; rc == 0 && !*more && i < tx->found.n; i++)
        rc = cut_found(tx, oid, i, a, b);
    return rc;
}

int compute_cut(struct obj_tx *tx, struct obj_id oid, uint64_t a, uint64_t b)
{
    uint64_t lo = a > REACH ? a - REACH : 0;
    struct key klo, khi;
    bool more;
    int rc;

    if (a >= b)
        return 0;
    rc = cut_within(tx, oid, lo, b, a, b, &more);
    if (rc < 0 || !more || tx->wanting)
        return rc;
    /* the ends exactly, now; what lies between by a continuation */
    if (lo < a)
        rc = cut_within(tx, oid, lo, a, a, b, &more);
    if (rc == 0 && b != UINT64_MAX)
        rc = cut_within(tx, oid, b > a + REACH ? b - REACH : a, b, a, b, &more);
    if (rc < 0)
        return rc;
    DFE_ASSERT(tx->wanting || !more || b == UINT64_MAX);
    key_ext(&klo, tx->number, oid, a);
    key_ext(&khi, tx->number, oid, b);
    if (b == UINT64_MAX) {
        key_obj(&khi, KEY_EXT, tx->number, oid);
        key_after_prefix(&khi);
    }
    return compute_punch(tx, &klo, &khi);
}

static int write_piece(struct obj_tx *tx, struct obj_id oid, const struct obj_stage *st,
                       const struct stage_piece *p, size_t data_at)
{
    struct ext e = {.off = p->off, .blk = p->blk, .n = p->n, .birth = tx->epoch,
                    .type = FMT_EXTENT, .body = st->crc + p->crc * 4u};
    uint8_t v[FMT_EXT_MAX];
    struct key k;
    size_t len;
    int rc = compute_cut(tx, oid, p->off, p->off + p->n);

    if (rc == 0)
        rc = emit_blk(tx, REC_ALLOC, p->blk, p->n, NULL);
    if (rc == 0 && st->data)
        rc = emit_blk(tx, REC_DATA, p->blk, p->n, st->data + data_at);
    if (rc < 0)
        return rc;
    key_ext(&k, tx->number, oid, p->off);
    len = ext_encode(v, &e, 0, p->n);
    return emit_put(tx, k.b, k.len, v, len, NULL);
}

static int write_inline(struct obj_tx *tx, struct obj_id oid, const struct obj_stage *st)
{
    struct ext e = {.n = 1, .bytes = st->inline_len, .birth = tx->epoch, .type = FMT_INLINE,
                    .body = st->data};
    uint8_t v[FMT_EXT_MAX];
    struct key k;
    size_t len;
    int rc = compute_cut(tx, oid, 0, UINT64_MAX);

    if (rc < 0 || st->inline_len == 0)
        return rc;
    rc = compute_cut(tx, oid, 0, 1); /* a continuation would leave the old entry in this place */
    if (rc < 0)
        return rc;
    key_ext(&k, tx->number, oid, 0);
    len = ext_encode(v, &e, 0, 1);
    return emit_put(tx, k.b, k.len, v, len, NULL);
}

int compute_write(struct obj_tx *tx, const struct tx_op *op)
{
    const struct obj_stage *st = op->stage;
    size_t data_at = 0;
    int rc = 0;

    if (st->is_inline)
        return write_inline(tx, op->oid, st);
    for (uint32_t i = 0; rc == 0 && i < st->n_piece; i++) {
        rc = write_piece(tx, op->oid, st, &st->piece[i], data_at);
        data_at += (size_t)st->piece[i].n << DFE_BLOCK_SHIFT;
    }
    return rc;
}

/* This tx's own entries in [lo, hi): a continuation spares what is born with it. */
static int kill_own(struct obj_tx *tx, const struct key *lo, const struct key *hi)
{
    const struct smap *d = &tx->delta;
    int rc = 0;

    smap_clear(&tx->found);
    for (uint32_t i = smap_seek(d, lo->b, lo->len); rc == 0 && i < d->n; i++) {
        if (key_cmp(smap_key(d, i), d->e[i].klen, hi->b, hi->len) >= 0)
            break;
        if (d->e[i].state == OVERLAY_VALUE &&
            value_birth(smap_val(d, i), d->e[i].vlen) == tx->epoch)
            rc = smap_put(&tx->found, smap_key(d, i), d->e[i].klen, smap_val(d, i), d->e[i].vlen,
                          OVERLAY_VALUE);
    }
    for (uint32_t i = 0; rc == 0 && i < tx->found.n; i++)
        rc = kill_found(tx, i);
    return rc;
}

int compute_punch(struct obj_tx *tx, const struct key *lo, const struct key *hi)
{
    bool more;
    int rc = tx_collect(tx, lo, hi, OBJ_PUNCH_MAX, &more);

    if (rc == 0 && more) {
        rc = kill_own(tx, lo, hi);
        return rc < 0 ? rc : emit_work(tx, lo, hi);
    }
    for (uint32_t i = 0; rc == 0 && i < tx->found.n; i++)
        rc = kill_found(tx, i);
    return rc;
}

int compute_resume(struct obj_tx *tx, const struct tx_op *op)
{
    const struct work *w = &op->step->work;
    struct key k;
    bool more;
    int rc = tx_collect(tx, &w->lo, &w->hi, OBJ_PUNCH_MAX, &more);

    for (uint32_t i = 0; rc == 0 && i < tx->found.n; i++)
        if (value_birth(smap_val(&tx->found, i), tx->found.e[i].vlen) < w->epoch)
            rc = kill_found(tx, i);
    op->step->done = !more;
    op->step->last = tx->last;
    if (rc == 0 && !more) {
        key_u64(&k, KEY_WORK, w->id);
        rc = emit_del(tx, k.b, k.len);
    }
    return rc;
}
