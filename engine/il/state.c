/* SPDX-License-Identifier: Apache-2.0 */
/* Beginning and end: start-up, children, the guard of each thread, disabling. */
#include "il/il.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/single_threaded.h>
#include <time.h>

struct il_state *il;
__thread struct il_thread il_self;
__thread uint32_t il_vforked;

static bool started_off;
static bool for_good; /* disabled; children know it, too */
static char library_path[4096];

bool il_started_off(void)
{
    return started_off;
}

const char *il_library_path(void)
{
    return library_path[0] ? library_path : NULL;
}

/* -- children ---------------------------------------------------------------------------------- */

/* In the child, before anything else of it. One that was made behind libc's back (_Fork, a bare
 * clone) may hold locks for ever that the session's client takes: it leaves all to the kernel. */
static void child_begin(bool by_fork)
{
    uint32_t expected = IL_WIPED;

    if (!atomic_compare_exchange_strong(&il->run, &expected, IL_STARTING)) {
        return;
    }
    /* A handler forked in the middle of a bypass, which may go on in the child, too: it ends by the
     * kernel, and all that comes after it. */
    bool inside = il_self.busy;
    if (by_fork) {
        il_sessions_forked(inside);
    }
    il_own_forked();
    il_stats_forked();
    if (!inside) {
        memset(&il_self, 0, sizeof(il_self));
    }
    atomic_store(&il->epoch, 1);
    atomic_store(&il->serial, 1);
    atomic_store(&il->run, by_fork && !inside && !for_good ? IL_RUNNING : IL_OFF);
}

static void before_fork(void)
{
    if (il && !il_vforked) {
        il_share_all();
    }
}

static void after_fork_child(void)
{
    if (il && !il_vforked) {
        child_begin(true);
    }
}

bool il_ready_slow(void)
{
    if (atomic_load(&il->run) == IL_WIPED) {
        child_begin(false);
    }
    return atomic_load(&il->run) == IL_RUNNING;
}

void il_share_all(void)
{
    if (il_ready()) {
        atomic_fetch_add(&il->epoch, 1);
    }
}

/* -- the guard --------------------------------------------------------------------------------- */
static bool on_other_stack(void)
{
    stack_t now;

    return il_sys(SYS_sigaltstack, 0, &now, 0, 0) || (now.ss_flags & SS_ONSTACK);
}

/* The thread is found busy: inside a signal's handler, or after the handler left by longjmp, when
 * the frame that was busy lies below us and is gone. The session's channel of this thread is in
 * an unknown state then, so the thread does without. */
static void look_at_busy(char *here)
{
    if (here > il_self.frame && !on_other_stack()) {
        il_self.poisoned = 1;
        il_leave();
    }
}

bool il_enter(void)
{
    char *here = __builtin_frame_address(0);

    if (__builtin_expect(il_self.busy | il_self.poisoned, 0)) {
        if (il_self.busy) {
            look_at_busy(here);
        }
        return false;
    }
    if (__builtin_expect(!il_self.record, 0)) {
        uint32_t number = atomic_fetch_add(&il->threads, 1);
        il_self.shares = number >= IL_THREADS - 1;
        il_self.index = il_self.shares ? IL_THREADS - 1 : number;
        il_self.record = &il->thread[il_self.index];
    }
    il_self.frame = here;
    il_self.busy = 1;
    atomic_signal_fence(memory_order_seq_cst);
    /* Sequentially consistent against il_disable and il_quiet: they store, then look here. */
    atomic_fetch_add(&il_self.record->busy, 1);
    if (atomic_load(&il->run) != IL_RUNNING) {
        il_leave();
        return false;
    }
    if (!__libc_single_threaded) { /* else nobody is there to cancel it */
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &il_self.cancel);
        il_self.busy = 2;
    }
    return true;
}

void il_leave(void)
{
    if (il_self.busy == 2) {
        pthread_setcancelstate(il_self.cancel, NULL);
    }
    if (il_self.shares) {
        atomic_fetch_sub_explicit(&il_self.record->busy, 1, memory_order_release);
    } else {
        atomic_store_explicit(&il_self.record->busy, 0, memory_order_release);
    }
    atomic_signal_fence(memory_order_seq_cst);
    il_self.busy = 0;
}

enum il_reason il_enter_reason(void)
{
    return il_self.poisoned ? IL_left : il_self.busy ? IL_nested : IL_lost;
}

bool il_quiet(int wait_ms)
{
    struct timespec pause = {0, 200000};

    for (int turn = 0; turn <= wait_ms * 5; turn++) {
        unsigned busy = 0;
        for (unsigned i = 0; i < IL_THREADS; i++) {
            busy += atomic_load(&il->thread[i].busy);
        }
        if (busy == (il_self.busy ? 1 : 0)) {
            return true;
        }
        il_sys(SYS_nanosleep, &pause, 0, 0, 0);
    }
    return false;
}

/* Rights of this process change: what it was shown before is to be shown no longer. */
void il_disable(void)
{
    if (!il_ready()) {
        return;
    }
    atomic_store(&il->run, IL_OFF);
    /* A handler that interrupted a bypass must let it end: the sessions stay, and are not used. */
    if (!il_self.busy && il_quiet(200)) {
        il_sessions_close();
    }
}

void il_disable_for_good(void)
{
    if (il_vforked) {
        return; /* the parent's; the child makes plain calls anyway, and execs */
    }
    for_good = true;
    il_report("seccomp");
    il_report_off();
    il_disable();
}

/* -- the word of a description's offset -------------------------------------------------------- */
void il_word_take(struct il_word *word, uint32_t serial)
{
    sigset_t all;
    struct timespec pause = {0, 50000};

    word->held = 0;
    if (__libc_single_threaded) {
        return;
    }
    memset(&all, 0xff, sizeof(all));
    il_sys(SYS_rt_sigprocmask, SIG_BLOCK, &all, &word->signals, 8);
    word->held = serial % IL_WORDS + 1;
    _Atomic uint32_t *held = &il->word[word->held - 1].held;
    for (unsigned turn = 0; atomic_exchange_explicit(held, 1, memory_order_acquire); turn++) {
        if (turn < 64) {
            il_sys(SYS_sched_yield, 0, 0, 0, 0);
        } else {
            il_sys(SYS_nanosleep, &pause, 0, 0, 0);
        }
    }
}

void il_word_give(struct il_word *word)
{
    if (word->held) {
        atomic_store_explicit(&il->word[word->held - 1].held, 0, memory_order_release);
        il_sys(SYS_rt_sigprocmask, SIG_SETMASK, &word->signals, 0, 8);
    }
}

/* -- start and end ----------------------------------------------------------------------------- */

/* The path under which we were preloaded: the word of LD_PRELOAD that ends in our name. */
static void find_library_path(void)
{
    const char *list = getenv("LD_PRELOAD");

    while (list && *list) {
        list += strspn(list, ": ");
        size_t len = strcspn(list, ": ");
        const char name[] = "libdfusepy_il.so";
        if (len >= sizeof(name) - 1 && len < sizeof(library_path) &&
            !memcmp(list + len - (sizeof(name) - 1), name, sizeof(name) - 1)) {
            memcpy(library_path, list, len);
            return;
        }
        list += len;
    }
}

__attribute__((constructor)) static void il_start(void)
{
    int saved = errno;
    const char *off = getenv("DFUSEPY_IL");

    il_resolve();
    started_off = off && !strcmp(off, "off");
    find_library_path();
    il_stats_start();
    if (started_off) {
        goto out;
    }
    long at = sys_call(SYS_mmap, 0, sizeof(struct il_state), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at < 0) {
        goto out;
    }
    il_sys(SYS_madvise, at, sizeof(struct il_state), MADV_NOHUGEPAGE, 0);
    if (il_sys(SYS_madvise, at, sizeof(struct il_state), MADV_WIPEONFORK, 0) ||
        pthread_atfork(before_fork, NULL, after_fork_child)) {
        il_sys(SYS_munmap, at, sizeof(struct il_state), 0, 0);
        goto out;
    }
    struct il_state *state = (struct il_state *)at;
    atomic_store(&state->epoch, 1);
    atomic_store(&state->serial, 1);
    atomic_store(&state->run, IL_RUNNING);
    il = state;
out:
    errno = saved;
}

__attribute__((destructor)) static void il_end(void)
{
    if (!il_vforked) {
        il_report("exit");
    }
}
