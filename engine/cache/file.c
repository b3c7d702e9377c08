/* SPDX-License-Identifier: Apache-2.0 */
/* The file table: references, attributes, the operation lock. */
#include <errno.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/clock.h"
#include "cache/cache_int.h"

/* -- operation lock -------------------------------------------------------------------------- */

pthread_cond_t *file_cv(struct cache_file *file)
{
    return &file->cache->file_cv[((uintptr_t)file >> 6) % CACHE_CVS];
}

void file_wake(struct cache_file *file)
{
    pthread_cond_broadcast(file_cv(file));
}

/* Nobody starves: readers let a waiting writer go first, and a writer that ends lets those readers
 * go first who waited for it (op_turn). */

static bool shared_may(const struct cache_file *file)
{
    return file->op >= 0 && (file->excl_waiting == 0 || file->op_turn);
}

static bool excl_may(const struct cache_file *file)
{
    return file->op == 0 && !file->op_turn;
}

int file_lock_shared(struct cache_file *file, bool nowait)
{
    if (!shared_may(file)) {
        if (nowait)
            return -EINPROGRESS;
        file->shared_waiting++;
        while (!shared_may(file))
            pthread_cond_wait(file_cv(file), &file->cache->lock);
        if (--file->shared_waiting == 0)
            file->op_turn = false;
    }
    file->op++;
    return 0;
}

int file_lock_excl(struct cache_file *file, bool nowait)
{
    if (nowait && (!excl_may(file) || file->excl_waiting > 0))
        return -EINPROGRESS;
    file->excl_waiting++;
    while (!excl_may(file))
        pthread_cond_wait(file_cv(file), &file->cache->lock);
    file->excl_waiting--;
    file->op = -1;
    return 0;
}

void file_unlock(struct cache_file *file)
{
    DFE_ASSERT(file->op != 0);
    if (file->op < 0)
        file->op_turn = file->shared_waiting > 0;
    file->op = file->op < 0 ? 0 : file->op - 1;
    if (file->op == 0)
        file_wake(file);
}

/* -- state ----------------------------------------------------------------------------------- */

bool file_is_dirty(const struct cache_file *file)
{
    return file->changed || file->publishing;
}

uint64_t file_tx_cost(const struct cache_file *file)
{
    return (uint64_t)file->dirty_runs * TX_RUN_COST + (uint64_t)file->dirty_blocks * TX_BLOCK_COST;
}

bool file_known_zero(const struct cache_file *file, uint64_t block)
{
    return block >= file->dev_end || ranges_has(file->pending, block) ||
           ranges_has(file->flying, block);
}

void file_changed(struct cache_file *file, int64_t now_ns)
{
    struct cache *cache = file->cache;
    bool sees;

    file->cut.version++;
    file->cut.mtime_ns = file->cut.changed_ns = now_ns;
    if (file->record)
        lease_show_record(file);
    if (file->changed)
        return;
    file->changed = true;
    file->since_ns = base_mono_ns();
    sees = cache->flush_at_ns != 0 && cache->flush_at_ns <= file->since_ns + cache->interval_ns;
    if ((list_empty(&cache->dirty_files) && !sees) || cache->failing)
        pthread_cond_signal(&cache->flush_cv); /* it sleeps without a time to wake, or too long */
    list_add_tail(&cache->dirty_files, &file->flush_link);
}

/* For a file whose data nobody wants any more. */
void file_drop_dirty(struct cache_file *file)
{
    uint64_t blocks = file->dirty_blocks;

    if (file->record)
        lease_drop_record(file);
    slot_drop_range(file, 0, UINT64_MAX);
    obj_unreserve(file->cache->pool, (blocks - file->dirty_blocks) * BLOCK);
    free(file->pending);
    file->pending = NULL;
    if (!file->publishing) {
        free(file->flying);
        file->flying = NULL;
    }
    if (file->kept_first)
        kept_discarded(file);
    file->changed = false;
    file->error = 0;
    file->retries = 0;
    list_del(&file->flush_link);
    file->cut.version++; /* loads under way are of no use */
}

static void file_free(struct cache_file *file)
{
    if (file->record)
        lease_drop_record(file);
    list_del(&file->hash_link);
    list_del(&file->flush_link);
    list_del(&file->ra_link);
    free(file->pending);
    free(file->flying);
    file->cache->info.files--;
    free(file);
}

void file_reap(struct cache_file *file)
{
    if (file->refs == 0 && file->busy == 0 && !file_is_dirty(file) && list_empty(&file->slots))
        file_free(file);
}

void file_hold(struct cache_file *file)
{
    file->busy++;
}

void file_release(struct cache_file *file)
{
    file->busy--;
    file_wake(file);
    file_reap(file);
}

/* -- table ----------------------------------------------------------------------------------- */

static uint32_t file_hash(const struct obj_cont *cont, struct obj_id oid)
{
    uint64_t h = (uintptr_t)cont * 0x9E3779B97F4A7C15ull;

    h = (h ^ oid.hi) * 0xC2B2AE3D27D4EB4Full;
    h = (h ^ oid.lo) * 0x9E3779B97F4A7C15ull;
    return (uint32_t)(h >> 32);
}

static struct list *file_bucket(struct cache *cache, const struct obj_cont *cont, struct obj_id oid)
{
    return &cache->files[file_hash(cont, oid) & cache->files_mask];
}

static struct cache_file *file_find(struct cache *cache, const struct obj_cont *cont,
                                    struct obj_id oid)
{
    list_for_each(l, file_bucket(cache, cont, oid)) {
        struct cache_file *file = container_of(l, struct cache_file, hash_link);
        if (file->cont == cont && file->oid.hi == oid.hi && file->oid.lo == oid.lo)
            return file;
    }
    return NULL;
}

static void table_grow(struct cache *cache)
{
    uint32_t n = (cache->files_mask + 1) * 2;
    struct list *old = cache->files, *table;

    if (cache->info.files <= cache->files_mask)
        return;
    table = calloc(n, sizeof(*table));
    if (!table)
        return; /* longer chains, no failure */
    for (uint32_t i = 0; i < n; i++)
        list_init(&table[i]);
    cache->files = table;
    cache->files_mask = n - 1;
    for (uint32_t i = 0; i < n / 2; i++) {
        list_for_each_safe(l, tmp, &old[i]) {
            struct cache_file *file = container_of(l, struct cache_file, hash_link);
            list_del(l);
            list_add(file_bucket(cache, file->cont, file->oid), l);
        }
    }
    free(old);
}

static struct cache_file *file_new(struct cache *cache, struct obj_cont *cont, struct obj_id oid,
                                   const struct cache_cut *cut)
{
    struct cache_file *file = calloc(1, sizeof(*file));

    if (!file)
        return NULL;
    file->cache = cache;
    file->cont = cont;
    file->oid = oid;
    file->cut = *cut;
    file->dev_end = blocks_up(cut->size);
    file->base_version = cut->version;
    if (cache->keep) {
        struct obj_cont_info info;
        obj_cont_query(cont, &info);
        file->cont_number = info.number;
    }
    file->domain = lease_domain(cache, cont);
    list_init(&file->flush_link);
    list_init(&file->ra_link);
    list_init(&file->slots);
    list_init(&file->dirty_slots);
    cache->info.files++;
    table_grow(cache);
    list_add(file_bucket(cache, cont, oid), &file->hash_link);
    return file;
}

int cache_file_get(struct cache *cache, struct obj_cont *cont, struct obj_id oid,
                   const struct cache_owner_ops *ops, void *owner, const struct cache_cut *cut,
                   struct cache_file **out)
{
    struct cache_file *file;
    int rc = 0;

    pthread_mutex_lock(&cache->lock);
    file = file_find(cache, cont, oid);
    if (!file)
        file = file_new(cache, cont, oid, cut);
    if (!file) {
        rc = -ENOMEM;
        goto out;
    }
    if (file->refs == 0 && !file_is_dirty(file)) {
        file->ops = ops;
        file->owner = owner;
        if (file->cut.version != cut->version) { /* changed behind the cache */
            file->busy++; /* its slots may be all that keeps it */
            slot_drop_range(file, 0, UINT64_MAX);
            file->busy--;
            file->dev_end = blocks_up(cut->size);
            file->used_known = false;
        }
        file->cut = *cut;
        file->base_version = cut->version;
    }
    file->refs++;
    *out = file;
out:
    pthread_mutex_unlock(&cache->lock);
    return rc;
}

void cache_file_put(struct cache_file *file)
{
    struct cache *cache = file->cache;

    pthread_mutex_lock(&cache->lock);
    DFE_ASSERT(file->refs > 0);
    if (--file->refs == 0 && file->record)
        lease_drop_record(file); /* its owner may change its attributes without us */
    file_reap(file);
    pthread_mutex_unlock(&cache->lock);
}

bool cache_file_dirty(struct cache_file *file)
{
    bool dirty;

    pthread_mutex_lock(&file->cache->lock);
    dirty = file_is_dirty(file);
    pthread_mutex_unlock(&file->cache->lock);
    return dirty;
}

void cache_file_discard(struct cache_file *file)
{
    struct cache *cache = file->cache;

    pthread_mutex_lock(&cache->lock);
    DFE_ASSERT(file->refs > 0);
    if (!file->gone) { /* nobody finds it any more; whoever has it reads zeros */
        file->gone = true;
        if (file->record)
            lease_drop_record(file);
        list_del(&file->hash_link);
    }
    for (;;) { /* until no flight is under way or about to start: it uses the owner */
        while (file->publishing)
            pthread_cond_wait(file_cv(file), &cache->lock);
        file_lock_excl(file, false);
        if (!file->publishing)
            break;
        file_unlock(file);
    }
    file_drop_dirty(file);
    file->cut.size = 0;
    file->dev_end = 0;
    file->used_known = true;
    file->used_bytes = 0;
    file_unlock(file);
    file->refs--;
    file_reap(file);
    pthread_mutex_unlock(&cache->lock);
}

/* -- attributes ------------------------------------------------------------------------------ */

void cache_file_cut(struct cache_file *file, struct cache_cut *out)
{
    pthread_mutex_lock(&file->cache->lock);
    *out = file->cut;
    pthread_mutex_unlock(&file->cache->lock);
}

void file_set_mtime(struct cache_file *file, int64_t mtime_ns)
{
    file->cut.mtime_ns = mtime_ns;
    if (file->record)
        lease_show_record(file);
}

void cache_file_set_mtime(struct cache_file *file, int64_t mtime_ns)
{
    pthread_mutex_lock(&file->cache->lock);
    file_set_mtime(file, mtime_ns);
    pthread_mutex_unlock(&file->cache->lock);
}
