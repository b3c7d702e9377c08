/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads for what waits: made on demand, gone when idle.
 *
 * Jobs queue in lanes; a lane belongs to a class. At most `limit` jobs of a lane and of a class run
 * at once, and the lanes of a class take turns: so no session can use up the threads, and classes
 * cannot block each other. Whatever may run has a thread on its way to it, since what runs may wait
 * for it. A change that waits for a mount's kernel does so while that kernel waits for requests of
 * its own to be answered: what only asks never waits for a mount, so it has threads that no change
 * can take.
 */
#ifndef DFE_SERVICE_POOL_H
#define DFE_SERVICE_POOL_H

#include <pthread.h>
#include <stdbool.h>

#include "base/list.h"

struct pool_class {
    struct list lanes; /* that have jobs and may run one more */
    unsigned running, limit;
};

struct pool_lane {
    struct list link;
    struct list jobs;
    struct pool_class *cls;
    unsigned queued, running, limit;
};

struct pool_job {
    struct list link;
    struct pool_lane *lane;
    void (*run)(struct pool_job *job); /* the job may be freed or submitted again in it */
};

enum pool_kind {
    POOL_DATA,          /* what sessions ask */
    POOL_DATA_CHANGES,  /* ... and change, which may wait for mounts */
    POOL_MOUNT,         /* the same of mounts */
    POOL_MOUNT_CHANGES,
    POOL_LONG,          /* takes minutes */
    POOL_ODD,           /* closes strangers' descriptors */
    POOL_END,           /* ends sessions */
    POOL_KINDS
};

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct pool_class cls[POOL_KINDS];
    unsigned threads;
    unsigned idle;
    unsigned told, born; /* on their way: idle ones that were sent for, new ones */
    bool stop;
};

int pool_open(struct pool *pool);
/* Nothing is queued; waits for what runs, but no longer than wait_ms: then false, and the pool must
 * stay where it is for as long as the process lives. */
bool pool_close(struct pool *pool, unsigned wait_ms);
void pool_lane_init(struct pool *pool, struct pool_lane *lane, enum pool_kind kind,
                    unsigned limit);
void pool_submit(struct pool *pool, struct pool_lane *lane, struct pool_job *job);
/* Moves the jobs that have not begun to `out`. */
void pool_cancel(struct pool *pool, struct pool_lane *lane, struct list *out);
/* Jobs of the lane that run. */
unsigned pool_running(struct pool *pool, struct pool_lane *lane);

#endif
