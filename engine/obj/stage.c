/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging: data goes to fresh blocks before a transaction refers to them.
 *
 * Runs that follow each other in the array are allocated as one, so that a file written through
 * many buffers gets long extents. Checksums are made before the write.
 */
#include "obj/obj_int.h"

#include "base/crc32c.h"

/* A walk over the bytes of all runs, block by block. */
struct walk {
    const struct obj_io *io;
    unsigned i;
    size_t at; /* bytes into io[i] */
};

void obj_stage_drop(struct obj_stage *st)
{
    if (!st)
        return;
    if ((!st->committed && st->n_piece > 0) || st->settle_blk > 0) {
        pthread_mutex_lock(&st->pool->lock);
        alloc_settle(st->pool->alloc, st->settle_blk);
        for (uint32_t i = 0; i < st->n_piece && !st->committed; i++)
            alloc_cancel(st->pool->alloc, st->piece[i].blk, st->piece[i].n);
        pthread_mutex_unlock(&st->pool->lock);
    }
    free(st->piece);
    free(st->crc);
    free(st->data);
    free(st);
}

int alloc_wait(struct obj_pool *pool, uint32_t want, bool reserved, uint64_t *blk, uint32_t *got)
{
    uint64_t waiting;
    int rc;

    for (bool waited = false;; waited = true) {
        pthread_mutex_lock(&pool->lock);
        rc = pool->read_only ? -EROFS : alloc_take(pool->alloc, want, reserved, blk, got);
        waiting = alloc_waiting_blocks(pool->alloc) + pool->n_works;
        pthread_mutex_unlock(&pool->lock);
        if (rc != -ENOSPC)
            return rc;
        if (waited || waiting == 0)
            return base_refuse(rc, "pool %s has no free space", pool->record.label);
        rc = space_wait(pool);
        if (rc < 0)
            return rc;
    }
}

static int piece_add(struct obj_stage *st, uint64_t off, uint64_t blk, uint32_t n, uint32_t crc)
{
    if (st->n_piece == st->cap_piece) {
        uint32_t cap = st->cap_piece ? st->cap_piece * 2 : 8;
        struct stage_piece *p = realloc(st->piece, cap * sizeof(*p));
        if (!p)
            return -ENOMEM;
        st->piece = p;
        st->cap_piece = cap;
    }
    st->piece[st->n_piece++] = (struct stage_piece){.off = off, .blk = blk, .n = n, .crc = crc};
    return 0;
}

/* Blocks for [off, off + n) of the array. */
static int allocate(struct obj_stage *st, uint64_t off, uint64_t n, bool reserved, uint32_t *crc)
{
    while (n > 0) {
        uint32_t want = n < DFE_EXTENT_BLOCKS ? (uint32_t)n : DFE_EXTENT_BLOCKS, got;
        uint64_t blk;
        int rc = alloc_wait(st->pool, want, reserved, &blk, &got);
        if (rc < 0)
            return rc;
        st->settle_blk += reserved ? got : 0;
        rc = piece_add(st, off, blk, got, *crc);
        if (rc < 0) {
            pthread_mutex_lock(&st->pool->lock);
            alloc_cancel(st->pool->alloc, blk, got);
            pthread_mutex_unlock(&st->pool->lock);
            return rc;
        }
        *crc += got;
        off += got;
        n -= got;
    }
    return 0;
}

static int allocate_all(struct obj_stage *st, const struct obj_io *io, unsigned n, bool reserved)
{
    uint32_t crc = 0;
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < n;) {
        uint64_t off = io[i].off, len = 0;
        do
            len += io[i++].len;
        while (i < n && io[i].off == off + len);
        rc = allocate(st, off >> DFE_BLOCK_SHIFT, len >> DFE_BLOCK_SHIFT, reserved, &crc);
    }
    return rc;
}

/* The next stretch of memory of at most `most` bytes. */
static uint8_t *walk_next(struct walk *w, size_t most, size_t *len)
{
    uint8_t *p;

    while (w->at == w->io[w->i].len) {
        w->i++;
        w->at = 0;
    }
    p = (uint8_t *)w->io[w->i].buf + w->at;
    *len = w->io[w->i].len - w->at < most ? w->io[w->i].len - w->at : most;
    w->at += *len;
    return p;
}

/* Checksums, and for the journal's sake the data, in order. */
static void take_sums(struct obj_stage *st, const struct obj_io *io, uint64_t n_blk)
{
    struct walk w = {.io = io};

    for (uint64_t i = 0; i < n_blk; i++) {
        size_t len;
        const uint8_t *p = walk_next(&w, DFE_BLOCK_BYTES, &len);
        if (st->data) {
            memcpy(st->data + (i << DFE_BLOCK_SHIFT), p, DFE_BLOCK_BYTES);
            p = st->data + (i << DFE_BLOCK_SHIFT);
        }
        put_le32(st->crc + i * 4, base_crc32c(0, p, DFE_BLOCK_BYTES));
    }
}

static int write_all(struct obj_stage *st, const struct obj_io *io, unsigned n)
{
    struct walk w = {.io = io};
    struct queue_req *req;
    struct queue *q;
    unsigned n_req = 0;
    int rc;

    req = calloc(st->n_piece + (size_t)n, sizeof(*req)); /* cut at ends of pieces and of runs */
    if (!req)
        return -ENOMEM;
    for (uint32_t i = 0; i < st->n_piece; i++) {
        uint64_t at = st->piece[i].blk << DFE_BLOCK_SHIFT;
        size_t left = (size_t)st->piece[i].n << DFE_BLOCK_SHIFT;
        while (left > 0) {
            struct queue_req *r = &req[n_req++];
            r->op = QUEUE_WRITE;
            r->off = at;
            r->buf = walk_next(&w, left, &r->len);
            at += r->len;
            left -= r->len;
        }
    }
    rc = queue_borrow(st->pool->dev, &q);
    if (rc == 0) {
        rc = queue_run(q, req, n_req);
        queue_return(st->pool->dev, q);
    }
    free(req);
    if (rc < 0) {
        pthread_mutex_lock(&st->pool->lock);
        st->pool->io_errors++;
        pthread_mutex_unlock(&st->pool->lock);
        base_fail(rc, "pool %s: writing data failed: %s", st->pool->record.label, strerror(-rc));
    }
    return rc;
}

static int stage_new(struct obj_cont *cont, struct obj_stage **out)
{
    struct obj_stage *st;

    if (obj_cont_read_only(cont))
        return base_refuse(-EROFS, "the container is open read-only");
    st = calloc(1, sizeof(*st));
    if (!st)
        return -ENOMEM;
    st->pool = cont->pool;
    *out = st;
    return 0;
}

static int check_runs(const struct obj_io *io, unsigned n, unsigned flags, uint64_t *bytes)
{
    *bytes = 0;
    for (unsigned i = 0; i < n; i++) {
        if (io[i].off % DFE_BLOCK_BYTES || io[i].len % DFE_BLOCK_BYTES ||
            io[i].off > DFE_FILE_BYTES || io[i].len > DFE_FILE_BYTES + 1 - io[i].off)
            return base_refuse(-EINVAL, "runs are in units of %u bytes", DFE_BLOCK_BYTES);
        *bytes += io[i].len;
    }
    if ((flags & OBJ_STAGE_JOURNAL) && *bytes > DFE_JOURNAL_DATA_BYTES)
        return base_refuse(-EINVAL, "at most %u bytes travel in the journal",
                           DFE_JOURNAL_DATA_BYTES);
    return 0;
}

int obj_array_stage(struct obj_cont *cont, struct obj_id oid, const struct obj_io *io, unsigned n,
                    unsigned flags, struct obj_stage **out)
{
    struct obj_stage *st = NULL;
    uint64_t bytes;
    int rc = check_runs(io, n, flags, &bytes);

    if (rc < 0)
        return rc;
    rc = stage_new(cont, &st);
    if (rc < 0)
        return rc;
    st->crc = malloc((bytes >> DFE_BLOCK_SHIFT) * 4 + 1);
    if (flags & OBJ_STAGE_JOURNAL)
        st->data = malloc(bytes + 1);
    if (!st->crc || ((flags & OBJ_STAGE_JOURNAL) && !st->data))
        rc = -ENOMEM;
    if (rc == 0)
        rc = allocate_all(st, io, n, flags & OBJ_STAGE_RESERVED);
    if (rc == 0)
        take_sums(st, io, bytes >> DFE_BLOCK_SHIFT);
    if (rc == 0 && bytes > 0 && !st->data)
        rc = write_all(st, io, n);
    if (rc < 0) {
        obj_stage_drop(st);
        return rc;
    }
    *out = st;
    return 0;
}

int obj_array_stage_inline(struct obj_cont *cont, struct obj_id oid, const void *data, size_t len,
                           struct obj_stage **out)
{
    struct obj_stage *st = NULL;
    int rc;

    if (len > DFE_INLINE_BYTES)
        return base_refuse(-EINVAL, "inline data is at most %u bytes", DFE_INLINE_BYTES);
    rc = stage_new(cont, &st);
    if (rc < 0)
        return rc;
    st->is_inline = true;
    st->inline_len = (uint32_t)len;
    st->data = malloc(len + 1);
    if (!st->data) {
        obj_stage_drop(st);
        return -ENOMEM;
    }
    if (len > 0)
        memcpy(st->data, data, len);
    *out = st;
    return 0;
}
