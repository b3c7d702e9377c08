/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space that deletions are about to give back.
 *
 * A file without names goes when its last user has gone, and its owner's thread deletes it a moment
 * later. So a program that replaces or deletes a file and writes at once may come before its space:
 * whoever finds none waits for that, with nothing locked, as long as there is hope. A file in use
 * may stay for hours: it is waited for while its loss of name is news, since the kernel tells of
 * its last close and its forgetting after the programs have gone on.
 */
#include "base/clock.h"
#include "cache/cache_int.h"

#define STALL_NS 2000000000ull /* without anything coming back */
#define MOST_NS 10000000000ull /* and all in all: others may take each time what came */
#define HELD_NS 2000000000ull  /* how long it is news */
#define OLD_NS 50000000ull     /* what a full pool with old ones costs each writer */

void cache_doomed(struct cache *cache, int64_t held, int64_t leaving)
{
    pthread_mutex_lock(&cache->lock);
    cache->held += held;
    cache->leaving += leaving;
    if (held > 0)
        cache->held_until_ns = base_mono_ns() + HELD_NS;
    if (held < 0 || leaving < 0) {
        cache->doomed_turn++;
        pthread_cond_broadcast(&cache->room_cv);
    }
    pthread_mutex_unlock(&cache->lock);
}

/* Until when to wait, from `now` on; 0: for nothing. */
static uint64_t hope_until(const struct cache *cache, uint64_t now)
{
    if (cache->leaving > 0)
        return now + STALL_NS;
    if (cache->held == 0)
        return 0;
    return cache->held_until_ns > now + OLD_NS ? cache->held_until_ns : now + OLD_NS;
}

bool doomed_wait(struct cache *cache, struct doomed_wait *w)
{
    uint64_t now = base_mono_ns(), until;

    if (w->since_ns == 0)
        w->since_ns = now;
    until = hope_until(cache, now);
    while (w->turn == cache->doomed_turn && now < until) {
        struct timespec at = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
        pthread_cond_timedwait(&cache->room_cv, &cache->lock, &at);
        now = base_mono_ns();
    }
    if (w->turn == cache->doomed_turn || now - w->since_ns > MOST_NS)
        return false;
    w->turn = cache->doomed_turn;
    return true;
}
