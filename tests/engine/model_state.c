/* SPDX-License-Identifier: Apache-2.0 */
/* Contents of the model store's containers: sorted arrays with undo. */
#include "model_state.h"

#include "base/words.h"
#include "test.h"

void *state_grow(void *p, size_t n, size_t *cap, size_t elem_bytes)
{
    if (n < *cap)
        return p;
    *cap = *cap ? *cap * 2 : 4;
    p = realloc(p, *cap * elem_bytes);
    CHECK(p);
    return p;
}

/* -- shared bytes ---------------------------------------------------------------------------- */

struct blob *blob_new(const void *data, size_t len, uint64_t *counter)
{
    struct blob *b = malloc(sizeof(*b) + len);

    CHECK(b);
    b->refs = 1;
    b->len = (uint32_t)len;
    b->counter = counter;
    if (len > 0)
        memcpy(b->data, data, len);
    if (counter)
        (*counter)++;
    return b;
}

struct blob *blob_ref(struct blob *b)
{
    if (b)
        b->refs++;
    return b;
}

void blob_unref(struct blob *b)
{
    if (!b || --b->refs > 0)
        return;
    if (b->counter)
        (*b->counter)--;
    free(b);
}

/* -- keys: u16 length of the dkey, dkey, akey ------------------------------------------------ */

struct blob *state_key(const struct obj_key *key)
{
    struct blob *b = malloc(sizeof(*b) + 2u + key->dkey_len + key->akey_len);

    CHECK(b);
    b->refs = 1;
    b->len = 2u + key->dkey_len + key->akey_len;
    b->counter = NULL;
    put_le16(b->data, key->dkey_len);
    if (key->dkey_len > 0)
        memcpy(b->data + 2, key->dkey, key->dkey_len);
    if (key->akey_len > 0)
        memcpy(b->data + 2 + key->dkey_len, key->akey, key->akey_len);
    return b;
}

void state_key_decode(const struct blob *key, struct obj_key *out)
{
    out->dkey_len = get_le16(key->data);
    out->dkey = key->data + 2;
    out->akey = key->data + 2 + out->dkey_len;
    out->akey_len = (uint16_t)(key->len - 2 - out->dkey_len);
}

static int bytes_cmp(const void *a, size_t a_len, const void *b, size_t b_len)
{
    size_t len = a_len < b_len ? a_len : b_len;
    int c = len > 0 ? memcmp(a, b, len) : 0;

    return c != 0 ? c : (a_len > b_len) - (a_len < b_len);
}

int state_key_cmp(const struct obj_key *a, const struct obj_key *b)
{
    int c = bytes_cmp(a->dkey, a->dkey_len, b->dkey, b->dkey_len);

    return c != 0 ? c : bytes_cmp(a->akey, a->akey_len, b->akey, b->akey_len);
}

/* -- lookups --------------------------------------------------------------------------------- */

int state_id_cmp(struct obj_id a, struct obj_id b)
{
    if (a.hi != b.hi)
        return a.hi < b.hi ? -1 : 1;
    return (a.lo > b.lo) - (a.lo < b.lo);
}

static size_t obj_lower(const struct state *st, struct obj_id id)
{
    size_t lo = 0, hi = st->n;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (state_id_cmp(st->obj[mid]->id, id) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct state_obj *state_find(const struct state *st, struct obj_id id)
{
    size_t i = obj_lower(st, id);

    return i < st->n && state_id_cmp(st->obj[i]->id, id) == 0 ? st->obj[i] : NULL;
}

struct state_obj *state_next(const struct state *st, struct obj_id id, bool after)
{
    size_t i = obj_lower(st, id);

    if (after && i < st->n && state_id_cmp(st->obj[i]->id, id) == 0)
        i++;
    return i < st->n ? st->obj[i] : NULL;
}

size_t state_kv_lower(const struct state_obj *o, const struct obj_key *key)
{
    size_t lo = 0, hi = o->n_kv;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        struct obj_key k;
        state_key_decode(o->kv[mid].key, &k);
        if (state_key_cmp(&k, key) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static bool kv_at(const struct state_obj *o, size_t i, const struct obj_key *key)
{
    struct obj_key k;

    if (i >= o->n_kv)
        return false;
    state_key_decode(o->kv[i].key, &k);
    return state_key_cmp(&k, key) == 0;
}

struct blob *state_kv_find(const struct state_obj *o, const struct obj_key *key)
{
    size_t i = state_kv_lower(o, key);

    return kv_at(o, i, key) ? o->kv[i].value : NULL;
}

size_t state_block_lower(const struct state_obj *o, uint64_t no)
{
    size_t lo = 0, hi = o->n_block;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (o->block[mid].no < no)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* -- changes --------------------------------------------------------------------------------- */

static struct state_obj *obj_make(struct state *st, struct obj_id id)
{
    size_t i = obj_lower(st, id);
    struct state_obj *o;

    if (i < st->n && state_id_cmp(st->obj[i]->id, id) == 0)
        return st->obj[i];
    o = calloc(1, sizeof(*o));
    CHECK(o);
    o->id = id;
    o->inline_len = -1;
    st->obj = state_grow(st->obj, st->n, &st->cap, sizeof(struct state_obj *));
    memmove(st->obj + i + 1, st->obj + i, (st->n - i) * sizeof(struct state_obj *));
    st->obj[i] = o;
    st->n++;
    return o;
}

/* An object with nothing in it is no object. */
static void obj_trim(struct state *st, struct state_obj *o)
{
    size_t i;

    if (o->n_kv > 0 || o->n_block > 0 || o->inline_len >= 0)
        return;
    i = obj_lower(st, o->id);
    memmove(st->obj + i, st->obj + i + 1, (st->n - i - 1) * sizeof(struct state_obj *));
    st->n--;
    free(o->kv);
    free(o->block);
    free(o);
}

static struct undo *undo_add(struct undo_log *log, struct state *st, struct obj_id id)
{
    struct undo *u;

    log->u = state_grow(log->u, log->n, &log->cap, sizeof(*log->u));
    u = &log->u[log->n++];
    memset(u, 0, sizeof(*u));
    u->state = st;
    u->id = id;
    return u;
}

void state_set_kv(struct state *st, struct obj_id id, struct blob *key, struct blob *value,
                  struct undo_log *log)
{
    struct state_obj *o = obj_make(st, id);
    struct blob *old = NULL;
    struct obj_key k;
    size_t i;
    bool found;

    state_key_decode(key, &k);
    i = state_kv_lower(o, &k);
    found = kv_at(o, i, &k);
    if (found)
        old = o->kv[i].value;
    if (log) {
        struct undo *u = undo_add(log, st, id);
        u->what = UNDO_KV;
        u->key = blob_ref(key);
        u->old = blob_ref(old);
    }
    if (value && found) {
        o->kv[i].value = blob_ref(value);
    } else if (value) {
        o->kv = state_grow(o->kv, o->n_kv, &o->cap_kv, sizeof(*o->kv));
        memmove(o->kv + i + 1, o->kv + i, (o->n_kv - i) * sizeof(*o->kv));
        o->kv[i] = (struct state_kv){.key = blob_ref(key), .value = blob_ref(value)};
        o->n_kv++;
    } else if (found) {
        blob_unref(o->kv[i].key);
        memmove(o->kv + i, o->kv + i + 1, (o->n_kv - i - 1) * sizeof(*o->kv));
        o->n_kv--;
    }
    blob_unref(old);
    obj_trim(st, o);
}

void state_set_block(struct state *st, struct obj_id id, uint64_t no, struct blob *data,
                     struct undo_log *log)
{
    struct state_obj *o = obj_make(st, id);
    size_t i = state_block_lower(o, no);
    bool found = i < o->n_block && o->block[i].no == no;
    struct blob *old = found ? o->block[i].data : NULL;

    if (log) {
        struct undo *u = undo_add(log, st, id);
        u->what = UNDO_BLOCK;
        u->block = no;
        u->old = blob_ref(old);
    }
    if (data && found) {
        o->block[i].data = blob_ref(data);
    } else if (data) {
        o->block = state_grow(o->block, o->n_block, &o->cap_block, sizeof(*o->block));
        memmove(o->block + i + 1, o->block + i, (o->n_block - i) * sizeof(*o->block));
        o->block[i] = (struct state_block){.no = no, .data = blob_ref(data)};
        o->n_block++;
    } else if (found) {
        memmove(o->block + i, o->block + i + 1, (o->n_block - i - 1) * sizeof(*o->block));
        o->n_block--;
    }
    blob_unref(old);
    obj_trim(st, o);
}

void state_set_inline(struct state *st, struct obj_id id, int64_t len, struct undo_log *log)
{
    struct state_obj *o = obj_make(st, id);

    if (log) {
        struct undo *u = undo_add(log, st, id);
        u->what = UNDO_INLINE;
        u->inline_len = o->inline_len;
    }
    o->inline_len = len;
    obj_trim(st, o);
}

/* -- whole states ---------------------------------------------------------------------------- */

void state_copy(struct state *to, const struct state *from)
{
    memset(to, 0, sizeof(*to));
    for (size_t i = 0; i < from->n; i++) {
        const struct state_obj *o = from->obj[i];
        for (size_t j = 0; j < o->n_kv; j++)
            state_set_kv(to, o->id, o->kv[j].key, o->kv[j].value, NULL);
        for (size_t j = 0; j < o->n_block; j++)
            state_set_block(to, o->id, o->block[j].no, o->block[j].data, NULL);
        if (o->inline_len >= 0)
            state_set_inline(to, o->id, o->inline_len, NULL);
    }
}

void state_clear(struct state *st)
{
    for (size_t i = 0; i < st->n; i++) {
        struct state_obj *o = st->obj[i];
        for (size_t j = 0; j < o->n_kv; j++) {
            blob_unref(o->kv[j].key);
            blob_unref(o->kv[j].value);
        }
        for (size_t j = 0; j < o->n_block; j++)
            blob_unref(o->block[j].data);
        free(o->kv);
        free(o->block);
        free(o);
    }
    free(st->obj);
    memset(st, 0, sizeof(*st));
}

void undo_back_to(struct undo_log *log, size_t n)
{
    while (log->n > n) {
        struct undo *u = &log->u[--log->n];
        if (u->what == UNDO_KV)
            state_set_kv(u->state, u->id, u->key, u->old, NULL);
        else if (u->what == UNDO_BLOCK)
            state_set_block(u->state, u->id, u->block, u->old, NULL);
        else
            state_set_inline(u->state, u->id, u->inline_len, NULL);
        blob_unref(u->key);
        blob_unref(u->old);
    }
}

void undo_forget(struct undo_log *log)
{
    for (size_t i = 0; i < log->n; i++) {
        blob_unref(log->u[i].key);
        blob_unref(log->u[i].old);
    }
    free(log->u);
    memset(log, 0, sizeof(*log));
}
