/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of calls that make descriptors. */
#include "il/il.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

/* The mode argument is there only with these; O_TMPFILE shares a bit with O_DIRECTORY. */
static bool takes_mode(int flags)
{
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

#define MODE_OF(flags, mode) \
    mode_t mode = 0; \
    if (takes_mode(flags)) { \
        va_list args; \
        va_start(args, flags); \
        mode = va_arg(args, mode_t); \
        va_end(args); \
    }

static int opened(int fd)
{
    il_fd_opened(fd);
    return fd;
}

static int other(int fd)
{
    il_fd_other(fd);
    return fd;
}

IL_EXPORT int open(const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return opened(IL_REAL(open)(path, flags, mode));
}

IL_EXPORT int open64(const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return opened(IL_REAL(open64)(path, flags, mode));
}

IL_EXPORT int __open(const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return opened(IL_REAL(__open)(path, flags, mode));
}

IL_EXPORT int __open64(const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return opened(IL_REAL(__open64)(path, flags, mode));
}

IL_EXPORT int openat(int dir, const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return opened(IL_REAL(openat)(dir, path, flags, mode));
}

IL_EXPORT int openat64(int dir, const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return opened(IL_REAL(openat64)(dir, path, flags, mode));
}

/* HOOKED(mark, name, (parameters), (arguments)): the call, and its result's entry. */
#define HOOKED(mark, name, params, args) \
    IL_EXPORT int name params \
    { \
        return mark(IL_REAL(name) args); \
    }

HOOKED(opened, __open_2, (const char *path, int flags), (path, flags))
HOOKED(opened, __open64_2, (const char *path, int flags), (path, flags))
HOOKED(opened, __openat_2, (int dir, const char *path, int flags), (dir, path, flags))
HOOKED(opened, __openat64_2, (int dir, const char *path, int flags), (dir, path, flags))
HOOKED(opened, creat, (const char *path, mode_t mode), (path, mode))
HOOKED(opened, creat64, (const char *path, mode_t mode), (path, mode))
HOOKED(opened, open_by_handle_at, (int fd, struct file_handle *handle, int flags),
       (fd, handle, flags))
HOOKED(opened, mkstemp, (char *name), (name))
HOOKED(opened, mkstemp64, (char *name), (name))
HOOKED(opened, mkostemp, (char *name, int flags), (name, flags))
HOOKED(opened, mkostemp64, (char *name, int flags), (name, flags))
HOOKED(opened, mkstemps, (char *name, int suffix), (name, suffix))
HOOKED(opened, mkstemps64, (char *name, int suffix), (name, suffix))
HOOKED(opened, mkostemps, (char *name, int suffix, int flags), (name, suffix, flags))
HOOKED(opened, mkostemps64, (char *name, int suffix, int flags), (name, suffix, flags))

HOOKED(other, shm_open, (const char *name, int flags, mode_t mode), (name, flags, mode))
HOOKED(other, memfd_create, (const char *name, unsigned flags), (name, flags))
HOOKED(other, socket, (int domain, int type, int protocol), (domain, type, protocol))
HOOKED(other, eventfd, (unsigned count, int flags), (count, flags))
HOOKED(other, epoll_create, (int size), (size))
HOOKED(other, epoll_create1, (int flags), (flags))
HOOKED(other, timerfd_create, (clockid_t clock, int flags), (clock, flags))
HOOKED(other, signalfd, (int fd, const sigset_t *mask, int flags), (fd, mask, flags))
HOOKED(other, inotify_init, (void), ())
HOOKED(other, inotify_init1, (int flags), (flags))
HOOKED(other, fanotify_init, (unsigned flags, unsigned events), (flags, events))
HOOKED(other, pidfd_open, (pid_t pid, unsigned flags), (pid, flags))
HOOKED(other, posix_openpt, (int flags), (flags))
HOOKED(other, accept, (int fd, struct sockaddr *restrict addr, socklen_t *restrict len),
       (fd, addr, len))
HOOKED(other, accept4,
       (int fd, struct sockaddr *restrict addr, socklen_t *restrict len, int flags),
       (fd, addr, len, flags))

IL_EXPORT int pidfd_getfd(int pidfd, int fd, unsigned flags)
{
    int got = IL_REAL(pidfd_getfd)(pidfd, fd, flags);

    if (got >= 0) {
        il_fd_clear(got);
    }
    return got;
}

static int both(int ret, const int fds[2])
{
    if (ret == 0) {
        il_fd_other(fds[0]);
        il_fd_other(fds[1]);
    }
    return ret;
}

IL_EXPORT int socketpair(int domain, int type, int protocol, int fds[2])
{
    return both(IL_REAL(socketpair)(domain, type, protocol, fds), fds);
}

IL_EXPORT int pipe(int fds[2])
{
    return both(IL_REAL(pipe)(fds), fds);
}

IL_EXPORT int __pipe(int fds[2])
{
    return both(IL_REAL(__pipe)(fds), fds);
}

IL_EXPORT int pipe2(int fds[2], int flags)
{
    return both(IL_REAL(pipe2)(fds, flags), fds);
}

/* -- messages with descriptors ----------------------------------------------------------------- */
static void received(const struct msghdr *msg)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR((struct msghdr *)msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int fd;
            __builtin_memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
            il_fd_clear(fd);
        }
    }
}

static bool gives_descriptors(const struct msghdr *msg)
{
    if (!msg || !msg->msg_control || msg->msg_controllen < sizeof(struct cmsghdr)) {
        return false;
    }
    const struct cmsghdr *c = CMSG_FIRSTHDR(msg);
    return c->cmsg_level == SOL_SOCKET; /* credentials as well: rare enough */
}

IL_EXPORT ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
    ssize_t ret = IL_REAL(recvmsg)(fd, msg, flags);

    if (ret >= 0 && msg->msg_controllen) {
        received(msg);
    }
    return ret;
}

IL_EXPORT int recvmmsg(int fd, struct mmsghdr *msgs, unsigned n, int flags,
                       struct timespec *timeout)
{
    int ret = IL_REAL(recvmmsg)(fd, msgs, n, flags, timeout);

    for (int i = 0; i < ret; i++) {
        if (msgs[i].msg_hdr.msg_controllen) {
            received(&msgs[i].msg_hdr);
        }
    }
    return ret;
}

IL_EXPORT ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
    if (gives_descriptors(msg)) {
        il_share_all();
    }
    return IL_REAL(sendmsg)(fd, msg, flags);
}

IL_EXPORT int sendmmsg(int fd, struct mmsghdr *msgs, unsigned n, int flags)
{
    for (unsigned i = 0; msgs && i < n && i < 1024; i++) {
        if (gives_descriptors(&msgs[i].msg_hdr)) {
            il_share_all();
            break;
        }
    }
    return IL_REAL(sendmmsg)(fd, msgs, n, flags);
}
