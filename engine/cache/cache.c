/* SPDX-License-Identifier: Apache-2.0 */
/* The cache itself: open, threads, figures, close. */
#include <errno.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "cache/cache_int.h"

#define FLUSH_THREADS 2u
#define READAHEAD_THREADS 2u
#define READAHEAD_BYTES (4u << 20)
#define TABLE_FIRST 1024u
#define DRAIN_FIRST_BPS (200u << 20) /* until the device has shown its speed */

static void bounds_init(struct cache *cache, const struct cache_opts *opts)
{
    struct buf_info info;

    buf_arena_info(cache->arena, &info);
    cache->slots_bound = info.bound_bytes;
    if (opts->slots_bound_bytes && opts->slots_bound_bytes < info.bound_bytes)
        cache->slots_bound = opts->slots_bound_bytes;
    cache->dirty_bound =
        opts->dirty_bound_bytes ? opts->dirty_bound_bytes : cache->slots_bound / 4;
    if (cache->dirty_bound > cache->slots_bound / 2)
        cache->dirty_bound = cache->slots_bound / 2; /* copies under write-back need the rest */
    cache->interval_ns = 1000000ull * (opts->commit_interval_ms ? opts->commit_interval_ms
                                                                : DFE_COMMIT_INTERVAL_MS);
    cache->readahead_max =
        opts->readahead_max_bytes ? opts->readahead_max_bytes : READAHEAD_BYTES;
    cache->drain_bps = DRAIN_FIRST_BPS;
}

static int tables_init(struct cache *cache)
{
    cache->files = calloc(TABLE_FIRST, sizeof(*cache->files));
    cache->slots = calloc(TABLE_FIRST, sizeof(*cache->slots));
    cache->files_mask = cache->slots_mask = TABLE_FIRST - 1;
    if (!cache->files || !cache->slots)
        return -ENOMEM;
    for (uint32_t i = 0; i < TABLE_FIRST; i++)
        list_init(&cache->files[i]);
    list_init(&cache->lru);
    list_init(&cache->dirty_files);
    list_init(&cache->ra_files);
    return 0;
}

static void locks_init(struct cache *cache)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&cache->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    for (unsigned i = 0; i < CACHE_CVS; i++)
        pthread_cond_init(&cache->file_cv[i], &attr);
    pthread_cond_init(&cache->flush_cv, &attr);
    pthread_cond_init(&cache->ra_cv, &attr);
    pthread_cond_init(&cache->room_cv, &attr);
    pthread_condattr_destroy(&attr);
}

static int threads_start(struct cache *cache, unsigned flush_threads)
{
    unsigned n = flush_threads + READAHEAD_THREADS;

    cache->threads = calloc(n, sizeof(*cache->threads));
    if (!cache->threads)
        return -ENOMEM;
    while (cache->n_threads < n) {
        int rc = pthread_create(&cache->threads[cache->n_threads], NULL,
                                cache->n_threads < flush_threads ? flush_main : readahead_main,
                                cache);
        if (rc != 0)
            return -rc;
        cache->n_threads++;
    }
    return 0;
}

static void threads_stop(struct cache *cache)
{
    pthread_mutex_lock(&cache->lock);
    cache->stop = true;
    pthread_cond_broadcast(&cache->flush_cv);
    pthread_cond_broadcast(&cache->ra_cv);
    pthread_mutex_unlock(&cache->lock);
    for (unsigned i = 0; i < cache->n_threads; i++)
        pthread_join(cache->threads[i], NULL);
}

static void cache_free(struct cache *cache)
{
    pthread_mutex_destroy(&cache->lock);
    for (unsigned i = 0; i < CACHE_CVS; i++)
        pthread_cond_destroy(&cache->file_cv[i]);
    pthread_cond_destroy(&cache->flush_cv);
    pthread_cond_destroy(&cache->ra_cv);
    pthread_cond_destroy(&cache->room_cv);
    free(cache->files);
    free(cache->slots);
    free(cache->threads);
    windows_close(cache);
    free(cache);
}

int cache_open(struct obj_pool *pool, struct buf_arena *arena, const struct cache_opts *opts,
               struct cache **out)
{
    struct cache *cache = calloc(1, sizeof(*cache));
    int rc;

    if (!cache)
        return -ENOMEM;
    cache->pool = pool;
    cache->arena = arena;
    cache->keep = opts->keep;
    locks_init(cache);
    bounds_init(cache, opts);
    rc = tables_init(cache);
    if (rc == 0 && opts->windows)
        rc = windows_open(cache, opts->window_lines);
    if (rc == 0)
        rc = threads_start(cache, opts->flush_threads ? opts->flush_threads : FLUSH_THREADS);
    if (rc < 0) {
        threads_stop(cache);
        cache_free(cache);
        return rc;
    }
    *out = cache;
    return 0;
}

/* The next file of cont (NULL: of the pool) in the bucket. */
static struct cache_file *bucket_next(struct cache *cache, uint32_t i, struct obj_cont *cont)
{
    list_for_each(l, &cache->files[i]) {
        struct cache_file *file = container_of(l, struct cache_file, hash_link);
        if (!cont || file->cont == cont)
            return file;
    }
    return NULL;
}

/* All files of cont (NULL: of the pool), which nobody has; dirty data is lost. */
static void files_drop(struct cache *cache, struct obj_cont *cont)
{
    struct cache_file *file;

    for (uint32_t i = 0; i <= cache->files_mask; i++) {
        while ((file = bucket_next(cache, i, cont)) != NULL) {
            DFE_ASSERT(file->refs == 0);
            file_hold(file);
            while (file->busy > 1 || file->publishing)
                pthread_cond_wait(file_cv(file), &cache->lock);
            file_drop_dirty(file);
            while (!list_empty(&file->slots)) /* on loan: they live until they are given back */
                slot_detach(container_of(file->slots.next, struct slot, file_link));
            file_release(file);
        }
    }
}

int cache_forget(struct cache *cache, struct obj_cont *cont)
{
    int rc = cache_publish_all(cache, cont, 0);

    pthread_mutex_lock(&cache->lock);
    files_drop(cache, cont);
    pthread_mutex_unlock(&cache->lock);
    cache_domain(cache, cont, 0);
    return rc;
}

int cache_close(struct cache *cache)
{
    int rc = cache_publish_all(cache, NULL, 0);

    if (rc < 0)
        base_log(BASE_LOG_ERROR, "cache: closing with unpublished data (%d): it is lost", rc);
    threads_stop(cache);
    pthread_mutex_lock(&cache->lock);
    files_drop(cache, NULL);
    pthread_mutex_unlock(&cache->lock);
    DFE_ASSERT(cache->slots_bytes == 0);
    cache_free(cache);
    return rc;
}

void cache_query(struct cache *cache, struct cache_info *out)
{
    uint64_t oldest = 0;

    pthread_mutex_lock(&cache->lock);
    *out = cache->info;
    out->slots_bytes = cache->slots_bytes;
    out->dirty_bytes = cache->dirty_blocks * BLOCK;
    out->dirty_bound_bytes = cache->dirty_bound;
    list_for_each(l, &cache->dirty_files) {
        uint64_t since = container_of(l, struct cache_file, flush_link)->since_ns;
        if (oldest == 0 || since < oldest)
            oldest = since;
    }
    pthread_mutex_unlock(&cache->lock);
    if (oldest > 0)
        out->dirty_age_ms = (base_mono_ns() - oldest) / 1000000u;
}

void cache_drop(struct cache *cache, struct cache_file *file)
{
    pthread_mutex_lock(&cache->lock);
    slot_drop_clean(cache, file);
    pthread_mutex_unlock(&cache->lock);
}
