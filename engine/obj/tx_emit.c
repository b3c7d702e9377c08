/* SPDX-License-Identifier: Apache-2.0 */
/* Building the physical record of a commit. */
#include "obj/obj_int.h"

static bool keeps_delta(const struct obj_tx *tx)
{
    return tx->reads_own || (tx->crec && tx->crec->n_snaps > 0);
}

/* Room for one op. A record that would not fit the journal is refused before it takes memory. */
static int rec_room(struct obj_tx *tx, size_t len)
{
    if (tx->rec.len + len > JOURNAL_RECORD_BYTES)
        return base_refuse(-E2BIG, "a transaction needs a journal record of over %u bytes",
                           JOURNAL_RECORD_BYTES);
    return bytes_room(&tx->rec, len);
}

int emit_put(struct obj_tx *tx, const void *key, size_t klen, const void *val, size_t vlen,
             const uint64_t *birth)
{
    size_t len = vlen + (birth ? FMT_BIRTH_BYTES : 0);
    struct rec_kv h = {.op = REC_PUT, .klen = htole16((uint16_t)klen),
                       .vlen = htole32((uint32_t)len)};
    int rc = rec_room(tx, sizeof(h) + klen + len);
    size_t at;

    if (rc < 0)
        return rc;
    bytes_add(&tx->rec, &h, sizeof(h));
    at = tx->rec.len;
    bytes_add(&tx->rec, key, klen);
    bytes_add(&tx->rec, val, vlen);
    if (birth) {
        put_le64(tx->rec.p + tx->rec.len, *birth);
        tx->rec.len += FMT_BIRTH_BYTES;
    }
    tx->n_rec++;
    if (keeps_delta(tx))
        rc = smap_put(&tx->delta, tx->rec.p + at, klen, tx->rec.p + at + klen, len, OVERLAY_VALUE);
    return rc;
}

int emit_del(struct obj_tx *tx, const void *key, size_t klen)
{
    struct rec_kv h = {.op = REC_DEL, .klen = htole16((uint16_t)klen)};
    int rc = rec_room(tx, sizeof(h) + klen);
    size_t at;

    if (rc < 0)
        return rc;
    bytes_add(&tx->rec, &h, sizeof(h));
    at = tx->rec.len;
    bytes_add(&tx->rec, key, klen);
    tx->n_rec++;
    if (keeps_delta(tx))
        rc = smap_put(&tx->delta, tx->rec.p + at, klen, NULL, 0, OVERLAY_TOMB);
    return rc;
}

int emit_blk(struct obj_tx *tx, uint8_t op, uint64_t blk, uint32_t n, const void *data)
{
    struct rec_blk h = {.op = op, .n = htole32(n), .blk = htole64(blk)};
    size_t len = data ? (size_t)n << DFE_BLOCK_SHIFT : 0;
    int rc = rec_room(tx, sizeof(h) + len);

    if (rc < 0)
        return rc;
    bytes_add(&tx->rec, &h, sizeof(h));
    bytes_add(&tx->rec, data, len);
    tx->n_rec++;
    return 0;
}

static bool seen_by_snapshot(const struct obj_tx *tx, uint64_t birth, uint64_t death)
{
    const struct cont_rec *c = tx->crec;

    for (unsigned i = 0; c && i < c->n_snaps; i++)
        if (birth <= c->snaps[i].epoch && c->snaps[i].epoch < death)
            return true;
    return false;
}

int emit_death(struct obj_tx *tx, const void *key, size_t klen, const void *val, size_t vlen)
{
    uint64_t birth = value_birth(val, vlen), death;
    struct key live, side;
    struct ext e;
    int rc;

    death = list_empty(&tx->pool->works) ? 0 : works_death(tx->pool, key, klen, birth);
    if (death == 0)
        death = tx->epoch;
    if (seen_by_snapshot(tx, birth, death)) {
        live.len = (uint16_t)klen;
        memcpy(live.b, key, klen);
        rc = key_side(&side, &live, death);
        return rc < 0 ? rc : emit_put(tx, side.b, side.len, val, vlen, NULL);
    }
    if (*(const uint8_t *)key != KEY_EXT)
        return 0;
    rc = ext_parse(key, klen, val, vlen, &e);
    if (rc == 0 && !ext_in_device(tx->pool, &e))
        rc = -EUCLEAN;
    if (rc < 0)
        return base_fail(rc, "extent at block %llu of an object is malformed",
                         (unsigned long long)e.off);
    return e.type == FMT_EXTENT ? emit_blk(tx, REC_FREE, e.blk, e.n, NULL) : 0;
}

int emit_work(struct obj_tx *tx, const struct key *lo, const struct key *hi)
{
    uint8_t v[sizeof(struct fmt_work) + 2 * DFE_KEY_BYTES];
    struct fmt_work f = {.kind = FMT_WORK_PUNCH, .cont = htole32(tx->number),
                         .epoch = htole64(tx->epoch), .lo_len = htole16(lo->len),
                         .hi_len = htole16(hi->len)};
    struct key k;

    if (tx->n_punched == tx->cap_punched) {
        uint32_t cap = tx->cap_punched ? tx->cap_punched * 2 : 2;
        struct key_range *p = realloc(tx->punched, cap * sizeof(*p));
        if (!p)
            return -ENOMEM;
        tx->punched = p;
        tx->cap_punched = cap;
    }
    memcpy(v, &f, sizeof(f));
    memcpy(v + sizeof(f), lo->b, lo->len);
    memcpy(v + sizeof(f) + lo->len, hi->b, hi->len);
    key_u64(&k, KEY_WORK, tx->epoch << OBJ_WORK_SHIFT | tx->n_punched);
    tx->punched[tx->n_punched++] = (struct key_range){.lo = *lo, .hi = *hi};
    return emit_put(tx, k.b, k.len, v, sizeof(f) + lo->len + hi->len, &tx->epoch);
}

bool tx_dead(const struct obj_tx *tx, const void *key, size_t klen, uint64_t birth)
{
    if (!list_empty(&tx->pool->works) && works_death(tx->pool, key, klen, birth) != 0)
        return true;
    for (uint32_t i = 0; birth < tx->epoch && i < tx->n_punched; i++)
        if (key_cmp(tx->punched[i].lo.b, tx->punched[i].lo.len, key, klen) <= 0 &&
            key_cmp(key, klen, tx->punched[i].hi.b, tx->punched[i].hi.len) < 0)
            return true;
    return false;
}
