/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index: LMDB behind a handful of functions.
 *
 * Values are stored with a CRC32C over (key, value) that this file adds and verifies: callers never
 * see it. LMDB's errors become ours: -EUCLEAN (corruption, any impossible answer), -ENOSPC,
 * -ENOMEM, -EIO. Opened with MDB_NOTLS | MDB_NOMEMINIT (and without MDB_NORDAHEAD unless measured),
 * map size 1 TiB of address space (smaller where the host refuses). One writer at a time (the
 * checkpoint thread); readers take a recycled read transaction for one call, so that none outlives
 * a checkpoint.
 */
#ifndef DFE_OBJ_INDEX_H
#define DFE_OBJ_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct index;
struct index_tx;

int index_create(const char *dir); /* makes the folder and an empty index */
int index_open(const char *dir, bool read_only, struct index **out);
void index_close(struct index *ix);

/* Copies at most cap bytes of the value; *len is its whole length. -ENOENT. Waits for page faults.
 */
int index_get(struct index *ix, const void *key, size_t klen, void *val, size_t cap, size_t *len);
/* Keys >= from and < to (to NULL: to the end), in order. fn sees verified values that are valid
 * during the call only; a value other than 0 stops and is returned. One read transaction for the
 * whole walk: callers bound its length and go on from the last key. damaged entries: -EUCLEAN,
 * unless skip_bad: then they are logged, counted in *bad and passed over. */
typedef int (*index_fn)(const void *key, size_t klen, const void *val, size_t vlen, void *arg);
int index_scan(struct index *ix, const void *from, size_t from_len, const void *to, size_t to_len,
               index_fn fn, void *arg, uint64_t *bad);

/* The one write transaction. Nothing is visible before commit; abort leaves everything as it was.
 */
int index_begin(struct index *ix, struct index_tx **out);
int index_put(struct index_tx *tx, const void *key, size_t klen, const void *val, size_t vlen);
int index_del(struct index_tx *tx, const void *key, size_t klen); /* absent is fine */
int index_commit(struct index_tx *tx); /* durable (fsync); ends tx also on error */
void index_abort(struct index_tx *tx);

/* Preallocates the file so that the next `bytes` of growth cannot meet ENOSPC (fallocate,
 * KEEP_SIZE). -ENOSPC. */
int index_reserve(struct index *ix, uint64_t bytes);
uint64_t index_used_bytes(struct index *ix);

#endif
