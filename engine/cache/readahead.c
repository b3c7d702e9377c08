/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read-ahead: a read that begins where the last one ended doubles the window, another one ends it.
 * The wanted run is kept in the file and filled by threads of the cache, a few slots at a time.
 */
#include "cache/cache_int.h"

#define RA_FIRST_BYTES (256u << 10)

static unsigned order_up(uint64_t blocks)
{
    unsigned order = 0;

    while (order < SLOT_ORDER_MAX && (1ull << order) < blocks)
        order++;
    return order;
}

/* Small files come whole, streams in the largest slots, random reads as long as they ask. */
unsigned readahead_order(const struct cache_file *file, size_t len)
{
    uint64_t size = blocks_up(file->cut.size);

    if (size <= 1u << SLOT_ORDER_MAX && file->ra_window > 0)
        return order_up(size);
    if (file->ra_window >= DFE_SLOT_MAX_BYTES)
        return SLOT_ORDER_MAX;
    return order_up(blocks_up(len));
}

static bool sequential(const struct cache_file *file, uint64_t off)
{
    return off == file->ra_next;
}

static void readahead_ask(struct cache_file *file)
{
    struct cache *cache = file->cache;

    if (!list_empty(&file->ra_link))
        return;
    list_add_tail(&cache->ra_files, &file->ra_link);
    pthread_cond_signal(&cache->ra_cv);
}

void readahead_note(struct cache_file *file, uint64_t off, size_t len)
{
    struct cache *cache = file->cache;
    uint64_t next = off + len, want, ahead;
    uint32_t window = file->ra_window;

    if (off == file->ra_last && next == file->ra_next)
        return; /* the same again: refused with NOWAIT and repeated */
    if (!sequential(file, off)) {
        window = 0;
        file->ra_from = file->ra_to = 0;
    } else if (window == 0) {
        window = RA_FIRST_BYTES;
    } else {
        window = window * 2u;
    }
    if (window > 0 && window < 2 * len)
        window = (uint32_t)(2 * len < cache->readahead_max ? 2 * len : cache->readahead_max);
    file->ra_window = window < cache->readahead_max ? window : cache->readahead_max;
    file->ra_last = off;
    file->ra_next = next;
    if (window == 0)
        return;
    ahead = file->ra_to * BLOCK > next ? file->ra_to * BLOCK - next : 0;
    if (ahead > file->ra_window / 2)
        return;
    want = blocks_up(next + file->ra_window);
    if (want > blocks_up(file->cut.size))
        want = blocks_up(file->cut.size);
    if (want > file->dev_end)
        want = file->dev_end;
    if (file->ra_from < next / BLOCK)
        file->ra_from = next / BLOCK;
    if (file->ra_to < want)
        file->ra_to = want;
    if (file->ra_from < file->ra_to)
        readahead_ask(file);
}

void cache_prefetch(struct cache_file *file)
{
    uint64_t end;

    pthread_mutex_lock(&file->cache->lock);
    if (list_empty(&file->slots)) {
        end = blocks_up(file->cut.size);
        file->ra_from = 0;
        file->ra_to = end < file->dev_end ? end : file->dev_end;
        readahead_ask(file);
    }
    pthread_mutex_unlock(&file->cache->lock);
}

/* One load of the file's wanted run. False: there is nothing left to do for it now. */
static bool readahead_step(struct cache_file *file)
{
    struct slot *held[LOAD_SLOTS];
    uint64_t from = file->ra_from, to = file->ra_to;
    unsigned n, order;
    int rc;

    while (from < to && (slot_find(file, from, SLOT_VALID) || slot_find(file, from, SLOT_LOADING) ||
                         file_known_zero(file, from)))
        from++;
    file->ra_from = from;
    if (from >= to)
        return false;
    order = readahead_order(file, (size_t)((to - from) * BLOCK));
    if (to - from > LOAD_SLOTS << SLOT_ORDER_MAX)
        to = from + (LOAD_SLOTS << SLOT_ORDER_MAX);
    file->ra_from = to; /* errors are for those who read there */
    file->cache->info.readahead++;
    rc = load_run(file, from, to, order, held, &n);
    while (n > 0)
        slot_unpin(held[--n]);
    return rc == 0;
}

void *readahead_main(void *arg)
{
    struct cache *cache = arg;

    pthread_mutex_lock(&cache->lock);
    while (!cache->stop) {
        struct cache_file *file;
        if (list_empty(&cache->ra_files)) {
            pthread_cond_wait(&cache->ra_cv, &cache->lock);
            continue;
        }
        file = container_of(cache->ra_files.next, struct cache_file, ra_link);
        list_del(&file->ra_link);
        file_hold(file);
        while (!cache->stop && readahead_step(file))
            ;
        file_release(file);
    }
    pthread_mutex_unlock(&cache->lock);
    return NULL;
}
