/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the sessions of a host share: open containers and their file systems.
 *
 * Locks: host->lock guards the list of containers and all counts in them; it is held across
 * nothing. A container's `opening` is held while it or its file system is opened or closed, which
 * waits; it is taken first.
 */
#ifndef DFE_SERVICE_HOST_H
#define DFE_SERVICE_HOST_H

#include <dfe.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/list.h"
#include "service/dispatch.h"
#include "service/growth.h"
#include "service/roll.h"

struct cohere;

/* A container at its newest state or at a snapshot, for as long as a session uses it. */
struct host_cont {
    struct host *host;
    struct list link;       /* host->conts */
    char label[64];
    char snapshot[64];      /* "": the newest state */
    unsigned refs;          /* handles of sessions, and loans */
    unsigned fs_refs;       /* those of them that use the file system */
    pthread_mutex_t opening;
    struct dfe_cont *cont;
    struct dfe_fs *fs;
    uint32_t number;
    struct cohere *cohere;
    struct growth growth;
    atomic_ulong rights;    /* changes with every change of an inode's rights */
};

struct host {
    struct dfe_pool *pool;
    struct keep *keep;
    struct roll roll;          /* of mounts */
    uint64_t opened_ns;
    uint64_t inval_ms;
    uint64_t loan_bound_bytes; /* of one session */
    uid_t uid;                 /* the pool's owner */
    pthread_mutex_t lock;
    struct list conts;
    void (*info_fn)(struct dfe_service_info *info, void *arg);
    void *info_arg;
    atomic_ulong sessions, mounts, loans, loan_bytes, leases;
};

/* Opened where it is not yet. snapshot "": the newest state. (waits) */
int host_cont_get(struct host *host, const char *label, const char *snapshot,
                  struct host_cont **out);
void host_cont_put(struct host_cont *hc); /* (waits) */
/* The same for its file system as well, of a container that the caller has. (waits) */
int host_fs_get(struct host_cont *hc);
void host_fs_put(struct host_cont *hc);
/* One use more of an open file system that the caller uses. */
void host_fs_more(struct host_cont *hc);
/* Is the caller's its only use? */
bool host_fs_last(struct host_cont *hc);
/* One less, if it is not the last. */
bool host_fs_less(struct host_cont *hc);

#endif
