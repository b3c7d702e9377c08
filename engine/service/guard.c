/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGBUS in memory of clients.
 *
 * Seals forbid a client to shrink or punch its memory, so a fault there means that the kernel could
 * not get a page (swap, a memory cgroup's limit). The handler puts zeros in place of the whole
 * range and lets the access go on: unlike a long jump this works wherever it was, under whatever
 * lock. The owner of the range sees *hit and ends the session. Faults elsewhere are the next
 * handler's.
 */
#include "service/guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>

#define RANGES 32768u /* channels of all sessions */

/* base is stored last and cleared first: the handler takes no lock. */
struct range {
    atomic_uintptr_t base;
    size_t len;
    atomic_int *hit;
};

static struct range ranges[RANGES];
static atomic_uint used; /* ranges below this have been in use */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction next_action;

static void pass_on(int sig, siginfo_t *info, void *context)
{
    if (next_action.sa_flags & SA_SIGINFO) {
        next_action.sa_sigaction(sig, info, context);
    } else if (next_action.sa_handler == SIG_DFL || next_action.sa_handler == SIG_IGN) {
        struct sigaction plain = {.sa_handler = SIG_DFL};
        sigaction(sig, &plain, NULL); /* the access comes again, and ends the process */
    } else {
        next_action.sa_handler(sig);
    }
}

static void handle(int sig, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    unsigned n = atomic_load(&used);
    int saved = errno;

    for (unsigned i = 0; i < n; i++) {
        uintptr_t base = atomic_load(&ranges[i].base);
        if (base == 0 || at < base || at - base >= ranges[i].len)
            continue;
        atomic_store(ranges[i].hit, 1);
        if (mmap((void *)base, ranges[i].len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                 -1, 0) == MAP_FAILED)
            break;
        errno = saved;
        return;
    }
    errno = saved;
    pass_on(sig, info, context);
}

int guard_install(void)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO}, now;
    int rc = 0;

    pthread_mutex_lock(&lock);
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, NULL, &now) < 0)
        rc = -errno;
    else if (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != handle) {
        next_action = now;
        if (sigaction(SIGBUS, &action, NULL) < 0)
            rc = -errno;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int guard_add(const void *base, size_t len, atomic_int *hit)
{
    unsigned i = 0;

    pthread_mutex_lock(&lock);
    while (i < RANGES && atomic_load(&ranges[i].base))
        i++;
    if (i < RANGES) {
        ranges[i].len = len;
        ranges[i].hit = hit;
        atomic_store(&ranges[i].base, (uintptr_t)base);
        if (i >= atomic_load(&used))
            atomic_store(&used, i + 1);
    }
    pthread_mutex_unlock(&lock);
    return i < RANGES ? 0 : -ENOSPC;
}

void guard_remove(const void *base)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < atomic_load(&used); i++)
        if (atomic_load(&ranges[i].base) == (uintptr_t)base)
            atomic_store(&ranges[i].base, 0);
    pthread_mutex_unlock(&lock);
}
