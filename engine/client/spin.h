/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether to spin before a sleep, and how long. One thread's; both sides of a channel use it.
 *
 * Waking a processor that has gone idle takes 20 to 100 us in a virtual machine, an exchange of two
 * that spin 0.4: so both spin about as long as a wake-up takes (whoever does that pays at most
 * twice what the best choice would have cost). In time and not in turns, which take 10 to 50 ns by
 * processor: a spin that is a little shorter than a wake-up is never won, on either side.
 *
 * Where both threads were last on the same processor, neither spins: the other can only run when
 * this one sleeps, and they take turns there, 2 to 5 us a request. Each says in the shared memory
 * where it runs. It is a hint; what it gets wrong, losses mend.
 *
 * Spins that are lost (slow requests, a client that computes, a processor that has other work) end
 * it. Then sleeps are looked at: those that were short, the wake-up included, tell that a spin may
 * be won again, and after a few of them one is tried; after more of them with each loss. So rare
 * requests and an idle session cost no spins at all.
 */
#ifndef DFE_CLIENT_SPIN_H
#define DFE_CLIENT_SPIN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

#define SPIN_NS 100000u
#define SPIN_SHORT_NS (2 * SPIN_NS) /* a sleep, wake-up included, that a spin might have saved */
#define SPIN_LOSSES 2u      /* more than wins: then none until so many short sleeps, */
#define SPIN_SLEEPS 4u      /* twice as many with each further loss, */
#define SPIN_LOSSES_MOST 8u /* 256 at most */
#define SPIN_TURNS 32u      /* between looks at the clock, which cost more than a turn */

struct spin {
    bool never;      /* one processor */
    uint32_t losses; /* that wins have not made up for */
    uint32_t sleeps; /* short ones until the next spin */
};

static inline void spin_init(struct spin *s, unsigned cpus)
{
    *s = (struct spin){.never = cpus < 2};
}

/* Where this thread runs, as it is told to the other side: 0 is nowhere. */
static inline uint32_t spin_place(void)
{
    return (uint32_t)(sched_getcpu() + 1);
}

/* here, there: places of this thread and of the other. */
static inline bool spin_pays(const struct spin *s, uint32_t here, uint32_t there)
{
    return !s->never && s->sleeps == 0 && (here != there || here == 0);
}

static inline void spin_won(struct spin *s)
{
    if (s->losses > 0)
        s->losses--;
}

static inline void spin_lost(struct spin *s)
{
    if (s->losses < SPIN_LOSSES_MOST)
        s->losses++;
    if (s->losses >= SPIN_LOSSES)
        s->sleeps = SPIN_SLEEPS << (s->losses - SPIN_LOSSES);
}

/* After a sleep without a spin that was not tried because others were lost. */
static inline void spin_slept(struct spin *s, uint64_t ns)
{
    if (s->sleeps > 0 && ns < SPIN_SHORT_NS)
        s->sleeps--;
}

/* One spin: `while (!arrived && spin_on(&t))`. */
struct spin_time {
    uint32_t turns;
    uint64_t until_ns;
};

static inline void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* False: the time is over. Most spins are won before the clock is read at all. */
static inline bool spin_on(struct spin_time *t)
{
    uint64_t now;

    spin_pause();
    if (++t->turns % SPIN_TURNS != 0)
        return true;
    now = base_mono_ns();
    if (t->until_ns == 0)
        t->until_ns = now + SPIN_NS;
    return now < t->until_ns;
}

#endif
