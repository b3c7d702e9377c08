/* SPDX-License-Identifier: Apache-2.0 */
/* The client's socket: connection, handshake, messages with descriptors. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/clock.h"
#include "client/client_int.h"
#include "client/sys.h"

#define MAX_FDS 4u
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

/* At or above the client's least number. Takes fd. */
static int place_fd(const struct client *c, int fd)
{
    int high;

    if ((uint32_t)fd >= c->opts.min_fd)
        return fd;
    high = sys_fcntl(fd, F_DUPFD_CLOEXEC, (long)c->opts.min_fd);
    sys_close(fd);
    return high;
}

static ssize_t send_with(int sock, const void *buf, size_t len, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {(void *)buf, len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t rc;

    if (fd >= 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(h), &fd, sizeof(fd));
    }
    do
        rc = sys_sendmsg(sock, &m, MSG_NOSIGNAL);
    while (rc == -EINTR);
    return rc;
}

/* One message of exactly len bytes within wait_ms. -EPIPE: the other end has gone. */
static int receive(struct client *c, int sock, void *buf, size_t len, unsigned wait_ms, int *fds,
                   unsigned max, unsigned *n)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * MAX_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {buf, len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    struct pollfd p = {.fd = sock, .events = POLLIN};
    struct timespec ts = {.tv_sec = wait_ms / 1000, .tv_nsec = (long)(wait_ms % 1000) * 1000000};
    ssize_t rc;
    int bad = 0;

    *n = 0;
    do /* the kernel counts ts down, and over an interruption goes on with what is left */
        rc = sys_call(SYS_ppoll, (long)&p, 1, (long)&ts, 0, 0, 0);
    while (rc == -EINTR);
    if (rc <= 0)
        return rc < 0 ? (int)rc : -ETIMEDOUT;
    m.msg_control = control.bytes;
    m.msg_controllen = sizeof(control.bytes);
    do
        rc = sys_recvmsg(sock, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (rc == -EINTR);
    if (rc <= 0)
        return rc == 0 || rc == -ECONNRESET ? -EPIPE : (int)rc;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (h->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(fd));
            fd = place_fd(c, fd);
            if (fd >= 0 && *n < max)
                fds[(*n)++] = fd;
            else if (fd >= 0)
                sys_close(fd);
            else
                bad = -EMFILE;
        }
    }
    if (m.msg_flags & MSG_CTRUNC) /* no room in our table of descriptors */
        bad = -EMFILE;
    else if (bad == 0 && (size_t)rc != len)
        bad = -EPROTO;
    while (bad && *n > 0)
        sys_close(fds[--*n]);
    return bad;
}

int link_map(int fd, size_t bytes, const void **out)
{
    struct stat st;
    void *p;
    int rc = sys_fcntl(fd, F_GET_SEALS, 0);

    if (rc >= 0 && (rc & SEALS) != SEALS)
        rc = -EPROTO;
    if (rc < 0)
        goto out;
    rc = (int)sys_call(SYS_fstat, fd, (long)&st, 0, 0, 0, 0);
    if (rc == 0 && (bytes == 0 || (uint64_t)st.st_size < bytes))
        rc = -EPROTO;
    if (rc < 0)
        goto out;
    p = sys_mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd);
    rc = sys_map_error(p);
    if (rc == 0)
        *out = p;
out:
    sys_close(fd);
    return rc;
}

static int dial(struct client *c)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = (int)sys_call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, 0, 0, 0);
    int rc;

    if (fd < 0)
        return fd;
    fd = place_fd(c, fd);
    if (fd < 0)
        return fd;
    memcpy(addr.sun_path, c->path, strlen(c->path) + 1);
    do /* a full backlog makes it wait */
        rc = (int)sys_call(SYS_connect, fd, (long)&addr, sizeof(addr), 0, 0, 0);
    while (rc == -EINTR);
    if (rc < 0) {
        sys_close(fd);
        return rc;
    }
    return fd;
}

/* Table descriptors of the welcome become the client's tables. Takes both. */
static int take_tables(struct client *c, const struct proto_welcome *w, int lines_fd,
                       int records_fd)
{
    struct tables *t = sys_alloc(sizeof(*t)), *old = c->tables;
    const void *lines, *records;
    int rc = t ? 0 : -ENOMEM;

    if (rc < 0) {
        sys_close(lines_fd);
        sys_close(records_fd);
        return rc;
    }
    rc = link_map(lines_fd, (size_t)w->lines * sizeof(struct proto_line), &lines);
    if (rc < 0) {
        sys_close(records_fd);
        goto out;
    }
    rc = link_map(records_fd, (size_t)w->records * sizeof(struct proto_record), &records);
    if (rc < 0) {
        sys_munmap(lines, (size_t)w->lines * sizeof(struct proto_line));
        goto out;
    }
    t->lines = lines;
    t->records = records;
    t->n_lines = w->lines;
    t->n_records = w->records;
    t->older = old;
    atomic_store(&c->tables, t);
    if (old) { /* invariant 5: a reader in the middle sees zeros, which no lease matches */
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
        sys_mmap((void *)old->lines, old->n_lines * sizeof(struct proto_line), PROT_READ, flags,
                 -1);
        sys_mmap((void *)old->records, old->n_records * sizeof(struct proto_record), PROT_READ,
                 flags, -1);
    }
    return 0;
out:
    sys_free(t, sizeof(*t));
    return rc;
}

int link_connect(struct client *c, uint64_t session, uint64_t secret, unsigned wait_ms,
                 struct link *out)
{
    struct proto_hello h = {.magic = PROTO_MAGIC,
                            .version = PROTO_VERSION,
                            .role = c->opts.role,
                            .session = session,
                            .secret = secret};
    struct proto_welcome *w = &out->welcome;
    unsigned n = 0;
    ssize_t sent;
    int rc;

    out->sock = dial(c);
    if (out->sock < 0)
        return out->sock;
    sent = send_with(out->sock, &h, sizeof(h), -1);
    rc = sent < 0 ? (int)sent : receive(c, out->sock, w, sizeof(*w), wait_ms, out->fds, 2, &n);
    if (rc == 0 && (w->magic != PROTO_MAGIC || w->version != PROTO_VERSION))
        rc = -EPROTO;
    if (rc == 0 && w->error < 0)
        rc = w->error;
    if (rc == 0 && (n != 2 || w->session == 0 || w->error > 0 || (session && !w->resumed)))
        rc = -EPROTO;
    if (rc < 0) {
        while (n > 0)
            sys_close(out->fds[--n]);
        sys_close(out->sock);
    }
    return rc;
}

int link_take(struct client *c, const struct link *l)
{
    int rc = take_tables(c, &l->welcome, l->fds[0], l->fds[1]);

    if (rc < 0) {
        sys_close(l->sock);
        return rc;
    }
    c->sock = l->sock;
    c->session = l->welcome.session;
    c->secret = l->welcome.secret;
    atomic_store(&c->epoch, l->welcome.epoch);
    atomic_fetch_add(&c->life, 1);
    return 0;
}

void link_lose(struct client *c)
{
    if (c->sock >= 0)
        sys_close(c->sock);
    c->sock = -1;
}

void link_tell(struct client *c, const struct proto_msg *m)
{
    if (c->sock >= 0)
        send_with(c->sock, m, sizeof(*m), -1);
}

int link_ask(struct client *c, const struct proto_msg *m, int fd, struct proto_answer *a, int *fds,
             unsigned max, unsigned *n)
{
    ssize_t sent;
    int rc;

    *n = 0;
    if (c->sock < 0)
        return -EPIPE;
    sent = send_with(c->sock, m, sizeof(*m), fd);
    if (sent < 0)
        return sent == -ECONNRESET || sent == -ENOTCONN ? -EPIPE : (int)sent;
    rc = receive(c, c->sock, a, sizeof(*a), CLIENT_RESUME_MS, fds, max, n);
    if (rc == 0 && (a->type != m->type || a->id != m->id || a->error > 0))
        rc = -EPROTO;
    if (rc == 0 && a->error < 0)
        rc = a->error;
    if (rc < 0)
        while (*n > 0)
            sys_close(fds[--*n]);
    /* What comes later can no longer be told apart: this connection is of no use. */
    if (rc == -ETIMEDOUT || rc == -EPROTO) {
        link_lose(c);
        rc = -EPIPE;
    }
    return rc;
}
