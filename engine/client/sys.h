/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls of the client, without libc's functions of that name: the interception library
 * replaces those, they are cancellation points, and they change errno. Results as the kernel has
 * them: a negative errno.
 */
#ifndef DFE_CLIENT_SYS_H
#define DFE_CLIENT_SYS_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
static inline long sys_call(long n, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long rc;

    __asm__ volatile("syscall"
                     : "=a"(rc)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return rc;
}
#elif defined(__aarch64__)
static inline long sys_call(long n, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = n;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;

    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}
#else
static inline long sys_call(long n, long a, long b, long c, long d, long e, long f)
{
    int saved = errno;
    long rc = syscall(n, a, b, c, d, e, f);

    if (rc == -1)
        rc = -errno;
    errno = saved;
    return rc;
}
#endif

static inline int sys_close(int fd)
{
    return (int)sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
}

static inline int sys_fcntl(int fd, int cmd, long arg)
{
    return (int)sys_call(SYS_fcntl, fd, cmd, arg, 0, 0, 0);
}

static inline pid_t sys_getpid(void)
{
    return (pid_t)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
}

static inline void sys_sleep_ms(unsigned ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    sys_call(SYS_nanosleep, (long)&ts, 0, 0, 0, 0, 0);
}

static inline ssize_t sys_sendmsg(int fd, const struct msghdr *m, int flags)
{
    return sys_call(SYS_sendmsg, fd, (long)m, flags, 0, 0, 0);
}

static inline ssize_t sys_recvmsg(int fd, struct msghdr *m, int flags)
{
    return sys_call(SYS_recvmsg, fd, (long)m, flags, 0, 0, 0);
}

/* The address, or a negative errno as one: see sys_mapped. Sanitizers must see mappings come and
 * go, so they get libc's. */
static inline void *sys_mmap(void *at, size_t len, int prot, int flags, int fd)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    void *p = mmap(at, len, prot, flags, fd, 0);
    return p == MAP_FAILED ? (void *)(intptr_t)-errno : p;
#else
    return (void *)sys_call(SYS_mmap, (long)at, (long)len, prot, flags, fd, 0);
#endif
}

static inline void sys_munmap(const void *at, size_t len)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    munmap((void *)at, len);
#else
    sys_call(SYS_munmap, (long)at, (long)len, 0, 0, 0, 0);
#endif
}

static inline int sys_map_error(const void *at)
{
    intptr_t v = (intptr_t)at;

    return v < 0 && v >= -4095 ? (int)v : 0;
}

/* Zeroed memory in whole pages: a thread's first call may come from a signal handler, which must
 * not enter malloc. */
static inline void *sys_alloc(size_t bytes)
{
    void *p = sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

    return sys_map_error(p) ? NULL : p;
}

static inline void sys_free(void *p, size_t bytes)
{
    if (p)
        sys_munmap(p, bytes);
}

/* No signal handler runs in this thread until sys_signals_back: for what holds the client's lock,
 * since a handler may make calls of its own. The kernel's signal set is 64 bits. */
static inline void sys_signals_off(uint64_t *saved)
{
    uint64_t all = ~0ull;

    sys_call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&all, (long)saved, sizeof(all), 0, 0);
}

static inline void sys_signals_back(const uint64_t *saved)
{
    sys_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)saved, 0, sizeof(*saved), 0, 0);
}

#endif
