/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on objects: keys, arrays, transactions. */
#include <errno.h>
#include <string.h>

#include "base/limits.h"
#include "service/dispatch_int.h"

/* Reads from the private copy of the push area, never past its end. */
struct cursor {
    const uint8_t *at;
    size_t left;
};

/* NULL: there are not so many bytes. */
static const uint8_t *take(struct cursor *cur, size_t len)
{
    const uint8_t *at = cur->at;

    if (len > cur->left)
        return NULL;
    cur->at += len;
    cur->left -= len;
    return at;
}

static struct cursor cursor(struct call *c, struct dfe_oid *oid)
{
    struct cursor cur = {c->push, c->push_len};

    memcpy(oid, take(&cur, sizeof(*oid)), sizeof(*oid)); /* the table asks for that much */
    return cur;
}

/* -- keys ------------------------------------------------------------------------------------- */

static int take_key(struct call *c, struct dfe_oid *oid, struct dfe_key *key)
{
    struct cursor cur = cursor(c, oid);
    const uint8_t *head = take(&cur, 8);
    uint32_t zero;

    memcpy(&key->dkey_len, head, 2);
    memcpy(&key->akey_len, head + 2, 2);
    memcpy(&zero, head + 4, 4);
    if (zero || cur.left != (size_t)key->dkey_len + key->akey_len)
        return base_refuse(-EINVAL, "a key's lengths are not those of its bytes");
    key->dkey = take(&cur, key->dkey_len);
    key->akey = take(&cur, key->akey_len);
    return 0;
}

int64_t op_kv_get(struct call *c)
{
    struct dfe_oid oid;
    struct dfe_key key;
    size_t len = 0;
    int ret;

    ret = take_key(c, &oid, &key);
    if (ret < 0)
        return ret;
    ret = dfe_kv_get(c->cont, &oid, &key, c->req->reply, c->e->reply_cap, &len);
    if (ret < 0)
        return ret;
    c->out->reply_len = len < c->e->reply_cap ? (uint32_t)len : c->e->reply_cap;
    return (int64_t)len;
}

int64_t op_kv_scan(struct call *c)
{
    struct dfe_oid oid;
    struct dfe_key key;
    ssize_t n;
    int ret;

    ret = take_key(c, &oid, &key);
    if (ret < 0)
        return ret;
    n = dfe_kv_scan(c->cont, &oid, c->e->len ? &key : NULL, c->req->reply, c->e->reply_cap);
    if (n > 0)
        c->out->reply_len = (uint32_t)n;
    return n;
}

/* -- arrays ----------------------------------------------------------------------------------- */

int64_t op_array_read(struct call *c)
{
    struct dfe_oid oid;
    ssize_t n;

    cursor(c, &oid);
    if (c->e->len > c->e->reply_cap)
        return base_refuse(-EINVAL, "%u bytes do not fit the reply", c->e->len);
    n = dfe_array_read(c->cont, &oid, c->e->off, c->req->reply, c->e->len);
    if (n > 0)
        c->out->reply_len = (uint32_t)n;
    return n;
}

/* From a copy: arrays are checksummed and written where they are, and would be written as the
 * client changes them. */
int64_t op_array_write(struct call *c)
{
    struct dfe_oid oid;
    struct cursor cur = cursor(c, &oid);

    return dfe_array_write(c->cont, &oid, c->e->off, cur.at, cur.left, c->e->arg != 0);
}

int64_t op_array_punch(struct call *c)
{
    struct dfe_oid oid;
    struct cursor cur = cursor(c, &oid);
    uint64_t len;

    memcpy(&len, take(&cur, 8), 8);
    return dfe_array_punch(c->cont, &oid, c->e->off, len);
}

int64_t op_array_next(struct call *c)
{
    struct dfe_oid oid;

    cursor(c, &oid);
    if (c->e->arg > 1)
        return base_refuse(-EINVAL, "0 is data, 1 is a hole; %u is neither", c->e->arg);
    return dfe_array_next(c->cont, &oid, c->e->off, (int)c->e->arg, &c->out->value);
}

/* -- transactions ----------------------------------------------------------------------------- */

struct record {
    struct proto_tx head;
    struct dfe_oid oid;
    struct dfe_key key;
    const uint8_t *data;
};

static int take_record(struct cursor *cur, struct record *r)
{
    const uint8_t *at = take(cur, sizeof(r->head));
    size_t len, padding;

    if (!at)
        return base_refuse(-EINVAL, "a record of the transaction is cut off");
    memcpy(&r->head, at, sizeof(r->head));
    r->oid = (struct dfe_oid){r->head.oid_hi, r->head.oid_lo};
    r->key = (struct dfe_key){.dkey_len = r->head.dkey_len, .akey_len = r->head.akey_len};
    r->key.dkey = take(cur, r->head.dkey_len);
    r->key.akey = take(cur, r->head.akey_len);
    r->data = take(cur, r->head.data_len);
    len = (size_t)r->head.dkey_len + r->head.akey_len + r->head.data_len;
    padding = (8 - len % 8) % 8;
    if (!r->key.dkey || !r->key.akey || !r->data || r->head.reserved || !take(cur, padding))
        return base_refuse(-EINVAL, "a record of the transaction is not whole");
    return 0;
}

static int no_data(const struct record *r)
{
    return r->head.data_len ? base_refuse(-EINVAL, "a record of type %u has no data", r->head.type)
                            : 0;
}

static int no_key(const struct record *r)
{
    return r->head.dkey_len || r->head.akey_len
               ? base_refuse(-EINVAL, "a record of type %u has no key", r->head.type)
               : 0;
}

static int add_record(struct dfe_tx *tx, const struct record *r)
{
    const struct proto_tx *h = &r->head;
    int ret;

    switch (h->type) {
    case PROTO_TX_GUARD_ABSENT:
        ret = no_data(r);
        return ret ? ret : dfe_tx_guard_absent(tx, &r->key);
    case PROTO_TX_GUARD_EQUAL:
        return dfe_tx_guard_equal(tx, &r->key, r->data, h->data_len);
    case PROTO_TX_GUARD_EXISTS:
        ret = no_data(r);
        ret = ret ? ret : no_key(r);
        return ret ? ret : dfe_tx_guard_exists(tx);
    case PROTO_TX_PUT:
        return dfe_tx_put(tx, &r->oid, &r->key, r->data, h->data_len);
    case PROTO_TX_DEL:
        ret = no_data(r);
        return ret ? ret : dfe_tx_del(tx, &r->oid, &r->key);
    case PROTO_TX_PUNCH_DKEY:
        ret = no_data(r);
        if (!ret && h->akey_len)
            ret = base_refuse(-EINVAL, "a record of type %u has no akey", h->type);
        return ret ? ret : dfe_tx_punch_dkey(tx, &r->oid, r->key.dkey, h->dkey_len);
    case PROTO_TX_PUNCH_OBJECT:
        ret = no_data(r);
        ret = ret ? ret : no_key(r);
        return ret ? ret : dfe_tx_punch_object(tx, &r->oid);
    case PROTO_TX_ADD:
        ret = no_data(r);
        return ret ? ret : dfe_tx_add(tx, &r->oid, &r->key, (int64_t)h->arg);
    case PROTO_TX_MAX:
        ret = no_data(r);
        return ret ? ret : dfe_tx_max(tx, &r->oid, &r->key, h->arg);
    case PROTO_TX_WRITE:
        ret = no_key(r);
        return ret ? ret : dfe_tx_write(tx, &r->oid, h->arg, r->data, h->data_len);
    default:
        return base_refuse(-EINVAL, "there is no record of type %u", h->type);
    }
}

int64_t op_tx_commit(struct call *c)
{
    struct record record;
    struct dfe_oid home;
    struct cursor cur = cursor(c, &home);
    struct dfe_tx *tx;
    int ret;

    ret = dfe_tx_begin(c->cont, &home, &tx);
    while (ret == 0 && cur.left) {
        ret = take_record(&cur, &record);
        if (ret == 0)
            ret = add_record(tx, &record);
        if (ret < 0)
            dfe_tx_abort(tx);
    }
    return ret < 0 ? ret : dfe_tx_commit(tx, c->e->arg != 0, &c->out->value);
}
