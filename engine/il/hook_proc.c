/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of calls that make processes and replace programs. */
#include "il/il.h"

#include <alloca.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define PRELOAD "LD_PRELOAD="
#define REPORT "DFUSEPY_IL_REPORT="
#define MOST_VARIABLES 65536u /* what fits the stack; more are passed on as they are, */
#define MOST_BYTES 8192u      /* and so is a longer LD_PRELOAD */

/* -- the environment of the next program ----------------------------------------------------------
 *
 * On the caller's stack, since the child of a vfork shares all other memory with its parent; no
 * more of it than is needed, since children of clone run on small ones. */
struct env {
    size_t list_bytes; /* 0: the program's own environment is passed on */
    size_t preload_bytes, report_bytes;
    char **list;
    char *preload, *report;
};

static struct env env_need(char *const envp[])
{
    const char *ours = il_library_path(), *report = il_report_path();
    size_t n = 0, rest = 0;

    if (!ours || il_started_off()) {
        return (struct env){0};
    }
    for (; envp && envp[n]; n++) {
        if (!strncmp(envp[n], PRELOAD, sizeof(PRELOAD) - 1)) {
            rest = strlen(envp[n]);
        }
    }
    if (n >= MOST_VARIABLES || rest > MOST_BYTES) {
        return (struct env){0};
    }
    return (struct env){.list_bytes = (n + 3) * sizeof(char *),
                        .preload_bytes = sizeof(PRELOAD) + strlen(ours) + rest + 2,
                        .report_bytes = report ? sizeof(REPORT) + strlen(report) : 1};
}

/* Declares env, with room for what env_fill writes. */
#define ENV(env, envp) \
    struct env env = env_need(envp); \
    if (env.list_bytes) { \
        env.list = alloca(env.list_bytes); \
        env.preload = alloca(env.preload_bytes); \
        env.report = alloca(env.report_bytes); \
    }

/* envp with our two variables. */
static char *const *env_fill(char *const envp[], struct env *env)
{
    const char *ours = il_library_path(), *preload = NULL;
    bool report = false;
    size_t n = 0;

    if (!env->list_bytes) {
        return envp;
    }
    for (size_t i = 0; envp && envp[i]; i++) {
        if (!strncmp(envp[i], PRELOAD, sizeof(PRELOAD) - 1)) {
            preload = envp[i] + sizeof(PRELOAD) - 1;
            if (strstr(preload, ours)) {
                env->list[n++] = envp[i];
            }
            continue;
        }
        report |= !strncmp(envp[i], REPORT, sizeof(REPORT) - 1);
        env->list[n++] = envp[i];
    }
    if (!preload || !strstr(preload, ours)) {
        char *at = stpcpy(stpcpy(env->preload, PRELOAD), ours);
        if (preload && *preload) {
            stpcpy(stpcpy(at, ":"), preload);
        }
        env->list[n++] = env->preload;
    }
    if (!report && il_report_path()) {
        stpcpy(stpcpy(env->report, REPORT), il_report_path());
        env->list[n++] = env->report;
    }
    env->list[n] = NULL;
    return env->list;
}

/* -- exec -------------------------------------------------------------------------------------- */
IL_EXPORT int execve(const char *path, char *const argv[], char *const envp[])
{
    ENV(env, envp)

    il_report("exec");
    return IL_REAL(execve)(path, argv, env_fill(envp, &env));
}

IL_EXPORT int execv(const char *path, char *const argv[])
{
    return execve(path, argv, environ);
}

IL_EXPORT int execvpe(const char *file, char *const argv[], char *const envp[])
{
    ENV(env, envp)

    il_report("exec");
    return IL_REAL(execvpe)(file, argv, env_fill(envp, &env));
}

IL_EXPORT int execvp(const char *file, char *const argv[])
{
    return execvpe(file, argv, environ);
}

IL_EXPORT int fexecve(int fd, char *const argv[], char *const envp[])
{
    ENV(env, envp)

    il_report("exec");
    return IL_REAL(fexecve)(fd, argv, env_fill(envp, &env));
}

IL_EXPORT int execveat(int dir, const char *path, char *const argv[], char *const envp[],
                       int flags)
{
    ENV(env, envp)

    il_report("exec");
    return IL_REAL(execveat)(dir, path, argv, env_fill(envp, &env), flags);
}

/* The words of a call that lists them: first, then those of `args` up to NULL. */
#define LIST_OF(first, argv, envp_too, envp) \
    va_list args; \
    size_t n = 1; \
    va_start(args, first); \
    while (va_arg(args, char *)) { \
        n++; \
    } \
    va_end(args); \
    char **argv = alloca((n + 1) * sizeof(char *)); \
    argv[0] = (char *)first; \
    va_start(args, first); \
    for (size_t i = 1; i <= n; i++) { \
        argv[i] = va_arg(args, char *); \
    } \
    char *const *envp = envp_too ? va_arg(args, char *const *) : environ; \
    va_end(args);

IL_EXPORT int execl(const char *path, const char *first, ...)
{
    LIST_OF(first, argv, false, envp)
    return execve(path, argv, envp);
}

IL_EXPORT int execle(const char *path, const char *first, ...)
{
    LIST_OF(first, argv, true, envp)
    return execve(path, argv, envp);
}

IL_EXPORT int execlp(const char *file, const char *first, ...)
{
    LIST_OF(first, argv, false, envp)
    return execvpe(file, argv, envp);
}

IL_EXPORT int posix_spawn(pid_t *restrict pid, const char *restrict path,
                          const posix_spawn_file_actions_t *restrict actions,
                          const posix_spawnattr_t *restrict attr, char *const argv[restrict],
                          char *const envp[restrict])
{
    ENV(env, envp)

    il_share_all();
    return IL_REAL(posix_spawn)(pid, path, actions, attr, argv, env_fill(envp, &env));
}

IL_EXPORT int posix_spawnp(pid_t *restrict pid, const char *restrict file,
                           const posix_spawn_file_actions_t *restrict actions,
                           const posix_spawnattr_t *restrict attr, char *const argv[restrict],
                           char *const envp[restrict])
{
    ENV(env, envp)

    il_share_all();
    return IL_REAL(posix_spawnp)(pid, file, actions, attr, argv, env_fill(envp, &env));
}

IL_EXPORT int system(const char *command)
{
    il_share_all();
    return IL_REAL(system)(command);
}

IL_EXPORT void _exit(int status)
{
    il_report("_exit");
    for (;;) {
        IL_REAL(_exit)(status);
    }
}

IL_EXPORT void _Exit(int status)
{
    _exit(status);
}

/* -- new processes ----------------------------------------------------------------------------- */
IL_EXPORT pid_t _Fork(void)
{
    il_share_all();
    return IL_REAL(_Fork)();
}

/* Before a clone with these flags, by whatever road. */
void il_before_clone(unsigned long flags)
{
    bool memory = flags & CLONE_VM, files = flags & CLONE_FILES;

    if (!memory) {
        il_share_all();
    }
    /* One of the two shared alone: what is remembered would be wrong for one of them. Two threads
     * with one thread-local memory: the guard would be both's. */
    if (memory != files || (memory && !(flags & CLONE_SETTLS))) {
        if (memory || files) {
            il_disable();
        }
    }
}

IL_EXPORT int clone(int (*fn)(void *), void *stack, int flags, void *arg, ...)
{
    va_list args;

    va_start(args, arg);
    pid_t *parent = va_arg(args, pid_t *);
    void *tls = va_arg(args, void *);
    pid_t *child = va_arg(args, pid_t *);
    va_end(args);
    il_before_clone((unsigned long)(unsigned)flags);
    return IL_REAL(clone)(fn, stack, flags, arg, parent, tls, child);
}

int il_failed(int err);
int il_failed(int err)
{
    errno = err;
    return -1;
}

#if defined(__x86_64__)
/*
 * vfork returns twice on one stack, so it cannot be wrapped in C: the return address waits in a
 * register while the child overwrites the stack (as in libc's own). The child finds il_vforked
 * raised in the thread-local memory that it shares with the parent's thread, which sleeps.
 */
__asm__(".text\n"
        ".globl vfork, __vfork\n"
        ".type vfork, @function\n"
        ".type __vfork, @function\n"
        ".p2align 4\n"
        "vfork:\n"
        "__vfork:\n"
        "    .cfi_startproc\n"
        "    endbr64\n"
        "    subq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    call il_share_all\n"
        "    addq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    .cfi_register %rip, %rdi\n"
        "    movq il_vforked@gottpoff(%rip), %rsi\n"
        "    incl %fs:(%rsi)\n"
        "    movl $58, %eax\n" /* SYS_vfork */
        "    syscall\n"
        "    pushq %rdi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    testl %eax, %eax\n"
        "    jz 1f\n"
        "    decl %fs:(%rsi)\n"
        "    cmpl $-4095, %eax\n"
        "    jae 2f\n"
        "1:  ret\n"
        "2:  negl %eax\n"
        "    movl %eax, %edi\n"
        "    jmp il_failed\n"
        "    .cfi_endproc\n"
        ".size vfork, . - vfork\n"
        ".size __vfork, . - __vfork\n");
#else
/* POSIX allows it to be a fork. */
IL_EXPORT pid_t vfork(void)
{
    return fork();
}

IL_EXPORT pid_t __vfork(void)
{
    return fork();
}
#endif
