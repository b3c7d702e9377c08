/* SPDX-License-Identifier: Apache-2.0 */
/* The data stream: writes, truncates, punches. */
#include <errno.h>
#include <stdlib.h>

#include "cache/cache_int.h"
#include "cache/keep_log.h"

/* One call waits for memory, room or space between its attempts with nothing locked and nothing
 * changed; so an attempt either happens as a whole or not at all. */
struct attempt {
    struct cache_file *file;
    bool nowait;
    bool published; /* everything, to find space */
    unsigned tries;
    uint64_t full_ns; /* since when nothing more can be kept */
    struct doomed_wait doomed;
};

/* True: try again. The lock is held, the file is not locked. */
static bool attempt_again(struct attempt *a, int *rc)
{
    struct cache *cache = a->file->cache;

    if (*rc == -ENOBUFS) {
        if (a->nowait)
            *rc = -EINPROGRESS;
        else
            *rc = a->file->error ? -EIO : slot_wait_room(cache, &a->tries);
        return *rc == 0;
    }
    if (*rc == KEPT_FULL) {
        *rc = a->nowait ? -EINPROGRESS : kept_wait(cache, &a->full_ns);
        return *rc == 0;
    }
    if (*rc != -ENOSPC)
        return false;
    if (a->nowait) { /* the caller may hold locks that a publication takes */
        *rc = -EINPROGRESS;
        return false;
    }
    if (a->published)
        return doomed_wait(cache, &a->doomed);
    /* reservations may be larger than what they became, and old blocks wait to be freed */
    a->published = true;
    pthread_mutex_unlock(&cache->lock);
    cache_publish_all(cache, NULL, CACHE_SYNC);
    pthread_mutex_lock(&cache->lock);
    a->doomed.turn = cache->doomed_turn;
    return true;
}

static int change_allowed(const struct cache_file *file)
{
    return file->ops && !obj_cont_read_only(file->cont) ? 0 : -EROFS;
}

/* -- write ----------------------------------------------------------------------------------- */

/* At most 1 MiB, the file locked. Returns 0; *off is where it went. */
static int write_segment(struct cache_file *file, uint64_t *off, const uint8_t *src, size_t len,
                         int64_t now_ns, unsigned flags)
{
    struct kept_change kept;
    struct plan plan;
    int rc;

    if (file->gone)
        return -ESTALE;
    if (flags & CACHE_APPEND)
        *off = file->cut.size;
    if (*off > DFE_FILE_BYTES || len > DFE_FILE_BYTES - *off)
        return -EFBIG;
    rc = plan_make(&plan, file, *off, len, src, flags & CACHE_NOWAIT);
    if (rc < 0)
        return rc;
    rc = kept_begin(&kept, file, CACHE_KEPT_WRITE, *off, len, now_ns);
    if (rc < 0) {
        plan_cancel(&plan);
        return rc;
    }
    if (flags & CACHE_APPEND)
        keep_value(file->cache->keep, *off);
    plan_open(&plan);
    pthread_mutex_unlock(&file->cache->lock);
    kept_copy(&kept, file, src, len);
    plan_copy(&plan);
    pthread_mutex_lock(&file->cache->lock);
    kept_done(&kept, file);
    plan_finish(&plan);
    if (*off + len > file->cut.size)
        file->cut.size = *off + len;
    file->wr_next = *off + len;
    file_changed(file, now_ns);
    if (file->cache->dirty_blocks * BLOCK * 2 > file->cache->dirty_bound ||
        file_tx_cost(file) > TX_COST_KICK || kept_pressed(file->cache))
        flush_kick(file->cache);
    return 0;
}

static int write_one(struct cache_file *file, uint64_t *off, const uint8_t *src, size_t len,
                     int64_t now_ns, unsigned flags)
{
    struct attempt a = {.file = file, .nowait = flags & CACHE_NOWAIT};
    int rc = throttle_write(file, len, a.nowait);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&file->cache->lock);
    do {
        rc = file_lock_excl(file, a.nowait);
        if (rc < 0)
            break;
        rc = write_segment(file, off, src, len, now_ns, flags);
        file_unlock(file);
    } while (attempt_again(&a, &rc));
    pthread_mutex_unlock(&file->cache->lock);
    return rc;
}

ssize_t cache_write(struct cache_file *file, uint64_t off, const void *src, size_t len,
                    int64_t now_ns, unsigned flags, uint64_t *at)
{
    uint64_t begin = off;
    size_t done = 0;
    int rc = change_allowed(file);

    if (rc < 0 || len == 0)
        return rc;
    if (len > DFE_SLOT_MAX_BYTES && (flags & CACHE_NOWAIT))
        return -EINPROGRESS; /* it would be accepted in parts */
    if (!(flags & CACHE_APPEND)) {
        if (off >= DFE_FILE_BYTES)
            return -EFBIG;
        if (len > DFE_FILE_BYTES - off)
            len = (size_t)(DFE_FILE_BYTES - off);
    } else if (len > DFE_SLOT_MAX_BYTES) {
        len = DFE_SLOT_MAX_BYTES; /* short: another appender may come in between */
    }
    keep_value(file->cache->keep, off);
    while (done < len && rc == 0) {
        size_t n = len - done < DFE_SLOT_MAX_BYTES ? len - done : DFE_SLOT_MAX_BYTES;
        uint64_t to = off + done;
        bool part = done + n < len;
        if (part)
            keep_part(file->cache->keep, true);
        rc = write_one(file, &to, (const uint8_t *)src + done, n, now_ns, flags);
        if (part)
            keep_part(file->cache->keep, false);
        if (rc == 0 && done == 0)
            begin = to;
        if (rc == 0)
            done += n;
    }
    if (at)
        *at = begin;
    return done > 0 ? (ssize_t)done : rc;
}

/* -- truncate and punch ---------------------------------------------------------------------- */

/* Blocks [from, to) become holes of the stream. Room in pending was made. */
static void drop_blocks(struct cache_file *file, uint64_t from, uint64_t to)
{
    uint64_t before = file->dirty_blocks;

    if (from >= to)
        return;
    slot_drop_range(file, from, to);
    obj_unreserve(file->cache->pool, (before - file->dirty_blocks) * BLOCK);
    if (file->publishing || from < file->dev_end)
        ranges_add(&file->pending, from, to);
}

/* Zeros for the bytes [off, off + len) of one block; no plan where they are zeros by themselves. */
static int edge_zero(struct plan *p, bool *planned, struct cache_file *file, uint64_t off,
                     uint64_t len, bool nowait)
{
    uint64_t block = off / BLOCK;
    int rc = 0;

    *planned = false;
    if (len == 0 || (!slot_find(file, block, SLOT_VALID) && file_known_zero(file, block)))
        return 0;
    rc = plan_make(p, file, off, (size_t)len, NULL, nowait);
    *planned = rc == 0;
    return rc;
}

/* drop_blocks cannot fail after this. */
static int punch_room(struct cache_file *file)
{
    uint32_t n = (file->pending ? file->pending->n : 0) + (file->flying ? file->flying->n : 0);

    if (n >= PUNCHES_MAX)
        return -ENOBUFS; /* until they are published */
    return ranges_room(&file->pending, 1);
}

/* Zeros from `from` to `to`, in whole blocks holes, and a new size; the file is locked. */
static int zero_range(struct cache_file *file, uint64_t from, uint64_t to, bool to_end, bool nowait)
{
    struct plan *edge = malloc(2 * sizeof(*edge));
    uint64_t lo = blocks_up(from), hi = to_end ? UINT64_MAX : to / BLOCK;
    uint64_t head_end = lo * BLOCK < to || to_end ? lo * BLOCK : to;
    bool planned[2] = {false, false};
    int rc = edge ? punch_room(file) : -ENOMEM;

    if (rc == 0 && from % BLOCK)
        rc = edge_zero(&edge[0], &planned[0], file, from, head_end - from, nowait);
    if (rc == 0 && !to_end && hi >= lo && to % BLOCK)
        rc = edge_zero(&edge[1], &planned[1], file, hi * BLOCK, to % BLOCK, nowait);
    for (unsigned i = 0; i < 2; i++) {
        if (!planned[i])
            continue;
        if (rc < 0) {
            plan_cancel(&edge[i]);
            continue;
        }
        plan_open(&edge[i]);
        pthread_mutex_unlock(&file->cache->lock);
        plan_copy(&edge[i]);
        pthread_mutex_lock(&file->cache->lock);
        plan_finish(&edge[i]);
    }
    if (rc == 0)
        drop_blocks(file, lo, hi);
    free(edge);
    return rc;
}

static int truncate_locked(struct cache_file *file, uint64_t size, int64_t now_ns, bool nowait)
{
    struct kept_change kept;
    int rc = kept_begin(&kept, file, CACHE_KEPT_TRUNCATE, size, 0, now_ns);

    if (rc == 0 && size < file->cut.size) {
        rc = zero_range(file, size, file->cut.size, true, nowait);
        if (rc < 0)
            kept_cancel(&kept, file);
    }
    if (rc < 0)
        return rc;
    kept_done(&kept, file);
    file->cut.size = size;
    file_changed(file, now_ns);
    return 0;
}

static int punch_locked(struct cache_file *file, uint64_t off, uint64_t len, int64_t now_ns,
                        bool nowait)
{
    uint64_t size = file->cut.size;
    struct kept_change kept;
    int rc;

    if (off >= size || len == 0)
        return 0;
    rc = kept_begin(&kept, file, CACHE_KEPT_PUNCH, off, len, now_ns);
    if (rc < 0)
        return rc;
    rc = zero_range(file, off, len < size - off ? off + len : blocks_up(size) * BLOCK, false,
                    nowait);
    if (rc < 0) {
        kept_cancel(&kept, file);
        return rc;
    }
    kept_done(&kept, file);
    file_changed(file, now_ns);
    return 0;
}

static int change_size(struct cache_file *file, uint64_t off, uint64_t len, int64_t now_ns,
                       unsigned flags, bool truncate)
{
    struct attempt a = {.file = file, .nowait = flags & CACHE_NOWAIT};
    int rc = change_allowed(file);

    if (rc == 0)
        rc = throttle_write(file, 0, a.nowait);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&file->cache->lock);
    do {
        rc = file_lock_excl(file, a.nowait);
        if (rc < 0)
            break;
        if (file->gone)
            rc = -ESTALE;
        else if (truncate)
            rc = truncate_locked(file, off, now_ns, a.nowait);
        else
            rc = punch_locked(file, off, len, now_ns, a.nowait);
        file_unlock(file);
    } while (attempt_again(&a, &rc));
    pthread_mutex_unlock(&file->cache->lock);
    return rc;
}

int cache_truncate(struct cache_file *file, uint64_t size, int64_t now_ns, unsigned flags)
{
    if (size > DFE_FILE_BYTES)
        return -EFBIG;
    return change_size(file, size, 0, now_ns, flags, true);
}

int cache_punch(struct cache_file *file, uint64_t off, uint64_t len, int64_t now_ns, unsigned flags)
{
    return change_size(file, off, len, now_ns, flags, false);
}
