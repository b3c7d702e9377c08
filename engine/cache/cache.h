/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cache of array objects: slots in the arena, read-ahead, bounded dirty data, write-back.
 *
 * A cache serves one pool. A cache_file is one array object that somebody has open: its slots, and
 * the attributes that belong to its data stream: size, mtime, data version. They live here, under
 * the file's lock, because a publication takes all dirty slots *and* these attributes at one cut.
 *
 * Its owner (ns, or the array API) gives two calls, made with no lock of the cache held:
 *   publish  gets a tx that holds the staged data and punches of one cut; adds what belongs to the
 *            same publication (the inode record with the cut's size and mtime) and commits it
 *   error    a write-back failed; the file keeps the error (cache_sync reports it)
 *
 * Lock order: ns, cache_file, cache, obj. A call marked (waits) may do I/O or wait for other
 * writers; with CACHE_NOWAIT it returns -EINPROGRESS instead, having changed nothing.
 */
#ifndef DFE_CACHE_CACHE_H
#define DFE_CACHE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "obj/obj.h"

struct cache;
struct cache_file;

enum { CACHE_NOWAIT = 1, CACHE_SYNC = 2, CACHE_APPEND = 4 };

/* The attributes of one moment of the data stream. */
struct cache_cut {
    uint64_t size;     /* bytes */
    int64_t mtime_ns;  /* wall clock, time of acceptance; ctime is at least this */
    uint64_t version;  /* data version: grows with every accepted change of the data */
    int64_t changed_ns; /* wall clock, acceptance of the last change of the data; 0: not known */
};

struct cache_owner_ops {
    /* Adds its own writes and commits tx (also when it fails: the tx is ended on return).
     * commit_flags: 0 or OBJ_SYNC. -ESTALE: the file is gone (unlinked, unused): data dropped. */
    int (*publish)(void *owner, struct obj_tx *tx, const struct cache_cut *cut,
                   unsigned commit_flags);
    /* A number by which the owner finds the file again, kept with its changes; may be NULL. Any
     * lock may be held. */
    uint64_t (*home)(void *owner);
};

struct cache_opts {
    size_t size;              /* sizeof */
    uint64_t dirty_bound_bytes; /* 0: a quarter of the arena's bound */
    uint32_t commit_interval_ms; /* 0: DFE_COMMIT_INTERVAL_MS */
    uint32_t flush_threads;   /* 0: 2 */
    uint32_t readahead_max_bytes; /* 0: 4 MiB */
    uint64_t slots_bound_bytes; /* the cache's share of the arena; 0: all of it */
    bool windows;             /* keep the tables that cache_lease needs */
    uint32_t window_lines;    /* their length; 0: 65,536 */
    struct keep *keep;        /* log what is accepted there; NULL: nowhere */
};

struct cache_info {
    uint64_t slots_bytes, dirty_bytes, dirty_bound_bytes;
    uint64_t dirty_age_ms;    /* of the oldest dirty byte; 0: none */
    uint64_t hits, misses, readahead, evicted, published, writeback_errors;
    uint64_t files;
};

int cache_open(struct obj_pool *pool, struct buf_arena *arena, const struct cache_opts *opts,
               struct cache **out);
/* Every file must have been put. Publishes what is dirty. (waits) */
int cache_close(struct cache *cache);
void cache_query(struct cache *cache, struct cache_info *out);

/* The file of (cont, oid); the same object for everybody who has it. `cut` is its published state,
 * used when the file is not in memory yet. ops may be NULL for a read-only container. */
int cache_file_get(struct cache *cache, struct obj_cont *cont, struct obj_id oid,
                   const struct cache_owner_ops *ops, void *owner, const struct cache_cut *cut,
                   struct cache_file **out);
/* Drops a reference. Clean slots may stay for the next open; dirty data is published in time. */
void cache_file_put(struct cache_file *file);
/* True while the file has data that its owner has not published (the owner must stay). */
bool cache_file_dirty(struct cache_file *file);
/* Forgets the file and all its data, dirty too: its object has been unlinked and is unused.
 * The caller's reference is dropped. Waits for a write-back under way. (waits) */
void cache_file_discard(struct cache_file *file);

void cache_file_cut(struct cache_file *file, struct cache_cut *out);
/* utimens: sets the mtime of the stream without a change of the data. */
void cache_file_set_mtime(struct cache_file *file, int64_t mtime_ns);

/* Bytes read, 0 at or past the end. Starts read-ahead where access is sequential. (waits) */
ssize_t cache_read(struct cache_file *file, uint64_t off, void *dst, size_t len, unsigned flags);

/* Read-ahead of a whole small file; nothing where some of it is in memory. Never waits. */
void cache_prefetch(struct cache_file *file);

/* Zero copy: pins the slot under off and tells where its bytes are, at most len and at most to the
 * slot's or the file's end. The bytes stay as they were until cache_unpin: a writer gets a fresh
 * copy. 0 bytes at the end of the file. (waits) */
struct cache_pin {
    const void *ptr;
    size_t len;
    void *slot;
};
int cache_pin(struct cache_file *file, uint64_t off, size_t len, unsigned flags,
              struct cache_pin *out);
void cache_unpin(struct cache *cache, struct cache_pin *pin);

/* Where the bytes around off are, for readers in other processes, who copy and then check that the
 * line's generation is still `gen` (odd while the bytes change). Loads them when needed. Only for
 * containers with a read domain. Where there is no free line, the lease that was asked for longest
 * ago ends. -ENXIO: a hole or past the end; -ENOTSUP: no windows, no domain, or memory that the
 * host would not share; -ESTALE: discarded; -EINPROGRESS with CACHE_NOWAIT. (waits) */
struct cache_lease {
    uint64_t gen, record_gen;
    uint64_t file_off; /* first byte of the file that is there */
    uint32_t len;      /* valid bytes there; may reach past the end of the file */
    uint32_t line, record;
    struct buf_place place;
};
int cache_lease(struct cache_file *file, uint64_t off, unsigned flags, struct cache_lease *out);
/* The shared tables, sealed; the caller closes the descriptors. *lines, *records: their lengths.
 * -ENOTSUP where the cache was opened without windows (cache_opts.windows). */
int cache_tables(struct cache *cache, int *lines_fd, uint32_t *lines, int *records_fd,
                 uint32_t *records);
/* The read domain of a container's data, from its first file on; 0 (the default): none. */
void cache_domain(struct cache *cache, struct obj_cont *cont, uint32_t domain);

/* Accepts the bytes at off (CACHE_APPEND: at the end) at time now_ns; *at is where they went.
 * Returns len, or -ENOSPC, -EFBIG, -EIO (device failing and the dirty bound reached), -EROFS. Slows
 * the caller before the dirty bound. (waits) */
ssize_t cache_write(struct cache_file *file, uint64_t off, const void *src, size_t len,
                    int64_t now_ns, unsigned flags, uint64_t *at);

/* Size change, and zeroing of [off, off + len) within the size: parts of the data stream, published
 * with it. (waits) */
int cache_truncate(struct cache_file *file, uint64_t size, int64_t now_ns, unsigned flags);
int cache_punch(struct cache_file *file, uint64_t off, uint64_t len, int64_t now_ns,
                unsigned flags);

/* Publishes the file's dirty data; with CACHE_SYNC it is durable on return. Returns the file's
 * sticky write-back error until that data has been rewritten. (waits) */
int cache_publish(struct cache_file *file, unsigned flags);
/* Publishes all files of cont (NULL: of the pool). (waits) */
int cache_publish_all(struct cache *cache, struct obj_cont *cont, unsigned flags);

/* Next data or hole at or after off, dirty data counted; -ENXIO at or past the end. (waits) */
int cache_next(struct cache_file *file, uint64_t off, enum obj_next what, uint64_t *out);
/* Bytes held: published plus dirty blocks (st_blocks). (waits, cheap when known) */
int cache_used(struct cache_file *file, uint64_t *bytes);

/* Publishes and forgets all files of cont, which nobody may have: before obj_cont_close, since
 * files are known by their container's handle. Data that cannot be published is lost. (waits) */
int cache_forget(struct cache *cache, struct obj_cont *cont);

/* Files that lost their last name: so many more are in use still, so many more being deleted, which
 * goes on by itself (negative: fewer; after the commit that gave their space back). A call that
 * finds no space waits for that, seconds at most, before it says -ENOSPC. */
void cache_doomed(struct cache *cache, int64_t held, int64_t leaving);

/* Drops clean slots: all of them, or one file's (tests; `drop caches`). */
void cache_drop(struct cache *cache, struct cache_file *file);

#endif
