/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commit: guards, the physical record, the journal, the overlay.
 *
 * A commit is computed under the lock from the layers as they are. What only the index can answer
 * is fetched without the lock and the commit is computed again (tx_view.c). Guards about whole
 * ranges (exists, empty) are answered before, without the lock, together with the object's change
 * counter; the answer counts if that is the same under the lock.
 */
#include "obj/obj_int.h"

enum { COMPUTED = 0, WANTS = 1, PROBE_AGAIN = 2 };

#define NOWAIT_KEYS 64u /* that a commit may ask the index for while its caller holds a lock */

static uint32_t gen_slot(const uint8_t *key)
{
    /* container and object; the table does not matter */
    uint64_t h = get_be32(key + 1) ^ get_be64(key + 5) * 0x9E3779B97F4A7C15ull;

    h = (h ^ get_be64(key + 13)) * 0xD6E8FEB86659FD93ull;
    return (uint32_t)(h >> 40) & (OBJ_GENS - 1);
}

/* -- guards ---------------------------------------------------------------------------------- */

static int run_probes(struct obj_tx *tx)
{
    struct obj_pool *pool = tx->pool;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < tx->n_op; i++) {
        struct tx_op *op = &tx->op[i];
        struct key lo, hi;
        if (op->kind != TX_PROBE)
            continue;
        lo.len = op->klen;
        memcpy(lo.b, tx->buf.p + op->koff, lo.len);
        hi.len = (uint16_t)op->vlen;
        memcpy(hi.b, tx->buf.p + op->voff, hi.len);
        op->probe.slot = gen_slot(lo.b);
        pthread_mutex_lock(&pool->lock);
        op->probe.gen = pool->gens[op->probe.slot];
        pthread_mutex_unlock(&pool->lock);
        if (key_cmp(lo.b, lo.len, hi.b, hi.len) < 0)
            rc = read_any(pool, &lo, &hi, &op->probe.any);
        else
            op->probe.any = false;
        if (rc == 0 && op->want_any && !op->probe.any) { /* keys or data */
            lo.b[0] = hi.b[0] = KEY_EXT;
            rc = read_any(pool, &lo, &hi, &op->probe.any);
        }
    }
    return rc;
}

/* The value that a reader would see now; *state NONE: none. */
static int visible(struct obj_tx *tx, const struct tx_op *op, const void **val, size_t *vlen,
                   enum overlay_state *state)
{
    const uint8_t *key = tx->buf.p + op->koff;
    int rc = tx_old(tx, key, op->klen, val, vlen, state);

    if (rc < 0)
        return rc;
    if (*state != OVERLAY_VALUE || tx_dead(tx, key, op->klen, value_birth(*val, *vlen)))
        *state = OVERLAY_NONE;
    else
        *vlen -= FMT_BIRTH_BYTES;
    return 0;
}

static int guard(struct obj_tx *tx, const struct tx_op *op)
{
    enum overlay_state st;
    const void *val = NULL;
    size_t vlen = 0;
    bool holds;
    int rc;

    if (op->kind == TX_PROBE) {
        if (op->probe.gen != tx->pool->gens[op->probe.slot])
            return PROBE_AGAIN;
        return op->probe.any == op->want_any ? 0 : -EAGAIN;
    }
    rc = visible(tx, op, &val, &vlen, &st);
    if (rc < 0 || tx->wanting)
        return rc;
    if (op->kind == TX_ABSENT)
        holds = st == OVERLAY_NONE;
    else
        holds = st == OVERLAY_VALUE && vlen == op->vlen &&
                memcmp(val, tx->buf.p + op->voff, vlen) == 0;
    return holds ? 0 : -EAGAIN;
}

/* -- ops ------------------------------------------------------------------------------------- */

/* With snapshots, what a put or a delete replaces may have to be kept. */
static int bury(struct obj_tx *tx, const uint8_t *key, size_t klen)
{
    enum overlay_state st;
    const void *val = NULL;
    size_t vlen = 0;
    int rc;

    if (!tx->crec || tx->crec->n_snaps == 0)
        return 0;
    rc = tx_old(tx, key, klen, &val, &vlen, &st);
    if (rc < 0 || st != OVERLAY_VALUE)
        return rc;
    return emit_death(tx, key, klen, val, vlen);
}

static int compute_counter(struct obj_tx *tx, const struct tx_op *op)
{
    const uint8_t *key = tx->buf.p + op->koff;
    enum overlay_state st;
    const void *val = NULL;
    size_t vlen = 0;
    uint64_t now = 0;
    uint8_t v[8];
    int rc = visible(tx, op, &val, &vlen, &st);

    if (rc < 0)
        return rc;
    if (st == OVERLAY_VALUE && vlen != sizeof(v))
        return base_refuse(-EUCLEAN, "a counter's value has %zu bytes", vlen);
    if (st == OVERLAY_VALUE)
        now = get_le64(val);
    if (op->kind == TX_ADD)
        now += (uint64_t)op->delta;
    else if (op->value > now)
        now = op->value;
    put_le64(v, now);
    rc = bury(tx, key, op->klen);
    return rc < 0 ? rc : emit_put(tx, key, op->klen, v, sizeof(v), &tx->epoch);
}

static int compute_op(struct obj_tx *tx, const struct tx_op *op)
{
    const uint8_t *key = tx->buf.p + op->koff, *val = tx->buf.p + op->voff;
    struct key k, hi;
    int rc;

    k.len = op->klen;
    if (k.len > 0)
        memcpy(k.b, key, k.len);
    switch (op->kind) {
    case TX_PUT:
        rc = bury(tx, key, op->klen);
        return rc < 0 ? rc : emit_put(tx, key, op->klen, val, op->vlen, &tx->epoch);
    case TX_DEL:
        rc = bury(tx, key, op->klen);
        return rc < 0 ? rc : emit_del(tx, key, op->klen);
    case TX_ADD:
    case TX_MAX:
        return compute_counter(tx, op);
    case TX_PUNCH:
        hi.len = (uint16_t)op->vlen;
        memcpy(hi.b, val, hi.len);
        return compute_punch(tx, &k, &hi);
    case TX_WRITE:
        return compute_write(tx, op);
    case TX_CUT:
        return compute_cut(tx, op->oid, op->cut.a, op->cut.b);
    case TX_EPOCH_PUT:
        put_be64(k.b + k.len - 8, k.b[0] == KEY_WORK ? tx->epoch << OBJ_WORK_SHIFT : tx->epoch);
        return emit_put(tx, k.b, k.len, val, op->vlen, &tx->epoch);
    case TX_RAW_PUT:
        return emit_put(tx, key, op->klen, val, op->vlen, &tx->epoch);
    case TX_RAW_DEL:
        return emit_del(tx, key, op->klen);
    case TX_FREE:
        return emit_blk(tx, REC_FREE, op->run.blk, op->run.n, NULL);
    case TX_RESUME:
        return compute_resume(tx, op);
    default:
        return 0;
    }
}

/* Builds the record. Under the lock; changes nothing but the tx. */
static int compute(struct obj_tx *tx)
{
    struct rec_head h = {0};
    int rc = 0;

    if (tx->turn != tx->pool->turn) {
        tx_forget(tx);
        tx->turn = tx->pool->turn;
    }
    tx->rec.len = tx->n_rec = tx->n_punched = 0;
    tx->wanting = false;
    tx->epoch = tx->pool->epoch + 1;
    tx->crec = tx->number ? tables_cont(tx->pool, tx->number) : NULL;
    smap_clear(&tx->delta);
    rc = bytes_add(&tx->rec, &h, sizeof(h));
    for (uint32_t i = 0; rc == 0 && i < tx->n_op; i++)
        if (tx->op[i].kind <= TX_PROBE)
            rc = guard(tx, &tx->op[i]);
    for (uint32_t i = 0; rc == 0 && i < tx->n_op; i++)
        if (tx->op[i].kind > TX_PROBE)
            rc = compute_op(tx, &tx->op[i]);
    if (rc == 0 && tx->wanting)
        return WANTS;
    if (rc != 0)
        return rc;
    h.n_ops = htole32(tx->n_rec);
    h.epoch = htole64(tx->epoch);
    memcpy(tx->rec.p, &h, sizeof(h));
    return COMPUTED;
}

/* -- applying -------------------------------------------------------------------------------- */

static int apply_kv(struct obj_pool *pool, const struct rec_kv *h, const uint8_t *key)
{
    size_t klen = le16toh(h->klen), vlen = le32toh(h->vlen);
    const uint8_t *val = key + klen;
    struct overlay *o = pool->active;
    int rc = h->op == REC_PUT ? overlay_put(o, key, klen, val, vlen) : overlay_del(o, key, klen);

    if (rc < 0)
        return rc;
    if (key[0] == KEY_KV || key[0] == KEY_EXT) {
        pool->gens[gen_slot(key)]++;
        return 0;
    }
    if (key[0] >= KEY_KV)
        return 0;
    if (key[0] == KEY_WORK && h->op == REC_PUT && vlen > sizeof(struct fmt_work) + KEY_OBJ_BYTES)
        pool->gens[gen_slot(val + sizeof(struct fmt_work))]++; /* a punch hides entries */
    if (h->op == REC_PUT)
        return tables_put(pool, key, klen, val, vlen);
    tables_del(pool, key, klen);
    return 0;
}

static int apply_blk(struct obj_pool *pool, const struct rec_blk *h, const uint8_t *data)
{
    uint64_t blk = le64toh(h->blk);
    uint32_t n = le32toh(h->n);
    int rc = 0;

    if (h->op == REC_ALLOC)
        return alloc_commit(pool->alloc, blk, n);
    if (h->op == REC_FREE) {
        rc = alloc_free(pool->alloc, blk, n);
        jdata_freed(pool, blk, n);
        return rc;
    }
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = jdata_add(pool, blk + i, data + ((size_t)i << DFE_BLOCK_SHIFT));
    return rc;
}

int rec_apply(struct obj_pool *pool, const uint8_t *rec, size_t len)
{
    const uint8_t *p = rec + sizeof(struct rec_head);
    uint32_t n = get_le32(rec);
    struct rec_blk b;
    struct rec_kv kv;
    int rc = 0;

    for (; rc == 0 && n > 0; n--) {
        if (*p == REC_PUT || *p == REC_DEL) {
            memcpy(&kv, p, sizeof(kv));
            rc = apply_kv(pool, &kv, p + sizeof(kv));
            p += sizeof(kv) + le16toh(kv.klen) + le32toh(kv.vlen);
        } else {
            memcpy(&b, p, sizeof(b));
            rc = apply_blk(pool, &b, p + sizeof(b));
            p += sizeof(b);
            if (b.op == REC_DATA)
                p += (size_t)le32toh(b.n) << DFE_BLOCK_SHIFT;
        }
    }
    if (rc == 0)
        pool->epoch = get_le64(rec + offsetof(struct rec_head, epoch));
    DFE_ASSERT(rc < 0 || p == rec + len);
    return rc;
}

/* -- commit ---------------------------------------------------------------------------------- */

static bool overlay_full(const struct obj_pool *pool)
{
    return overlay_bytes(pool->active) >= 2 * pool->overlay_limit;
}

/* May this tx be taken now? Under the lock. */
static int admit(struct obj_pool *pool, const struct obj_tx *tx)
{
    if (pool->read_only)
        return base_refuse(-EROFS, "the pool is read-only%s%s", pool->damage[0] ? ": " : "",
                           pool->damage);
    if (pool->index_full && !tx->deletes && tx->cont)
        return base_refuse(-ENOSPC, "the file system that holds the pool's index is full");
    if (overlay_full(pool)) {
        checkpoint_kick(pool);
        return pool->ckpt_err == -ENOSPC ? -ENOSPC : -EINPROGRESS;
    }
    return 0;
}

static int append_and_apply(struct obj_pool *pool, struct obj_tx *tx, uint64_t *end)
{
    struct journal_piece piece = {.ptr = tx->rec.p, .len = tx->rec.len};
    int rc;

    if (tx->tells)
        keep_value(pool->keep, tx->epoch);
    rc = journal_append(pool->journal, &piece, 1, end);

    if (rc < 0)
        return rc;
    tx->appended = true;
    rc = rec_apply(pool, tx->rec.p, tx->rec.len);
    if (rc < 0)
        pool_fail(pool, rc, "applying a commit");
    journal_note(pool);
    if (checkpoint_due(pool))
        checkpoint_kick(pool);
    return rc;
}

/* What the index must be asked: not for a caller that must not wait where it is much. */
static int answer(struct obj_tx *tx, unsigned flags)
{
    bool much = tx->n_want > NOWAIT_KEYS;

    for (uint32_t i = 0; i < tx->n_want && !much; i++)
        much = tx->want[i].hi_len > 0;
    if (!much || !(flags & OBJ_NOWAIT))
        return tx_fill(tx);
    tx_forget(tx);
    return -EINPROGRESS;
}

static int try_commit(struct obj_tx *tx, unsigned flags, uint64_t *end)
{
    struct obj_pool *pool = tx->pool;
    int rc = 0;

    if (tx->probes)
        rc = flags & OBJ_NOWAIT ? -EINPROGRESS : run_probes(tx);
    while (rc >= 0) {
        pthread_mutex_lock(&pool->lock);
        rc = admit(pool, tx);
        if (rc == 0)
            rc = compute(tx);
        if (rc == COMPUTED && tx->n_rec > 0)
            rc = append_and_apply(pool, tx, end);
        else if (rc == COMPUTED)
            *end = journal_head(pool->journal), tx->epoch = pool->epoch;
        pthread_mutex_unlock(&pool->lock);
        if (rc == WANTS)
            rc = answer(tx, flags);
        else if (rc == PROBE_AGAIN)
            rc = run_probes(tx);
        else
            break;
    }
    return rc;
}

int tx_commit(struct obj_tx *tx, unsigned flags, uint64_t *epoch)
{
    struct obj_pool *pool = tx->pool;
    uint64_t end = 0, at;
    int rc;

    tx->tells = epoch != NULL;
    rc = try_commit(tx, flags, &end);

    while (rc == -EINPROGRESS && !(flags & OBJ_NOWAIT)) {
        rc = obj_wait_room(pool);
        if (rc == 0)
            rc = try_commit(tx, flags, &end);
    }
    if (rc == -EINPROGRESS)
        return rc;
    at = tx->epoch;
    if (epoch && rc == 0)
        *epoch = at;
    if (rc == 0 && (flags & OBJ_SYNC))
        rc = journal_sync(pool, end, at);
    tx_end(tx, tx->appended); /* at last: its stages' blocks are not to count twice meanwhile */
    return rc;
}

int obj_tx_commit(struct obj_tx *tx, unsigned flags, uint64_t *epoch)
{
    return tx_commit(tx, flags, epoch);
}

int obj_wait_room(struct obj_pool *pool)
{
    bool full;
    uint64_t room;
    int rc;

    pthread_mutex_lock(&pool->lock);
    rc = pool->read_only ? -EROFS : 0;
    room = journal_room(pool->journal);
    pthread_mutex_unlock(&pool->lock);
    if (rc == 0)
        rc = journal_write(pool->journal, &pool->lock, room, false);
    pthread_mutex_lock(&pool->lock);
    if (rc < 0 && rc != -EROFS && !queue_transient(rc))
        pool_fail(pool, rc, "writing the journal");
    full = overlay_full(pool) || journal_ring_full(pool->journal, JOURNAL_RECORD_BYTES);
    pthread_mutex_unlock(&pool->lock);
    return rc == 0 && full ? checkpoint_wait(pool, false) : rc;
}
