/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's life: opens the pool, listens, serves, ends. */
#include <dfe.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "service/alive.h"
#include "service/guard.h"
#include "service/service.h"
#include "service/worker.h"

#define IDLE_MS 60000u
#define BUSY_MS 10 /* looks again so soon while something is ending */

static uint8_t secret_key[16];
static bool have_key;

void worker_set_key(const uint8_t key[16])
{
    memcpy(secret_key, key, sizeof(secret_key));
    have_key = true;
}

uint64_t worker_secret(uint64_t session)
{
    return base_siphash(secret_key, &session, sizeof(session));
}

void worker_wake(struct worker *w)
{
    uint64_t one = 1;

    if (write(w->kick_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
        base_log(BASE_LOG_ERROR, "the service's main thread cannot be woken: %s", strerror(errno));
}

static void fill_info(struct dfe_service_info *info, void *arg)
{
    struct worker *w = arg;

    info->supervisor_pid = (uint64_t)getppid();
    info->worker_pid = (uint64_t)getpid();
    info->started_ns = w->started_ns;
    info->restarts = w->restarts;
    info->sessions = atomic_load(&w->n_sessions);
    info->channels = atomic_load(&w->n_channels);
    info->requests = atomic_load(&w->n_requests);
    info->sleeps = atomic_load(&w->n_sleeps);
    info->bad_clients = atomic_load(&w->n_bad);
}

static int add(struct worker *w, int fd, struct watch *what)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = what};

    return epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

static int open_fds(struct worker *w)
{
    sigset_t set;
    int rc;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    rc = -pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (rc < 0)
        return rc;
    w->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    w->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (w->signal_fd < 0 || w->kick_fd < 0 || w->epoll_fd < 0)
        return base_fail(-errno, "no descriptors for the service");
    w->on_listen.what = WATCH_LISTEN;
    w->on_signal.what = WATCH_SIGNAL;
    w->on_kick.what = WATCH_KICK;
    rc = add(w, w->listen_fd, &w->on_listen);
    if (rc == 0)
        rc = add(w, w->signal_fd, &w->on_signal);
    if (rc == 0)
        rc = add(w, w->kick_fd, &w->on_kick);
    return rc;
}

static void close_fds(struct worker *w)
{
    if (w->signal_fd >= 0)
        close(w->signal_fd);
    if (w->kick_fd >= 0)
        close(w->kick_fd);
    if (w->epoll_fd >= 0)
        close(w->epoll_fd);
}

/* Frees who has ended; true while some cannot be freed yet. */
static bool collect(struct worker *w)
{
    bool left = false;

    pthread_mutex_lock(&w->lock);
    list_for_each_safe(l, tmp, &w->ended) {
        struct peer *p = container_of(l, struct peer, link);
        list_del(l);
        if (!peer_free(p)) {
            list_add(&w->ended, l);
            left = true;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return left;
}

/* What time has brought: late hellos, nonsense that the ring thread found, closed channels. Returns
 * milliseconds until it must look again, or -1. */
static int sweep(struct worker *w)
{
    uint64_t now = base_mono_ns(), until = UINT64_MAX;
    bool busy = false;

    list_for_each_safe(l, tmp, &w->peers) {
        struct peer *p = container_of(l, struct peer, link);
        const char *bad = atomic_load(&p->bad);
        if (bad || (p->state == PEER_HELLO && now >= p->hello_until_ns)) {
            peer_end(p, bad);
            continue;
        }
        peer_sweep(p);
        busy |= p->n_closing > 0;
        if (p->state == PEER_HELLO && p->hello_until_ns < until)
            until = p->hello_until_ns;
    }
    busy |= collect(w);
    if (w->deaf && now >= w->deaf_until_ns)
        w->deaf = !w->stopping && add(w, w->listen_fd, &w->on_listen) < 0;
    if (busy || w->deaf)
        return BUSY_MS;
    return until == UINT64_MAX ? -1 : (int)((until - now) / 1000000) + 1;
}

static void stop(struct worker *w)
{
    w->stopping = true;
    w->stop_ns = base_mono_ns();
    epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, w->listen_fd, NULL);
    host_dismiss(w->host);
    list_for_each_safe(l, tmp, &w->peers)
        peer_end(container_of(l, struct peer, link), NULL);
}

static void on_event(struct worker *w, const struct watch *what)
{
    struct signalfd_siginfo info;
    uint64_t count;

    switch (what->what) {
    case WATCH_LISTEN:
        if (!w->stopping)
            socket_accept(w);
        break;
    case WATCH_SIGNAL:
        if (read(w->signal_fd, &info, sizeof(info)) == sizeof(info) && !w->stopping)
            stop(w);
        break;
    case WATCH_KICK:
        if (read(w->kick_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
            base_log(BASE_LOG_ERROR, "eventfd: %s", strerror(errno));
        break;
    case WATCH_SOCKET:
        if (what->peer->state != PEER_ENDING)
            socket_event(what->peer);
        break;
    case WATCH_PROCESS:
        if (what->peer->state != PEER_ENDING)
            peer_end(what->peer, NULL);
        break;
    }
}

/* Every session has ended; false while a client may still be freed. Those whose descriptors hang in
 * somebody's file system are not waited for. */
static bool stopped(struct worker *w)
{
    return w->stopping && atomic_load(&w->n_sessions) == 0 &&
           (list_empty(&w->ended) || base_mono_ns() - w->stop_ns > WORKER_STOP_MS * 1000000ull);
}

/* Milliseconds that may pass in idleness, -1: any number, 0: it is time to go. */
static int idle_left(struct worker *w, uint32_t idle_ms)
{
    uint64_t now = base_mono_ns(), idle;

    if (idle_ms == UINT32_MAX)
        return -1;
    if (atomic_load(&w->n_sessions) > 0 || !list_empty(&w->peers)) {
        w->idle_since_ns = now;
        return -1;
    }
    idle = (now - w->idle_since_ns) / 1000000;
    return idle >= idle_ms ? 0 : (int)(idle_ms - idle);
}

static void serve(struct worker *w, uint32_t idle_ms)
{
    struct epoll_event events[64];

    w->idle_since_ns = base_mono_ns();
    for (;;) {
        int ms = sweep(w), left = idle_left(w, idle_ms), n;
        if (stopped(w))
            return;
        if (left == 0 && !w->stopping) {
            socket_accept(w); /* whoever came at the last moment */
            if (list_empty(&w->peers))
                stop(w);
            continue;
        }
        if (left > 0 && (ms < 0 || left < ms))
            ms = left;
        n = epoll_wait(w->epoll_fd, events, 64, ms);
        for (int i = 0; i < n; i++)
            on_event(w, events[i].data.ptr);
    }
}

/* Descriptors are what a service has most of: as many as the system lets it have. */
static void raise_limits(void)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < lim.rlim_max) {
        lim.rlim_cur = lim.rlim_max;
        setrlimit(RLIMIT_NOFILE, &lim);
    }
}

/* The one line for whoever waits. */
static void tell(const struct dfe_service_opts *opts, int rc)
{
    const char *line = rc < 0 ? base_last_error() : "ok";

    if (opts->ready_fd >= 0 && dprintf(opts->ready_fd, "%s\n", line) < 0)
        base_log(BASE_LOG_INFO, "nobody waits to be told that the service is ready");
}

static int open_host(struct worker *w, const struct dfe_service_opts *opts, struct keep *keep)
{
    struct host_opts ho = {.size = sizeof(ho),
                           .path = opts->path,
                           .arena_bytes = opts->arena_bytes,
                           .dirty_bytes = opts->dirty_bytes,
                           .no_hugepages = opts->no_hugepages != 0,
                           .keep = keep,
                           .roll = keep_tables(keep) ? keep_tables(keep)->roll : NULL,
                           /* Nobody comes back to the first worker: 1 ms, which is none. */
                           .orphan_grace_ms = w->restarts ? 0 : 1};
    int rc = host_open(&ho, &w->host);

    if (rc < 0)
        return rc;
    host_set_info(w->host, fill_info, w);
    rc = host_tables(w->host, &w->lines_fd, &w->lines, &w->records_fd, &w->records);
    if (rc < 0)
        host_close(w->host);
    return rc;
}

int worker_run(const struct dfe_service_opts *opts, int listen_fd, struct keep *keep,
               unsigned restarts)
{
    static struct worker worker; /* one a process */
    struct worker *w = &worker;
    bool told = false, hangs = false;
    int rc;

    memset(w, 0, sizeof(*w));
    w->listen_fd = listen_fd;
    w->signal_fd = w->kick_fd = w->epoll_fd = -1;
    w->restarts = restarts;
    w->started_ns = (uint64_t)base_real_ns();
    list_init(&w->peers);
    list_init(&w->users);
    list_init(&w->ended);
    pthread_mutex_init(&w->lock, NULL);
    raise_limits();
    rc = getrandom(&w->epoch, sizeof(w->epoch), 0) < 0 ? -errno : 0;
    if (rc == 0 && !have_key)
        rc = getrandom(secret_key, sizeof(secret_key), 0) < 0 ? -errno : 0;
    if (rc == 0)
        rc = open_fds(w);
    if (rc == 0)
        rc = open_host(w, opts, keep);
    if (rc < 0)
        goto out_fds;
    rc = guard_install();
    if (rc == 0)
        rc = pool_open(&w->pool);
    if (rc < 0)
        goto out_host;
    pool_lane_init(&w->pool, &w->ends, POOL_END, 64);
    rc = ring_open(&w->ring, w);
    if (rc < 0)
        goto out_pool;
    alive_begin(keep_tables(keep));
    tell(opts, 0);
    told = true;
    serve(w, opts->idle_ms ? opts->idle_ms : IDLE_MS);
    alive_end(keep_tables(keep));
    ring_close(&w->ring);
out_pool:
    hangs = !pool_close(&w->pool, WORKER_STOP_MS);
out_host:
    if (rc < 0)
        host_close(w->host);
    else
        rc = host_close(w->host);
out_fds:
    if (!told)
        tell(opts, rc);
    if (!hangs) { /* else the end of the process, which is near, frees all */
        user_forget_all(w);
        close_fds(w);
        pthread_mutex_destroy(&w->lock);
    }
    return rc;
}
