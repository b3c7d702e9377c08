/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes of files as they are kept until they have been published (base/keep.h, KEEP_DATA), for
 * the owner of files who replays what an earlier process accepted.
 */
#ifndef DFE_CACHE_KEEP_LOG_H
#define DFE_CACHE_KEEP_LOG_H

#include <assert.h>

#include "base/keep.h"
#include "cache/cache.h"

enum { CACHE_KEPT_WRITE = 1, CACHE_KEPT_TRUNCATE = 2, CACHE_KEPT_PUNCH = 3, CACHE_KEPT_MTIME = 4 };

/* A record; the bytes of a write follow. */
struct cache_kept {
    uint32_t cont; /* number of the container */
    uint32_t kind; /* CACHE_KEPT_* */
    uint64_t oid_hi, oid_lo;
    uint64_t home;    /* the owner's: where it finds the file (cache_owner_ops.home) */
    uint64_t version; /* of the data, after the change */
    int64_t mtime_ns;
    uint64_t off; /* bytes; TRUNCATE: the new size */
    uint64_t len;
};
static_assert(sizeof(struct cache_kept) == 64, "shared between workers");

/* Numbers of the containers that have changes to be replayed, at most cap of them; how many were
 * put there. Until somebody replays them they hold their place in the log. */
unsigned cache_kept_conts(struct cache *cache, uint32_t *numbers, unsigned cap);
/* fn for each change of a file of cont that was not known to be published, in the order in which
 * they were accepted; its value other than 0 ends it and is returned. fn applies it or drops it. */
int cache_kept_replay(struct cache *cache, struct obj_cont *cont,
                      int (*fn)(int64_t number, const struct cache_kept *k, void *arg), void *arg);
/* 1: the file has changed as it had then, to the same version and mtime; 0: that has been published
 * already. The record stays until the file is published. (waits) */
int cache_kept_apply(struct cache_file *file, int64_t number, const struct cache_kept *k);
/* There is no such container, no such file, any more. */
void cache_kept_forget(struct cache *cache, uint32_t cont);
void cache_kept_drop(struct cache *cache, int64_t number);
/* The file's changes are left to another replay: its data is about to be discarded unpublished. */
void cache_kept_abandon(struct cache_file *file);

/* utimens: begin reserves (-EINPROGRESS: cache_kept_wait first, with no lock held), done sets the
 * mtime as cache_file_set_mtime does. It is kept, and done says true, where it belongs to the data
 * stream: with `streamed`, and where the file has data that is not published. Else the owner's own
 * commit, made between the two, has it. */
struct kept_change {
    int64_t number; /* 0: nothing is kept */
    void *bytes;
};
int cache_kept_mtime_begin(struct cache_file *file, int64_t mtime_ns, struct kept_change *k);
bool cache_kept_mtime_done(struct cache_file *file, int64_t mtime_ns, bool streamed,
                           struct kept_change *k);
void cache_kept_mtime_cancel(struct cache_file *file, struct kept_change *k);
int cache_kept_wait(struct cache_file *file); /* for room in the log; -EIO */
/* The owner is about to write the mtime of a clean file by itself; after its commit: settled, with
 * what this said. */
int64_t cache_kept_clean(struct cache_file *file);
void cache_kept_settled(struct cache_file *file, int64_t upto);

#endif
