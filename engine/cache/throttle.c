/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounds of dirty data. From half of the bound on the flush threads work without a pause; from
 * three quarters on each writer sleeps as long as the device needs for a growing share of what it
 * brings, so that at the bound writers run at the device's speed instead of stopping at a wall.
 */
#include <errno.h>

#include "base/clock.h"
#include "cache/cache_int.h"

#define DELAY_MAX_NS 100000000ull

static void room_wait(struct cache *cache, uint64_t ns)
{
    uint64_t at = base_mono_ns() + ns;
    struct timespec until = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};

    pthread_cond_timedwait(&cache->room_cv, &cache->lock, &until);
}

/* How long a writer of len bytes pauses at this fill of the bound. */
static uint64_t delay_ns(const struct cache *cache, size_t len, uint64_t dirty)
{
    uint64_t from = cache->dirty_bound / 4 * 3, span = cache->dirty_bound - from;
    uint64_t over, ns;

    if (dirty <= from || span == 0)
        return 0;
    over = dirty - from < span ? dirty - from : span;
    ns = (uint64_t)((double)len * 1e9 / (double)cache->drain_bps * (double)over / (double)span);
    return ns < DELAY_MAX_NS ? ns : DELAY_MAX_NS;
}

/* At the bound: until something was published, or known to fail. */
static int wait_below(struct cache *cache, struct cache_file *file, size_t len, bool nowait)
{
    uint64_t blocks = blocks_up(len) + 1;

    while (cache->dirty_blocks > 0 &&
           (cache->dirty_blocks + blocks) * BLOCK > cache->dirty_bound) {
        if (cache->failing || file->error)
            return -EIO;
        if (nowait)
            return -EINPROGRESS;
        cache->want_room++; /* however little is dirty: this write needs it gone */
        flush_kick(cache);
        room_wait(cache, DELAY_MAX_NS);
        cache->want_room--;
    }
    return 0;
}

int throttle_write(struct cache_file *file, size_t len, bool nowait)
{
    struct cache *cache = file->cache;
    uint64_t ns;
    int rc;

    pthread_mutex_lock(&cache->lock);
    rc = len > 0 ? wait_below(cache, file, len, nowait) : 0;
    if (rc < 0)
        goto out;
    ns = delay_ns(cache, len, cache->dirty_blocks * BLOCK);
    if (ns > 0 && nowait) {
        rc = -EINPROGRESS;
    } else if (ns > 0) {
        flush_kick(cache);
        room_wait(cache, ns);
    }
    while (rc == 0 && file_tx_cost(file) > TX_COST_BOUND) {
        if (nowait) {
            rc = -EINPROGRESS;
            break;
        }
        pthread_mutex_unlock(&cache->lock);
        rc = flush_file(file, false) < 0 ? -EIO : 0;
        pthread_mutex_lock(&cache->lock);
    }
out:
    pthread_mutex_unlock(&cache->lock);
    return rc;
}
