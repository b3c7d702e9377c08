/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: the overlay goes to the index, the journal's tail moves.
 *
 *   1 freeze   under the lock: overlays swapped, the journal's position marked, changed segments of
 *              the allocator put into the frozen overlay
 *   2 data     journal-carried blocks are written home, the device is flushed
 *   3 index    everything frozen in one write transaction, with the checkpoint's record
 *   4 super    names this checkpoint as the least that the index may have (O8)
 *   5 finish   under the lock: the frozen overlay is dropped, its freed blocks become free, the
 *              journal is trimmed. Memory is given back outside.
 * A failure in 2 to 4 leaves the frozen overlay where it is, readable, and all of it is tried
 * again: writing the same state twice changes nothing. Only a failed flush ends the pool's writing
 * (O9), and not one that was not made for want of memory (queue_transient).
 */
#include "obj/obj_int.h"

#include <time.h>

#define RETRY_FIRST_MS 100u
#define RETRY_MOST_MS 5000u
#define KEY_COST 160u /* index bytes a key may take beside key and value, pages half full */

/* -- 1 --------------------------------------------------------------------------------------- */

static int put_segment(uint32_t seg, const void *bitmap, size_t len, void *arg)
{
    struct obj_pool *pool = arg;
    uint8_t v[ALLOC_SEG_VALUE_BYTES + FMT_BIRTH_BYTES];
    struct key k;

    DFE_ASSERT(len == ALLOC_SEG_VALUE_BYTES);
    memcpy(v, bitmap, len);
    put_le64(v + len, pool->epoch);
    key_u32(&k, KEY_SEG, seg);
    return overlay_put(pool->frozen, k.b, k.len, v, sizeof(v));
}

/* Under the lock; takes `next` on success. */
static int freeze(struct obj_pool *pool, struct overlay *next)
{
    int rc;

    pool->frozen = pool->active;
    pool->active = next;
    pool->turn++;
    rc = alloc_freeze(pool->alloc, put_segment, pool);
    if (rc < 0) {
        /* segments already put are harmless: nothing reads them but a later checkpoint's own */
        pool->active = pool->frozen;
        pool->frozen = NULL;
        pool->turn++;
        return rc;
    }
    pool->ckpt_next = pool->ckpt;
    pool_geometry(&pool->super, &pool->ckpt_next);
    pool->ckpt_next.number++;
    pool->ckpt_next.epoch = pool->epoch;
    pool->ckpt_next.next_cont = pool->next_cont;
    journal_mark(pool->journal, &pool->ckpt_next.journal_pos, &pool->ckpt_next.journal_seq);
    list_splice_tail(&pool->jdata_frozen, &pool->jdata_active);
    pool->ckpt_begun++;
    return 0;
}

/* -- 3 --------------------------------------------------------------------------------------- */

static void encode_checkpoint(const struct fmt_checkpoint *c, uint64_t birth, uint8_t *v)
{
    struct fmt_checkpoint f = *c;

    f.number = htole64(c->number);
    f.journal_pos = htole64(c->journal_pos);
    f.journal_seq = htole64(c->journal_seq);
    f.epoch = htole64(c->epoch);
    f.next_cont = htole32(c->next_cont);
    f.format = htole32(c->format);
    f.size_blk = htole64(c->size_blk);
    f.journal_blk = htole64(c->journal_blk);
    f.journal_len_blk = htole64(c->journal_len_blk);
    f.data_blk = htole64(c->data_blk);
    f.data_len_blk = htole64(c->data_len_blk);
    memcpy(v, &f, sizeof(f));
    put_le64(v + sizeof(f), birth);
}

int checkpoint_put(struct index_tx *tx, const struct fmt_checkpoint *c)
{
    uint8_t v[sizeof(*c) + FMT_BIRTH_BYTES];
    struct key k;

    encode_checkpoint(c, c->epoch, v);
    key_pool(&k, KEY_META, "checkpoint", 10);
    return index_put(tx, k.b, k.len, v, sizeof(v));
}

static int write_index(struct obj_pool *pool)
{
    const struct overlay *o = pool->frozen;
    uint64_t grow = overlay_bytes(o) + overlay_keys(o) * KEY_COST;
    uint64_t touched = overlay_keys(o) * 4096, used = index_used_bytes(pool->index);
    struct overlay_cur cur;
    struct index_tx *tx;
    const uint8_t lowest = 0;
    int rc;

    /* each page that is touched is written anew; those of the last commit cannot be reused yet */
    rc = index_reserve(pool->index, grow + (touched < used ? touched : used));
    if (rc == 0)
        rc = index_begin(pool->index, &tx);
    if (rc < 0)
        return rc;
    for (int any = overlay_seek(o, &lowest, 1, &cur); rc == 0 && any == 1;
         any = overlay_next(o, &cur))
        rc = cur.state == OVERLAY_VALUE ? index_put(tx, cur.key, cur.klen, cur.val, cur.vlen)
                                        : index_del(tx, cur.key, cur.klen);
    if (rc == 0)
        rc = checkpoint_put(tx, &pool->ckpt_next);
    if (rc == 0)
        return index_commit(tx);
    index_abort(tx);
    return rc;
}

/* -- 2 to 5 ---------------------------------------------------------------------------------- */

/* The superblock names the least checkpoint that the index may have. */
static int name_least(struct obj_pool *pool, uint64_t number)
{
    struct super s = pool->super;
    int rc;

    s.least_checkpoint = number;
    rc = super_write(pool->dev, &s);
    /* the rest of pool->super never changes, and is read without the lock */
    pool->super.generation = s.generation;
    pool->super.newest = s.newest;
    if (rc == 0)
        pool->super.least_checkpoint = number;
    return rc;
}

/* *fatal: what was told to be durable may not be (O9). */
static int write_frozen(struct obj_pool *pool, bool *fatal)
{
    int rc = jdata_write_home(pool);

    *fatal = false;
    if (rc < 0)
        return rc;
    rc = queue_flush(pool->dev);
    /* power may have failed before 4: the index must not get two ahead, it would be refused */
    if (rc == 0 && pool->super.least_checkpoint < pool->ckpt.number)
        rc = name_least(pool, pool->ckpt.number);
    *fatal = rc < 0 && !queue_transient(rc);
    if (rc < 0)
        return rc;
    rc = overlay_sort(pool->frozen);
    keep_checkpoint(pool, false);
    if (rc == 0)
        rc = write_index(pool);
    if (rc < 0)
        return rc;
    keep_checkpoint(pool, true);
    rc = name_least(pool, pool->ckpt_next.number);
    *fatal = rc < 0 && !queue_transient(rc);
    return rc;
}

static void finish(struct obj_pool *pool, uint64_t began_ns)
{
    struct overlay *old;

    pthread_mutex_lock(&pool->lock);
    old = pool->frozen;
    pool->frozen = NULL;
    pool->turn++;
    jdata_drop_frozen(pool);
    alloc_done(pool->alloc, true);
    journal_trim(pool->journal, pool->ckpt_next.journal_pos);
    pool->ckpt = pool->ckpt_next;
    if (pool->durable_epoch < pool->ckpt.epoch)
        pool->durable_epoch = pool->ckpt.epoch;
    pool->ckpt_done = pool->ckpt_begun;
    pool->ckpt_err = 0;
    pool->ckpt_ns = base_mono_ns() - began_ns;
    pool->checkpoints++;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
    overlay_close(old);
}

static void note_failure(struct obj_pool *pool, int rc, bool fatal)
{
    base_log(BASE_LOG_ERROR, "pool %s: checkpoint %llu failed: %s", pool->record.label,
             (unsigned long long)pool->ckpt.number + 1, strerror(-rc));
    pthread_mutex_lock(&pool->lock);
    pool->ckpt_err = rc;
    pool->ckpt_failures++;
    pool->ckpt_asked = pool->ckpt_begun; /* who waits is told, with that; not who comes later */
    if (rc != -ENOSPC && !queue_transient(rc))
        pool->io_errors++;
    if (fatal)
        pool_fail(pool, rc, "flushing the device");
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
}

/* Headroom for the next one, made now: while it cannot be had, only deletions are taken. */
static void reserve_next(struct obj_pool *pool)
{
    int rc = index_reserve(pool->index, OBJ_INDEX_ROOM);

    if (rc < 0)
        base_log(BASE_LOG_WARN, "pool %s: no room for the index to grow: %s", pool->record.label,
                 strerror(-rc));
    pthread_mutex_lock(&pool->lock);
    pool->index_full = rc == -ENOSPC;
    pthread_mutex_unlock(&pool->lock);
}

static int run(struct obj_pool *pool)
{
    uint64_t began_ns = base_mono_ns();
    struct overlay *next = NULL;
    bool fatal = false, nothing = false;
    int rc = 0;

    if (!pool->frozen) { /* only this thread sets it */
        rc = overlay_open(&next);
        if (rc == 0) {
            pthread_mutex_lock(&pool->lock);
            nothing = overlay_keys(pool->active) == 0 &&
                      journal_used_bytes(pool->journal) == 0;
            if (nothing)
                pool->ckpt_done = ++pool->ckpt_begun;
            else
                rc = freeze(pool, next);
            if (nothing)
                pthread_cond_broadcast(&pool->changed);
            pthread_mutex_unlock(&pool->lock);
        }
        if (rc < 0 || nothing)
            overlay_close(next);
    }
    if (nothing)
        return 0;
    if (rc == 0)
        rc = write_frozen(pool, &fatal);
    if (rc == 0) {
        finish(pool, began_ns);
        reserve_next(pool);
    } else {
        note_failure(pool, rc, fatal);
    }
    return rc;
}

int checkpoint_at_open(struct obj_pool *pool)
{
    return run(pool);
}

/* -- thread ---------------------------------------------------------------------------------- */

void checkpoint_kick(struct obj_pool *pool)
{
    if (pool->ckpt_asked <= pool->ckpt_begun && !pool->frozen) {
        pool->ckpt_asked = pool->ckpt_begun + 1;
        pthread_cond_signal(&pool->wake_ckpt);
    }
}

bool checkpoint_due(const struct obj_pool *pool)
{
    return overlay_bytes(pool->active) > pool->overlay_limit ||
           journal_used_bytes(pool->journal) > journal_ring_bytes(pool->journal) / 2;
}

int checkpoint_wait(struct obj_pool *pool, bool fresh)
{
    uint64_t target, failures;
    int rc = 0;

    pthread_mutex_lock(&pool->lock);
    target = pool->ckpt_begun + (fresh || !pool->frozen);
    failures = pool->ckpt_failures;
    if (pool->ckpt_asked < target)
        pool->ckpt_asked = target;
    pthread_cond_signal(&pool->wake_ckpt);
    while (pool->ckpt_done < target && pool->ckpt_failures == failures && !pool->failed &&
           !pool->stop)
        pthread_cond_wait(&pool->changed, &pool->lock);
    if (pool->ckpt_done < target)
        rc = pool->ckpt_err ? pool->ckpt_err : pool->failed ? -EROFS : -EINTR;
    pthread_mutex_unlock(&pool->lock);
    return rc;
}

int obj_checkpoint(struct obj_pool *pool)
{
    return pool->threads ? checkpoint_wait(pool, true) : 0;
}

static struct timespec deadline(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
}

static unsigned back_off(unsigned ms)
{
    return ms == 0 ? RETRY_FIRST_MS : ms * 2 < RETRY_MOST_MS ? ms * 2 : RETRY_MOST_MS;
}

void *checkpoint_thread(void *arg)
{
    struct obj_pool *pool = arg;
    unsigned retry_ms = 0;

    pthread_mutex_lock(&pool->lock);
    while (!pool->stop && !pool->failed) {
        if (retry_ms > 0 && pool->ckpt_asked <= pool->ckpt_begun) {
            struct timespec t = deadline(base_mono_ns() + retry_ms * 1000000ull);
            pthread_cond_timedwait(&pool->wake_ckpt, &pool->lock, &t);
        } else if (pool->ckpt_asked <= pool->ckpt_begun && !checkpoint_due(pool)) {
            pthread_cond_wait(&pool->wake_ckpt, &pool->lock);
            continue;
        }
        if (pool->stop)
            break;
        pthread_mutex_unlock(&pool->lock);
        retry_ms = run(pool) == 0 ? 0 : back_off(retry_ms);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* -- the journal's thread -------------------------------------------------------------------- */

#define UNWRITTEN_BYTES (1u << 20) /* goes to the device without waiting for the interval */

void journal_note(struct obj_pool *pool)
{
    bool many = journal_head(pool->journal) - pool->jrnl_last_head > UNWRITTEN_BYTES;

    if (!pool->jrnl_dirty) {
        pool->jrnl_dirty = true;
        pool->jrnl_since_ns = base_mono_ns();
        pthread_cond_signal(&pool->wake_jrnl);
    }
    if (many && !pool->jrnl_now) {
        pool->jrnl_now = true;
        pthread_cond_signal(&pool->wake_jrnl);
    }
}

int journal_sync(struct obj_pool *pool, uint64_t pos, uint64_t epoch)
{
    int rc;

    pthread_mutex_lock(&pool->lock);
    rc = pool->failed ? -EROFS : 0;
    pthread_mutex_unlock(&pool->lock);
    if (rc == 0)
        rc = journal_write(pool->journal, &pool->lock, pos, true);
    pthread_mutex_lock(&pool->lock);
    if (rc < 0 && !pool->failed && !queue_transient(rc))
        pool_fail(pool, rc, "writing the journal");
    if (rc == 0 && pool->durable_epoch < epoch)
        pool->durable_epoch = epoch;
    pthread_mutex_unlock(&pool->lock);
    return rc;
}

int obj_sync(struct obj_pool *pool)
{
    uint64_t pos, epoch;

    pthread_mutex_lock(&pool->lock);
    pos = pool->journal ? journal_head(pool->journal) : 0;
    epoch = pool->epoch;
    pthread_mutex_unlock(&pool->lock);
    return pool->threads ? journal_sync(pool, pos, epoch) : 0;
}

/* Whoever changes much wakes this thread often enough for this. */
static void feed_overlay(struct obj_pool *pool)
{
    void *spare;

    if (!overlay_hungry(pool->active))
        return;
    pthread_mutex_unlock(&pool->lock);
    spare = overlay_spare_make();
    pthread_mutex_lock(&pool->lock);
    overlay_spare_give(pool->active, spare); /* nobody else gives */
}

/* After a turn that failed for a moment: sleeps, then the same again. */
static void sleep_off(struct obj_pool *pool, unsigned ms)
{
    uint64_t until = base_mono_ns() + ms * 1000000ull;
    struct timespec t = deadline(until);

    while (!pool->stop && !pool->failed && base_mono_ns() < until)
        pthread_cond_timedwait(&pool->wake_jrnl, &pool->lock, &t);
    pool->jrnl_dirty = true;
}

void *journal_thread(void *arg)
{
    struct obj_pool *pool = arg;
    unsigned retry_ms = 0;
    int rc = 0;

    pthread_mutex_lock(&pool->lock);
    while (!pool->stop && rc == 0 && !pool->failed) {
        feed_overlay(pool);
        uint64_t due = pool->jrnl_since_ns + pool->interval_ns, pos = journal_head(pool->journal);
        bool flush = pool->jrnl_dirty && base_mono_ns() >= due;
        struct timespec t = deadline(due);
        if (!pool->jrnl_dirty) {
            pthread_cond_wait(&pool->wake_jrnl, &pool->lock);
            continue;
        }
        if (!flush && !pool->jrnl_now) {
            pthread_cond_timedwait(&pool->wake_jrnl, &pool->lock, &t);
            continue;
        }
        uint64_t epoch = pool->epoch;
        pool->jrnl_now = false;
        pool->jrnl_last_head = pos;
        if (flush)
            pool->jrnl_dirty = false;
        pthread_mutex_unlock(&pool->lock);
        rc = flush ? journal_sync(pool, pos, epoch)
                   : journal_write(pool->journal, &pool->lock, pos, false);
        pthread_mutex_lock(&pool->lock);
        retry_ms = rc == 0 ? 0 : back_off(retry_ms);
        if (queue_transient(rc)) {
            sleep_off(pool, retry_ms);
            rc = 0;
        } else if (rc < 0 && !pool->failed) {
            pool_fail(pool, rc, "writing the journal");
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}
