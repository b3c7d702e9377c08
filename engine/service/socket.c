/* SPDX-License-Identifier: Apache-2.0 */
/* Clients on the socket: who they are, their messages, their end. Main thread, but for the end. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "service/worker.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define MAX_FDS 2u
#define MESSAGES 16u /* of one client, before others have their turn */

/* -- strangers' descriptors -------------------------------------------------------------------- */

/* A descriptor from outside may be of a file system whose close never returns: it is closed, and a
 * proof looked at, on a thread that nobody waits for. */
struct odd {
    struct pool_job job;
    struct peer *peer;
    int fd;
    bool proof;
    struct proto_msg msg;
};

static int send_answer(struct peer *p, const struct proto_msg *m, int error, uint64_t bytes,
                       const int *fds, unsigned n);

static void run_odd(struct pool_job *job)
{
    struct odd *o = container_of(job, struct odd, job);
    struct peer *p = o->peer;

    if (o->proof) {
        int rc = session_prove(p->session, (uint32_t)(o->msg.stamp >> 32), o->msg.ino, o->fd);
        send_answer(p, &o->msg, rc, 0, NULL, 0);
        atomic_fetch_sub(&p->proofs, 1);
    }
    close(o->fd);
    free(o);
    atomic_fetch_sub(&p->odd_fds, 1);
}

static void dispose(struct peer *p, int fd, const struct proto_msg *proof)
{
    struct odd *o;

    /* Memory is the kernel's own: its close does not wait. */
    if (!proof && fcntl(fd, F_GET_SEALS) >= 0) {
        close(fd);
        return;
    }
    o = calloc(1, sizeof(*o));
    if (!o) {
        close(fd);
        return;
    }
    o->peer = p;
    o->fd = fd;
    if (proof) {
        o->proof = true;
        o->msg = *proof;
        atomic_fetch_add(&p->proofs, 1);
    }
    o->job.run = run_odd;
    atomic_fetch_add(&p->odd_fds, 1);
    pool_submit(&p->worker->pool, &p->odds, &o->job);
}

/* -- messages ---------------------------------------------------------------------------------- */

static int send_fds(int sock, const void *buf, size_t len, const int *fds, unsigned n)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * 3)];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {(void *)buf, len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    struct cmsghdr *h;

    if (n > 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * n);
        h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int) * n);
        memcpy(CMSG_DATA(h), fds, sizeof(int) * n);
    }
    return sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static int send_answer(struct peer *p, const struct proto_msg *m, int error, uint64_t bytes,
                       const int *fds, unsigned n)
{
    struct proto_answer a = {.type = m->type, .error = error, .id = m->id, .bytes = bytes};
    int rc = send_fds(p->fd, &a, sizeof(a), fds, error ? 0 : n);

    if (rc == -EAGAIN) { /* asks and does not read */
        atomic_store(&p->bad, "answers that are not taken");
        worker_wake(p->worker);
    }
    return rc;
}

/* One message and its descriptors: its length, 0 at the end, or a negative errno. */
static ssize_t receive(int sock, void *buf, size_t cap, int fds[MAX_FDS], unsigned *n)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * MAX_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {buf, cap};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    ssize_t rc = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    *n = 0;
    if (rc < 0)
        return -errno;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        unsigned got = (unsigned)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (unsigned i = 0; i < got && *n < MAX_FDS; i++)
            memcpy(&fds[(*n)++], CMSG_DATA(h) + i * sizeof(int), sizeof(int));
    }
    if (m.msg_flags & MSG_TRUNC)
        return (ssize_t)cap + 1;
    return rc;
}

static struct chan *find_chan(struct peer *p, uint32_t id)
{
    struct chan *ch = p->chans;

    while (ch && ch->id != id)
        ch = ch->next;
    return ch;
}

static void on_channel(struct peer *p, const struct proto_msg *m, int fd)
{
    struct worker *w = p->worker;
    struct chan *ch = NULL;
    struct stat st;
    int out[3], rc;

    /* Sizes are charged before anything is mapped; chan_open looks at the rest. */
    if (find_chan(p, m->id) || fstat(fd, &st) < 0 || st.st_size < 0) {
        send_answer(p, m, -EINVAL, 0, NULL, 0);
        return;
    }
    rc = user_charge_channel(p->user, p->n_chans, (uint64_t)st.st_size);
    if (rc == 0) {
        rc = chan_open(p, m->id, fd, &ch, &out[0], &out[2]);
        if (rc < 0)
            user_return_channel(p->user, (uint64_t)st.st_size);
    }
    if (rc < 0) {
        send_answer(p, m, rc, 0, NULL, 0);
        return;
    }
    p->n_chans++;
    p->bytes += ch->sq_bytes;
    ch->next = p->chans;
    p->chans = ch;
    atomic_fetch_add(&w->n_channels, 1);
    ring_add_chan(&w->ring, ch);
    out[1] = p->bell_fd;
    send_answer(p, m, 0, ch->cq_bytes, out, 3);
    close(out[0]);
    close(out[2]);
}

static void on_channel_close(struct peer *p, const struct proto_msg *m)
{
    struct chan *ch = find_chan(p, m->id);

    if (!ch || ch->closing)
        return;
    ring_remove_chan(&p->worker->ring, ch);
    ch->closing = true;
    p->n_closing++;
    peer_sweep(p);
}

void peer_sweep(struct peer *p)
{
    struct chan **at = &p->chans;

    while (p->n_closing > 0 && *at) {
        struct chan *ch = *at;
        if (!ch->closing || chan_busy(ch)) {
            at = &ch->next;
            continue;
        }
        *at = ch->next;
        p->n_closing--;
        p->n_chans--;
        p->bytes -= ch->sq_bytes;
        user_return_channel(p->user, ch->sq_bytes);
        chan_close(ch);
        atomic_fetch_sub(&p->worker->n_channels, 1); /* who sees this sees its memory gone */
    }
}

static void on_extent(struct peer *p, const struct proto_msg *m)
{
    struct stat st;
    int fd = session_extent(p->session, m->id, m->stamp);

    if (fd >= 0 && fstat(fd, &st) == 0)
        send_answer(p, m, 0, (uint64_t)st.st_size, &fd, 1);
    else
        send_answer(p, m, fd < 0 ? fd : -EIO, 0, NULL, 0);
    if (fd >= 0)
        close(fd);
}

/* NULL, or what is wrong with the message. */
static const char *on_message(struct peer *p, const struct proto_msg *m, int *fds, unsigned n)
{
    unsigned wanted = m->type == PROTO_MSG_CHANNEL || m->type == PROTO_MSG_PROVE;

    if (n != wanted)
        return "descriptors that do not belong to the message";
    switch (m->type) {
    case PROTO_MSG_CHANNEL:
        if (fcntl(fds[0], F_GET_SEALS) < 0)
            return "a channel's memory that is none";
        on_channel(p, m, fds[0]);
        return NULL;
    case PROTO_MSG_CHANNEL_CLOSE:
        on_channel_close(p, m);
        return NULL;
    case PROTO_MSG_EXTENT:
        on_extent(p, m);
        return NULL;
    case PROTO_MSG_PROVE:
        if (atomic_load(&p->odd_fds) >= WORKER_ODD_FDS)
            return "descriptors that cannot be closed";
        dispose(p, fds[0], m);
        fds[0] = -1;
        return NULL;
    }
    return "an unknown message";
}

/* -- handshake --------------------------------------------------------------------------------- */

/* A descriptor of the process at the other end, or -1: its hang-up will have to do. */
static int process_of(int sock, const struct ucred *cred)
{
    char path[32];
    struct stat st;
    socklen_t len = sizeof(int);
    int fd = -1;

    if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &len) == 0)
        return fd;
    if (cred->pid <= 0) /* of another namespace */
        return -1;
    fd = (int)syscall(SYS_pidfd_open, cred->pid, 0);
    if (fd < 0)
        return -1;
    /* The number may be another process's by now: then its user or its socket tell, mostly; a wrong
     * one costs the session its early end, or ends it early. */
    struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = sock}};
    snprintf(path, sizeof(path), "/proc/%d", cred->pid);
    if (stat(path, &st) == 0 && (st.st_uid == cred->uid || st.st_uid == 0) && poll(p, 2, 0) == 0)
        return fd;
    close(fd);
    return -1;
}

/* A session of an earlier worker goes on here; one that this worker has or had does not. */
static int resumable(struct worker *w, const struct proto_hello *h)
{
    if (h->secret != worker_secret(h->session))
        return base_refuse(-EACCES, "a session of another service");
    for (unsigned i = 0; i < WORKER_ENDED; i++)
        if (w->past[i] == h->session)
            return base_refuse(-ESTALE, "a session that has ended");
    list_for_each(l, &w->peers)
        if (container_of(l, struct peer, link)->id == h->session)
            return base_refuse(-ESTALE, "a session that goes on elsewhere");
    return 0;
}

static int start_session(struct peer *p, const struct proto_hello *h)
{
    struct worker *w = p->worker;
    bool mount = h->role == PROTO_ROLE_MOUNT;
    uint64_t id = h->session;
    int rc;

    if (h->version != PROTO_VERSION)
        return base_refuse(-EPROTONOSUPPORT, "protocol version %u", h->version);
    if (h->role > PROTO_ROLE_IL)
        return base_refuse(-EINVAL, "role %u", h->role);
    if (h->session) {
        rc = resumable(w, h);
        if (rc < 0)
            return rc;
    }
    while (id == 0)
        if (getrandom(&id, sizeof(id), 0) != sizeof(id))
            return -EIO;
    p->who.role = h->role;
    rc = user_charge_session(p->user);
    if (rc < 0)
        return rc;
    p->bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = p->bell_fd < 0 ? -errno : session_new(w->host, &p->who, id, &p->session);
    if (rc < 0) {
        p->user->sessions--;
        return rc;
    }
    p->id = id;
    pool_lane_init(&w->pool, &p->requests, mount ? POOL_MOUNT : POOL_DATA, mount ? 32 : 16);
    pool_lane_init(&w->pool, &p->changes, mount ? POOL_MOUNT_CHANGES : POOL_DATA_CHANGES,
                   mount ? 32 : 16);
    pool_lane_init(&w->pool, &p->longs, POOL_LONG, 2);
    p->user->hellos--;
    p->state = PEER_UP;
    atomic_fetch_add(&w->n_sessions, 1);
    return ring_add_peer(&w->ring, p);
}

static void on_hello(struct peer *p, const struct proto_hello *h)
{
    struct worker *w = p->worker;
    struct proto_welcome wel = {.magic = PROTO_MAGIC, .version = PROTO_VERSION};
    int fds[2] = {w->lines_fd, w->records_fd}, rc;

    base_clear_error();
    rc = h->magic == PROTO_MAGIC ? start_session(p, h) : -EPROTO;
    if (rc < 0) {
        base_log(BASE_LOG_INFO, "uid %u refused: %s", p->who.uid,
                 *base_last_error() ? base_last_error() : strerror(-rc));
        wel.error = rc;
        send_fds(p->fd, &wel, sizeof(wel), NULL, 0);
        peer_end(p, NULL);
        return;
    }
    wel.session = p->id;
    wel.secret = worker_secret(p->id);
    wel.epoch = w->epoch;
    wel.lines = w->lines;
    wel.records = w->records;
    wel.resumed = h->session != 0;
    if (send_fds(p->fd, &wel, sizeof(wel), fds, 2) < 0)
        peer_end(p, NULL);
}

/* -- a client's life --------------------------------------------------------------------------- */

static int watch(struct worker *w, struct watch *what, int kind, struct peer *p, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = what};

    what->what = kind;
    what->peer = p;
    return epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

/* A connection becomes a client that has not said hello. Takes fd. */
static void new_peer(struct worker *w, int fd)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);
    struct user *u = NULL;
    struct peer *p;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0 || !(u = user_get(w, cred.uid)) ||
        !user_may_connect(u) || !(p = calloc(1, sizeof(*p)))) {
        if (u)
            user_put(w, u);
        close(fd);
        return;
    }
    p->worker = w;
    p->user = u;
    p->fd = fd;
    p->bell_fd = -1;
    p->who.uid = cred.uid;
    p->who.gid = cred.gid;
    p->who.pid = cred.pid;
    p->hello_until_ns = base_mono_ns() + WORKER_HELLO_MS * 1000000ull;
    list_init(&p->ring_link);
    list_init(&p->ring_chans);
    pool_lane_init(&w->pool, &p->odds, POOL_ODD, 2);
    u->hellos++;
    list_add_tail(&w->peers, &p->link);
    p->pid_fd = process_of(fd, &cred);
    if (watch(w, &p->on_socket, WATCH_SOCKET, p, fd) < 0 ||
        (p->pid_fd >= 0 && watch(w, &p->on_process, WATCH_PROCESS, p, p->pid_fd) < 0))
        peer_end(p, NULL);
}

void socket_accept(struct worker *w)
{
    for (unsigned i = 0; i < MESSAGES; i++) {
        int fd = accept4(w->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
            w->deaf = true; /* the connection waits in the backlog, and would wake us at once */
            w->deaf_until_ns = base_mono_ns() + 100000000ull;
            epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, w->listen_fd, NULL);
        }
        if (fd < 0)
            return;
        new_peer(w, fd);
    }
}

void socket_event(struct peer *p)
{
    union {
        struct proto_hello hello;
        struct proto_msg msg;
    } u;
    int fds[MAX_FDS];
    unsigned n;

    for (unsigned i = 0; i < MESSAGES && p->state != PEER_ENDING; i++) {
        bool hello = p->state == PEER_HELLO;
        const char *bad = NULL;
        ssize_t rc = receive(p->fd, &u, hello ? sizeof(u.hello) : sizeof(u.msg), fds, &n);

        if (rc == -EAGAIN || rc == -EINTR)
            return;
        if (rc <= 0)
            peer_end(p, NULL);
        else if ((size_t)rc != (hello ? sizeof(u.hello) : sizeof(u.msg)))
            bad = "a message of another length";
        else if (hello)
            on_hello(p, &u.hello);
        else
            bad = on_message(p, &u.msg, fds, n);
        for (unsigned j = 0; j < n; j++)
            if (fds[j] >= 0)
                dispose(p, fds[j], NULL);
        if (bad && p->state != PEER_ENDING)
            peer_end(p, bad);
    }
}

/* Invariant 4, on a thread of the pool. */
static void run_end(struct pool_job *job)
{
    struct peer *p = container_of(job, struct peer, end_job);
    struct worker *w = p->worker;
    struct pool *pool = &w->pool;
    struct list dropped;

    list_init(&dropped);
    pool_cancel(pool, &p->requests, &dropped);
    pool_cancel(pool, &p->changes, &dropped);
    pool_cancel(pool, &p->longs, &dropped);
    while (pool_running(pool, &p->requests) || pool_running(pool, &p->changes) ||
           pool_running(pool, &p->longs) || atomic_load(&p->proofs))
        usleep(500);
    session_end(p->session); /* answers those that wait for news */
    while (p->chans) {
        struct chan *ch = p->chans;
        p->chans = ch->next;
        chan_close(ch);
    }
    close(p->bell_fd);
    close(p->fd);
    p->bell_fd = p->fd = -1;
    pthread_mutex_lock(&w->lock);
    list_add_tail(&w->ended, &p->link);
    atomic_fetch_sub(&w->n_sessions, 1);
    atomic_fetch_sub(&w->n_channels, p->n_chans);
    pthread_mutex_unlock(&w->lock);
    worker_wake(w);
}

/* One line a second for each user: the log is not theirs to fill. */
static void tell_bad(struct peer *p, const char *bad)
{
    uint64_t now = base_mono_ns();

    atomic_fetch_add(&p->worker->n_bad, 1);
    if (p->user->told_ns && now - p->user->told_ns < 1000000000ull)
        return;
    p->user->told_ns = now;
    base_log(BASE_LOG_WARN, "session %016llx of uid %u ended: the client wrote %s",
             (unsigned long long)p->id, p->who.uid, bad);
}

void peer_end(struct peer *p, const char *bad)
{
    struct worker *w = p->worker;
    bool up = p->state == PEER_UP;

    p->state = PEER_ENDING;
    epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, p->fd, NULL);
    if (p->pid_fd >= 0)
        close(p->pid_fd); /* the only one: epoll forgets it */
    if (bad)
        tell_bad(p, bad);
    list_del(&p->link);
    if (up) {
        ring_remove_peer(&w->ring, p);
        p->end_job.run = run_end;
        pool_submit(&w->pool, &w->ends, &p->end_job);
        return;
    }
    p->user->hellos--;
    if (p->bell_fd >= 0)
        close(p->bell_fd);
    close(p->fd);
    pthread_mutex_lock(&w->lock);
    list_add_tail(&w->ended, &p->link);
    pthread_mutex_unlock(&w->lock);
}

bool peer_free(struct peer *p)
{
    struct worker *w = p->worker;

    if (atomic_load(&p->odd_fds) || pool_running(&w->pool, &p->odds))
        return false;
    if (p->id) {
        w->past[w->n_past++ % WORKER_ENDED] = p->id;
        p->user->sessions--;
        p->user->channels -= p->n_chans;
        p->user->bytes -= p->bytes;
    }
    user_put(w, p->user);
    free(p);
    return true;
}
