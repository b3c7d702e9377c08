/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learns whether spinning pays before a sleep. One thread's; both sides of a channel use it.
 *
 * It pays while the other side runs on another processor and answers soon. Where it does not (one
 * processor, a busy second one, slow requests), a few losses in a row end it: the two sides then
 * take turns on one processor, 2 to 5 us a request. A trial now and then finds out when that has
 * changed; it must be a long one, since waking an idle processor takes up to 50 us, and becomes
 * rarer with each loss.
 */
#ifndef DFE_CLIENT_SPIN_H
#define DFE_CLIENT_SPIN_H

#include <stdint.h>

#define SPIN_TURNS 2000u  /* at most: 20 to 100 us, by processor */
#define SPIN_GIVE_UP 250u /* a budget below this is none */
#define SPIN_SKIP 16u     /* sleeps without spinning before the first trial, */
#define SPIN_SKIP_MOST 1024u

struct spin {
    uint32_t most;   /* 0: never spins */
    uint32_t budget; /* turns */
    uint32_t skip;   /* sleeps until the next trial */
    uint32_t next_skip;
};

static inline void spin_init(struct spin *s, unsigned cpus)
{
    s->most = s->budget = cpus < 2 ? 0 : SPIN_TURNS;
    s->skip = s->next_skip = SPIN_SKIP;
}

/* Turns to spin now. */
static inline uint32_t spin_turns(struct spin *s)
{
    if (s->budget > 0)
        return s->budget;
    if (s->skip > 0) {
        s->skip--;
        return 0;
    }
    return s->most;
}

static inline void spin_won(struct spin *s)
{
    s->budget += SPIN_TURNS / 4;
    if (s->budget >= s->most) {
        s->budget = s->most;
        s->next_skip = SPIN_SKIP;
    }
}

static inline void spin_lost(struct spin *s)
{
    s->budget /= 2;
    if (s->budget >= SPIN_GIVE_UP)
        return;
    s->budget = 0;
    s->skip = s->next_skip;
    if (s->next_skip < SPIN_SKIP_MOST)
        s->next_skip *= 2;
}

static inline void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
