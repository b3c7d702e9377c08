/* SPDX-License-Identifier: Apache-2.0 */
/* The model store: keys, arrays, transactions. */
#include "base/words.h"
#include "model_int.h"

/* The local store encodes table, container, object and lengths into a key. */
#define KEY_OVERHEAD_BYTES 32u
#define VALUE_BYTES 65600u

static int key_ok(const struct obj_key *key)
{
    return key->dkey_len + key->akey_len + KEY_OVERHEAD_BYTES <= DFE_KEY_BYTES ? 0 : -ENAMETOOLONG;
}

/* -- keys ------------------------------------------------------------------------------------ */

static int kv_get(struct obj_cont *cont, struct obj_id oid, const struct obj_key *key, void *value,
                  size_t cap, size_t *len, bool nowait)
{
    struct state_obj *o;
    struct blob *b = NULL;
    int rc = model_enter(MODEL_KV_GET);

    pthread_mutex_lock(&model_lock);
    if (rc == 0)
        rc = model_alive(cont->pool);
    if (rc == 0)
        rc = key_ok(key);
    if (rc == 0 && nowait && model_would_wait())
        rc = -EINPROGRESS;
    if (rc < 0)
        goto out;
    o = state_find(model_state(cont), oid);
    if (o)
        b = state_kv_find(o, key);
    if (!b) {
        rc = -ENOENT;
        goto out;
    }
    if (cap > 0)
        memcpy(value, b->data, b->len < cap ? b->len : cap);
    if (len)
        *len = b->len;
out:
    pthread_mutex_unlock(&model_lock);
    return rc;
}

int obj_kv_get(struct obj_cont *cont, struct obj_id oid, const struct obj_key *key, void *value,
               size_t cap, size_t *len)
{
    return kv_get(cont, oid, key, value, cap, len, false);
}

int obj_kv_get_nowait(struct obj_cont *cont, struct obj_id oid, const struct obj_key *key,
                      void *value, size_t cap, size_t *len)
{
    return kv_get(cont, oid, key, value, cap, len, true);
}

/* The first entry at or after from (after last, where there is one), with references of its own. */
static bool scan_step(struct obj_cont *cont, struct obj_id oid, const struct obj_key *from,
                      const struct blob *last, struct state_kv *out)
{
    struct state_obj *o = state_find(model_state(cont), oid);
    struct obj_key k, at;
    size_t i = 0;

    if (!o)
        return false;
    if (last) {
        state_key_decode(last, &k);
        i = state_kv_lower(o, &k);
        if (i < o->n_kv) {
            state_key_decode(o->kv[i].key, &at);
            i += state_key_cmp(&at, &k) == 0;
        }
    } else if (from) {
        i = state_kv_lower(o, from);
    }
    if (i >= o->n_kv)
        return false;
    out->key = blob_ref(o->kv[i].key);
    out->value = blob_ref(o->kv[i].value);
    return true;
}

int obj_kv_scan(struct obj_cont *cont, struct obj_id oid, const struct obj_key *from,
                uint64_t limit, obj_scan_fn fn, void *arg)
{
    struct blob *last = NULL;
    struct state_kv at;
    struct obj_key key;
    int rc = model_enter(MODEL_KV_SCAN);

    pthread_mutex_lock(&model_lock);
    for (uint64_t n = 0; rc == 0 && (limit == 0 || n < limit); n++) {
        rc = model_alive(cont->pool);
        if (rc < 0 || !scan_step(cont, oid, from, last, &at))
            break;
        pthread_mutex_unlock(&model_lock);
        state_key_decode(at.key, &key);
        rc = fn(&key, at.value->data, at.value->len, arg);
        pthread_mutex_lock(&model_lock);
        blob_unref(at.value);
        blob_unref(last);
        last = at.key;
    }
    blob_unref(last);
    pthread_mutex_unlock(&model_lock);
    return rc;
}

int obj_scan_objects(struct obj_cont *cont, const struct obj_id *from,
                     int (*fn)(struct obj_id oid, void *arg), void *arg)
{
    struct obj_id id = from ? *from : (struct obj_id){0, 0};
    bool after = false;
    int rc = model_enter(MODEL_KV_SCAN);

    while (rc == 0) {
        struct state_obj *o = NULL;
        pthread_mutex_lock(&model_lock);
        rc = model_alive(cont->pool);
        if (rc == 0)
            o = state_next(model_state(cont), id, after);
        if (o)
            id = o->id;
        pthread_mutex_unlock(&model_lock);
        if (!o)
            break;
        after = true;
        rc = fn(id, arg);
    }
    return rc;
}

/* -- arrays ---------------------------------------------------------------------------------- */

static int io_ok(const struct obj_io *io, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (io[i].off % DFE_BLOCK_BYTES || io[i].len % DFE_BLOCK_BYTES ||
            io[i].off > DFE_FILE_BYTES || io[i].len > DFE_FILE_BYTES + 1 - io[i].off)
            return -EINVAL;
    return 0;
}

static void read_run(const struct state_obj *o, const struct obj_io *io)
{
    uint64_t first = io->off / DFE_BLOCK_BYTES;

    memset(io->buf, 0, io->len);
    if (!o)
        return;
    for (size_t i = state_block_lower(o, first); i < o->n_block; i++) {
        uint64_t at = (o->block[i].no - first) * DFE_BLOCK_BYTES;
        if (at >= io->len)
            break;
        memcpy((char *)io->buf + at, o->block[i].data->data, o->block[i].data->len);
    }
}

int obj_array_read(struct obj_cont *cont, struct obj_id oid, struct obj_io *io, unsigned n)
{
    int rc = model_enter(MODEL_READ);

    pthread_mutex_lock(&model_lock);
    if (rc == 0)
        rc = model_alive(cont->pool);
    if (rc == 0)
        rc = io_ok(io, n);
    for (unsigned i = 0; i < n; i++) {
        io[i].res = rc;
        if (rc == 0)
            read_run(state_find(model_state(cont), oid), &io[i]);
    }
    pthread_mutex_unlock(&model_lock);
    model_linger(MODEL_READ);
    return rc;
}

struct obj_stage {
    struct obj_cont *cont;
    struct obj_id oid;
    struct state_block *block;
    size_t n;
    int64_t inline_len; /* -1: blocks */
    uint64_t tx_bytes;  /* of metadata and journalled data */
};

void obj_stage_drop(struct obj_stage *stage)
{
    if (!stage)
        return;
    pthread_mutex_lock(&model_lock);
    for (size_t i = 0; i < stage->n; i++)
        blob_unref(stage->block[i].data);
    pthread_mutex_unlock(&model_lock);
    free(stage->block);
    free(stage);
}

static struct obj_stage *stage_new(struct obj_cont *cont, struct obj_id oid, size_t n)
{
    struct obj_stage *st = calloc(1, sizeof(*st));

    CHECK(st);
    st->cont = cont;
    st->oid = oid;
    st->inline_len = -1;
    st->block = calloc(n ? n : 1, sizeof(*st->block));
    CHECK(st->block);
    return st;
}

static int stage_allowed(struct obj_cont *cont, int rc)
{
    if (rc == 0)
        rc = model_alive(cont->pool);
    if (rc == 0 && obj_cont_read_only(cont))
        rc = -EROFS;
    return rc;
}

int obj_array_stage(struct obj_cont *cont, struct obj_id oid, const struct obj_io *io, unsigned n,
                    unsigned flags, struct obj_stage **out)
{
    struct obj_stage *st;
    uint64_t bytes = 0;
    int rc = model_enter(MODEL_STAGE);

    pthread_mutex_lock(&model_lock);
    rc = stage_allowed(cont, rc);
    if (rc == 0)
        rc = io_ok(io, n);
    for (unsigned i = 0; i < n; i++)
        bytes += io[i].len;
    if (rc == 0 && (flags & OBJ_STAGE_JOURNAL) && bytes > DFE_JOURNAL_DATA_BYTES)
        rc = -EINVAL;
    if (rc == 0 && !(flags & OBJ_STAGE_RESERVED))
        rc = model_space(cont->pool->media, bytes, false);
    if (rc < 0)
        goto out;
    st = stage_new(cont, oid, bytes / DFE_BLOCK_BYTES);
    st->tx_bytes = flags & OBJ_STAGE_JOURNAL ? bytes : 0;
    for (unsigned i = 0; i < n; i++) {
        /* an extent is at most DFE_EXTENT_BLOCKS; each block has a checksum */
        st->tx_bytes += (io[i].len / (DFE_EXTENT_BLOCKS * DFE_BLOCK_BYTES) + 1) * 48 +
                        io[i].len / DFE_BLOCK_BYTES * 4;
        for (uint64_t at = 0; at < io[i].len; at += DFE_BLOCK_BYTES)
            st->block[st->n++] = (struct state_block){
                .no = (io[i].off + at) / DFE_BLOCK_BYTES,
                .data = blob_new((const char *)io[i].buf + at, DFE_BLOCK_BYTES,
                                 &cont->pool->media->used_blocks)};
    }
    *out = st;
out:
    pthread_mutex_unlock(&model_lock);
    return rc;
}

int obj_array_stage_inline(struct obj_cont *cont, struct obj_id oid, const void *data, size_t len,
                           struct obj_stage **out)
{
    struct obj_stage *st;
    int rc = model_enter(MODEL_STAGE);

    pthread_mutex_lock(&model_lock);
    rc = stage_allowed(cont, rc);
    if (rc == 0 && len > DFE_INLINE_BYTES)
        rc = -EINVAL;
    if (rc < 0)
        goto out;
    st = stage_new(cont, oid, 1);
    st->inline_len = (int64_t)len;
    st->tx_bytes = len;
    if (len > 0)
        st->block[st->n++] = (struct state_block){.no = 0, .data = blob_new(data, len, NULL)};
    *out = st;
out:
    pthread_mutex_unlock(&model_lock);
    return rc;
}

static bool block_at(const struct state_obj *o, uint64_t no)
{
    size_t i = o ? state_block_lower(o, no) : 0;

    return o && i < o->n_block && o->block[i].no == no;
}

int obj_array_next(struct obj_cont *cont, struct obj_id oid, uint64_t off, enum obj_next what,
                   uint64_t *out)
{
    uint64_t no = off / DFE_BLOCK_BYTES;
    struct state_obj *o;
    int rc = model_enter(MODEL_NEXT);

    pthread_mutex_lock(&model_lock);
    if (rc == 0)
        rc = model_alive(cont->pool);
    if (rc < 0)
        goto out;
    o = state_find(model_state(cont), oid);
    if (what == OBJ_HOLE) {
        while (block_at(o, no))
            no++;
    } else if (!block_at(o, no)) {
        size_t i = o ? state_block_lower(o, no) : 0;
        if (!o || i >= o->n_block) {
            rc = -ENXIO;
            goto out;
        }
        no = o->block[i].no;
    }
    *out = no == off / DFE_BLOCK_BYTES ? off : no * DFE_BLOCK_BYTES;
out:
    pthread_mutex_unlock(&model_lock);
    return rc;
}

int obj_array_stat(struct obj_cont *cont, struct obj_id oid, uint64_t *used_bytes, uint64_t *end)
{
    struct state_obj *o;
    uint64_t used = 0, last = 0;
    int rc = model_enter(MODEL_NEXT);

    pthread_mutex_lock(&model_lock);
    if (rc == 0)
        rc = model_alive(cont->pool);
    o = rc == 0 ? state_find(model_state(cont), oid) : NULL;
    if (o && o->inline_len >= 0) {
        used = last = (uint64_t)o->inline_len;
    } else if (o && o->n_block > 0) {
        used = o->n_block * (uint64_t)DFE_BLOCK_BYTES;
        last = (o->block[o->n_block - 1].no + 1) * DFE_BLOCK_BYTES;
    }
    pthread_mutex_unlock(&model_lock);
    if (rc == 0) {
        *used_bytes = used;
        *end = last;
    }
    return rc;
}

/* -- transactions ---------------------------------------------------------------------------- */

enum op_kind {
    OP_ABSENT,
    OP_EQUAL,
    OP_EXISTS,
    OP_EMPTY,
    OP_GUARDS, /* before: guards */
    OP_PUT,
    OP_DEL,
    OP_PUNCH_DKEY,
    OP_ADD,
    OP_MAX,
    OP_WRITE,
    OP_PUNCH_ARRAY,
    OP_PUNCH_OBJECT
};

struct op {
    enum op_kind kind;
    struct obj_id oid;
    struct blob *key, *value; /* value: also the key that ends a range */
    struct obj_stage *stage;
    uint64_t off, len; /* of an array; off: operand of add and max */
};

struct obj_tx {
    struct obj_cont *cont;
    struct obj_id home;
    struct op *op;
    size_t n, cap;
    uint64_t bytes;
};

int obj_tx_begin(struct obj_cont *cont, struct obj_id home, struct obj_tx **out)
{
    struct obj_tx *tx;

    if (obj_cont_read_only(cont))
        return -EROFS;
    tx = calloc(1, sizeof(*tx));
    CHECK(tx);
    tx->cont = cont;
    tx->home = home;
    *out = tx;
    return 0;
}

void obj_tx_abort(struct obj_tx *tx)
{
    if (!tx)
        return;
    for (size_t i = 0; i < tx->n; i++)
        obj_stage_drop(tx->op[i].stage);
    pthread_mutex_lock(&model_lock); /* a commit has shared them with the state */
    for (size_t i = 0; i < tx->n; i++) {
        blob_unref(tx->op[i].key);
        blob_unref(tx->op[i].value);
    }
    pthread_mutex_unlock(&model_lock);
    free(tx->op);
    free(tx);
}

/* Adds an op; it owns key, value and stage, also when it is refused. */
static int tx_op(struct obj_tx *tx, struct op op, uint64_t bytes)
{
    if (tx->n >= DFE_TX_OPS || tx->bytes + bytes > DFE_TX_BYTES) {
        blob_unref(op.key);
        blob_unref(op.value);
        obj_stage_drop(op.stage);
        return -E2BIG;
    }
    tx->bytes += bytes;
    tx->op = state_grow(tx->op, tx->n, &tx->cap, sizeof(op));
    tx->op[tx->n++] = op;
    return 0;
}

static int tx_key_op(struct obj_tx *tx, enum op_kind kind, struct obj_id oid,
                     const struct obj_key *key, const void *value, size_t len)
{
    int rc = key_ok(key);
    struct op op = {.kind = kind, .oid = oid};

    if (rc == 0 && len > VALUE_BYTES)
        rc = -E2BIG;
    if (rc < 0)
        return rc;
    op.key = state_key(key);
    if (value || kind == OP_PUT || kind == OP_EQUAL)
        op.value = blob_new(value, len, NULL);
    return tx_op(tx, op, op.key->len + len + 32);
}

int obj_tx_guard_absent(struct obj_tx *tx, const struct obj_key *key)
{
    return tx_key_op(tx, OP_ABSENT, tx->home, key, NULL, 0);
}

int obj_tx_guard_equal(struct obj_tx *tx, const struct obj_key *key, const void *value, size_t len)
{
    return tx_key_op(tx, OP_EQUAL, tx->home, key, value, len);
}

int obj_tx_guard_exists(struct obj_tx *tx)
{
    return tx_op(tx, (struct op){.kind = OP_EXISTS, .oid = tx->home}, 32);
}

int obj_tx_guard_empty(struct obj_tx *tx, const struct obj_key *from, const struct obj_key *to)
{
    struct op op = {.kind = OP_EMPTY, .oid = tx->home};

    if ((from && key_ok(from) < 0) || (to && key_ok(to) < 0))
        return -ENAMETOOLONG;
    op.key = from ? state_key(from) : NULL;
    op.value = to ? state_key(to) : NULL;
    return tx_op(tx, op, 64);
}

int obj_tx_put(struct obj_tx *tx, unsigned when, struct obj_id oid, const struct obj_key *key,
               const void *value, size_t len)
{
    return tx_key_op(tx, OP_PUT, oid, key, value, len);
}

int obj_tx_del(struct obj_tx *tx, unsigned when, struct obj_id oid, const struct obj_key *key)
{
    return tx_key_op(tx, OP_DEL, oid, key, NULL, 0);
}

int obj_tx_punch_dkey(struct obj_tx *tx, unsigned when, struct obj_id oid, const void *dkey,
                      uint16_t dkey_len)
{
    struct obj_key key = {.dkey = dkey, .dkey_len = dkey_len};

    return tx_key_op(tx, OP_PUNCH_DKEY, oid, &key, NULL, 0);
}

static int tx_counter(struct obj_tx *tx, enum op_kind kind, struct obj_id oid,
                      const struct obj_key *key, uint64_t operand)
{
    int rc = tx_key_op(tx, kind, oid, key, NULL, 0);

    if (rc == 0)
        tx->op[tx->n - 1].off = operand;
    return rc;
}

int obj_tx_add(struct obj_tx *tx, unsigned when, struct obj_id oid, const struct obj_key *key,
               int64_t delta)
{
    return tx_counter(tx, OP_ADD, oid, key, (uint64_t)delta);
}

int obj_tx_max(struct obj_tx *tx, unsigned when, struct obj_id oid, const struct obj_key *key,
               uint64_t value)
{
    return tx_counter(tx, OP_MAX, oid, key, value);
}

int obj_tx_write(struct obj_tx *tx, unsigned when, struct obj_id oid, struct obj_stage *stage)
{
    int rc = tx_op(tx, (struct op){.kind = OP_WRITE, .oid = oid, .stage = stage},
                   stage->tx_bytes);

    if (rc < 0)
        obj_stage_drop(stage);
    return rc;
}

int obj_tx_punch_array(struct obj_tx *tx, unsigned when, struct obj_id oid, uint64_t off,
                       uint64_t len)
{
    if (off % DFE_BLOCK_BYTES || (len != UINT64_MAX && len % DFE_BLOCK_BYTES))
        return -EINVAL;
    return tx_op(tx, (struct op){.kind = OP_PUNCH_ARRAY, .oid = oid, .off = off, .len = len}, 32);
}

int obj_tx_punch_object(struct obj_tx *tx, unsigned when, struct obj_id oid)
{
    return tx_op(tx, (struct op){.kind = OP_PUNCH_OBJECT, .oid = oid}, 32);
}

/* -- commit: guards, then the ops in their order --------------------------------------------- */

static bool range_empty(const struct state_obj *o, const struct op *op)
{
    struct obj_key from, to, at;
    size_t i = 0;

    if (!o)
        return true;
    if (op->key) {
        state_key_decode(op->key, &from);
        i = state_kv_lower(o, &from);
    }
    if (i >= o->n_kv)
        return true;
    if (!op->value)
        return false;
    state_key_decode(op->value, &to);
    state_key_decode(o->kv[i].key, &at);
    return state_key_cmp(&at, &to) >= 0;
}

static bool guard_holds(const struct state *st, const struct op *op)
{
    struct state_obj *o = state_find(st, op->oid);
    struct blob *b = NULL;
    struct obj_key key;

    if (op->kind == OP_EXISTS)
        return o && (o->n_kv > 0 || o->n_block > 0);
    if (op->kind == OP_EMPTY)
        return range_empty(o, op);
    state_key_decode(op->key, &key);
    if (o)
        b = state_kv_find(o, &key);
    if (op->kind == OP_ABSENT)
        return !b;
    return b && b->len == op->value->len && memcmp(b->data, op->value->data, b->len) == 0;
}

static void punch_keys(struct state *st, const struct op *op, struct undo_log *log)
{
    struct obj_key prefix = {0}, at;
    struct state_obj *o;

    if (op->key)
        state_key_decode(op->key, &prefix);
    while ((o = state_find(st, op->oid)) != NULL) {
        size_t i = op->key ? state_kv_lower(o, &prefix) : 0;
        struct blob *key;
        if (i >= o->n_kv)
            break;
        state_key_decode(o->kv[i].key, &at);
        if (op->key && (at.dkey_len != prefix.dkey_len ||
                        memcmp(at.dkey, prefix.dkey, at.dkey_len) != 0))
            break;
        key = blob_ref(o->kv[i].key);
        state_set_kv(st, op->oid, key, NULL, log);
        blob_unref(key);
    }
}

static void punch_blocks(struct state *st, struct obj_id oid, uint64_t off, uint64_t len,
                         struct undo_log *log)
{
    uint64_t first = off / DFE_BLOCK_BYTES;
    struct state_obj *o = state_find(st, oid);

    if (o && o->inline_len >= 0 && off == 0 && len > 0)
        state_set_inline(st, oid, -1, log);
    while ((o = state_find(st, oid)) != NULL) {
        size_t i = state_block_lower(o, first);
        if (i >= o->n_block ||
            (len != UINT64_MAX && o->block[i].no - first >= len / DFE_BLOCK_BYTES))
            break;
        state_set_block(st, oid, o->block[i].no, NULL, log);
    }
}

/* Inline bytes become a block of their own, so that blocks can stand beside them. */
static void inline_to_block(struct obj_cont *cont, struct obj_id oid, struct undo_log *log)
{
    struct state *st = model_state(cont);
    struct state_obj *o = state_find(st, oid);
    uint8_t bytes[DFE_BLOCK_BYTES] = {0};
    struct blob *b;

    if (!o || o->inline_len < 0)
        return;
    if (o->n_block > 0) {
        memcpy(bytes, o->block[0].data->data, o->block[0].data->len);
        b = blob_new(bytes, sizeof(bytes), &cont->pool->media->used_blocks);
        state_set_block(st, oid, 0, b, log);
        blob_unref(b);
    }
    state_set_inline(st, oid, -1, log);
}

static void apply_write(struct obj_cont *cont, const struct op *op, struct undo_log *log)
{
    struct state *st = model_state(cont);

    if (op->stage->inline_len >= 0)
        punch_blocks(st, op->oid, 0, UINT64_MAX, log);
    else
        inline_to_block(cont, op->oid, log);
    for (size_t i = 0; i < op->stage->n; i++)
        state_set_block(st, op->oid, op->stage->block[i].no, op->stage->block[i].data, log);
    if (op->stage->inline_len > 0)
        state_set_inline(st, op->oid, op->stage->inline_len, log);
}

static int apply_counter(struct state *st, const struct op *op, struct undo_log *log)
{
    struct state_obj *o = state_find(st, op->oid);
    struct blob *b = NULL;
    struct obj_key key;
    uint8_t bytes[8];
    uint64_t v = 0;

    state_key_decode(op->key, &key);
    if (o)
        b = state_kv_find(o, &key);
    if (b && b->len != sizeof(bytes))
        return -EUCLEAN;
    if (b)
        v = get_le64(b->data);
    if (op->kind == OP_ADD)
        v += op->off;
    else if (op->off > v)
        v = op->off;
    put_le64(bytes, v);
    b = blob_new(bytes, sizeof(bytes), NULL);
    state_set_kv(st, op->oid, op->key, b, log);
    blob_unref(b);
    return 0;
}

static int apply(struct obj_cont *cont, const struct op *op, struct undo_log *log)
{
    struct state *st = model_state(cont);

    switch (op->kind) {
    case OP_PUT:
        state_set_kv(st, op->oid, op->key, op->value, log);
        break;
    case OP_DEL:
        state_set_kv(st, op->oid, op->key, NULL, log);
        break;
    case OP_PUNCH_DKEY:
        punch_keys(st, op, log);
        break;
    case OP_ADD:
    case OP_MAX:
        return apply_counter(st, op, log);
    case OP_WRITE:
        apply_write(cont, op, log);
        break;
    case OP_PUNCH_ARRAY:
        punch_blocks(st, op->oid, op->off, op->len, log);
        break;
    case OP_PUNCH_OBJECT:
        punch_keys(st, op, log);
        punch_blocks(st, op->oid, 0, UINT64_MAX, log);
        break;
    default:
        break;
    }
    return 0;
}

static int commit_locked(struct obj_tx *tx, bool sync, uint64_t *epoch)
{
    struct model_media *m = tx->cont->pool->media;
    size_t before = m->undo.n;
    int rc = 0;

    for (size_t i = 0; i < tx->n; i++)
        if (tx->op[i].kind < OP_GUARDS && !guard_holds(model_state(tx->cont), &tx->op[i]))
            return -EAGAIN;
    for (size_t i = 0; i < tx->n && rc == 0; i++)
        rc = apply(tx->cont, &tx->op[i], &m->undo);
    if (rc < 0) {
        undo_back_to(&m->undo, before);
        return rc;
    }
    m->marks = state_grow(m->marks, m->n_marks, &m->cap_marks, sizeof(*m->marks));
    m->marks[m->n_marks++] = before;
    m->epoch++;
    if (epoch)
        *epoch = m->epoch;
    if (sync)
        model_make_durable(m);
    return 0;
}

int obj_tx_commit(struct obj_tx *tx, unsigned flags, uint64_t *epoch)
{
    int rc = model_enter(MODEL_COMMIT);

    if (rc == 0 && (flags & OBJ_SYNC))
        rc = model_enter(MODEL_SYNC);
    pthread_mutex_lock(&model_lock);
    if (rc == 0)
        rc = model_alive(tx->cont->pool);
    if (rc == 0 && (flags & OBJ_NOWAIT) && model_would_wait())
        rc = -EINPROGRESS;
    else if (rc == 0)
        rc = commit_locked(tx, flags & OBJ_SYNC, epoch);
    pthread_mutex_unlock(&model_lock);
    if (rc != -EINPROGRESS)
        obj_tx_abort(tx);
    return rc;
}

int obj_check(struct obj_cont *cont, bool data, obj_fault_fn fn,
              void (*progress)(uint64_t done, uint64_t total, void *arg), void *arg)
{
    int rc;

    pthread_mutex_lock(&model_lock);
    rc = model_alive(cont->pool);
    pthread_mutex_unlock(&model_lock);
    return rc;
}
