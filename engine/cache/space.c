/* SPDX-License-Identifier: Apache-2.0 */
/* Where data lies: the store's map with what is dirty or punched laid over it. */
#include <errno.h>

#include "cache/cache_int.h"

/* First block >= block that is dirty or under write-back and still the file's; UINT64_MAX: none. */
static uint64_t next_unpublished(const struct cache_file *file, uint64_t block)
{
    uint64_t best = UINT64_MAX;

    list_for_each(l, &file->slots) {
        const struct slot *s = container_of(l, struct slot, file_link);
        struct bits both;
        unsigned i;
        if (s->first >= best || s->first + slot_blocks(s) <= block)
            continue;
        for (unsigned k = 0; k < BITS / 64; k++)
            both.w[k] = s->dirty.w[k] | (s->wb.w[k] & s->valid.w[k]);
        i = bits_next(&both, block > s->first ? (unsigned)(block - s->first) : 0, true);
        if (i < BITS && s->first + i < best)
            best = s->first + i;
    }
    return best;
}

static bool unpublished(const struct cache_file *file, uint64_t block)
{
    const struct slot *s = slot_find(file, block, SLOT_VALID);

    return s && (bits_test(&s->dirty, (unsigned)(block - s->first)) ||
                 bits_test(&s->wb, (unsigned)(block - s->first)));
}

static bool punched(const struct cache_file *file, uint64_t block)
{
    return ranges_has(file->pending, block) || ranges_has(file->flying, block);
}

/* The store's answer in blocks; UINT64_MAX: none. Drops the lock. */
static int store_next(struct cache_file *file, uint64_t block, enum obj_next what, uint64_t *out)
{
    uint64_t off = UINT64_MAX;
    int rc;

    pthread_mutex_unlock(&file->cache->lock);
    rc = obj_array_next(file->cont, file->oid, block * BLOCK, what, &off);
    pthread_mutex_lock(&file->cache->lock);
    *out = rc == 0 ? off / BLOCK : UINT64_MAX;
    return rc == -ENXIO ? 0 : rc;
}

static int next_data(struct cache_file *file, uint64_t block, uint64_t *out)
{
    uint64_t dirty = next_unpublished(file, block), at = block;
    int rc;

    for (;;) {
        rc = at >= dirty ? 0 : store_next(file, at, OBJ_DATA, &at);
        if (rc < 0)
            return rc;
        if (at >= dirty || !punched(file, at))
            break;
        at = ranges_end(file->pending, at);
        at = ranges_end(file->flying, at);
    }
    *out = at < dirty ? at : dirty;
    return 0;
}

static int next_hole(struct cache_file *file, uint64_t block, uint64_t *out)
{
    uint64_t end = blocks_up(file->cut.size), at = block, hole, stop;
    int rc;

    while (at < end) {
        if (unpublished(file, at)) {
            at++;
            continue;
        }
        if (file_known_zero(file, at))
            break;
        rc = store_next(file, at, OBJ_HOLE, &hole);
        if (rc < 0)
            return rc;
        if (hole == at)
            break;
        stop = ranges_next(file->pending, at);
        if (ranges_next(file->flying, at) < stop)
            stop = ranges_next(file->flying, at);
        at = hole < stop ? hole : stop;
    }
    *out = at < end ? at : end;
    return 0;
}

int cache_next(struct cache_file *file, uint64_t off, enum obj_next what, uint64_t *out)
{
    struct cache *cache = file->cache;
    uint64_t block = 0, size;
    int rc;

    pthread_mutex_lock(&cache->lock);
    file_lock_shared(file, false);
    size = file->cut.size;
    if (off >= size)
        rc = -ENXIO;
    else if (what == OBJ_DATA)
        rc = next_data(file, off / BLOCK, &block);
    else
        rc = next_hole(file, off / BLOCK, &block);
    file_unlock(file);
    pthread_mutex_unlock(&cache->lock);
    if (rc < 0)
        return rc;
    if (block == off / BLOCK)
        *out = off;
    else if (block < blocks_up(size))
        *out = block * BLOCK;
    else if (what == OBJ_HOLE)
        *out = size;
    else
        return -ENXIO;
    return 0;
}

int cache_used(struct cache_file *file, uint64_t *bytes)
{
    struct cache *cache = file->cache;
    uint64_t used = 0, end, dirty, whole;
    int rc = 0;

    pthread_mutex_lock(&cache->lock);
    while (!file->used_known && rc == 0) {
        uint64_t published = cache->info.published;
        pthread_mutex_unlock(&cache->lock);
        rc = obj_array_stat(file->cont, file->oid, &used, &end);
        pthread_mutex_lock(&cache->lock);
        if (rc == 0 && published == cache->info.published) {
            file->used_known = true;
            file->used_bytes = used;
        } else if (rc == 0) {
            break; /* others publish: good enough once, asked again next time */
        }
    }
    used = file->used_known ? file->used_bytes : used;
    dirty = (uint64_t)file->dirty_blocks * BLOCK;
    whole = blocks_up(file->cut.size) * BLOCK;
    pthread_mutex_unlock(&cache->lock);
    /* what overwrites published blocks is in both */
    *bytes = used + dirty < whole ? used + dirty : whole;
    return rc;
}
