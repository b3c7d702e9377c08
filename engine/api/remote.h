/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the handles of a session with a service hold (remote*.c).
 *
 * Every call is one request (client/client.h) or, for file data that was read before, none. Numbers
 * of handles are ours, so that they are the same when the engine has been replaced: the thread that
 * finds out opens everything again (remote_resume) before any waiting call goes on.
 *
 * Invariants
 *  1. pool->lock is never held across a request, but by the thread that resumes: so it can never
 *     wait for one that waits for it.
 *  2. A handle is in the lists once the engine has answered that it is open, and only if that
 *     answer is of the worker that was there before the request (remote_open).
 *  3. References that the engine counts for this session are at least those that we count: ours
 *     grow after its answer and shrink after its answer. What is too much ends with the session.
 *
 * fork: the child's copies are dead (-ESTALE); closing them frees memory and speaks to nobody.
 */
#ifndef DFE_API_REMOTE_H
#define DFE_API_REMOTE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "api/ops.h"
#include "base/list.h"
#include "base/log.h"
#include "client/client.h"

struct remote_pool {
    struct dfe_pool dfe;
    struct list link; /* of all sessions in this process */
    struct client *client;
    pthread_mutex_t lock;
    struct list conts, fss;               /* open handles; under lock */
    uint64_t handles[PROTO_HANDLES / 64]; /* numbers in use; under lock */
    size_t push_bytes;                    /* what fits one request */
    bool read_only;                       /* the pool is */
    atomic_ulong loans;                   /* memory of the engine that callers look at */
    atomic_bool forked;                   /* we are a child of the process that opened it */
};

struct remote_cont {
    struct dfe_cont dfe;
    struct remote_pool *pool;
    struct list link;
    uint32_t handle;
    unsigned users; /* transactions and file systems; pool->lock */
    bool read_only;
    char label[64], snapshot[64]; /* "": the newest state */
};

/* References by inode: a table of open addressing. */
struct remote_refs {
    struct remote_ref {
        uint64_t ino; /* 0: free */
        uint64_t count;
    } * slots;
    size_t cap, used;
};

struct remote_leases;

struct remote_fs {
    struct dfe_fs dfe;
    struct remote_cont *cont;
    struct list link;
    uint32_t handle;
    atomic_ulong pins;
    pthread_mutex_t refs_lock;
    struct remote_refs refs;
    struct remote_leases *leases;
    atomic_bool no_leases; /* the engine gives none here */
    uint64_t generation;   /* of the mount; 0: none. pool->lock */
    bool mount_read_only;
    atomic_bool mount_over; /* it has been stopped, and is none with the next worker */
};

extern const struct cont_ops remote_cont_ops;
extern const struct object_ops remote_object_ops;
extern const struct fs_ops remote_fs_ops;

static inline struct remote_pool *remote_pool(struct dfe_pool *pool)
{
    return container_of(pool, struct remote_pool, dfe);
}

static inline struct remote_cont *remote_cont(struct dfe_cont *cont)
{
    return container_of(cont, struct remote_cont, dfe);
}

static inline struct remote_fs *remote_fs(struct dfe_fs *fs)
{
    return container_of(fs, struct remote_fs, dfe);
}

/* -- requests (remote.c) ------------------------------------------------------------------------
 */

/* One request: its result; the engine's reason becomes dfe_errmsg(). */
int64_t remote_ask(struct remote_pool *pool, struct client_call *call);
/* The same for requests whose answer has no bytes: 0 or a negative errno. */
int remote_ask_plainly(struct remote_pool *pool, struct client_call *call);
/* The same, with an answer of exactly out_bytes. */
int64_t remote_ask_for(struct remote_pool *pool, struct client_call *call, void *out,
                       size_t out_bytes);
/* At most cap bytes of the answer, copied; returns how many there are. */
size_t remote_take(const struct client_call *call, void *dst, size_t cap);
/* -ESTALE in a forked child. */
int remote_alive(const struct remote_pool *pool);

/* Opens a handle: *handle gets a number, and the request is sent until its answer is of one worker;
 * then the handle joins the list. */
int remote_open(struct remote_pool *pool, struct client_call *call, uint32_t *handle,
                struct list *list, struct list *link);
/* Takes a handle out of its list and closes it. */
int remote_close(struct remote_pool *pool, uint32_t handle, struct list *link);

void remote_cont_use(struct remote_cont *cont);
void remote_cont_unuse(struct remote_cont *cont);

/* The rows of remote_pool_ops that another file has. */
int remote_cont_create(struct dfe_pool *pool, const char *label, int posix,
                       const struct dfe_cred *cred, uint32_t root_mode);
int remote_cont_destroy(struct dfe_pool *pool, const char *label);
ssize_t remote_cont_list(struct dfe_pool *pool, struct dfe_cont_info *out, size_t cap);
int remote_cont_open(struct dfe_pool *pool, const char *label, const char *snapshot,
                     struct dfe_cont **out);
int remote_fs_open(struct dfe_cont *cont, struct dfe_fs **out);

/* Open them again, in the thread that resumes. */
int remote_cont_resume(struct remote_cont *cont, struct client *client);
int remote_fs_resume(struct remote_fs *fs, struct client *client);

/* -- references (remote_refs.c) -----------------------------------------------------------------
 */

/* n more. -ENOMEM: nothing was counted. */
int refs_count(struct remote_refs *refs, uint64_t ino, uint64_t n);
/* n fewer, at most as many as there are. */
void refs_discount(struct remote_refs *refs, uint64_t ino, uint64_t n);
void refs_free(struct remote_refs *refs);

/* -- file data (remote_data.c, remote_lease.c) --------------------------------------------------
 */

ssize_t remote_fs_read(struct dfe_fs *fs, uint64_t ino, uint64_t off, void *dst, size_t len,
                       unsigned flags);
ssize_t remote_fs_write(struct dfe_fs *fs, uint64_t ino, uint64_t off, const void *src, size_t len,
                        unsigned flags, uint64_t *at);
int remote_fs_pin(struct dfe_fs *fs, uint64_t ino, uint64_t off, size_t len, unsigned flags,
                  struct dfe_pin *out);
void remote_fs_unpin(struct dfe_fs *fs, struct dfe_pin *pin);

/* Leases this process has got, hints all of them: any thread. NULL: out of memory. */
struct remote_leases *leases_open(void);
void leases_close(struct remote_leases *leases);
/* One that covers off and was given in this epoch. */
bool leases_find(struct remote_leases *leases, uint64_t epoch, uint64_t ino, uint64_t off,
                 struct proto_lease *out);
void leases_add(struct remote_leases *leases, uint64_t epoch, const struct proto_lease *lease);

#endif
