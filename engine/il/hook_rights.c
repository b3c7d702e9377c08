/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks of calls that change what this process may do, or see: the session was opened for what it
 * was before, so the library ends it and leaves all to the kernel from then on. And syscall(2), by
 * which all calls may come.
 */
#include "il/il.h"

#include <linux/sched.h>
#include <grp.h>
#include <stdarg.h>

/* DISABLES(name, (parameters), (arguments)): whether the call succeeds or not. */
#define DISABLES(name, params, args) \
    IL_EXPORT int name params \
    { \
        il_disable(); \
        return IL_REAL(name) args; \
    }

DISABLES(setuid, (uid_t uid), (uid))
DISABLES(seteuid, (uid_t uid), (uid))
DISABLES(setreuid, (uid_t real, uid_t effective), (real, effective))
DISABLES(setresuid, (uid_t real, uid_t effective, uid_t saved), (real, effective, saved))
DISABLES(setgid, (gid_t gid), (gid))
DISABLES(setegid, (gid_t gid), (gid))
DISABLES(setregid, (gid_t real, gid_t effective), (real, effective))
DISABLES(setresgid, (gid_t real, gid_t effective, gid_t saved), (real, effective, saved))
DISABLES(setfsuid, (uid_t uid), (uid))
DISABLES(setfsgid, (gid_t gid), (gid))
DISABLES(setgroups, (size_t n, const gid_t *groups), (n, groups))
DISABLES(initgroups, (const char *user, gid_t group), (user, group))
DISABLES(capset, (void *head, const void *data), (head, data))
DISABLES(setns, (int fd, int type), (fd, type))
DISABLES(unshare, (int flags), (flags))
DISABLES(chroot, (const char *path), (path))

/* The filter may end who makes the calls of a session, or of a report. */
static void before_prctl(long what)
{
    if (what == PR_SET_SECCOMP) {
        il_disable_for_good();
    }
}

IL_EXPORT int prctl(int what, ...)
{
    va_list args;
    unsigned long a[4];

    va_start(args, what);
    for (int i = 0; i < 4; i++) {
        a[i] = va_arg(args, unsigned long); /* garbage where it does not count, as in libc */
    }
    va_end(args);
    before_prctl(what);
    return IL_REAL(prctl)(what, a[0], a[1], a[2], a[3]);
}

/* -- limits ------------------------------------------------------------------------------------ */
static int limits_changed(int ret)
{
    if (il_ready()) {
        atomic_store(&il->fsize, 0);
    }
    return ret;
}

IL_EXPORT int setrlimit(__rlimit_resource_t what, const struct rlimit *limit)
{
    return limits_changed(IL_REAL(setrlimit)(what, limit));
}

IL_EXPORT int setrlimit64(__rlimit_resource_t what, const struct rlimit64 *limit)
{
    return limits_changed(IL_REAL(setrlimit64)(what, limit));
}

IL_EXPORT int prlimit(pid_t pid, enum __rlimit_resource what, const struct rlimit *set,
                      struct rlimit *old)
{
    return limits_changed(IL_REAL(prlimit)(pid, what, set, old));
}

IL_EXPORT int prlimit64(pid_t pid, enum __rlimit_resource what, const struct rlimit64 *set,
                        struct rlimit64 *old)
{
    return limits_changed(IL_REAL(prlimit64)(pid, what, set, old));
}

/* -- syscall(2) -------------------------------------------------------------------------------- */
long il_syscall(long nr, long a, long b, long c, long d, long e, long f);
void il_before_clone_call(long nr, unsigned long a);

static void changes_rights(long nr)
{
    static const int numbers[] = {
        SYS_setuid,    SYS_setgid,    SYS_setreuid,  SYS_setregid, SYS_setresuid,
        SYS_setresgid, SYS_setfsuid,  SYS_setfsgid,  SYS_setgroups, SYS_capset,
        SYS_setns,     SYS_unshare,   SYS_chroot,    SYS_pivot_root,
    };

    for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (nr == numbers[i]) {
            il_disable();
        }
    }
}

/* What a call made of descriptors. */
static void after(long nr, long a, long b, long ret)
{
    switch (nr) {
#if defined(SYS_open)
    case SYS_open:
    case SYS_creat:
#endif
    case SYS_openat:
    case SYS_openat2:
    case SYS_open_by_handle_at:
        il_fd_opened((int)ret);
        break;
    case SYS_dup:
        il_fd_dup((int)a, (int)ret);
        break;
#if defined(SYS_dup2)
    case SYS_dup2:
#endif
    case SYS_dup3:
        if (a != b && ret >= 0) {
            il_fd_dup((int)a, (int)ret);
        }
        break;
    case SYS_fcntl:
        if (b == F_DUPFD || b == F_DUPFD_CLOEXEC) {
            il_fd_dup((int)a, (int)ret);
        } else if (b == F_SETFL) {
            il_fd_flags((int)a);
        }
        break;
    case SYS_recvmsg:
    case SYS_recvmmsg:
    case SYS_pidfd_getfd:
        il_fd_clear_range(0, IL_FDS);
        break;
    case SYS_setrlimit:
    case SYS_prlimit64:
        limits_changed(0);
        break;
    default:
        break;
    }
}

/* All but those that come back twice on one stack. */
long il_syscall(long nr, long a, long b, long c, long d, long e, long f)
{
    changes_rights(nr);
    switch (nr) {
    case SYS_execve:
        return execve((const char *)a, (char *const *)b, (char *const *)c);
    case SYS_execveat:
        return execveat((int)a, (const char *)b, (char *const *)c, (char *const *)d, (int)e);
    case SYS_close:
        return close((int)a);
    case SYS_close_range:
        return close_range((unsigned)a, (unsigned)b, (int)c);
    case SYS_mmap:
        return (long)mmap((void *)a, (size_t)b, (int)c, (int)d, (int)e, f);
    case SYS_seccomp:
        il_disable_for_good();
        break;
    case SYS_prctl:
        before_prctl(a);
        break;
    case SYS_exit_group:
        il_report("exit_group");
        break;
    case SYS_sendmsg:
    case SYS_sendmmsg:
        il_share_all();
        break;
    default:
        break;
    }
    long ret = sys_call(nr, a, b, c, d, e, f);
    if (ret < 0 && ret > -4096) {
        errno = (int)-ret;
        return -1;
    }
    after(nr, a, b, ret);
    return ret;
}

void il_before_clone_call(long nr, unsigned long a)
{
    if (nr == SYS_clone) {
        il_before_clone(a);
    } else if (nr == SYS_clone3 && a) {
        il_before_clone((unsigned long)((const struct clone_args *)a)->flags);
    } else {
        il_before_clone(nr == 57 ? 0 : CLONE_VM); /* fork; vfork */
    }
}

#if defined(__x86_64__)
/* clone, clone3, fork and vfork return to the caller without a frame of ours in between. */
__asm__(".text\n"
        ".globl syscall\n"
        ".type syscall, @function\n"
        ".p2align 4\n"
        "syscall:\n"
        "    .cfi_startproc\n"
        "    endbr64\n"
        "    cmpq $56, %rdi\n" /* clone, fork, vfork */
        "    jb 1f\n"
        "    cmpq $58, %rdi\n"
        "    jbe 2f\n"
        "    cmpq $435, %rdi\n" /* clone3 */
        "    je 2f\n"
        "1:  pushq 8(%rsp)\n" /* the seventh argument; aligns the stack, too */
        "    .cfi_adjust_cfa_offset 8\n"
        "    call il_syscall\n"
        "    addq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    ret\n"
        "2:  pushq %rdi\n"
        "    pushq %rsi\n"
        "    pushq %rdx\n"
        "    pushq %rcx\n"
        "    pushq %r8\n"
        "    .cfi_adjust_cfa_offset 40\n"
        "    call il_before_clone_call\n"
        "    popq %r8\n"
        "    popq %r10\n"
        "    popq %rdx\n"
        "    popq %rsi\n"
        "    popq %rax\n"
        "    .cfi_adjust_cfa_offset -40\n"
        "    movq %rsi, %rdi\n"
        "    movq %rdx, %rsi\n"
        "    movq %r10, %rdx\n"
        "    movq %r8, %r10\n"
        "    movq %r9, %r8\n"
        "    syscall\n"
        "    cmpq $-4095, %rax\n"
        "    jae 3f\n"
        "    ret\n"
        "3:  negl %eax\n"
        "    movl %eax, %edi\n"
        "    subq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    call il_failed\n"
        "    addq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    cltq\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size syscall, . - syscall\n");
#else
IL_EXPORT long syscall(long nr, ...)
{
    va_list args;
    long a[6];

    va_start(args, nr);
    for (int i = 0; i < 6; i++) {
        a[i] = va_arg(args, long);
    }
    va_end(args);
    if (nr == SYS_clone || nr == SYS_clone3) {
        il_before_clone_call(nr, (unsigned long)a[0]);
    }
    return il_syscall(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
}
#endif
