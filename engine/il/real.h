/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libc's own functions behind the hooks, and system calls that touch neither errno nor hooks.
 *
 * All are looked up when the library is loaded (dlsym is not for signal handlers). A constructor of
 * another library may call a hook before that: IL_REAL looks them up then. While that runs (dlsym
 * may call an allocator that opens files), the few that an allocator needs are bare system calls.
 */
#ifndef DFE_IL_REAL_H
#define DFE_IL_REAL_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "client/sys.h"

#define IL_EXPORT __attribute__((visibility("default")))

/* Exported by libc and declared by no header, or only by newer ones. */
ssize_t __read(int fd, void *buf, size_t n);
ssize_t __read_chk(int fd, void *buf, size_t n, size_t room);
ssize_t __pread64(int fd, void *buf, size_t n, off64_t off);
ssize_t __pread_chk(int fd, void *buf, size_t n, off_t off, size_t room);
ssize_t __pread64_chk(int fd, void *buf, size_t n, off64_t off, size_t room);
ssize_t __write(int fd, const void *buf, size_t n);
ssize_t __pwrite64(int fd, const void *buf, size_t n, off64_t off);
off_t __lseek(int fd, off_t off, int whence);
int __open(const char *path, int flags, ...);
int __open64(const char *path, int flags, ...);
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);
int __pipe(int fds[2]);
int __close(int fd);
int __dup2(int fd, int to);
int __fcntl(int fd, int cmd, ...);
pid_t _Fork(void);
pid_t __vfork(void);
int capset(void *head, const void *data);
int inotify_init(void);
int inotify_init1(int flags);
int fanotify_init(unsigned flags, unsigned event_flags);
int timerfd_create(clockid_t clock, int flags);
int signalfd(int fd, const sigset_t *mask, int flags);
int pidfd_open(pid_t pid, unsigned flags);
int pidfd_getfd(int pidfd, int fd, unsigned flags);
int setfsuid(uid_t uid);
int setfsgid(gid_t gid);
int setgroups(size_t n, const gid_t *groups);
int initgroups(const char *user, gid_t group);

struct il_real {
#define HOOK(name, test, what) __typeof__(name) *name##_;
#define LEFT(name, test, why)
#include "il/symbols.def"
};
extern struct il_real il_real;

void il_resolve(void); /* looks all of them up; once */

/* Never NULL after il_resolve: what this libc lacks answers ENOSYS. */
#define IL_REAL(name) \
    (__builtin_expect(il_real.name##_ != NULL, 1) ? il_real.name##_ \
                                                  : (il_resolve(), il_real.name##_))

/* -- bare system calls: the result or a negative errno; errno stays ---------------------------- */
#if !defined(__x86_64__) && !defined(__aarch64__)
#error "sys_call is libc's elsewhere, which is a hook: leave engine/il out of the build"
#endif

#define il_sys(nr, a, b, c, d) \
    sys_call((nr), (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)

#endif
