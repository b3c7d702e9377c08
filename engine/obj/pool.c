/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, closing and describing a pool. */
#include "obj/obj_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void pool_damaged(struct obj_pool *pool, const char *fmt, ...)
{
    char text[sizeof(pool->damage)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    base_log(BASE_LOG_ERROR, "pool %s: %s", pool->record.label, text);
    if (!pool->damage[0])
        memcpy(pool->damage, text, sizeof(text));
    pool->read_only = true;
}

void pool_fail(struct obj_pool *pool, int err, const char *what)
{
    if (!pool->failed)
        pool_damaged(pool,
                     "%s failed (%s): what was accepted since the last sync is in memory only; "
                     "nothing more is taken",
                     what, strerror(-err));
    pool->failed = true;
    pool->read_only = true;
    pthread_cond_broadcast(&pool->changed);
    pthread_cond_broadcast(&pool->wake_ckpt);
    pthread_cond_broadcast(&pool->wake_jrnl);
    pthread_cond_broadcast(&pool->wake_work);
}

void pool_geometry(const struct super *s, struct fmt_checkpoint *c)
{
    c->format = s->format;
    memcpy(c->uuid, s->uuid, sizeof(c->uuid));
    c->size_blk = s->size_blk;
    c->journal_blk = s->journal_blk;
    c->journal_len_blk = s->journal_len_blk;
    c->data_blk = s->data_blk;
    c->data_len_blk = s->data_len_blk;
}

static int cond_init(pthread_cond_t *c)
{
    pthread_condattr_t a;
    int rc = pthread_condattr_init(&a);

    if (rc == 0)
        rc = pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    if (rc == 0)
        rc = pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
    return -rc;
}

static struct obj_pool *pool_new(void)
{
    struct obj_pool *pool = calloc(1, sizeof(*pool));

    if (!pool)
        return NULL;
    pool->lock_fd = -1;
    list_init(&pool->conts);
    list_init(&pool->works);
    list_init(&pool->jdata_active);
    list_init(&pool->jdata_frozen);
    list_init(&pool->handles);
    list_init(&pool->readers);
    list_init(&pool->txs);
    pool->next_cont = 1;
    if (pthread_mutex_init(&pool->lock, NULL) != 0 ||
        pthread_mutex_init(&pool->tables_lock, NULL) != 0 || cond_init(&pool->wake_ckpt) < 0 ||
        cond_init(&pool->wake_jrnl) < 0 || cond_init(&pool->wake_work) < 0 ||
        cond_init(&pool->changed) < 0) {
        free(pool); /* none of these fails on Linux */
        return NULL;
    }
    return pool;
}

static void reader_free(struct reader *r)
{
    for (unsigned i = 0; i < 2; i++) {
        smap_free(&r->page[i].out);
        smap_free(&r->page[i].over);
        smap_free(&r->page[i].idx);
    }
    free(r->gone);
    free(r);
}

static void tx_free(struct obj_tx *tx)
{
    smap_free(&tx->known);
    smap_free(&tx->asked);
    smap_free(&tx->delta);
    smap_free(&tx->found);
    bytes_free(&tx->buf);
    bytes_free(&tx->rec);
    bytes_free(&tx->want_keys);
    free(tx->want);
    free(tx->op);
    free(tx->punched);
    free(tx);
}

static void pool_free(struct obj_pool *pool)
{
    list_for_each_safe(l, t, &pool->readers)
        reader_free(container_of(l, struct reader, link));
    list_for_each_safe(l, t, &pool->txs)
        tx_free(container_of(l, struct obj_tx, link));
    jdata_free_all(pool);
    tables_free(pool);
    if (pool->journal)
        journal_close(pool->journal);
    if (pool->alloc)
        alloc_close(pool->alloc);
    if (pool->active)
        overlay_close(pool->active);
    if (pool->frozen)
        overlay_close(pool->frozen);
    if (pool->index)
        index_close(pool->index);
    if (pool->dev)
        queue_dev_close(pool->dev);
    if (pool->lock_fd >= 0)
        close(pool->lock_fd);
    pthread_cond_destroy(&pool->wake_ckpt);
    pthread_cond_destroy(&pool->wake_jrnl);
    pthread_cond_destroy(&pool->wake_work);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->tables_lock);
    free(pool);
}

/* -- threads --------------------------------------------------------------------------------- */

static void stop_threads(struct obj_pool *pool, unsigned started)
{
    pthread_t *t[] = {&pool->ckpt_thread, &pool->jrnl_thread};

    pthread_mutex_lock(&pool->lock);
    pool->stop = pool->stop_work = true;
    pthread_cond_broadcast(&pool->wake_ckpt);
    pthread_cond_broadcast(&pool->wake_jrnl);
    pthread_cond_broadcast(&pool->wake_work);
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < started; i++)
        pthread_join(*t[i], NULL);
    pool->threads = false;
}

static int start_threads(struct obj_pool *pool)
{
    int rc = pthread_create(&pool->ckpt_thread, NULL, checkpoint_thread, pool);

    if (rc != 0)
        return -rc;
    rc = pthread_create(&pool->jrnl_thread, NULL, journal_thread, pool);
    if (rc != 0) {
        stop_threads(pool, 1);
        return -rc;
    }
    pool->threads = true;
    rc = pthread_create(&pool->work_thread, NULL, work_thread, pool);
    if (rc != 0)
        stop_threads(pool, 2);
    return -rc;
}

int obj_pool_open(const struct obj_pool_open_opts *opts, struct obj_pool **out)
{
    struct obj_pool *pool;
    int rc;

    if (opts->size != sizeof(*opts) || !opts->path || strlen(opts->path) >= sizeof(pool->path))
        return base_refuse(-EINVAL, "no usable path of a pool given");
    pool = pool_new();
    if (!pool)
        return -ENOMEM;
    strcpy(pool->path, opts->path);
    pool->read_only = opts->read_only;
    pool->no_uring = opts->no_uring;
    pool->arena = opts->arena;
    pool->keep = opts->keep;
    pool->overlay_limit = opts->overlay_bytes ? opts->overlay_bytes : OBJ_OVERLAY_DEFAULT;
    pool->interval_ns = (opts->commit_interval_ms ? opts->commit_interval_ms
                                                  : DFE_COMMIT_INTERVAL_MS) * 1000000ull;
    rc = recover_open(pool);
    if (rc == 0 && !pool->read_only)
        rc = start_threads(pool);
    if (rc < 0) {
        pool_free(pool);
        return rc;
    }
    *out = pool;
    return 0;
}

int obj_pool_close(struct obj_pool *pool)
{
    int rc = 0;

    list_for_each(l, &pool->conts)
        if (container_of(l, struct cont_rec, link)->opens > 0)
            return base_refuse(-EBUSY, "container %s of pool %s is still open",
                               container_of(l, struct cont_rec, link)->label, pool->record.label);
    if (pool->threads) {
        pthread_mutex_lock(&pool->lock);
        pool->stop_work = true;
        pthread_cond_broadcast(&pool->wake_work);
        pthread_cond_broadcast(&pool->changed);
        pthread_mutex_unlock(&pool->lock);
        pthread_join(pool->work_thread, NULL);
        if (!pool->failed)
            rc = checkpoint_wait(pool, true);
        if (rc < 0 && !pool->failed && obj_sync(pool) == 0)
            rc = 0; /* the journal has it all */
        stop_threads(pool, 2);
    }
    if (pool->failed)
        rc = base_fail(-EIO, "pool %s: %s", pool->record.label, pool->damage);
    pool_free(pool);
    return rc;
}

static void copy_text(char *to, size_t cap, const char *from)
{
    snprintf(to, cap, "%s", from);
}

void obj_pool_query(struct obj_pool *pool, struct obj_pool_info *out)
{
    struct queue_dev_info dev;
    uint64_t n = 0, promised;

    queue_dev_info(pool->dev, &dev);
    memset(out, 0, sizeof(*out));
    out->index_bytes = index_used_bytes(pool->index);
    pthread_mutex_lock(&pool->lock);
    copy_text(out->label, sizeof(out->label), pool->record.label);
    memcpy(out->uuid, pool->record.uuid, sizeof(out->uuid));
    out->format = pool->record.format;
    copy_text(out->device, sizeof(out->device), pool->record.device);
    copy_text(out->backend, sizeof(out->backend), dev.backend);
    out->direct = dev.direct;
    out->registered = dev.registered;
    out->read_only = pool->read_only;
    copy_text(out->damage, sizeof(out->damage), pool->damage);
    out->size_bytes = pool->super.size_blk << DFE_BLOCK_SHIFT;
    out->data_bytes = pool->super.data_len_blk << DFE_BLOCK_SHIFT;
    out->reserved_bytes = alloc_reserved_blocks(pool->alloc) << DFE_BLOCK_SHIFT;
    promised = alloc_promised_blocks(pool->alloc) << DFE_BLOCK_SHIFT;
    out->free_bytes = (alloc_free_blocks(pool->alloc) + alloc_waiting_blocks(pool->alloc))
                      << DFE_BLOCK_SHIFT;
    /* what is staged and committed is reserved for a moment still */
    out->free_bytes -= promised < out->free_bytes ? promised : out->free_bytes;
    out->journal_bytes = pool->super.journal_len_blk << DFE_BLOCK_SHIFT;
    out->journal_used_bytes = pool->journal ? journal_used_bytes(pool->journal) : 0;
    out->overlay_keys = overlay_keys(pool->active);
    out->overlay_bytes = overlay_bytes(pool->active);
    if (pool->frozen) {
        out->overlay_keys += overlay_keys(pool->frozen);
        out->overlay_bytes += overlay_bytes(pool->frozen);
    }
    out->epoch = pool->epoch;
    out->durable_epoch = pool->durable_epoch;
    out->checkpoints = pool->checkpoints;
    out->last_checkpoint_ns = pool->ckpt_ns;
    out->checksum_errors = pool->checksum_errors;
    out->io_errors = pool->io_errors;
    list_for_each(l, &pool->conts)
        n++;
    out->containers = n;
    pthread_mutex_unlock(&pool->lock);
}

int obj_reserve(struct obj_pool *pool, uint64_t bytes, unsigned flags)
{
    uint64_t n = (bytes + DFE_BLOCK_BYTES - 1) >> DFE_BLOCK_SHIFT, waiting;
    int rc;

    for (bool waited = false;; waited = true) {
        pthread_mutex_lock(&pool->lock);
        rc = pool->read_only ? -EROFS : pool->index_full ? -ENOSPC
                                      : alloc_reserve(pool->alloc, n);
        waiting = alloc_waiting_blocks(pool->alloc) + pool->n_works;
        pthread_mutex_unlock(&pool->lock);
        if (rc != -ENOSPC || waited || waiting == 0)
            return rc;
        if (flags & OBJ_NOWAIT)
            return -EINPROGRESS;
        rc = space_wait(pool);
        if (rc < 0)
            return rc;
    }
}

void obj_unreserve(struct obj_pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&pool->lock);
    alloc_unreserve(pool->alloc, (bytes + DFE_BLOCK_BYTES - 1) >> DFE_BLOCK_SHIFT);
    pthread_mutex_unlock(&pool->lock);
}

int space_wait(struct obj_pool *pool)
{
    int rc = work_wait(pool, 0);

    return rc < 0 ? rc : checkpoint_wait(pool, true);
}
