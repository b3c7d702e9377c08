/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects and transactions: the seam between everything above and a store.
 *
 * A pool holds containers; a container holds objects with 128-bit ids. Every object may have keys
 * (dkey and akey, ordered bytes; the akey may be empty) and array bytes. The layers above use this
 * header only, so that another store can stand in for the local one: nothing here promises that
 * two objects change together, except what a transaction says about its home object.
 *
 * Threads: any thread may call anything; a tx belongs to one thread. obj takes its own mutex, below
 * those of ns and cache, never held across I/O, index page faults, checksums or copies over 4 KiB.
 * A call marked (waits) may do I/O: call it with no lock of a higher layer held.
 *
 * Errors: negative errno. -EUCLEAN is damage (EIO to programs), logged once with structure and
 * offset. -ENOSPC, -EROFS (read-only open, snapshot, damaged pool), -ENAMETOOLONG (key over
 * DFE_KEY_BYTES), -E2BIG (tx over its limits), -EAGAIN (a guard failed; nothing changed),
 * -EINPROGRESS (with OBJ_NOWAIT: would have to wait; nothing changed; the tx is still whole).
 */
#ifndef DFE_OBJ_OBJ_H
#define DFE_OBJ_OBJ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buf/buf.h"

struct obj_pool;
struct obj_cont;
struct obj_tx;
struct obj_stage;

struct obj_id {
    uint64_t hi, lo;
};

struct obj_key {
    const void *dkey;
    uint16_t dkey_len;
    const void *akey;
    uint16_t akey_len;
};

enum { OBJ_NOWAIT = 1, OBJ_SYNC = 2 };

/* -- pools ----------------------------------------------------------------------------------- */

struct obj_pool_create_opts {
    size_t size;            /* sizeof */
    const char *path;       /* directory, made here; must not exist or be empty */
    const char *label;
    const char *device;     /* URI, or NULL: the file PATH/data */
    uint64_t size_bytes;    /* of the device; 0 with a device of its own: all of it */
    uint64_t journal_bytes; /* 0: chosen from the size */
};

struct obj_pool_open_opts {
    size_t size;
    const char *path;
    bool read_only;
    bool no_uring;           /* tests */
    struct buf_arena *arena; /* registered with the device where that works; may be NULL */
    uint64_t overlay_bytes;  /* checkpoint when the overlay reaches this; 0: default */
    uint32_t commit_interval_ms; /* journal to the device no later than this; 0: default */
    struct keep *keep;       /* commits are logged there until the journal has them; what an earlier
                              * process left there is replayed; may be NULL */
};

struct obj_pool_info {
    char label[64];
    uint8_t uuid[16];
    uint32_t format;
    char device[256];
    char backend[16];
    bool direct, registered, read_only;
    char damage[256];       /* why it is read-only, "" when it is whole */
    uint64_t size_bytes;    /* of the device */
    uint64_t data_bytes;    /* usable for data */
    uint64_t free_bytes;    /* neither allocated nor reserved; freed ones count at once: whoever
                             * needs them has a checkpoint made */
    uint64_t reserved_bytes;
    uint64_t journal_bytes, journal_used_bytes;
    uint64_t index_bytes;   /* pages in use in the index */
    uint64_t overlay_keys, overlay_bytes;
    uint64_t epoch, durable_epoch;
    uint64_t checkpoints, last_checkpoint_ns;
    uint64_t checksum_errors, io_errors;
    uint64_t containers;
};

int obj_pool_create(const struct obj_pool_create_opts *opts);             /* (waits) */
/* Recovers by itself. Damage of superblock, journal or index: opened read-only, info.damage says
 * what, where anything is readable at all; else -EUCLEAN. -ENOENT none there, -EBUSY open
 * elsewhere, -EPROTONOSUPPORT newer format, -EMEDIUMTYPE the device belongs to another pool,
 * -ESTALE the index is older than its device. base_last_error() tells the story. */
int obj_pool_open(const struct obj_pool_open_opts *opts, struct obj_pool **out); /* (waits) */
int obj_pool_close(struct obj_pool *pool);                                /* (waits) checkpoints */
void obj_pool_query(struct obj_pool *pool, struct obj_pool_info *out);
/* Reads label, uuid and device from the pool's record without opening it. */
int obj_pool_peek(const char *path, struct obj_pool_info *out);
/* Wipes the superblocks, removes the directory. -EBUSY while open anywhere. force: destroys one
 * that cannot be opened (damage), never one of another device's. */
int obj_pool_destroy(const char *path, bool force);                       /* (waits) */

/* Everything committed before the call is durable after it. (waits) */
int obj_sync(struct obj_pool *pool);
/* Forces a checkpoint of the index. (waits) */
int obj_checkpoint(struct obj_pool *pool);
/* Waits until a commit that got -EINPROGRESS may be tried again. (waits) */
int obj_wait_room(struct obj_pool *pool);

/* Space for data accepted but not staged yet. -ENOSPC, after a forced checkpoint where that can
 * help (waits; with OBJ_NOWAIT: -EINPROGRESS). Metadata has a reserve of its own, so that deletes
 * work. */
int obj_reserve(struct obj_pool *pool, uint64_t bytes, unsigned flags);
void obj_unreserve(struct obj_pool *pool, uint64_t bytes);

/* -- containers ------------------------------------------------------------------------------ */

struct obj_cont_info {
    char label[64];
    uint32_t number;       /* in this pool, never reused */
    uint8_t uuid[16];
    int64_t created_ns;    /* wall clock */
    uint64_t snapshots;
};

struct obj_snap_info {
    char name[64];
    uint64_t epoch;
    int64_t created_ns;
};

int obj_cont_create(struct obj_pool *pool, const char *label);            /* (waits) durable */
int obj_cont_destroy(struct obj_pool *pool, const char *label);           /* (waits) -EBUSY if open;
                                             a continuation record: resumed after a crash */
int obj_cont_list(struct obj_pool *pool, int (*fn)(const struct obj_cont_info *, void *),
                  void *arg);
/* snapshot: NULL, or a name; then read-only, and every read sees that epoch. */
int obj_cont_open(struct obj_pool *pool, const char *label, const char *snapshot,
                  struct obj_cont **out);
void obj_cont_close(struct obj_cont *cont);
void obj_cont_query(struct obj_cont *cont, struct obj_cont_info *out);
struct obj_pool *obj_cont_pool(struct obj_cont *cont);
bool obj_cont_read_only(const struct obj_cont *cont);

/* Properties: short text values kept with the container, durable on return. (waits) */
int obj_cont_prop_get(struct obj_cont *cont, const char *name, char *value, size_t cap);
int obj_cont_prop_set(struct obj_cont *cont, const char *name, const char *value);

/* Snapshots of what is committed now; publish dirty data first (the cache does). (waits) */
int obj_snap_create(struct obj_cont *cont, const char *name, uint64_t *epoch);
int obj_snap_destroy(struct obj_cont *cont, const char *name); /* frees what only it could see */
int obj_snap_list(struct obj_cont *cont, int (*fn)(const struct obj_snap_info *, void *),
                  void *arg);

/* -- keys ------------------------------------------------------------------------------------ */

/* The value, at most cap bytes of it; *len is its whole length. -ENOENT. (waits) */
int obj_kv_get(struct obj_cont *cont, struct obj_id oid, const struct obj_key *key, void *value,
               size_t cap, size_t *len);

/* As obj_kv_get, from memory only: -EINPROGRESS where the index would have to be asked. */
int obj_kv_get_nowait(struct obj_cont *cont, struct obj_id oid, const struct obj_key *key,
                      void *value, size_t cap, size_t *len);

/* In order from `from` (NULL: the first key), at most limit keys (0: all). fn runs without locks,
 * may call obj, and stops the scan with a value other than 0, which is returned. A key that exists
 * during the whole scan is seen exactly once. (waits) */
typedef int (*obj_scan_fn)(const struct obj_key *key, const void *value, size_t len, void *arg);
int obj_kv_scan(struct obj_cont *cont, struct obj_id oid, const struct obj_key *from,
                uint64_t limit, obj_scan_fn fn, void *arg);

/* Objects that have keys or array data, in order of id. (waits) */
int obj_scan_objects(struct obj_cont *cont, const struct obj_id *from,
                     int (*fn)(struct obj_id oid, void *arg), void *arg);

/* -- arrays ---------------------------------------------------------------------------------- */

/* One run of an array. off, len and buf are multiples of 4 KiB; the array layer knows no size:
 * bytes never written read as zeros. */
struct obj_io {
    uint64_t off; /* bytes in the array */
    void *buf;
    size_t len;
    int res; /* out: 0, -EUCLEAN (checksum), -EIO ... */
};

/* Reads n runs concurrently and verifies them. Returns the first error; each run has its own.
 * (waits) */
int obj_array_read(struct obj_cont *cont, struct obj_id oid, struct obj_io *io, unsigned n);

/* Writes n runs to freshly allocated blocks, nobody sees them until a tx with the token commits.
 * All concurrently. Not durable before the OBJ_SYNC commit or obj_sync. A buffer may be changed
 * again on return. (waits)
 *   OBJ_STAGE_RESERVED  space comes out of obj_reserve's; the caller unreserves afterwards
 *   OBJ_STAGE_JOURNAL   (all runs together at most DFE_JOURNAL_DATA_BYTES) data is copied, travels
 *                       in the journal record, and goes to its blocks at the next checkpoint: one
 *                       device write for a small fsync
 */
enum { OBJ_STAGE_RESERVED = 1, OBJ_STAGE_JOURNAL = 2 };
int obj_array_stage(struct obj_cont *cont, struct obj_id oid, const struct obj_io *io, unsigned n,
                    unsigned flags, struct obj_stage **out);
/* The whole array becomes len (<= DFE_INLINE_BYTES) bytes kept in the index; no blocks. */
int obj_array_stage_inline(struct obj_cont *cont, struct obj_id oid, const void *data, size_t len,
                           struct obj_stage **out);
/* Gives the blocks back; for a token that no tx took. */
void obj_stage_drop(struct obj_stage *stage);

/* First byte at or after off that is data / hole, in units of blocks; -ENXIO: none. (waits) */
enum obj_next { OBJ_DATA, OBJ_HOLE };
int obj_array_next(struct obj_cont *cont, struct obj_id oid, uint64_t off, enum obj_next what,
                   uint64_t *out);
/* Bytes on the device (or inline) and the end of the last run. (waits) */
int obj_array_stat(struct obj_cont *cont, struct obj_id oid, uint64_t *used_bytes, uint64_t *end);

/* -- transactions ---------------------------------------------------------------------------- */

/* Cheap: tx objects are recycled. Guards, and what must be atomic with them, concern `home`. Writes
 * to other objects are marked OBJ_BEFORE (invisible until home commits) or OBJ_AFTER (idempotent,
 * finished later by whoever meets them); the local store does all of it at once. */
enum { OBJ_HOME = 0, OBJ_BEFORE = 1, OBJ_AFTER = 2 };

int obj_tx_begin(struct obj_cont *cont, struct obj_id home, struct obj_tx **out);
void obj_tx_abort(struct obj_tx *tx); /* also drops attached stages; NULL is fine */

/* Guards, tested at commit: -EAGAIN where one does not hold. */
int obj_tx_guard_absent(struct obj_tx *tx, const struct obj_key *key);
int obj_tx_guard_equal(struct obj_tx *tx, const struct obj_key *key, const void *value, size_t len);
int obj_tx_guard_exists(struct obj_tx *tx);      /* home has any key or data */
int obj_tx_guard_empty(struct obj_tx *tx, const struct obj_key *from,
                       const struct obj_key *to); /* no key in [from, to) of home */

int obj_tx_put(struct obj_tx *tx, unsigned when, struct obj_id oid, const struct obj_key *key,
               const void *value, size_t len); /* copied; len <= 65,600 */
int obj_tx_del(struct obj_tx *tx, unsigned when, struct obj_id oid, const struct obj_key *key);
/* All keys of one dkey. */
int obj_tx_punch_dkey(struct obj_tx *tx, unsigned when, struct obj_id oid, const void *dkey,
                      uint16_t dkey_len);
/* 64-bit little-endian counters: absent counts as 0. */
int obj_tx_add(struct obj_tx *tx, unsigned when, struct obj_id oid, const struct obj_key *key,
               int64_t delta);
int obj_tx_max(struct obj_tx *tx, unsigned when, struct obj_id oid, const struct obj_key *key,
               uint64_t value);
/* Publishes staged runs over whatever the array held there; always takes the token. */
int obj_tx_write(struct obj_tx *tx, unsigned when, struct obj_id oid, struct obj_stage *stage);
/* Array bytes [off, off + len) become a hole; multiples of 4 KiB; len UINT64_MAX: to the end.
 * Longer than a tx can hold: a continuation record; readers see all of it at once. */
int obj_tx_punch_array(struct obj_tx *tx, unsigned when, struct obj_id oid, uint64_t off,
                       uint64_t len);
/* Everything of the object: keys and array. */
int obj_tx_punch_object(struct obj_tx *tx, unsigned when, struct obj_id oid);

/*
 * All or nothing, in the order of commits. Ends the tx, except with -EINPROGRESS (then the caller
 * releases its locks, calls obj_wait_room and commits again, or aborts).
 * OBJ_SYNC: durable on return, with all that was committed before (waits). -ENOMEM, -EMFILE and
 * -ENFILE then say that the process had nothing left to ask the device with: the commit may have
 * been made, and is kept; a later obj_sync makes it durable.
 * OBJ_NOWAIT: -EINPROGRESS instead of waiting for journal or overlay room, or for many index pages:
 * up to 64 single keys are read for a commit, each of which may fault pages in; a commit that needs
 * more, or a range (a punch, guard_exists, guard_empty), is refused as often as it is tried. So
 * whoever tries again must at last do it without OBJ_NOWAIT.
 * *epoch (may be NULL): this commit's.
 */
int obj_tx_commit(struct obj_tx *tx, unsigned flags, uint64_t *epoch);

/* -- check ----------------------------------------------------------------------------------- */

/* Walks the container's keys, extents and the allocator, reads and verifies data where `data`. fn
 * gets a line for each fault and may be NULL; progress(done, total) may be NULL. Returns the number
 * of faults or a negative errno. (waits) */
typedef void (*obj_fault_fn)(const char *text, void *arg);
int obj_check(struct obj_cont *cont, bool data, obj_fault_fn fn,
              void (*progress)(uint64_t done, uint64_t total, void *arg), void *arg);

#endif
