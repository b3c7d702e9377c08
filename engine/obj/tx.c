/* SPDX-License-Identifier: Apache-2.0 */
/* Building transactions: ops are encoded as they come; nothing is looked up before commit. */
#include "obj/obj_int.h"

#define OP_COST 16u /* a record op's head, against DFE_TX_BYTES */

static int tx_take(struct obj_pool *pool, struct obj_tx **out)
{
    struct obj_tx *tx = NULL;

    pthread_mutex_lock(&pool->lock);
    if (!list_empty(&pool->txs)) {
        tx = container_of(pool->txs.next, struct obj_tx, link);
        list_del(&tx->link);
    }
    pthread_mutex_unlock(&pool->lock);
    if (!tx)
        tx = calloc(1, sizeof(*tx));
    if (!tx)
        return -ENOMEM;
    tx->pool = pool;
    tx->n_op = 0;
    tx->buf.len = 0;
    tx->bytes = 0;
    tx->deletes = tx->reads_own = tx->probes = tx->appended = false;
    *out = tx;
    return 0;
}

int obj_tx_begin(struct obj_cont *cont, struct obj_id home, struct obj_tx **out)
{
    int rc;

    if (obj_cont_read_only(cont))
        return base_refuse(-EROFS, "the container is open read-only");
    rc = tx_take(cont->pool, out);
    if (rc < 0)
        return rc;
    (*out)->cont = cont;
    (*out)->number = cont->number;
    (*out)->home = home;
    return 0;
}

int tx_begin_pool(struct obj_pool *pool, uint32_t number, struct obj_tx **out)
{
    int rc = tx_take(pool, out);

    if (rc == 0) {
        (*out)->cont = NULL;
        (*out)->number = number;
    }
    return rc;
}

void tx_end(struct obj_tx *tx, bool committed)
{
    struct obj_pool *pool = tx->pool;

    for (uint32_t i = 0; i < tx->n_op; i++)
        if (tx->op[i].kind == TX_WRITE) {
            tx->op[i].stage->committed = committed;
            obj_stage_drop(tx->op[i].stage);
        }
    tx_forget(tx);
    smap_clear(&tx->delta);
    smap_clear(&tx->found);
    if (tx->buf.cap > DFE_TX_BYTES / 4)
        bytes_free(&tx->buf);
    if (tx->rec.cap > DFE_TX_BYTES / 4)
        bytes_free(&tx->rec);
    pthread_mutex_lock(&pool->lock);
    list_add(&pool->txs, &tx->link);
    pthread_mutex_unlock(&pool->lock);
}

void obj_tx_abort(struct obj_tx *tx)
{
    if (tx)
        tx_end(tx, false);
}

int tx_add_op(struct obj_tx *tx, const struct tx_op *op, const void *key, size_t klen,
              const void *val, size_t vlen, uint64_t bytes)
{
    struct tx_op *o;
    int rc;

    bytes += klen + vlen + OP_COST;
    if (tx->n_op >= DFE_TX_OPS || tx->bytes + bytes > DFE_TX_BYTES)
        return base_refuse(-E2BIG, "a transaction is over its limit of %u operations or %u bytes",
                           DFE_TX_OPS, DFE_TX_BYTES);
    if (tx->n_op == tx->cap_op) {
        uint32_t cap = tx->cap_op ? tx->cap_op * 2 : 16;
        o = realloc(tx->op, cap * sizeof(*o));
        if (!o)
            return -ENOMEM;
        tx->op = o;
        tx->cap_op = cap;
    }
    rc = bytes_room(&tx->buf, klen + vlen);
    if (rc < 0)
        return rc;
    o = &tx->op[tx->n_op++];
    *o = *op;
    o->koff = (uint32_t)tx->buf.len;
    o->klen = (uint16_t)klen;
    bytes_add(&tx->buf, key, klen);
    o->voff = (uint32_t)tx->buf.len;
    o->vlen = (uint32_t)vlen;
    bytes_add(&tx->buf, val, vlen);
    tx->bytes += bytes;
    return 0;
}

static int key_op(struct obj_tx *tx, const struct tx_op *op, struct obj_id oid,
                  const struct obj_key *key, const void *val, size_t vlen)
{
    struct key k;
    int rc = key_kv(&k, tx->number, oid, key);

    if (rc < 0)
        return rc;
    return tx_add_op(tx, op, k.b, k.len, val, vlen, 0);
}

/* -- guards ---------------------------------------------------------------------------------- */

int obj_tx_guard_absent(struct obj_tx *tx, const struct obj_key *key)
{
    return key_op(tx, &(struct tx_op){.kind = TX_ABSENT}, tx->home, key, NULL, 0);
}

int obj_tx_guard_equal(struct obj_tx *tx, const struct obj_key *key, const void *value, size_t len)
{
    return key_op(tx, &(struct tx_op){.kind = TX_EQUAL}, tx->home, key, value, len);
}

/* Ranges are ops whose key is the lower and whose value the upper bound. */
static int range_op(struct obj_tx *tx, const struct tx_op *op, const struct key *lo,
                    const struct key *hi)
{
    return tx_add_op(tx, op, lo->b, lo->len, hi->b, hi->len, 0);
}

/* lo is a whole object's prefix: everything that begins with it. */
static int prefix_op(struct obj_tx *tx, const struct tx_op *op, const struct key *lo)
{
    struct key hi = *lo;

    key_after_prefix(&hi);
    return range_op(tx, op, lo, &hi);
}

int obj_tx_guard_exists(struct obj_tx *tx)
{
    /* keys or data: the op's key is the KV prefix, commit asks EXT as well */
    struct key lo;

    tx->probes = true;
    key_obj(&lo, KEY_KV, tx->number, tx->home);
    return prefix_op(tx, &(struct tx_op){.kind = TX_PROBE, .want_any = true}, &lo);
}

int obj_tx_guard_empty(struct obj_tx *tx, const struct obj_key *from, const struct obj_key *to)
{
    struct key lo, hi;
    int rc = 0;

    key_obj(&lo, KEY_KV, tx->number, tx->home);
    hi = lo;
    key_after_prefix(&hi);
    if (from)
        rc = key_kv(&lo, tx->number, tx->home, from);
    if (rc == 0 && to)
        rc = key_kv(&hi, tx->number, tx->home, to);
    if (rc < 0)
        return rc;
    tx->probes = true;
    return range_op(tx, &(struct tx_op){.kind = TX_PROBE}, &lo, &hi);
}

/* -- keys ------------------------------------------------------------------------------------ */

int obj_tx_put(struct obj_tx *tx, unsigned when, struct obj_id oid, const struct obj_key *key,
               const void *value, size_t len)
{
    if (len > OBJ_VALUE_MAX)
        return base_refuse(-E2BIG, "a value of %zu bytes is over the limit of %u", len,
                           OBJ_VALUE_MAX);
    return key_op(tx, &(struct tx_op){.kind = TX_PUT}, oid, key, value, len);
}

int obj_tx_del(struct obj_tx *tx, unsigned when, struct obj_id oid, const struct obj_key *key)
{
    tx->deletes = true;
    return key_op(tx, &(struct tx_op){.kind = TX_DEL}, oid, key, NULL, 0);
}

int obj_tx_add(struct obj_tx *tx, unsigned when, struct obj_id oid, const struct obj_key *key,
               int64_t delta)
{
    tx->reads_own = true;
    return key_op(tx, &(struct tx_op){.kind = TX_ADD, .delta = delta}, oid, key, NULL, 0);
}

int obj_tx_max(struct obj_tx *tx, unsigned when, struct obj_id oid, const struct obj_key *key,
               uint64_t value)
{
    tx->reads_own = true;
    return key_op(tx, &(struct tx_op){.kind = TX_MAX, .value = value}, oid, key, NULL, 0);
}

int obj_tx_punch_dkey(struct obj_tx *tx, unsigned when, struct obj_id oid, const void *dkey,
                      uint16_t dkey_len)
{
    struct obj_key first = {.dkey = dkey, .dkey_len = dkey_len};
    struct key lo, hi;
    int rc = key_kv(&lo, tx->number, oid, &first);

    if (rc == 0)
        rc = key_kv_dkey_end(&hi, tx->number, oid, dkey, dkey_len);
    if (rc < 0)
        return rc;
    tx->deletes = tx->reads_own = true;
    return range_op(tx, &(struct tx_op){.kind = TX_PUNCH, .oid = oid}, &lo, &hi);
}

/* -- arrays ---------------------------------------------------------------------------------- */

int obj_tx_write(struct obj_tx *tx, unsigned when, struct obj_id oid, struct obj_stage *stage)
{
    struct tx_op op = {.kind = TX_WRITE, .oid = oid, .stage = stage};
    uint64_t bytes = stage->inline_len;
    int rc;

    for (uint32_t i = 0; i < stage->n_piece; i++)
        bytes += 3 * OP_COST + KEY_OBJ_BYTES + 32 +
                 (uint64_t)stage->piece[i].n * (stage->data ? DFE_BLOCK_BYTES + 4 : 4);
    tx->reads_own = true;
    rc = tx_add_op(tx, &op, NULL, 0, NULL, 0, bytes);
    if (rc < 0)
        obj_stage_drop(stage);
    return rc;
}

int obj_tx_punch_array(struct obj_tx *tx, unsigned when, struct obj_id oid, uint64_t off,
                       uint64_t len)
{
    struct tx_op op = {.kind = TX_CUT, .oid = oid};

    if (off % DFE_BLOCK_BYTES || (len != UINT64_MAX && (len % DFE_BLOCK_BYTES || off + len < off)))
        return base_refuse(-EINVAL, "a hole is in units of %u bytes", DFE_BLOCK_BYTES);
    op.cut.a = off >> DFE_BLOCK_SHIFT;
    op.cut.b = len == UINT64_MAX ? UINT64_MAX : (off + len) >> DFE_BLOCK_SHIFT;
    tx->deletes = tx->reads_own = true;
    return tx_add_op(tx, &op, NULL, 0, NULL, 0, 0);
}

int obj_tx_punch_object(struct obj_tx *tx, unsigned when, struct obj_id oid)
{
    struct key lo;
    int rc;

    key_obj(&lo, KEY_KV, tx->number, oid);
    tx->deletes = tx->reads_own = true;
    rc = prefix_op(tx, &(struct tx_op){.kind = TX_PUNCH, .oid = oid}, &lo);
    return rc < 0 ? rc : obj_tx_punch_array(tx, when, oid, 0, UINT64_MAX);
}

int tx_raw(struct obj_tx *tx, enum tx_kind kind, const struct key *key, const void *val, size_t len)
{
    if (kind == TX_RAW_DEL)
        tx->deletes = true;
    return tx_add_op(tx, &(struct tx_op){.kind = kind}, key->b, key->len, val, len, 0);
}
