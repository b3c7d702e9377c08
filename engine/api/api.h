/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the handles of the public API hold. A handle holds everything its calls need: there are no
 * globals, so that another transport can stand behind the same functions.
 *
 * Locks: dfe_pool.lock guards the lists and counts of open handles; it is taken first and never
 * held across a call to a lower layer. dfe_pool.array_lock orders array writes (see object.c); it
 * is held across I/O and nothing else is taken under it.
 *
 * A parent outlives its children: closing it while any is open is -EBUSY and changes nothing.
 *
 * The cache knows files by their obj_cont and reads ahead by itself: all handles of one container
 * and snapshot share one (api_state), and the last of them takes its files out of the cache first.
 */
#ifndef DFE_API_API_H
#define DFE_API_API_H

#include <dfe.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "base/log.h"
#include "buf/buf.h"
#include "cache/cache.h"
#include "ns/ns.h"
#include "obj/obj.h"

/* A pool opened for a service: what dfe_pool_open does, and files that sessions may read. */
struct api_hosted {
    struct keep *keep;        /* replayed, and logged to; may be NULL */
    bool windows;             /* leases; each container is a read domain of its own */
    uint32_t orphan_grace_ms; /* see ns_opts */
};

struct dfe_pool {
    struct buf_arena *arena;
    struct obj_pool *obj;
    struct cache *cache;
    pthread_mutex_t lock;
    pthread_rwlock_t array_lock;
    unsigned conts;     /* open containers */
    struct list states; /* api_state.link */
    struct api_hosted hosted;
};

/* One container at its newest state or at a snapshot. Its fields are guarded by pool->lock. */
struct api_state {
    struct list link;
    struct obj_cont *obj;
    struct dfe_fs *fs; /* its open file system */
    unsigned handles;
    char label[64];
    char snapshot[64]; /* "" is the newest state */
};

struct dfe_cont {
    struct dfe_pool *pool;
    struct api_state *state;
    struct obj_cont *obj; /* the state's */
    unsigned users;       /* transactions and the file system opened through it; pool->lock */
};

struct dfe_fs {
    struct dfe_cont *cont;
    struct ns *ns;     /* NULL while it is being opened or closed; pool->lock */
    atomic_ulong pins; /* memory lent, and calls that found it through its container */
};

int api_pool_open_hosted(const struct dfe_pool_open_opts *opts, const struct api_hosted *hosted,
                         struct dfe_pool **out);
/* What is under the handles, for the service. The read domain of a container is its number + 1. */
struct buf_arena *api_pool_arena(struct dfe_pool *pool);
struct cache *api_pool_cache(struct dfe_pool *pool);
struct ns *api_fs_ns(struct dfe_fs *fs);

/* Copies an option struct that begins with its size; fields the caller does not know stay 0. */
int api_opts(void *dst, size_t dst_bytes, const void *src);
void api_uuid_text(const uint8_t uuid[16], char text[40]);
/* Bound of the arena where none is given, bytes. */
uint64_t api_arena_default(void);

/* The open file system of a container's state, pinned (see dfe_fs.pins), or NULL. */
struct dfe_fs *api_fs_find(struct dfe_cont *cont);

/* Counts of what is open through a container. */
void api_cont_use(struct dfe_cont *cont);
void api_cont_unuse(struct dfe_cont *cont);

#endif
