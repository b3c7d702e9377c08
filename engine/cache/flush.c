/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write-back: a publication takes all dirty blocks and punches of a file and its attributes at one
 * moment (the cut), stages the blocks and gives one transaction to the owner, who commits it.
 *
 * In the transaction punches come before writes: a block punched after it was written is dirty no
 * more, and one written after it was punched is written after it was punched here too.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/keep.h"
#include "base/log.h"
#include "cache/cache_int.h"

#define STAGE_RUNS 256u /* runs given to the store at once */
#define PART_RUNS 32u   /* of 1 MiB, in the worst pieces: far from a transaction's limits */
#define RETRY_NS 100000000ull
#define RETRIES_MAX 6u /* the wait doubles up to 6.4 s */

/* What one publication carries. Its punches are file->flying. */
struct flight {
    struct cache_cut cut;
    struct obj_io *io;
    struct slot **slot; /* pinned, wb set */
    unsigned n_io, n_slots;
    uint64_t blocks;
    uint64_t begun_ns, since_ns;
    int64_t kept; /* changes kept up to here are in the cut */
};

/* -- cut ------------------------------------------------------------------------------------- */

static int flight_alloc(struct flight *f, const struct cache_file *file)
{
    unsigned n = 0;

    list_for_each(l, &file->dirty_slots)
        n++;
    f->n_io = f->n_slots = 0;
    f->io = calloc(file->dirty_runs + 1u, sizeof(*f->io));
    f->slot = calloc(n + 1u, sizeof(struct slot *));
    if (f->io && f->slot)
        return 0;
    free(f->io);
    free(f->slot);
    return -ENOMEM;
}

static void take_slot(struct flight *f, struct slot *s)
{
    for (unsigned i = bits_next(&s->dirty, 0, true); i < BITS;) {
        unsigned end = bits_next(&s->dirty, i, false);
        f->io[f->n_io++] = (struct obj_io){.off = (s->first + i) * BLOCK,
                                           .buf = s->data + (size_t)i * BLOCK,
                                           .len = (size_t)(end - i) * BLOCK};
        i = end < BITS ? bits_next(&s->dirty, end, true) : BITS;
    }
    f->blocks += slot_take_dirty(s);
    slot_pin(s);
    f->slot[f->n_slots++] = s;
}

/* The file is locked exclusively: this is the moment that the publication shows. */
static int flight_take(struct flight *f, struct cache_file *file)
{
    int rc = ranges_merge(&file->flying, &file->pending); /* those of a failed one come first */

    if (rc == 0)
        rc = flight_alloc(f, file);
    if (rc < 0)
        return rc;
    f->cut = file->cut;
    f->kept = file->kept_last;
    f->since_ns = file->since_ns;
    list_for_each_safe(l, tmp, &file->dirty_slots)
        take_slot(f, container_of(l, struct slot, dirty_link));
    DFE_ASSERT(file->dirty_blocks == 0);
    file->changed = false;
    list_del(&file->flush_link);
    f->begun_ns = base_mono_ns();
    return 0;
}

/* -- flight: no lock held -------------------------------------------------------------------- */

static int io_cmp(const void *a, const void *b)
{
    const struct obj_io *x = a, *y = b;

    return (x->off > y->off) - (x->off < y->off);
}

/* All of a small file, or nothing of it: whether it goes inline. */
static bool flight_inline(const struct flight *f)
{
    return f->n_io == 1 && f->io[0].off == 0 && f->io[0].len == BLOCK &&
           f->cut.size <= DFE_INLINE_BYTES && f->cut.size > 0;
}

/* Stages runs [first, end). */
static int flight_stage(struct flight *f, struct cache_file *file, struct obj_tx *tx,
                        unsigned first, unsigned end, bool sync)
{
    unsigned flags = OBJ_STAGE_RESERVED;
    struct obj_stage *stage;
    int rc = 0;

    if (flight_inline(f)) {
        rc = obj_array_stage_inline(file->cont, file->oid, f->io[0].buf, (size_t)f->cut.size,
                                    &stage);
        return rc < 0 ? rc : obj_tx_write(tx, OBJ_HOME, file->oid, stage);
    }
    if (sync && f->blocks * BLOCK <= DFE_JOURNAL_DATA_BYTES)
        flags |= OBJ_STAGE_JOURNAL;
    for (unsigned i = first; i < end && rc == 0; i += STAGE_RUNS) {
        unsigned n = end - i < STAGE_RUNS ? end - i : STAGE_RUNS;
        rc = obj_array_stage(file->cont, file->oid, f->io + i, n, flags, &stage);
        if (rc == 0)
            rc = obj_tx_write(tx, OBJ_HOME, file->oid, stage);
    }
    return rc;
}

/* One transaction: the punches (with the first run) and runs [first, end). */
static int flight_part(struct flight *f, struct cache_file *file, unsigned first, unsigned end,
                       bool sync)
{
    const struct ranges *holes = file->flying; /* changes only when the flight ends */
    uint32_t n_holes = holes && first == 0 && !flight_inline(f) ? holes->n : 0;
    struct cache_cut cut = f->cut;
    struct obj_tx *tx;
    int rc = obj_tx_begin(file->cont, file->oid, &tx);

    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n_holes && rc == 0; i++) {
        const struct range *r = &holes->r[i];
        rc = obj_tx_punch_array(tx, OBJ_HOME, file->oid, r->from * BLOCK,
                                r->to == UINT64_MAX ? UINT64_MAX : (r->to - r->from) * BLOCK);
    }
    if (rc == 0)
        rc = flight_stage(f, file, tx, first, end, sync);
    if (rc < 0) {
        obj_tx_abort(tx);
        return rc;
    }
    if (end < f->n_io) /* what is kept must be replayed over a part */
        cut.version = file->base_version;
    return file->ops->publish(file->owner, tx, &cut, sync ? OBJ_SYNC : 0);
}

/* Where free space is in pieces, a block may cost as much as an extent, and the cut may be more
 * than a transaction holds. Then it is published in parts: a crash between them leaves a mixture
 * of two moments, which is bad, but data that can never be published is worse. */
static int flight_fly(struct flight *f, struct cache_file *file, bool sync)
{
    int rc;

    qsort(f->io, f->n_io, sizeof(*f->io), io_cmp);
    rc = flight_part(f, file, 0, f->n_io, sync);
    if (rc != -E2BIG || f->n_io <= PART_RUNS)
        return rc;
    base_log(BASE_LOG_WARN, "cache: object %llx:%llx: %llu blocks are published in parts",
             (unsigned long long)file->oid.hi, (unsigned long long)file->oid.lo,
             (unsigned long long)f->blocks);
    rc = 0;
    for (unsigned i = 0; i < f->n_io && rc == 0; i += PART_RUNS) {
        unsigned end = f->n_io - i < PART_RUNS ? f->n_io : i + PART_RUNS;
        rc = flight_part(f, file, i, end, sync && end == f->n_io);
    }
    return rc;
}

/* -- landing --------------------------------------------------------------------------------- */

/* Blocks that nobody wrote or punched since become dirty again. */
static void slot_give_back(struct slot *s)
{
    for (unsigned i = bits_next(&s->wb, 0, true); i < BITS; i = bits_next(&s->wb, i + 1, true)) {
        if (s->file && bits_test(&s->valid, i))
            slot_dirty(s, i, 1);
    }
}

static void flight_slots(struct flight *f, struct cache *cache, bool failed)
{
    cache->dirty_blocks -= f->blocks;
    for (unsigned i = 0; i < f->n_slots; i++) {
        if (failed)
            slot_give_back(f->slot[i]);
        f->slot[i]->wb = (struct bits){0};
        slot_unpin(f->slot[i]);
    }
}

static void note_rate(struct cache *cache, const struct flight *f)
{
    uint64_t ns = base_mono_ns() - f->begun_ns;
    uint64_t bytes = f->blocks * BLOCK;

    if (bytes < 1u << 20 || ns == 0)
        return; /* latency, not bandwidth */
    cache->drain_bps = (cache->drain_bps * 3 + bytes * 1000000000u / ns) / 4;
}

static void landed(struct flight *f, struct cache_file *file, bool sync)
{
    struct cache *cache = file->cache;

    flight_slots(f, cache, false);
    obj_unreserve(cache->pool, f->blocks * BLOCK);
    free(file->flying);
    file->flying = NULL;
    file->dev_end = blocks_up(f->cut.size);
    file->base_version = f->cut.version;
    file->used_known = false;
    file->error = 0;
    file->retries = 0;
    file->retry_ns = 0;
    file->unsynced = !sync;
    cache->failing = false;
    cache->info.published++;
    note_rate(cache, f);
}

static void note_failure(struct cache_file *file, int rc)
{
    struct cache *cache = file->cache;

    if (!cache->failing)
        base_log(BASE_LOG_WARN, "cache: write-back of object %llx:%llx failed (%d); data is kept",
                 (unsigned long long)file->oid.hi, (unsigned long long)file->oid.lo, rc);
    file->error = rc;
    if (file->retries < RETRIES_MAX)
        file->retries++;
    file->retry_ns = base_mono_ns() + (RETRY_NS << (file->retries - 1));
    cache->failing = true;
    cache->info.writeback_errors++;
}

/* The cut never happened: what it took is dirty again where nothing came later. Its punches stay in
 * file->flying and join the next cut. */
static void bounced(struct flight *f, struct cache_file *file, int rc)
{
    struct cache *cache = file->cache;
    uint64_t before = file->dirty_blocks;

    flight_slots(f, cache, true);
    obj_unreserve(cache->pool, (f->blocks - (file->dirty_blocks - before)) * BLOCK);
    file->since_ns = f->since_ns;
    if (file->dev_end < blocks_up(f->cut.size)) /* it may be committed and only not durable */
        file->dev_end = blocks_up(f->cut.size);
    if (!file->changed) {
        file->changed = true;
        list_add_tail(&cache->dirty_files, &file->flush_link);
    }
    note_failure(file, rc);
}

/* Publishes what is dirty now. The lock is held (and dropped), publishing is ours. */
static int publish_once(struct cache_file *file, bool sync)
{
    struct cache *cache = file->cache;
    struct flight f = {0};
    int rc;

    file_lock_excl(file, false);
    rc = file->changed ? flight_take(&f, file) : 0;
    file_unlock(file);
    if (rc < 0) {
        note_failure(file, rc);
        return rc;
    }
    if (!f.io) { /* nothing dirty: what was published may still have to become durable */
        if (!sync || !file->unsynced)
            return 0;
        pthread_mutex_unlock(&cache->lock);
        rc = obj_sync(cache->pool);
        pthread_mutex_lock(&cache->lock);
        file->unsynced = rc < 0;
        return rc;
    }
    pthread_mutex_unlock(&cache->lock);
    rc = flight_fly(&f, file, sync);
    pthread_mutex_lock(&cache->lock);
    if (rc < 0 && rc != -ESTALE)
        bounced(&f, file, rc);
    else
        landed(&f, file, sync);
    if (f.kept && (rc == 0 || rc == -ESTALE))
        kept_published(file, f.kept);
    if (rc == -ESTALE) { /* unlinked: nobody will ask for it */
        file_drop_dirty(file);
        rc = 0;
    }
    free(f.io);
    free(f.slot);
    pthread_cond_broadcast(&cache->room_cv);
    return rc;
}

int flush_file(struct cache_file *file, bool sync)
{
    struct cache *cache = file->cache;
    int rc;

    keep_pause(cache->keep); /* not the doing of the request that waits for it */
    pthread_mutex_lock(&cache->lock);
    file_hold(file);
    while (file->publishing)
        pthread_cond_wait(file_cv(file), &cache->lock);
    file->publishing = true;
    rc = publish_once(file, sync);
    file->publishing = false;
    file_wake(file);
    if (file->changed)
        pthread_cond_signal(&cache->flush_cv); /* its time has changed */
    file_release(file);
    pthread_mutex_unlock(&cache->lock);
    keep_resume(cache->keep);
    return rc;
}

/* -- threads --------------------------------------------------------------------------------- */

void flush_kick(struct cache *cache)
{
    pthread_cond_signal(&cache->flush_cv);
}

static bool pressed(const struct cache *cache)
{
    return cache->want_room > 0 || cache->dirty_blocks * BLOCK * 2 > cache->dirty_bound ||
           kept_pressed(cache);
}

/* A file to publish now, or NULL and when to look again (0: when kicked). */
static struct cache_file *flush_pick(struct cache *cache, uint64_t now, uint64_t *when)
{
    bool all = pressed(cache);

    *when = 0;
    list_for_each(l, &cache->dirty_files) {
        struct cache_file *file = container_of(l, struct cache_file, flush_link);
        uint64_t due = file->since_ns + cache->interval_ns;
        if (file->publishing)
            continue; /* looks again when it has ended */
        if (all || file_tx_cost(file) > TX_COST_KICK)
            due = now;
        if (due < file->retry_ns)
            due = file->retry_ns;
        if (due <= now)
            return file;
        if (*when == 0 || due < *when)
            *when = due;
    }
    return NULL;
}

void *flush_main(void *arg)
{
    struct cache *cache = arg;

    pthread_mutex_lock(&cache->lock);
    while (!cache->stop) {
        uint64_t when;
        struct cache_file *file = flush_pick(cache, base_mono_ns(), &when);
        if (file) {
            file_hold(file);
            pthread_mutex_unlock(&cache->lock);
            flush_file(file, false);
            pthread_mutex_lock(&cache->lock);
            file_release(file);
        } else if (when > 0) {
            struct timespec at = {(time_t)(when / 1000000000u), (long)(when % 1000000000u)};
            if (cache->flush_at_ns == 0 || when < cache->flush_at_ns)
                cache->flush_at_ns = when;
            pthread_cond_timedwait(&cache->flush_cv, &cache->lock, &at);
            if (cache->flush_at_ns == when) /* else another sleeper looks sooner */
                cache->flush_at_ns = 0;
        } else {
            pthread_cond_wait(&cache->flush_cv, &cache->lock);
        }
    }
    pthread_mutex_unlock(&cache->lock);
    return NULL;
}

/* -- calls ----------------------------------------------------------------------------------- */

int cache_publish(struct cache_file *file, unsigned flags)
{
    if (flags & CACHE_NOWAIT)
        return cache_file_dirty(file) || (flags & CACHE_SYNC) ? -EINPROGRESS : 0;
    return flush_file(file, flags & CACHE_SYNC);
}

/* The dirty files of cont (NULL: of all), each kept busy; NULL and -ENOMEM. */
static int collect(struct cache *cache, struct obj_cont *cont, struct cache_file ***out, size_t *n)
{
    struct cache_file **files;
    size_t max = cache->info.files, k = 0;

    *out = files = calloc(max + 1, sizeof(struct cache_file *));
    if (!files)
        return -ENOMEM;
    for (uint32_t i = 0; i <= cache->files_mask; i++) {
        list_for_each(l, &cache->files[i]) {
            struct cache_file *file = container_of(l, struct cache_file, hash_link);
            if (file_is_dirty(file) && (!cont || file->cont == cont)) {
                file_hold(file);
                files[k++] = file;
            }
        }
    }
    *n = k;
    return 0;
}

int cache_publish_all(struct cache *cache, struct obj_cont *cont, unsigned flags)
{
    struct cache_file **files;
    size_t n = 0;
    int rc, one;

    pthread_mutex_lock(&cache->lock);
    rc = collect(cache, cont, &files, &n);
    pthread_mutex_unlock(&cache->lock);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++) {
        one = flush_file(files[i], false);
        if (rc == 0)
            rc = one;
        pthread_mutex_lock(&cache->lock);
        file_release(files[i]);
        pthread_mutex_unlock(&cache->lock);
    }
    free(files);
    if (flags & CACHE_SYNC) {
        one = obj_sync(cache->pool);
        if (rc == 0)
            rc = one;
    }
    return rc;
}
