/* SPDX-License-Identifier: Apache-2.0 */
/* Slots: memory, index, eviction of clean ones. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "cache/cache_int.h"

#define ROOM_TRIES 10000u /* 10 s in which nobody gives anything back */
#define EXTENT_TRIES 64u /* slots that are looked at for an extent that can be emptied */

/* -- index ----------------------------------------------------------------------------------- */

static uint32_t slot_hash(const struct cache_file *file, unsigned order, uint64_t first)
{
    uint64_t h = ((uintptr_t)file >> 4) * 0x9E3779B97F4A7C15ull;

    h ^= (first >> order) * 0xC2B2AE3D27D4EB4Full + order;
    h *= 0x9E3779B97F4A7C15ull;
    return (uint32_t)(h >> 32);
}

static void hash_insert(struct cache *cache, struct slot *s)
{
    struct slot **head = &cache->slots[slot_hash(s->file, s->order, s->first) & cache->slots_mask];

    s->hash_next = *head;
    *head = s;
}

/* Doubles the table when chains get long; staying small is no failure. */
static void hash_grow(struct cache *cache)
{
    uint32_t n = (cache->slots_mask + 1) * 2;
    struct slot **old = cache->slots;
    struct slot **table = calloc(n, sizeof(struct slot *));

    if (!table)
        return;
    cache->slots = table;
    cache->slots_mask = n - 1;
    for (uint32_t i = 0; i < n / 2; i++) {
        for (struct slot *s = old[i], *next; s; s = next) {
            next = s->hash_next;
            hash_insert(cache, s);
        }
    }
    free(old);
}

static void hash_remove(struct cache *cache, struct slot *s)
{
    struct slot **at = &cache->slots[slot_hash(s->file, s->order, s->first) & cache->slots_mask];

    while (*at != s)
        at = &(*at)->hash_next;
    *at = s->hash_next;
}

static bool slot_fits(const struct slot *s, unsigned i, enum slot_want want)
{
    switch (want) {
    case SLOT_VALID:
        return bits_test(&s->valid, i);
    case SLOT_LOADING:
        return bits_test(&s->loading, i);
    default:
        return s->loans == 0 && !bits_any(&s->loading) && !bits_test(&s->wb, i);
    }
}

struct slot *slot_find(const struct cache_file *file, uint64_t block, enum slot_want want)
{
    const struct cache *cache = file->cache;

    for (unsigned mask = file->orders; mask; mask &= mask - 1) {
        unsigned order = (unsigned)__builtin_ctz(mask);
        uint64_t first = block >> order << order;
        struct slot *s = cache->slots[slot_hash(file, order, first) & cache->slots_mask];
        for (; s; s = s->hash_next)
            if (s->file == file && s->order == order && s->first == first &&
                slot_fits(s, (unsigned)(block - first), want))
                return s;
    }
    return NULL;
}

/* -- memory ---------------------------------------------------------------------------------- */

/* Without the index; its memory goes back to the arena. */
static void slot_free(struct slot *s)
{
    struct cache *cache = s->cache;

    buf_free(cache->arena, s->data, slot_bytes(s));
    cache->slots_bytes -= slot_bytes(s);
    free(s);
    if (cache->want_room > 0)
        pthread_cond_broadcast(&cache->room_cv);
}

/* Out of the index, and gone unless somebody has it pinned. The file may go with it. */
static void slot_release(struct slot *s)
{
    struct cache_file *file = s->file;

    slot_detach(s);
    if (s->pins == 0)
        slot_free(s);
    file_reap(file);
}

/* After a change of pins or bits: evictable, or not, or of no use any more. */
static void slot_settle(struct slot *s)
{
    bool idle = s->pins == 0 && list_empty(&s->dirty_link);

    list_del(&s->lru);
    if (!s->file) {
        if (s->pins == 0)
            slot_free(s);
    } else if (idle && !bits_any(&s->valid)) {
        slot_release(s);
    } else if (idle) {
        list_add_tail(&s->cache->lru, &s->lru);
        if (s->cache->want_room > 0)
            pthread_cond_broadcast(&s->cache->room_cv);
    }
}

/* Gives back the least recently used slots, at least `bytes` where there are so many. */
static bool evict(struct cache *cache, uint64_t bytes)
{
    uint64_t freed = 0;

    while (freed < bytes && !list_empty(&cache->lru)) {
        struct slot *s = container_of(cache->lru.next, struct slot, lru);
        freed += slot_bytes(s);
        cache->info.evicted++;
        slot_release(s);
    }
    return freed > 0;
}

static struct list *slot_extent(const struct slot *s)
{
    struct buf_place place;

    buf_place(s->cache->arena, s->data, &place);
    return &s->cache->extents[place.extent];
}

static bool extent_idle(const struct list *extent)
{
    list_for_each(l, extent)
        if (list_empty(&container_of(l, struct slot, neighbours)->lru))
            return false;
    return true;
}

/* Another domain's slots help only where they make an extent empty: the one of the slot used least
 * recently, among those that can be. */
static bool evict_extent(struct cache *cache)
{
    unsigned tries = EXTENT_TRIES;

    list_for_each(l, &cache->lru) {
        struct list *extent = slot_extent(container_of(l, struct slot, lru));
        if (tries-- == 0)
            break;
        if (!extent_idle(extent))
            continue;
        while (!list_empty(extent)) {
            cache->info.evicted++;
            slot_release(container_of(extent->next, struct slot, neighbours));
        }
        return true;
    }
    return false;
}

/* The arena is in pieces, or other domains have it: more than we need must go. */
static bool evict_more(struct cache *cache, uint32_t domain, uint64_t bytes)
{
    uint64_t freed = 0;

    if (list_empty(&cache->lru))
        return false;
    if (!cache->extents ||
        container_of(cache->lru.next, struct slot, lru)->file->domain == domain)
        return evict(cache, bytes);
    if (evict_extent(cache))
        return true;
    list_for_each_safe(l, tmp, &cache->lru) {
        struct slot *s = container_of(l, struct slot, lru);
        if (freed >= bytes)
            break;
        if (s->file->domain != domain)
            continue;
        freed += slot_bytes(s);
        cache->info.evicted++;
        slot_release(s);
    }
    return freed > 0;
}

/* Memory for one slot, counted; NULL: neither free nor to be evicted. */
static void *slot_memory(struct cache *cache, uint32_t domain, size_t bytes)
{
    void *data = NULL;
    bool room;

    do {
        pthread_mutex_lock(&cache->lock);
        while (cache->slots_bytes + bytes > cache->slots_bound)
            if (!evict(cache, cache->slots_bytes + bytes - cache->slots_bound))
                break;
        room = cache->slots_bytes + bytes <= cache->slots_bound;
        if (room)
            cache->slots_bytes += bytes;
        pthread_mutex_unlock(&cache->lock);
        if (!room)
            return NULL;
        data = buf_alloc_in(cache->arena, domain, bytes);
        __atomic_thread_fence(__ATOMIC_RELEASE); /* lease.c, 4 */
        if (data)
            return data;
        pthread_mutex_lock(&cache->lock);
        cache->slots_bytes -= bytes;
        room = evict_more(cache, domain, 4 * bytes);
        pthread_mutex_unlock(&cache->lock);
    } while (room);
    return NULL;
}

struct slot *slot_alloc(const struct cache_file *file, unsigned order, unsigned min_order)
{
    struct cache *cache = file->cache;
    struct slot *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    for (;; order--) {
        s->data = slot_memory(cache, file->domain, (size_t)BLOCK << order);
        if (s->data || order <= min_order)
            break;
    }
    if (!s->data) {
        free(s);
        return NULL;
    }
    s->cache = cache;
    s->order = (uint8_t)order;
    s->pins = 1;
    list_init(&s->file_link);
    list_init(&s->dirty_link);
    list_init(&s->lru);
    list_init(&s->neighbours);
    return s;
}

int slot_wait_room(struct cache *cache, unsigned *tries)
{
    struct timespec until;
    uint64_t ns = base_mono_ns() + 100000000u;

    if (*tries > ROOM_TRIES)
        return -ENOMEM;
    until = (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    cache->want_room++;
    flush_kick(cache);
    /* whoever is woken may find that another one has taken what was given back */
    *tries += pthread_cond_timedwait(&cache->room_cv, &cache->lock, &until) == 0 ? 1 : 100;
    cache->want_room--;
    return 0;
}

/* -- state ----------------------------------------------------------------------------------- */

void slot_attach(struct slot *s, struct cache_file *file, uint64_t block)
{
    struct cache *cache = file->cache;

    s->file = file;
    s->first = block >> s->order << s->order;
    if (list_empty(&file->slots))
        file->orders = 0;
    file->orders |= (uint16_t)(1u << s->order);
    list_add_tail(&file->slots, &s->file_link);
    if (cache->extents)
        list_add_tail(slot_extent(s), &s->neighbours);
    if (++cache->n_slots > cache->slots_mask)
        hash_grow(cache);
    hash_insert(cache, s);
}

/* What is dirty in it is dirty no longer: its reservation is the caller's. */
void slot_detach(struct slot *s)
{
    slot_invalidate(s, 0, (unsigned)slot_blocks(s));
    if (s->line)
        lease_drop_line(s);
    hash_remove(s->cache, s);
    s->cache->n_slots--;
    list_del(&s->file_link);
    list_del(&s->lru);
    list_del(&s->neighbours);
    s->file = NULL;
}

void slot_pin(struct slot *s)
{
    s->pins++;
    list_del(&s->lru);
}

void slot_unpin(struct slot *s)
{
    DFE_ASSERT(s->pins > 0);
    if (--s->pins == 0)
        slot_settle(s);
}

/* Keeps counts and the dirty list as the dirty bits say. */
static void slot_recount(struct slot *s, unsigned before)
{
    struct cache_file *file = s->file;
    unsigned after = bits_count(&s->dirty), runs = bits_runs(&s->dirty);

    file->dirty_blocks += after - before;
    s->cache->dirty_blocks += (uint64_t)after - before;
    file->dirty_runs += runs - s->dirty_runs;
    s->dirty_runs = (uint16_t)runs;
    if (after == 0)
        list_del(&s->dirty_link);
    else if (list_empty(&s->dirty_link))
        list_add_tail(&file->dirty_slots, &s->dirty_link);
    if (after > 0)
        list_del(&s->lru);
}

void slot_dirty(struct slot *s, unsigned i, unsigned n)
{
    unsigned before = bits_count(&s->dirty);

    bits_set(&s->valid, i, n);
    bits_set(&s->dirty, i, n);
    slot_recount(s, before);
}

void slot_invalidate(struct slot *s, unsigned i, unsigned n)
{
    unsigned before = bits_count(&s->dirty);

    if (s->line)
        lease_end_line(s);
    bits_clear(&s->valid, i, n);
    bits_clear(&s->dirty, i, n);
    slot_recount(s, before);
}

unsigned slot_take_dirty(struct slot *s)
{
    unsigned n = bits_count(&s->dirty);

    s->wb = s->dirty;
    s->dirty = (struct bits){0};
    slot_recount(s, n);
    s->cache->dirty_blocks += n; /* they are the flight's now */
    return n;
}

void slot_drop_range(struct cache_file *file, uint64_t from, uint64_t to)
{
    list_for_each_safe(l, tmp, &file->slots) {
        struct slot *s = container_of(l, struct slot, file_link);
        uint64_t lo = s->first > from ? s->first : from;
        uint64_t end = s->first + slot_blocks(s);
        uint64_t hi = end < to ? end : to;
        if (lo >= hi)
            continue;
        slot_invalidate(s, (unsigned)(lo - s->first), (unsigned)(hi - lo));
        if (s->pins == 0)
            slot_settle(s);
    }
}

void slot_drop_clean(struct cache *cache, struct cache_file *file)
{
    list_for_each_safe(l, tmp, &cache->lru) {
        struct slot *s = container_of(l, struct slot, lru);
        if (!file || s->file == file)
            slot_release(s);
    }
}
