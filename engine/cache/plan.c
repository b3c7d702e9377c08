/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A change of at most 1 MiB, in three steps: make finds or makes the slots, loads what partial
 * blocks keep, and reserves space, so that everything that can fail or wait is over; copy moves the
 * bytes without the lock; finish makes them the file's. Between the steps the file is locked
 * exclusively: only loads (stale then) and the end of a publication can come in between.
 */
#include <errno.h>
#include <string.h>

#include "base/assert.h"
#include "cache/cache_int.h"

static uint64_t plan_first(const struct plan *p)
{
    return p->off / BLOCK;
}

static uint64_t plan_end(const struct plan *p)
{
    return blocks_up(p->off + p->len);
}

static bool slot_frozen(const struct slot *s, unsigned i)
{
    return s->loans > 0 || bits_test(&s->wb, i);
}

/* -- which slots ----------------------------------------------------------------------------- */

/* Length of a fresh slot at block: as much as is to be written, from the alignment the block has; a
 * stream gets what the alignment allows, so that its slots double until they are 1 MiB. */
static unsigned fresh_order(const struct plan *p, uint64_t block)
{
    bool stream = p->file->wr_next > 0 && p->off == p->file->wr_next;
    uint64_t left = plan_end(p) - block;
    unsigned order = 0;

    while (order < SLOT_ORDER_MAX && (block >> order & 1) == 0 &&
           ((1ull << order) < left || (stream && block > 0)))
        order++;
    return order;
}

/* Blocks from `block` on that may go to s together: now valid in `from` or nowhere. */
static uint32_t run_length(const struct plan *p, const struct slot *s, const struct slot *from,
                           uint64_t block)
{
    uint64_t end = s->first + slot_blocks(s), at;

    if (end > plan_end(p))
        end = plan_end(p);
    for (at = block + 1; at < end; at++) {
        const struct slot *v = slot_find(p->file, at, SLOT_VALID);
        if ((v && v != from) || slot_frozen(s, (unsigned)(at - s->first)))
            break;
    }
    return (uint32_t)(at - block);
}

/* A slot of its own for the blocks from `block` on. */
static struct slot *fresh_slot(struct plan *p, uint64_t block, unsigned order)
{
    struct cache *cache = p->file->cache;
    struct slot *s;

    pthread_mutex_unlock(&cache->lock);
    s = slot_alloc(p->file, order, 0);
    pthread_mutex_lock(&cache->lock);
    if (s)
        s->first = block >> s->order << s->order;
    return s;
}

static int add_piece(struct plan *p, uint64_t block)
{
    struct slot *valid = slot_find(p->file, block, SLOT_VALID), *s = valid;
    struct piece *piece = &p->piece[p->n];
    unsigned order = fresh_order(p, block);
    bool frozen = s && slot_frozen(s, (unsigned)(block - s->first));

    *piece = (struct piece){.first = block};
    if (!s || frozen) /* one that has room for the block, perhaps since its neighbour moved there */
        s = slot_find(p->file, block, SLOT_WRITABLE);
    if (frozen) {
        slot_pin(valid);
        piece->old = valid;
        order = valid->order < COW_ORDER ? valid->order : COW_ORDER;
    }
    if (s) {
        slot_pin(s);
    } else {
        s = fresh_slot(p, block, order);
        piece->fresh = true;
    }
    if (!s) {
        if (piece->old)
            slot_unpin(piece->old);
        return -ENOBUFS;
    }
    piece->slot = s;
    piece->n = run_length(p, s, valid, block);
    p->n++;
    return 0;
}

/* -- make ------------------------------------------------------------------------------------ */

/* Which edge blocks keep bytes that are not written, of those the file has. */
static bool edge_keeps(const struct plan *p, uint64_t block)
{
    uint64_t from = block * BLOCK, to = from + BLOCK, size = p->file->cut.size;

    if (from >= size)
        return false;
    return p->off > from || p->off + p->len < (to < size ? to : size);
}

static int plan_edges(struct plan *p, bool nowait)
{
    uint64_t first = plan_first(p), last = plan_end(p) - 1;
    int rc = 0;

    if (edge_keeps(p, first))
        rc = load_block(p->file, first, nowait, &p->edge[0]);
    if (rc == 0 && last != first && edge_keeps(p, last))
        rc = load_block(p->file, last, nowait, &p->edge[1]);
    return rc;
}

static bool plan_has(const struct plan *p, const struct piece *piece, uint64_t block)
{
    const struct slot *s = slot_find(p->file, block, SLOT_VALID);

    return s && s == (piece->old ? piece->old : piece->slot);
}

static int plan_reserve(struct plan *p, bool nowait)
{
    struct cache *cache = p->file->cache;
    uint64_t n = 0;
    int rc;

    for (uint64_t b = plan_first(p); b < plan_end(p); b++) {
        const struct slot *s = slot_find(p->file, b, SLOT_VALID);
        n += !s || !bits_test(&s->dirty, (unsigned)(b - s->first));
    }
    if (n == 0)
        return 0;
    pthread_mutex_unlock(&cache->lock);
    rc = obj_reserve(cache->pool, n * BLOCK, nowait ? OBJ_NOWAIT : 0);
    pthread_mutex_lock(&cache->lock);
    if (rc == 0)
        p->reserved = n;
    return rc;
}

int plan_make(struct plan *p, struct cache_file *file, uint64_t off, size_t len, const void *src,
              bool nowait)
{
    int rc;

    DFE_ASSERT(len > 0 && blocks_up(off + len) - off / BLOCK <= PLAN_BLOCKS);
    p->file = file;
    p->off = off;
    p->len = len;
    p->src = src;
    p->reserved = 0;
    p->edge[0] = p->edge[1] = NULL;
    p->n = 0;
    rc = plan_edges(p, nowait);
    for (uint64_t b = plan_first(p); rc == 0 && b < plan_end(p);) {
        rc = add_piece(p, b);
        if (rc == 0)
            b += p->piece[p->n - 1].n;
    }
    for (unsigned i = 0; rc == 0 && i < p->n; i++) {
        struct piece *piece = &p->piece[i];
        piece->has_first = plan_has(p, piece, piece->first);
        piece->has_last = plan_has(p, piece, piece->first + piece->n - 1);
    }
    if (rc == 0)
        rc = plan_reserve(p, nowait);
    if (rc < 0)
        plan_cancel(p);
    return rc;
}

static void plan_unpin(struct plan *p)
{
    for (unsigned i = 0; i < p->n; i++) {
        slot_unpin(p->piece[i].slot);
        if (p->piece[i].old)
            slot_unpin(p->piece[i].old);
    }
    for (unsigned i = 0; i < 2; i++)
        if (p->edge[i])
            slot_unpin(p->edge[i]);
    p->n = 0;
    p->edge[0] = p->edge[1] = NULL;
}

void plan_cancel(struct plan *p)
{
    plan_unpin(p);
    if (p->reserved > 0)
        obj_unreserve(p->file->cache->pool, p->reserved * BLOCK);
    p->reserved = 0;
}

/* -- copy ------------------------------------------------------------------------------------ */

void plan_open(const struct plan *p)
{
    if (!p->file->cache->windows)
        return;
    for (unsigned k = 0; k < p->n; k++)
        if (p->piece[k].slot->line)
            lease_open_line(p->piece[k].slot);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* lease.c, 4 */
}

static uint8_t *block_ptr(const struct slot *s, uint64_t block)
{
    return s->data + (block - s->first) * BLOCK;
}

void plan_copy(const struct plan *p)
{
    for (unsigned k = 0; k < p->n; k++) {
        const struct piece *piece = &p->piece[k];
        uint64_t last = piece->first + piece->n - 1;
        uint64_t from = piece->first * BLOCK, to = (last + 1) * BLOCK;
        uint64_t begin = from > p->off ? from : p->off;
        uint64_t end = to < p->off + p->len ? to : p->off + p->len;
        uint8_t *base = block_ptr(piece->slot, piece->first);
        if (piece->old && begin > from && piece->has_first)
            memcpy(base, block_ptr(piece->old, piece->first), BLOCK);
        if (piece->old && end < to && piece->has_last)
            memcpy(block_ptr(piece->slot, last), block_ptr(piece->old, last), BLOCK);
        if (begin > from && !piece->has_first)
            memset(base, 0, begin - from);
        if (end < to && !piece->has_last)
            memset(base + (end - from), 0, to - end);
        if (p->src)
            memcpy(base + (begin - from), p->src + (begin - p->off), end - begin);
        else
            memset(base + (begin - from), 0, end - begin);
    }
}

/* -- finish ---------------------------------------------------------------------------------- */

/* The block is this slot's: no other's any more (invariant 1). */
static void take_block(struct cache_file *file, struct slot *s, uint64_t block)
{
    struct slot *v;

    if (bits_test(&s->valid, (unsigned)(block - s->first)))
        return;
    while ((v = slot_find(file, block, SLOT_VALID)) != NULL) {
        slot_pin(v);
        slot_invalidate(v, (unsigned)(block - v->first), 1);
        slot_unpin(v);
    }
}

void plan_finish(struct plan *p)
{
    struct cache_file *file = p->file;
    uint64_t before = file->dirty_blocks;

    for (unsigned k = 0; k < p->n; k++) {
        struct piece *piece = &p->piece[k];
        if (piece->fresh)
            slot_attach(piece->slot, file, piece->slot->first);
        for (uint32_t i = 0; i < piece->n; i++)
            take_block(file, piece->slot, piece->first + i);
        slot_dirty(piece->slot, (unsigned)(piece->first - piece->slot->first), piece->n);
        if (piece->slot->line)
            lease_close_line(piece->slot);
    }
    /* a failed publication may have made blocks dirty again that were counted as clean */
    before += p->reserved;
    DFE_ASSERT(file->dirty_blocks <= before);
    obj_unreserve(file->cache->pool, (before - file->dirty_blocks) * BLOCK);
    p->reserved = 0;
    plan_unpin(p);
}
