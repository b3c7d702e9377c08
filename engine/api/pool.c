/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of the public API: the arena, the object pool and the cache, opened and closed together. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/limits.h"

void api_uuid_text(const uint8_t u[16], char text[40])
{
    snprintf(text, 40, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
             u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
             u[14], u[15]);
}

int dfe_pool_create(const struct dfe_pool_create_opts *opts)
{
    struct dfe_pool_create_opts o;
    struct obj_pool_create_opts obj;
    int ret;

    base_clear_error();
    ret = api_opts(&o, sizeof(o), opts);
    if (ret < 0)
        return ret;
    if (!o.path || !o.path[0] || !o.label)
        return base_refuse(-EINVAL, "a pool needs a directory and a label");
    obj = (struct obj_pool_create_opts){
        .size = sizeof(obj),
        .path = o.path,
        .label = o.label,
        .device = o.device,
        .size_bytes = o.size_bytes,
        .journal_bytes = o.journal_bytes,
    };
    return obj_pool_create(&obj);
}

/* Options that contradict each other are refused before anything is touched. */
static int check_open_opts(struct dfe_pool_open_opts *o)
{
    if (o->arena_bytes == 0)
        o->arena_bytes = api_arena_default();
    if (o->arena_bytes > UINT64_MAX - DFE_ARENA_EXTENT_BYTES)
        return base_refuse(-EINVAL, "cache memory of %llu bytes makes no sense",
                           (unsigned long long)o->arena_bytes);
    if (o->dirty_bytes > o->arena_bytes)
        return base_refuse(-EINVAL,
                           "the bound of unwritten data (%llu bytes) is above the cache's memory "
                           "(%llu bytes)",
                           (unsigned long long)o->dirty_bytes, (unsigned long long)o->arena_bytes);
    return 0;
}

static int open_parts(struct local_pool *pool, const struct dfe_pool_open_opts *o)
{
    struct obj_pool_open_opts obj = {
        .size = sizeof(obj),
        .path = o->path,
        .read_only = o->read_only != 0,
        .commit_interval_ms = o->commit_interval_ms,
        .keep = pool->hosted.keep,
    };
    struct cache_opts cache = {
        .size = sizeof(cache),
        .dirty_bound_bytes = o->dirty_bytes,
        .commit_interval_ms = o->commit_interval_ms,
        .flush_threads = o->flush_threads,
        .windows = pool->hosted.windows,
        .keep = pool->hosted.keep,
    };
    int ret;

    ret = buf_arena_open(o->arena_bytes, o->no_hugepages ? BUF_PAGES : BUF_HUGE, &pool->arena);
    if (ret < 0)
        return ret;
    obj.arena = pool->arena;
    ret = obj_pool_open(&obj, &pool->obj);
    if (ret < 0)
        goto out_arena;
    ret = cache_open(pool->obj, pool->arena, &cache, &pool->cache);
    if (ret < 0)
        goto out_obj;
    return 0;

out_obj:
    obj_pool_close(pool->obj);
out_arena:
    buf_arena_close(pool->arena);
    return ret;
}

int api_pool_open_hosted(const struct dfe_pool_open_opts *opts, const struct api_hosted *hosted,
                         struct dfe_pool **out)
{
    struct dfe_pool_open_opts o;
    struct local_pool *pool;
    int ret;

    ret = api_opts(&o, sizeof(o), opts);
    if (ret < 0)
        return ret;
    ret = check_open_opts(&o);
    if (ret < 0)
        return ret;
    pool = calloc(1, sizeof(*pool));
    if (!pool)
        return -ENOMEM;
    pool->dfe.ops = &local_pool_ops;
    pool->hosted = *hosted;
    ret = open_parts(pool, &o);
    if (ret < 0) {
        free(pool);
        return ret;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_rwlock_init(&pool->array_lock, NULL);
    list_init(&pool->states);
    if (pool->hosted.keep && !o.read_only)
        (void)api_restore(pool); /* what fails is told, and tried again when it is opened */
    *out = &pool->dfe;
    return 0;
}

int local_pool_open(const struct dfe_pool_open_opts *opts, struct dfe_pool **out)
{
    static const struct api_hosted alone;

    return api_pool_open_hosted(opts, &alone, out);
}

struct buf_arena *api_pool_arena(struct dfe_pool *pool)
{
    return local_pool(pool)->arena;
}

struct cache *api_pool_cache(struct dfe_pool *pool)
{
    return local_pool(pool)->cache;
}

static int local_pool_close(struct dfe_pool *handle)
{
    struct local_pool *pool = local_pool(handle);
    unsigned conts;
    int ret, err;

    pthread_mutex_lock(&pool->lock);
    conts = pool->conts;
    pthread_mutex_unlock(&pool->lock);
    if (conts)
        return base_refuse(-EBUSY, "%u of the pool's containers are open", conts);

    ret = cache_close(pool->cache);
    err = obj_pool_close(pool->obj);
    if (ret == 0)
        ret = err;
    buf_arena_close(pool->arena);
    pthread_rwlock_destroy(&pool->array_lock);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
    return ret;
}

static void fill_from_obj(struct dfe_pool_info *out, const struct obj_pool_info *in)
{
    snprintf(out->label, sizeof(out->label), "%s", in->label);
    snprintf(out->device, sizeof(out->device), "%s", in->device);
    snprintf(out->backend, sizeof(out->backend), "%s", in->backend);
    snprintf(out->damage, sizeof(out->damage), "%s", in->damage);
    api_uuid_text(in->uuid, out->uuid);
    out->format = in->format;
    out->read_only = in->read_only;
    out->direct = in->direct;
    out->registered = in->registered;
    out->size_bytes = in->size_bytes;
    out->data_bytes = in->data_bytes;
    out->free_bytes = in->free_bytes;
    out->reserved_bytes = in->reserved_bytes;
    out->journal_bytes = in->journal_bytes;
    out->journal_used_bytes = in->journal_used_bytes;
    out->index_bytes = in->index_bytes;
    out->overlay_keys = in->overlay_keys;
    out->overlay_bytes = in->overlay_bytes;
    out->epoch = in->epoch;
    out->durable_epoch = in->durable_epoch;
    out->checkpoints = in->checkpoints;
    out->last_checkpoint_ns = in->last_checkpoint_ns;
    out->checksum_errors = in->checksum_errors;
    out->io_errors = in->io_errors;
    out->containers = in->containers;
}

static int local_pool_query(struct dfe_pool *handle, struct dfe_pool_info *out)
{
    struct local_pool *pool = local_pool(handle);
    struct obj_pool_info obj = {0};
    struct buf_info buf = {0};
    struct cache_info cache = {0};

    memset(out, 0, sizeof(*out));
    obj_pool_query(pool->obj, &obj);
    fill_from_obj(out, &obj);

    buf_arena_info(pool->arena, &buf);
    out->arena_bound_bytes = buf.bound_bytes;
    out->arena_bytes = buf.mapped_bytes;
    out->arena_huge_bytes = buf.kind_bytes[BUF_HUGE];
    out->arena_thp_bytes = buf.kind_bytes[BUF_THP];
    out->arena_plain_bytes = buf.kind_bytes[BUF_PAGES];

    cache_query(pool->cache, &cache);
    out->slots_bytes = cache.slots_bytes;
    out->dirty_bytes = cache.dirty_bytes;
    out->dirty_bound_bytes = cache.dirty_bound_bytes;
    out->dirty_age_ms = cache.dirty_age_ms;
    out->hits = cache.hits;
    out->misses = cache.misses;
    out->readahead = cache.readahead;
    out->evicted = cache.evicted;
    out->published = cache.published;
    out->writeback_errors = cache.writeback_errors;
    return 0;
}

int dfe_pool_peek(const char *path, struct dfe_pool_info *out)
{
    struct obj_pool_info obj = {0};
    int ret;

    base_clear_error();
    if (!path || !path[0])
        return base_refuse(-EINVAL, "no pool directory was given");
    ret = obj_pool_peek(path, &obj);
    if (ret < 0)
        return ret;
    memset(out, 0, sizeof(*out));
    fill_from_obj(out, &obj);
    return 0;
}

int dfe_pool_destroy(const char *path, int force)
{
    base_clear_error();
    if (!path || !path[0])
        return base_refuse(-EINVAL, "no pool directory was given");
    return obj_pool_destroy(path, force != 0);
}

static int local_pool_sync(struct dfe_pool *handle)
{
    struct local_pool *pool = local_pool(handle);
    int ret, err;

    ret = cache_publish_all(pool->cache, NULL, CACHE_SYNC);
    err = obj_sync(pool->obj);
    return ret < 0 ? ret : err;
}

static int local_pool_checkpoint(struct dfe_pool *handle)
{
    struct local_pool *pool = local_pool(handle);

    return obj_checkpoint(pool->obj);
}

static int local_pool_drop_caches(struct dfe_pool *handle)
{
    struct local_pool *pool = local_pool(handle);

    cache_drop(pool->cache, NULL);
    return 0;
}

static int local_service_query(struct dfe_pool *handle, struct dfe_service_info *out)
{
    return base_refuse(-ENOTSUP, "the pool is open in this process: no service");
}

const struct pool_ops local_pool_ops = {
    .close = local_pool_close,
    .query = local_pool_query,
    .sync = local_pool_sync,
    .checkpoint = local_pool_checkpoint,
    .drop_caches = local_pool_drop_caches,
    .service_query = local_service_query,
    .cont_create = local_cont_create,
    .cont_destroy = local_cont_destroy,
    .cont_list = local_cont_list,
    .cont_open = local_cont_open,
};
