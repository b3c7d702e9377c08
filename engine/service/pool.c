/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for what waits. */
#include "service/pool.h"

#include <errno.h>
#include <time.h>

#include "base/log.h"

#define IDLE_S 10 /* a thread without work ends, but for the first */

static const unsigned limits[POOL_KINDS] = {
    [POOL_DATA] = 64,          [POOL_DATA_CHANGES] = 64, [POOL_MOUNT] = 64,
    [POOL_MOUNT_CHANGES] = 64, [POOL_LONG] = 4,          [POOL_ODD] = 16,
    [POOL_END] = 64,
};

/* The next job of any class that may run one, or NULL. Lock held. */
static struct pool_job *next_job(struct pool *pool)
{
    for (int i = 0; i < POOL_KINDS; i++) {
        struct pool_class *c = &pool->cls[i];
        if (c->running >= c->limit || list_empty(&c->lanes))
            continue;
        struct pool_lane *lane = container_of(c->lanes.next, struct pool_lane, link);
        struct pool_job *job = container_of(lane->jobs.next, struct pool_job, link);
        list_del(&job->link);
        list_del(&lane->link);
        lane->queued--;
        c->running++;
        lane->running++;
        if (!list_empty(&lane->jobs) && lane->running < lane->limit)
            list_add_tail(&c->lanes, &lane->link); /* its turn comes again, after the others' */
        return job;
    }
    return NULL;
}

static void done(struct pool_lane *lane)
{
    lane->running--;
    lane->cls->running--;
    if (!list_empty(&lane->jobs) && list_empty(&lane->link))
        list_add_tail(&lane->cls->lanes, &lane->link);
}

/* May more than n jobs run that wait for a thread? */
static bool more_ready(struct pool *pool, unsigned n)
{
    unsigned ready = 0;

    for (int i = 0; i < POOL_KINDS; i++) {
        struct pool_class *c = &pool->cls[i];
        unsigned room = c->limit - c->running;
        list_for_each(l, &c->lanes) {
            struct pool_lane *lane = container_of(l, struct pool_lane, link);
            unsigned may = lane->limit - lane->running;
            may = may < lane->queued ? may : lane->queued;
            may = may < room ? may : room;
            ready += may;
            room -= may;
            if (ready > n || room == 0)
                break;
        }
        if (ready > n)
            return true;
    }
    return false;
}

/* Waits for news: false after IDLE_S without any. Whoever comes back first is the one that was sent
 * for. */
static bool wait_more(struct pool *pool)
{
    struct timespec until;
    bool told;
    int rc;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += IDLE_S;
    pool->idle++;
    rc = pthread_cond_timedwait(&pool->more, &pool->lock, &until);
    pool->idle--;
    told = pool->told > 0;
    pool->told -= told;
    return told || rc != ETIMEDOUT;
}

static void *work(void *arg)
{
    struct pool *pool = arg;
    bool news = true;

    pthread_mutex_lock(&pool->lock);
    pool->born--;
    for (;;) {
        struct pool_job *job = next_job(pool);
        if (job) {
            struct pool_lane *lane = job->lane;
            pthread_mutex_unlock(&pool->lock);
            job->run(job);
            pthread_mutex_lock(&pool->lock);
            done(lane);
            news = true;
        } else if (pool->stop || (!news && pool->threads > 1)) {
            break;
        } else {
            news = wait_more(pool);
        }
    }
    pool->threads--;
    pthread_cond_broadcast(&pool->more); /* pool_close waits for the last */
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static int start_thread(struct pool *pool)
{
    pthread_attr_t attr;
    pthread_t id;
    int rc;

    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    rc = pthread_create(&id, &attr, work, pool);
    pthread_attr_destroy(&attr);
    if (rc == 0) {
        pool->threads++;
        pool->born++;
    }
    return -rc;
}

int pool_open(struct pool *pool)
{
    pthread_condattr_t attr;
    int rc;

    pthread_mutex_init(&pool->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->more, &attr);
    pthread_condattr_destroy(&attr);
    for (int i = 0; i < POOL_KINDS; i++) {
        list_init(&pool->cls[i].lanes);
        pool->cls[i].running = 0;
        pool->cls[i].limit = limits[i];
    }
    pool->threads = pool->idle = pool->told = pool->born = 0;
    pool->stop = false;
    pthread_mutex_lock(&pool->lock);
    rc = start_thread(pool); /* one is there whatever comes: jobs are always done */
    pthread_mutex_unlock(&pool->lock);
    if (rc < 0)
        return base_fail(rc, "no thread for the service");
    return 0;
}

bool pool_close(struct pool *pool, unsigned wait_ms)
{
    struct timespec until;
    int rc = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait_ms / 1000;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->more);
    while (pool->threads > 0 && rc == 0)
        rc = pthread_cond_timedwait(&pool->more, &pool->lock, &until);
    pthread_mutex_unlock(&pool->lock);
    if (rc)
        return false;
    pthread_cond_destroy(&pool->more);
    pthread_mutex_destroy(&pool->lock);
    return true;
}

void pool_lane_init(struct pool *pool, struct pool_lane *lane, enum pool_kind kind, unsigned limit)
{
    list_init(&lane->link);
    list_init(&lane->jobs);
    lane->cls = &pool->cls[kind];
    lane->queued = lane->running = 0;
    lane->limit = limit;
}

void pool_submit(struct pool *pool, struct pool_lane *lane, struct pool_job *job)
{
    pthread_mutex_lock(&pool->lock);
    job->lane = lane;
    list_add_tail(&lane->jobs, &job->link);
    lane->queued++;
    if (lane->running < lane->limit && list_empty(&lane->link))
        list_add_tail(&lane->cls->lanes, &lane->link);
    /* What may not run yet is taken by the thread that makes room for it. Where there can be no
     * thread more, its turn comes later. */
    if (more_ready(pool, pool->told + pool->born)) {
        if (pool->idle > pool->told) {
            pool->told++;
            pthread_cond_signal(&pool->more);
        } else {
            start_thread(pool);
        }
    }
    pthread_mutex_unlock(&pool->lock);
}

void pool_cancel(struct pool *pool, struct pool_lane *lane, struct list *out)
{
    pthread_mutex_lock(&pool->lock);
    list_splice_tail(out, &lane->jobs);
    lane->queued = 0;
    list_del(&lane->link);
    pthread_mutex_unlock(&pool->lock);
}

unsigned pool_running(struct pool *pool, struct pool_lane *lane)
{
    unsigned n;

    pthread_mutex_lock(&pool->lock);
    n = lane->running;
    pthread_mutex_unlock(&pool->lock);
    return n;
}
