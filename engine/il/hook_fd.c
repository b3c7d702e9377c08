/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of calls that end descriptors, or give one a second number. */
#include "il/il.h"

#include <limits.h>
#include <linux/close_range.h>
#include <stdarg.h>
#include <sys/single_threaded.h>

/* A program that closes all that it finds must not close the session under us. */
IL_EXPORT int close(int fd)
{
    if (il_fd_ours(fd)) {
        return 0;
    }
    il_fd_clear(fd);
    return IL_REAL(close)(fd);
}

IL_EXPORT int __close(int fd)
{
    return close(fd);
}

/* Closes from..to around the library's own descriptors. */
static int close_around(unsigned from, unsigned to, unsigned flags)
{
    unsigned own;

    il_fd_clear_range(from, to);
    while ((own = il_own_next(from, to)) != UINT_MAX) {
        if (own > from) {
            int ret = IL_REAL(close_range)(from, own - 1, (int)flags);
            if (ret) {
                return ret;
            }
        }
        from = own + 1;
        if (from > to) {
            return 0;
        }
    }
    return IL_REAL(close_range)(from, to, (int)flags);
}

IL_EXPORT void closefrom(int low)
{
    if (il_own_next(low < 0 ? 0 : (unsigned)low, UINT_MAX) == UINT_MAX) {
        il_fd_clear_range(low < 0 ? 0 : (unsigned)low, UINT_MAX);
        IL_REAL(closefrom)(low);
        return;
    }
    close_around(low < 0 ? 0 : (unsigned)low, UINT_MAX, 0);
}

IL_EXPORT int close_range(unsigned from, unsigned to, int flags)
{
    if ((flags & CLOSE_RANGE_UNSHARE) && !__libc_single_threaded) {
        il_disable(); /* this thread's descriptors are no longer the others' */
    }
    if (from > to || (flags & ~CLOSE_RANGE_UNSHARE)) {
        return IL_REAL(close_range)(from, to, flags); /* marks close-on-exec, or is wrong */
    }
    return close_around(from, to, (unsigned)flags);
}

IL_EXPORT int dup(int fd)
{
    int ret = IL_REAL(dup)(fd);

    il_fd_dup(fd, ret);
    return ret;
}

/* The number is the program's to choose: the library gives way. */
static void make_room(int from, int to)
{
    if (from != to && il_fd_ours(to)) {
        il_disable();
    }
}

static int dupped(int from, int to, int ret)
{
    if (ret >= 0 && from != to) {
        il_fd_dup(from, ret);
    }
    return ret;
}

IL_EXPORT int dup2(int fd, int to)
{
    make_room(fd, to);
    return dupped(fd, to, IL_REAL(dup2)(fd, to));
}

IL_EXPORT int __dup2(int fd, int to)
{
    return dup2(fd, to);
}

IL_EXPORT int dup3(int fd, int to, int flags)
{
    make_room(fd, to);
    return dupped(fd, to, IL_REAL(dup3)(fd, to, flags));
}

/* The third argument is an int or a pointer; passed on as the widest, as libc itself does. */
IL_EXPORT int fcntl(int fd, int cmd, ...)
{
    va_list args;

    va_start(args, cmd);
    void *arg = va_arg(args, void *);
    va_end(args);
    int ret = IL_REAL(fcntl64)(fd, cmd, arg);
    if (ret >= 0 && (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC)) {
        il_fd_dup(fd, ret);
    } else if (ret >= 0 && cmd == F_SETFL) {
        il_fd_flags(fd);
    }
    return ret;
}

IL_EXPORT int fcntl64(int fd, int cmd, ...)
{
    va_list args;

    va_start(args, cmd);
    void *arg = va_arg(args, void *);
    va_end(args);
    return fcntl(fd, cmd, arg);
}

IL_EXPORT int __fcntl(int fd, int cmd, ...)
{
    va_list args;

    va_start(args, cmd);
    void *arg = va_arg(args, void *);
    va_end(args);
    return fcntl(fd, cmd, arg);
}
