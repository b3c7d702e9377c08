/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring thread: looks at every channel in turn, spins a little where that pays, then sleeps.
 *
 * A session may have BUDGET entries taken in a round, fewer large ones, whatever the number of its
 * channels; its channels take turns. The thread sleeps in epoll on the sessions' eventfds. They are
 * watched by edge and never read: a client could make a read wait, and the counter cannot overflow
 * by ones.
 */
#include <errno.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "service/worker.h"

#define BUDGET 16u

void ring_lock(struct ring *r)
{
    pthread_mutex_lock(&r->gate);
    atomic_store(&r->wanted, true);
    pthread_mutex_lock(&r->lock);
    atomic_store(&r->wanted, false);
}

void ring_unlock(struct ring *r)
{
    pthread_mutex_unlock(&r->lock);
    pthread_mutex_unlock(&r->gate);
}

/* Lets whoever waits in ring_lock have its turn: a mutex alone would not be fair to it. */
static void give_way(struct ring *r)
{
    pthread_mutex_unlock(&r->lock);
    pthread_mutex_lock(&r->gate);
    pthread_mutex_lock(&r->lock);
    pthread_mutex_unlock(&r->gate);
}

static unsigned serve_peer(struct peer *p)
{
    struct list *first = p->ring_chans.next;
    unsigned left = BUDGET, requests = 0;

    list_for_each(l, &p->ring_chans) {
        left -= chan_serve(container_of(l, struct chan, link), left, &requests,
                           &p->worker->ring.client_place);
        if (left == 0 || atomic_load_explicit(&p->bad, memory_order_relaxed))
            break;
    }
    if (requests > 0 && first->next != &p->ring_chans) { /* another is first the next time */
        list_del(first);
        list_add_tail(&p->ring_chans, first);
    }
    return requests;
}

/* One look at everything: how many requests were taken. */
static unsigned serve_all(struct ring *r)
{
    unsigned n = 0;

    list_for_each_safe(l, tmp, &r->peers) {
        struct peer *p = container_of(l, struct peer, ring_link);
        n += serve_peer(p);
        if (atomic_load_explicit(&p->bad, memory_order_relaxed)) {
            list_del(&p->ring_link); /* the main thread ends it */
            worker_wake(r->worker);
        }
    }
    if (n > 0) { /* this thread alone counts */
        unsigned long all = atomic_load_explicit(&r->worker->n_requests, memory_order_relaxed);
        atomic_store_explicit(&r->worker->n_requests, all + n, memory_order_relaxed);
    }
    return n;
}

static void set_sleeping(struct ring *r, uint32_t value)
{
    r->asleep = value;
    list_for_each(l, &r->peers) {
        struct peer *p = container_of(l, struct peer, ring_link);
        list_for_each(m, &p->ring_chans)
            __atomic_store_n(&container_of(m, struct chan, link)->cq->sleeping, value,
                             __ATOMIC_RELAXED);
    }
}

static bool anything(struct ring *r)
{
    list_for_each(l, &r->peers) {
        struct peer *p = container_of(l, struct peer, ring_link);
        list_for_each(m, &p->ring_chans)
            if (chan_pending(container_of(m, struct chan, link)))
                return true;
    }
    return false;
}

/* `sleeping`, a full fence, a last look: engine/client/await.c has the argument. */
static void sleep_now(struct ring *r)
{
    struct epoll_event events[64];

    set_sleeping(r, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!anything(r)) {
        bool learns = r->spin.sleeps > 0;
        uint64_t begun = learns ? base_mono_ns() : 0;
        atomic_fetch_add_explicit(&r->worker->n_sleeps, 1, memory_order_relaxed);
        pthread_mutex_unlock(&r->lock);
        epoll_wait(r->epoll_fd, events, 64, -1);
        pthread_mutex_lock(&r->lock);
        if (learns)
            spin_slept(&r->spin, base_mono_ns() - begun);
    }
    set_sleeping(r, 0);
}

/* True: there is something to do. Not after a request that went to another thread, which would
 * want this processor. */
static bool spin(struct ring *r)
{
    struct spin_time t = {0};

    if (r->client_place == RING_WAITS || !spin_pays(&r->spin, spin_place(), r->client_place))
        return false;
    do
        if (anything(r) || atomic_load_explicit(&r->wanted, memory_order_relaxed)) {
            spin_won(&r->spin);
            return true;
        }
    while (spin_on(&t));
    spin_lost(&r->spin);
    return false;
}

static void *ring_main(void *arg)
{
    struct ring *r = arg;

    pthread_mutex_lock(&r->lock);
    while (!atomic_load_explicit(&r->stop, memory_order_relaxed)) {
        if (atomic_load_explicit(&r->wanted, memory_order_relaxed))
            give_way(r);
        if (serve_all(r) == 0 && !spin(r))
            sleep_now(r);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int ring_add_peer(struct ring *r, struct peer *p)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET};

    if (epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, p->bell_fd, &ev) < 0)
        return -errno;
    ring_lock(r);
    list_add_tail(&r->peers, &p->ring_link);
    ring_unlock(r);
    return 0;
}

void ring_remove_peer(struct ring *r, struct peer *p)
{
    ring_lock(r);
    list_del(&p->ring_link);
    ring_unlock(r);
    epoll_ctl(r->epoll_fd, EPOLL_CTL_DEL, p->bell_fd, NULL);
}

void ring_add_chan(struct ring *r, struct chan *ch)
{
    ring_lock(r);
    ch->cq->sleeping = r->asleep;
    list_add_tail(&ch->peer->ring_chans, &ch->link);
    ring_unlock(r);
}

void ring_remove_chan(struct ring *r, struct chan *ch)
{
    ring_lock(r);
    list_del(&ch->link);
    ring_unlock(r);
}

int ring_open(struct ring *r, struct worker *w)
{
    struct epoll_event ev = {.events = EPOLLIN};
    cpu_set_t set;
    int rc;

    r->worker = w;
    list_init(&r->peers);
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_init(&r->gate, NULL);
    atomic_init(&r->wanted, false);
    atomic_init(&r->stop, false);
    rc = sched_getaffinity(0, sizeof(set), &set);
    spin_init(&r->spin, rc == 0 ? (unsigned)CPU_COUNT(&set) : 2);
    r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    r->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->epoll_fd < 0 || r->kick_fd < 0 ||
        epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, r->kick_fd, &ev) < 0)
        rc = -errno;
    else
        rc = -pthread_create(&r->thread, NULL, ring_main, r);
    if (rc < 0) {
        if (r->epoll_fd >= 0)
            close(r->epoll_fd);
        if (r->kick_fd >= 0)
            close(r->kick_fd);
        return base_fail(rc, "no ring thread");
    }
    return 0;
}

void ring_close(struct ring *r)
{
    uint64_t one = 1;

    atomic_store(&r->stop, true);
    if (write(r->kick_fd, &one, sizeof(one)) < 0)
        base_log(BASE_LOG_ERROR, "the ring thread cannot be told to end");
    pthread_join(r->thread, NULL);
    close(r->kick_fd);
    close(r->epoll_fd);
    pthread_mutex_destroy(&r->lock);
    pthread_mutex_destroy(&r->gate);
}
