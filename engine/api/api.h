/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the handles of an engine in this process hold, and what a service needs of them. A handle
 * holds everything its calls need: there are no globals.
 *
 * Locks: local_pool.lock guards the lists and counts of open handles; it is taken first and never
 * held across a call to a lower layer. local_pool.array_lock orders array writes (see object.c); it
 * is held across I/O and nothing else is taken under it.
 *
 * A parent outlives its children: closing it while any is open is -EBUSY and changes nothing.
 *
 * The cache knows files by their obj_cont and reads ahead by itself: all handles of one container
 * and snapshot share one (api_state), and the last of them takes its files out of the cache first.
 */
#ifndef DFE_API_API_H
#define DFE_API_API_H

#include <pthread.h>
#include <stdatomic.h>

#include "api/ops.h"
#include "base/list.h"
#include "base/log.h"
#include "buf/buf.h"
#include "cache/cache.h"
#include "ns/ns.h"
#include "obj/obj.h"

extern const struct pool_ops local_pool_ops;
extern const struct cont_ops local_cont_ops;
extern const struct object_ops local_object_ops;
extern const struct fs_ops local_fs_ops;

/* A pool opened for a service: what dfe_pool_open does, and files that sessions may read. */
struct api_hosted {
    struct keep *keep;        /* replayed, and logged to; may be NULL */
    bool windows;             /* leases; each container is a read domain of its own */
    uint32_t orphan_grace_ms; /* see ns_opts */
};

struct local_pool;
int api_restore(struct local_pool *pool); /* what an earlier process had accepted for files */

struct local_pool {
    struct dfe_pool dfe;
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
    struct local_fs *fs; /* its open file system */
    unsigned handles;
    char label[64];
    char snapshot[64]; /* "" is the newest state */
};

struct local_cont {
    struct dfe_cont dfe;
    struct local_pool *pool;
    struct api_state *state;
    struct obj_cont *obj; /* the state's */
    unsigned users;       /* transactions and the file system opened through it; pool->lock */
};

struct local_fs {
    struct dfe_fs dfe;
    struct local_cont *cont;
    struct ns *ns;     /* NULL while it is being opened or closed; pool->lock */
    atomic_ulong pins; /* memory lent, and calls that found it through its container */
};

int api_pool_open_hosted(const struct dfe_pool_open_opts *opts, const struct api_hosted *hosted,
                         struct dfe_pool **out);
static inline struct local_pool *local_pool(struct dfe_pool *pool)
{
    return container_of(pool, struct local_pool, dfe);
}

static inline struct local_cont *local_cont(struct dfe_cont *cont)
{
    return container_of(cont, struct local_cont, dfe);
}

static inline struct local_fs *local_fs(struct dfe_fs *fs)
{
    return container_of(fs, struct local_fs, dfe);
}

/* What is under the handles, for the service. The read domain of a container is its number + 1. */
struct buf_arena *api_pool_arena(struct dfe_pool *pool);
struct cache *api_pool_cache(struct dfe_pool *pool);
struct ns *api_fs_ns(struct dfe_fs *fs);

void api_uuid_text(const uint8_t uuid[16], char text[40]);
/* Bound of the arena where none is given, bytes. */
uint64_t api_arena_default(void);

/* The open file system of a container's state, pinned (see local_fs.pins), or NULL. */
struct local_fs *api_fs_find(struct local_cont *cont);

/* The rows of the tables above that another file has. */
int local_cont_create(struct dfe_pool *pool, const char *label, int posix,
                      const struct dfe_cred *cred, uint32_t root_mode);
int local_cont_destroy(struct dfe_pool *pool, const char *label);
ssize_t local_cont_list(struct dfe_pool *pool, struct dfe_cont_info *out, size_t cap);
int local_cont_open(struct dfe_pool *pool, const char *label, const char *snapshot,
                    struct dfe_cont **out);
int local_fs_open(struct dfe_cont *cont, struct dfe_fs **out);
int local_fs_close(struct dfe_fs *fs);

/* Counts of what is open through a container. */
void api_cont_use(struct local_cont *cont);
void api_cont_unuse(struct local_cont *cont);

#endif
