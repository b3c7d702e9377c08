/* SPDX-License-Identifier: Apache-2.0 */
/* Reads: hits are copied from slots, misses loaded first; pins lend a slot. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "cache/cache_int.h"

/* A read under way: the loaded slots stay pinned until the next load, so that a small memory cannot
 * take them back before they are copied. */
struct reader {
    struct cache_file *file;
    uint64_t off, end; /* bytes to go */
    uint8_t *dst;
    bool nowait;
    struct slot *held[LOAD_SLOTS];
    unsigned n_held;
};

static void reader_let_go(struct reader *r)
{
    while (r->n_held > 0)
        slot_unpin(r->held[--r->n_held]);
}

static void reader_advance(struct reader *r, uint64_t n)
{
    r->off += n;
    r->dst += n;
}

/* Copies what the slot has from r->off on. */
static void reader_hit(struct reader *r, struct slot *s)
{
    unsigned i = (unsigned)(r->off / BLOCK - s->first);
    uint64_t stop = (s->first + bits_next(&s->valid, i, false)) * BLOCK;
    uint64_t slot_end = (s->first + slot_blocks(s)) * BLOCK;
    size_t n;

    if (stop > slot_end)
        stop = slot_end;
    n = (size_t)((stop < r->end ? stop : r->end) - r->off);
    slot_pin(s);
    pthread_mutex_unlock(&r->file->cache->lock);
    memcpy(r->dst, s->data + (r->off - s->first * BLOCK), n);
    pthread_mutex_lock(&r->file->cache->lock);
    slot_unpin(s);
    reader_advance(r, n);
}

/* Zeros up to the next block that is not known to be zeros. */
static void reader_zeros(struct reader *r)
{
    uint64_t block = r->off / BLOCK;
    size_t n = 0;

    do {
        block++;
        n = (size_t)((block * BLOCK < r->end ? block * BLOCK : r->end) - r->off);
    } while (r->off + n < r->end && n < DFE_SLOT_MAX_BYTES && file_known_zero(r->file, block) &&
             !slot_find(r->file, block, SLOT_VALID));
    pthread_mutex_unlock(&r->file->cache->lock);
    memset(r->dst, 0, n);
    pthread_mutex_lock(&r->file->cache->lock);
    reader_advance(r, n);
}

/* No slot is to be had (all lent, or dirty): around the cache, a block at a time. */
static int reader_bypass(struct reader *r)
{
    uint64_t at = r->off / BLOCK * BLOCK;
    struct obj_io io = {.off = at, .len = BLOCK};
    size_t n = (size_t)((at + BLOCK < r->end ? at + BLOCK : r->end) - r->off);
    int rc;

    io.buf = aligned_alloc(BLOCK, BLOCK);
    if (!io.buf)
        return -ENOMEM;
    pthread_mutex_unlock(&r->file->cache->lock);
    rc = obj_array_read(r->file->cont, r->file->oid, &io, 1);
    if (rc == 0)
        memcpy(r->dst, (uint8_t *)io.buf + (r->off - at), n);
    pthread_mutex_lock(&r->file->cache->lock);
    free(io.buf);
    if (rc == 0)
        reader_advance(r, n);
    return rc;
}

static int reader_miss(struct reader *r)
{
    struct cache_file *file = r->file;
    unsigned order = readahead_order(file, (size_t)(r->end - r->off));
    uint64_t block = r->off / BLOCK;
    int rc;

    if (r->nowait)
        return -EINPROGRESS;
    reader_let_go(r);
    if (slot_find(file, block, SLOT_LOADING)) {
        pthread_cond_wait(file_cv(file), &file->cache->lock);
        return 0;
    }
    file->cache->info.misses++;
    rc = load_run(file, block, blocks_up(r->end), order, r->held, &r->n_held);
    if (rc == -ENOBUFS)
        return reader_bypass(r);
    if (rc < 0 && !slot_find(file, block, SLOT_VALID)) {
        /* the fault may be a neighbour's */
        reader_let_go(r);
        rc = load_run(file, block, block + 1, 0, r->held, &r->n_held);
        return rc == -ENOBUFS ? reader_bypass(r) : rc;
    }
    return 0;
}

ssize_t cache_read(struct cache_file *file, uint64_t off, void *dst, size_t len, unsigned flags)
{
    struct cache *cache = file->cache;
    struct reader r = {.file = file, .off = off, .dst = dst, .nowait = flags & CACHE_NOWAIT};
    int rc;

    pthread_mutex_lock(&cache->lock);
    rc = file_lock_shared(file, r.nowait);
    if (rc < 0)
        goto out;
    r.end = off;
    if (off < file->cut.size)
        r.end = len < file->cut.size - off ? off + len : file->cut.size;
    if (r.end > off)
        readahead_note(file, off, (size_t)(r.end - off));
    while (r.off < r.end && rc == 0) {
        struct slot *s = slot_find(file, r.off / BLOCK, SLOT_VALID);
        if (s) {
            cache->info.hits++;
            reader_hit(&r, s);
        } else if (file_known_zero(file, r.off / BLOCK)) {
            reader_zeros(&r);
        } else {
            rc = reader_miss(&r);
        }
    }
    reader_let_go(&r);
    file_unlock(file);
out:
    pthread_mutex_unlock(&cache->lock);
    if (rc < 0 && (rc == -EINPROGRESS || r.off == off))
        return rc;
    return (ssize_t)(r.off - off);
}

/* -- pins ------------------------------------------------------------------------------------ */

int pin_slot(struct cache_file *file, uint64_t block, unsigned order, bool nowait,
             struct slot **out)
{
    struct slot *held[LOAD_SLOTS];
    unsigned n;
    int rc = 0;

    while (!(*out = slot_find(file, block, SLOT_VALID))) {
        if (nowait)
            return -EINPROGRESS;
        if (slot_find(file, block, SLOT_LOADING)) {
            pthread_cond_wait(file_cv(file), &file->cache->lock);
            continue;
        }
        rc = load_run(file, block, block + 1, order, held, &n);
        if (rc == 0 && bits_test(&held[0]->valid, (unsigned)(block - held[0]->first))) {
            *out = held[0];
            return 0;
        }
        if (n > 0)
            slot_unpin(held[0]);
        if (rc == -ENOBUFS || (rc < 0 && order == 0))
            return rc;
        if (rc < 0)
            order = 0; /* the fault may be a neighbour's */
    }
    slot_pin(*out);
    return 0;
}

/* The file is locked shared. */
static int pin_bytes(struct cache_file *file, uint64_t off, size_t len, bool nowait,
                     struct cache_pin *out)
{
    struct slot *s;
    uint64_t stop, end;
    unsigned order;
    int rc;

    if (off >= file->cut.size || len == 0)
        return 0;
    end = len < file->cut.size - off ? off + len : file->cut.size;
    readahead_note(file, off, (size_t)(end - off));
    order = readahead_order(file, (size_t)(end - off));
    rc = pin_slot(file, off / BLOCK, order, nowait, &s);
    if (rc < 0)
        return rc;
    s->loans++;
    stop = bits_next(&s->valid, (unsigned)(off / BLOCK - s->first), false);
    if (stop > slot_blocks(s))
        stop = slot_blocks(s);
    stop = (s->first + stop) * BLOCK;
    out->ptr = s->data + (off - s->first * BLOCK);
    out->len = (size_t)((stop < end ? stop : end) - off);
    out->slot = s;
    return 0;
}

int cache_pin(struct cache_file *file, uint64_t off, size_t len, unsigned flags,
              struct cache_pin *out)
{
    struct cache *cache = file->cache;
    bool nowait = flags & CACHE_NOWAIT;
    unsigned tries = 0;
    int rc;

    *out = (struct cache_pin){0};
    pthread_mutex_lock(&cache->lock);
    do {
        rc = file_lock_shared(file, nowait);
        if (rc < 0)
            break;
        rc = pin_bytes(file, off, len, nowait, out);
        file_unlock(file); /* whoever gives memory back may need the file */
    } while (rc == -ENOBUFS && (rc = slot_wait_room(cache, &tries)) == 0);
    pthread_mutex_unlock(&cache->lock);
    return rc;
}

void cache_unpin(struct cache *cache, struct cache_pin *pin)
{
    struct slot *s = pin->slot;

    if (!s)
        return;
    pthread_mutex_lock(&cache->lock);
    DFE_ASSERT(s->loans > 0);
    s->loans--;
    slot_unpin(s);
    pthread_mutex_unlock(&cache->lock);
    *pin = (struct cache_pin){0};
}
