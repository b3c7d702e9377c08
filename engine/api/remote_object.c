/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects and transactions of the public API behind a session.
 *
 * A transaction is collected here and sent when it is committed. Its limits are checked as it
 * grows, with the engine's own measure of keys; beside them, all of it has to fit one request, the
 * data of its writes too. A longer array write is several transactions.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/remote.h"
#include "base/limits.h"
#include "obj/key.h"

_Static_assert(sizeof(struct dfe_oid) == 16, "PROTOCOL.md");

#define ARRAY_PIECE_BYTES DFE_TX_BYTES
#define VALUE_BYTES 65600u /* of a key, as obj_tx_put has it */
#define OP_COST 16u        /* of an operation against DFE_TX_BYTES, as engine/obj counts it */

static struct iovec piece(const void *base, size_t len)
{
    return (struct iovec){.iov_base = (void *)(uintptr_t)base, .iov_len = len};
}

/* -- keys ---------------------------------------------------------------------------------------
 */

/* What precedes the bytes of a key. */
struct key_head {
    struct dfe_oid oid;
    uint16_t dkey_len, akey_len;
    uint32_t reserved;
};

static int64_t ask_key(struct remote_cont *cont, struct client_call *call,
                       const struct dfe_oid *oid, const struct dfe_key *key)
{
    struct key_head head = {.oid = *oid};
    struct iovec push[3] = {piece(&head, sizeof(head))};

    call->push = push;
    call->n_push = 1;
    if (key) {
        head.dkey_len = key->dkey_len;
        head.akey_len = key->akey_len;
        push[1] = piece(key->dkey, key->dkey_len);
        push[2] = piece(key->akey, key->akey_len);
        call->n_push = 3;
    }
    return remote_ask(cont->pool, call);
}

static int remote_kv_get(struct dfe_cont *handle, const struct dfe_oid *oid,
                         const struct dfe_key *key, void *value, size_t cap, size_t *len)
{
    struct remote_cont *cont = remote_cont(handle);
    struct client_call call = {
        .sqe = {.op = PROTO_KV_GET, .handle = cont->handle},
        .reply_cap = cap < VALUE_BYTES ? cap : VALUE_BYTES,
    };
    int64_t ret = ask_key(cont, &call, oid, key);

    if (ret < 0)
        return (int)ret;
    remote_take(&call, value, cap);
    *len = (size_t)ret;
    return 0;
}

static ssize_t remote_kv_scan(struct dfe_cont *handle, const struct dfe_oid *oid,
                              const struct dfe_key *from, void *page, size_t cap)
{
    struct remote_cont *cont = remote_cont(handle);
    struct client_call call = {
        .sqe = {.op = PROTO_KV_SCAN, .handle = cont->handle, .len = from != NULL},
        .reply_cap = cap < PROTO_REPLY_BYTES ? cap : PROTO_REPLY_BYTES,
    };
    int64_t ret = ask_key(cont, &call, oid, from);

    return ret < 0 ? (ssize_t)ret : (ssize_t)remote_take(&call, page, cap);
}

/* -- arrays -------------------------------------------------------------------------------------
 */

static ssize_t remote_array_read(struct dfe_cont *handle, const struct dfe_oid *oid, uint64_t off,
                                 void *dst, size_t len)
{
    struct remote_cont *cont = remote_cont(handle);
    struct iovec push = piece(oid, sizeof(*oid));
    size_t done = 0;
    int64_t ret = api_check_range(off, len);

    while (ret >= 0 && done < len) {
        size_t n = len - done < PROTO_REPLY_BYTES ? len - done : PROTO_REPLY_BYTES;
        struct client_call call = {
            .sqe = {.op = PROTO_ARRAY_READ,
                    .handle = cont->handle,
                    .off = off + done,
                    .len = (uint32_t)n},
            .push = &push,
            .n_push = 1,
        };

        ret = remote_ask_for(cont->pool, &call, (uint8_t *)dst + done, n);
        done += n;
    }
    return ret < 0 ? (ssize_t)ret : (ssize_t)len;
}

static int refuse_read_only(const struct remote_cont *cont)
{
    return cont->read_only ? base_refuse(-EROFS, "the container is open read-only") : 0;
}

static ssize_t remote_array_write(struct dfe_cont *handle, const struct dfe_oid *oid, uint64_t off,
                                  const void *src, size_t len, unsigned sync)
{
    struct remote_cont *cont = remote_cont(handle);
    size_t done = 0;
    int64_t ret = api_check_range(off, len);

    if (ret == 0)
        ret = refuse_read_only(cont);
    while (ret >= 0 && done < len) {
        size_t n = len - done < ARRAY_PIECE_BYTES ? len - done : ARRAY_PIECE_BYTES;
        struct iovec push[] = {piece(oid, sizeof(*oid)), piece((const uint8_t *)src + done, n)};
        struct client_call call = {
            .sqe = {.op = PROTO_ARRAY_WRITE,
                    .handle = cont->handle,
                    .off = off + done,
                    .len = (uint32_t)n,
                    .arg = sync != 0},
            .push = push,
            .n_push = 2,
        };

        ret = remote_ask_plainly(cont->pool, &call);
        done += n;
    }
    return ret < 0 ? (ssize_t)ret : (ssize_t)len;
}

static int remote_array_punch(struct dfe_cont *handle, const struct dfe_oid *oid, uint64_t off,
                              uint64_t len)
{
    struct remote_cont *cont = remote_cont(handle);
    struct iovec push[] = {piece(oid, sizeof(*oid)), piece(&len, sizeof(len))};
    struct client_call call = {
        .sqe = {.op = PROTO_ARRAY_PUNCH, .handle = cont->handle, .off = off},
        .push = push,
        .n_push = 2,
    };
    int ret = refuse_read_only(cont);

    return ret < 0 ? ret : remote_ask_plainly(cont->pool, &call);
}

static int remote_array_next(struct dfe_cont *handle, const struct dfe_oid *oid, uint64_t off,
                             int what, uint64_t *out)
{
    struct remote_cont *cont = remote_cont(handle);
    struct iovec push = piece(oid, sizeof(*oid));
    struct client_call call = {
        .sqe = {.op = PROTO_ARRAY_NEXT, .handle = cont->handle, .off = off, .arg = (uint32_t)what},
        .push = &push,
        .n_push = 1,
    };
    int ret = remote_ask_plainly(cont->pool, &call);

    if (ret == 0)
        *out = call.cqe.value;
    return ret;
}

/* -- transactions ---------------------------------------------------------------------------------
 */

struct remote_tx {
    struct dfe_tx dfe;
    struct remote_cont *cont;
    struct dfe_oid home;
    uint8_t *records; /* proto_tx, one after the other */
    size_t used, cap;
    unsigned ops;
    size_t bytes; /* as DFE_TX_BYTES counts them */
};

static const struct tx_ops remote_tx_ops;

static struct remote_tx *remote_tx(struct dfe_tx *tx)
{
    return container_of(tx, struct remote_tx, dfe);
}

/* Bytes of records that fit its request. */
static size_t room(const struct remote_tx *tx)
{
    return tx->cont->pool->push_bytes - sizeof(tx->home);
}

static int remote_tx_begin(struct dfe_cont *handle, const struct dfe_oid *home, struct dfe_tx **out)
{
    struct remote_cont *cont = remote_cont(handle);
    struct remote_tx *tx;
    int ret = remote_alive(cont->pool);

    if (ret == 0)
        ret = refuse_read_only(cont);
    if (ret < 0)
        return ret;
    tx = calloc(1, sizeof(*tx));
    if (!tx)
        return -ENOMEM;
    tx->dfe.ops = &remote_tx_ops;
    tx->cont = cont;
    tx->home = *home;
    remote_cont_use(cont);
    *out = &tx->dfe;
    return 0;
}

static void remote_tx_abort(struct dfe_tx *handle)
{
    struct remote_tx *tx = remote_tx(handle);

    remote_cont_unuse(tx->cont);
    free(tx->records);
    free(tx);
}

static int make_room(struct remote_tx *tx, size_t need)
{
    size_t cap = tx->cap ? tx->cap : 4096;
    uint8_t *more;

    while (cap < tx->used + need)
        cap *= 2;
    if (cap == tx->cap)
        return 0;
    more = realloc(tx->records, cap);
    if (!more)
        return -ENOMEM;
    tx->records = more;
    tx->cap = cap;
    return 0;
}

/* One record. cost: what it counts against DFE_TX_BYTES. */
static int add(struct remote_tx *tx, const struct proto_tx *head, const struct dfe_key *key,
               const void *data, size_t cost)
{
    size_t keys = (size_t)head->dkey_len + head->akey_len;
    size_t len = (sizeof(*head) + keys + head->data_len + 7) & ~(size_t)7;
    uint8_t *at;
    int ret = remote_alive(tx->cont->pool);

    if (ret < 0)
        return ret;
    if (tx->ops >= DFE_TX_OPS || tx->bytes + cost > DFE_TX_BYTES)
        return base_refuse(-E2BIG, "a transaction is over its limit of %u operations or %u bytes",
                           DFE_TX_OPS, DFE_TX_BYTES);
    if (tx->used + len > room(tx))
        return base_refuse(-E2BIG, "a transaction over a session is over its limit of %zu bytes",
                           room(tx));
    ret = make_room(tx, len);
    if (ret < 0)
        return ret;
    at = tx->records + tx->used;
    memset(at, 0, len);
    memcpy(at, head, sizeof(*head));
    at += sizeof(*head);
    if (head->dkey_len)
        memcpy(at, key->dkey, head->dkey_len);
    if (head->akey_len)
        memcpy(at + head->dkey_len, key->akey, head->akey_len);
    if (head->data_len)
        memcpy(at + keys, data, head->data_len);
    tx->used += len;
    tx->ops++;
    tx->bytes += cost;
    return 0;
}

/* A record of one key: refused here where the engine would refuse it. */
static int add_key(struct remote_tx *tx, uint32_t type, const struct dfe_oid *oid,
                   const struct dfe_key *key, const void *data, size_t len, uint64_t arg)
{
    struct obj_key as_obj = {
        .dkey = key->dkey, .dkey_len = key->dkey_len, .akey = key->akey, .akey_len = key->akey_len};
    struct proto_tx head = {
        .type = type,
        .data_len = (uint32_t)len,
        .dkey_len = key->dkey_len,
        .akey_len = key->akey_len,
        .oid_hi = oid->hi,
        .oid_lo = oid->lo,
        .arg = arg,
    };
    struct key encoded;
    int ret = key_kv(&encoded, 0, (struct obj_id){.hi = oid->hi, .lo = oid->lo}, &as_obj);

    if (ret < 0)
        return ret;
    if (len > VALUE_BYTES)
        return base_refuse(-E2BIG, "a value of %zu bytes is over the limit of %u", len,
                           VALUE_BYTES);
    return add(tx, &head, key, data, encoded.len + len + OP_COST);
}

static int remote_tx_guard_absent(struct dfe_tx *handle, const struct dfe_key *key)
{
    struct remote_tx *tx = remote_tx(handle);

    return add_key(tx, PROTO_TX_GUARD_ABSENT, &tx->home, key, NULL, 0, 0);
}

static int remote_tx_guard_equal(struct dfe_tx *handle, const struct dfe_key *key,
                                 const void *value, size_t len)
{
    struct remote_tx *tx = remote_tx(handle);

    return add_key(tx, PROTO_TX_GUARD_EQUAL, &tx->home, key, value, len, 0);
}

static int remote_tx_guard_exists(struct dfe_tx *handle)
{
    struct remote_tx *tx = remote_tx(handle);
    struct proto_tx head = {.type = PROTO_TX_GUARD_EXISTS};

    return add(tx, &head, NULL, NULL, OP_COST);
}

static int remote_tx_put(struct dfe_tx *handle, const struct dfe_oid *oid,
                         const struct dfe_key *key, const void *value, size_t len)
{
    return add_key(remote_tx(handle), PROTO_TX_PUT, oid, key, value, len, 0);
}

static int remote_tx_del(struct dfe_tx *handle, const struct dfe_oid *oid,
                         const struct dfe_key *key)
{
    return add_key(remote_tx(handle), PROTO_TX_DEL, oid, key, NULL, 0, 0);
}

static int remote_tx_punch_dkey(struct dfe_tx *handle, const struct dfe_oid *oid, const void *dkey,
                                uint16_t dkey_len)
{
    struct dfe_key key = {.dkey = dkey, .dkey_len = dkey_len};

    return add_key(remote_tx(handle), PROTO_TX_PUNCH_DKEY, oid, &key, NULL, 0, 0);
}

static int remote_tx_punch_object(struct dfe_tx *handle, const struct dfe_oid *oid)
{
    struct proto_tx head = {.type = PROTO_TX_PUNCH_OBJECT, .oid_hi = oid->hi, .oid_lo = oid->lo};

    return add(remote_tx(handle), &head, NULL, NULL, OP_COST);
}

static int remote_tx_add(struct dfe_tx *handle, const struct dfe_oid *oid,
                         const struct dfe_key *key, int64_t delta)
{
    return add_key(remote_tx(handle), PROTO_TX_ADD, oid, key, NULL, 0, (uint64_t)delta);
}

static int remote_tx_max(struct dfe_tx *handle, const struct dfe_oid *oid,
                         const struct dfe_key *key, uint64_t value)
{
    return add_key(remote_tx(handle), PROTO_TX_MAX, oid, key, NULL, 0, value);
}

static int remote_tx_write(struct dfe_tx *handle, const struct dfe_oid *oid, uint64_t off,
                           const void *src, size_t len)
{
    struct remote_tx *tx = remote_tx(handle);
    struct proto_tx head = {
        .type = PROTO_TX_WRITE, .oid_hi = oid->hi, .oid_lo = oid->lo, .arg = off};
    int ret;

    if ((off | len) & (DFE_BLOCK_BYTES - 1))
        return base_refuse(-EINVAL, "a transaction writes whole blocks of 4 KiB");
    ret = api_check_range(off, len);
    if (ret < 0)
        return ret;
    if (len > UINT32_MAX)
        return base_refuse(-E2BIG, "a transaction over a session is over its limit of %zu bytes",
                           room(tx));
    head.data_len = (uint32_t)len;
    return add(tx, &head, NULL, src, OP_COST);
}

static int remote_tx_commit(struct dfe_tx *handle, int sync, uint64_t *epoch)
{
    struct remote_tx *tx = remote_tx(handle);
    struct iovec push[] = {piece(&tx->home, sizeof(tx->home)), piece(tx->records, tx->used)};
    struct client_call call = {
        .sqe = {.op = PROTO_TX_COMMIT, .handle = tx->cont->handle, .arg = sync != 0},
        .push = push,
        .n_push = 2,
    };
    int ret = remote_ask_plainly(tx->cont->pool, &call);

    if (ret == 0 && epoch)
        *epoch = call.cqe.value;
    remote_tx_abort(handle); /* it has ended, whatever came of it */
    return ret;
}

static const struct tx_ops remote_tx_ops = {
    .abort = remote_tx_abort,
    .guard_absent = remote_tx_guard_absent,
    .guard_equal = remote_tx_guard_equal,
    .guard_exists = remote_tx_guard_exists,
    .put = remote_tx_put,
    .del = remote_tx_del,
    .punch_dkey = remote_tx_punch_dkey,
    .punch_object = remote_tx_punch_object,
    .add = remote_tx_add,
    .max = remote_tx_max,
    .write = remote_tx_write,
    .commit = remote_tx_commit,
};

const struct object_ops remote_object_ops = {
    .kv_get = remote_kv_get,
    .kv_scan = remote_kv_scan,
    .array_read = remote_array_read,
    .array_write = remote_array_write,
    .array_punch = remote_array_punch,
    .array_next = remote_array_next,
    .tx_begin = remote_tx_begin,
};
