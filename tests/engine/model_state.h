/* SPDX-License-Identifier: Apache-2.0 */
/* What a container of the model store holds: sorted arrays of objects, keys and blocks, changed
 * only through calls that can be undone. Everything here runs under the model's one mutex. */
#ifndef DFE_TEST_MODEL_STATE_H
#define DFE_TEST_MODEL_STATE_H

#include "obj/obj.h"

/* Immutable shared bytes: a key, a value or a block. */
struct blob {
    unsigned refs;
    uint32_t len;
    uint64_t *counter; /* counts living blocks; NULL for others */
    uint8_t data[];
};

struct blob *blob_new(const void *data, size_t len, uint64_t *counter);
struct blob *blob_ref(struct blob *b);
void blob_unref(struct blob *b); /* NULL is fine */

struct state_kv {
    struct blob *key; /* see state_key */
    struct blob *value;
};

struct state_block {
    uint64_t no;
    struct blob *data;
};

struct state_obj {
    struct obj_id id;
    struct state_kv *kv;
    size_t n_kv, cap_kv;
    struct state_block *block;
    size_t n_block, cap_block;
    int64_t inline_len; /* bytes of block 0 that are inline data; -1: not inline */
};

struct state {
    struct state_obj **obj; /* by id */
    size_t n, cap;
};

/* Old values, newest last: what rolls a state back. */
struct undo {
    struct state *state;
    struct obj_id id;
    enum { UNDO_KV, UNDO_BLOCK, UNDO_INLINE } what;
    struct blob *key, *old;
    uint64_t block;
    int64_t inline_len;
};

struct undo_log {
    struct undo *u;
    size_t n, cap;
};

int state_id_cmp(struct obj_id a, struct obj_id b);
struct blob *state_key(const struct obj_key *key); /* encoded, ordered by state_key_cmp */
void state_key_decode(const struct blob *key, struct obj_key *out);
int state_key_cmp(const struct obj_key *a, const struct obj_key *b);

struct state_obj *state_find(const struct state *st, struct obj_id id); /* NULL: has nothing */
/* First object with an id >= id (> id with after). */
struct state_obj *state_next(const struct state *st, struct obj_id id, bool after);
/* Index of the first key >= key. */
size_t state_kv_lower(const struct state_obj *o, const struct obj_key *key);
struct blob *state_kv_find(const struct state_obj *o, const struct obj_key *key);
/* Index of the first block >= no. */
size_t state_block_lower(const struct state_obj *o, uint64_t no);

/* Changes; value or data NULL removes. The state takes its own references. */
void state_set_kv(struct state *st, struct obj_id id, struct blob *key, struct blob *value,
                  struct undo_log *log);
void state_set_block(struct state *st, struct obj_id id, uint64_t no, struct blob *data,
                     struct undo_log *log);
void state_set_inline(struct state *st, struct obj_id id, int64_t len, struct undo_log *log);

void state_copy(struct state *to, const struct state *from);
void state_clear(struct state *st);

void undo_back_to(struct undo_log *log, size_t n); /* rolls back */
void undo_forget(struct undo_log *log);            /* what happened, happened */

/* grow an array for one more element */
void *state_grow(void *p, size_t n, size_t *cap, size_t elem_bytes);

#endif
