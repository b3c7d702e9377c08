/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block allocator (invariants A1 to A3: alloc.h).
 *
 * Besides `committed` and `busy` a segment has two bitmaps of blocks that wait for a checkpoint: of
 * those freed since the last freeze, and of those whose freeing the running checkpoint writes. So
 * freeing never needs memory. A bit set means taken. The maps are one zeroed allocation that costs
 * memory only where it is written.
 */
#include "obj/alloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/words.h"

#define WORDS (DFE_SEGMENT_BLOCKS / 64)

/* Segments looked at for a run as long as wanted, before the longest seen is taken. */
#define TRY_SEGMENTS 4u

enum { WAIT_NOW = 0, WAIT_FROZEN = 1 };

struct seg {
    uint64_t committed[WORDS], busy[WORDS];
    uint64_t wait[2][WORDS];
};

struct seg_info {
    uint32_t free;
    uint32_t waiting[2];
    bool dirty, dirty_frozen;
};

struct alloc {
    uint64_t first_blk, n_blk;
    uint32_t n_seg;
    bool frozen;
    uint64_t free, reserved;
    uint64_t staged; /* taken out of what is reserved, and counted there still */
    uint64_t waiting[2];
    uint64_t next; /* where the search goes on: blocks from first_blk */
    struct seg_info *info;
    struct seg *seg;
};

struct run {
    uint32_t seg, at, len; /* blocks */
};

/* -- bits -------------------------------------------------------------------------------------- */

/* The bits of [at, at + n) that lie in word w. */
static uint64_t mask_in_word(uint32_t w, uint32_t at, uint32_t n)
{
    uint32_t lo = w * 64 < at ? at - w * 64 : 0;
    uint32_t hi = at + n - w * 64 < 64 ? at + n - w * 64 : 64;
    uint64_t below_hi = hi == 64 ? ~0ull : (1ull << hi) - 1;

    return below_hi & (~0ull << lo);
}

static void bits_set(uint64_t *map, uint32_t at, uint32_t n)
{
    for (uint32_t w = at / 64; w * 64 < at + n; w++)
        map[w] |= mask_in_word(w, at, n);
}

static void bits_clear(uint64_t *map, uint32_t at, uint32_t n)
{
    for (uint32_t w = at / 64; w * 64 < at + n; w++)
        map[w] &= ~mask_in_word(w, at, n);
}

static uint32_t bits_count(const uint64_t *map, uint32_t at, uint32_t n)
{
    uint32_t sum = 0;

    for (uint32_t w = at / 64; w * 64 < at + n; w++)
        sum += (uint32_t)__builtin_popcountll(map[w] & mask_in_word(w, at, n));
    return sum;
}

/* First bit >= at that is clear (flip 0) or set (flip ~0), or DFE_SEGMENT_BLOCKS. */
static uint32_t bits_find(const uint64_t *map, uint32_t at, uint64_t flip)
{
    for (uint32_t w = at / 64; w < WORDS; w++) {
        uint64_t v = ~(map[w] ^ flip);
        if (w == at / 64)
            v &= ~0ull << (at % 64);
        if (v)
            return w * 64 + (uint32_t)__builtin_ctzll(v);
    }
    return DFE_SEGMENT_BLOCKS;
}

/* -- open -------------------------------------------------------------------------------------- */

/* Of the last segment only a part may exist. */
static uint32_t seg_blocks(const struct alloc *a, uint32_t seg)
{
    uint64_t rest = a->n_blk - (uint64_t)seg * DFE_SEGMENT_BLOCKS;

    return rest < DFE_SEGMENT_BLOCKS ? (uint32_t)rest : DFE_SEGMENT_BLOCKS;
}

int alloc_open(uint64_t first_blk, uint64_t n_blk, struct alloc **out)
{
    uint64_t n_seg = n_blk / DFE_SEGMENT_BLOCKS + (n_blk % DFE_SEGMENT_BLOCKS != 0);
    struct alloc *a;
    uint32_t last;

    if (n_blk == 0 || n_seg > UINT32_MAX / sizeof(struct seg))
        return -EINVAL;
    a = calloc(1, sizeof(*a));
    if (!a)
        return -ENOMEM;
    a->info = calloc(n_seg, sizeof(*a->info));
    a->seg = calloc(n_seg, sizeof(*a->seg));
    if (!a->info || !a->seg) {
        alloc_close(a);
        return -ENOMEM;
    }
    a->first_blk = first_blk;
    a->n_blk = n_blk;
    a->n_seg = (uint32_t)n_seg;
    a->free = n_blk;
    for (uint32_t i = 0; i < a->n_seg; i++)
        a->info[i].free = seg_blocks(a, i);
    last = seg_blocks(a, a->n_seg - 1);
    bits_set(a->seg[a->n_seg - 1].busy, last, DFE_SEGMENT_BLOCKS - last);
    *out = a;
    return 0;
}

void alloc_close(struct alloc *a)
{
    if (!a)
        return;
    free(a->seg);
    free(a->info);
    free(a);
}

uint32_t alloc_segments(const struct alloc *a)
{
    return a->n_seg;
}

int alloc_load(struct alloc *a, uint32_t seg, const void *bitmap, size_t len)
{
    uint32_t blocks, used;
    struct seg *s;

    if (seg >= a->n_seg || len != ALLOC_SEG_VALUE_BYTES)
        return base_fail(-EUCLEAN, "free space: segment %u: a bitmap of %zu bytes", seg, len);
    s = &a->seg[seg];
    blocks = seg_blocks(a, seg);
    for (uint32_t w = 0; w < WORDS; w++)
        s->committed[w] = get_le64((const uint8_t *)bitmap + w * 8);
    if (bits_count(s->committed, blocks, DFE_SEGMENT_BLOCKS - blocks)) {
        bits_clear(s->committed, 0, DFE_SEGMENT_BLOCKS);
        return base_fail(-EUCLEAN, "free space: segment %u: blocks in use beyond the device", seg);
    }
    for (uint32_t w = 0; w < WORDS; w++)
        s->busy[w] |= s->committed[w];
    used = bits_count(s->busy, 0, blocks);
    a->free -= a->info[seg].free - (blocks - used);
    a->info[seg].free = blocks - used;
    return 0;
}

/* -- taking ------------------------------------------------------------------------------------ */

/* The longest run of the segment from `at` on, the first of at least want if there is one. */
static void seg_search(const struct alloc *a, uint32_t seg, uint32_t at, uint32_t want,
                       struct run *best)
{
    const uint64_t *busy = a->seg[seg].busy;

    while (best->len < want) {
        uint32_t end;
        at = bits_find(busy, at, 0);
        if (at == DFE_SEGMENT_BLOCKS)
            return;
        end = bits_find(busy, at, ~0ull);
        if (end - at > best->len)
            *best = (struct run){seg, at, end - at};
        at = end;
    }
}

static void run_search(const struct alloc *a, uint32_t want, struct run *best)
{
    uint32_t first = (uint32_t)(a->next / DFE_SEGMENT_BLOCKS), tried = 0;

    for (uint32_t i = 0; i <= a->n_seg && best->len < want; i++) {
        uint32_t seg = (first + i) % a->n_seg;
        if (a->info[seg].free <= best->len)
            continue;
        if (best->len && tried == TRY_SEGMENTS)
            return;
        seg_search(a, seg, i ? 0 : (uint32_t)(a->next % DFE_SEGMENT_BLOCKS), want, best);
        tried++;
    }
}

static uint64_t unpromised(const struct alloc *a)
{
    uint64_t promised = alloc_promised_blocks(a);

    return a->free > promised ? a->free - promised : 0;
}

int alloc_take(struct alloc *a, uint32_t want, bool use_reserved, uint64_t *blk, uint32_t *got)
{
    uint64_t room = use_reserved ? a->free : unpromised(a);
    struct run run = {0};

    if (want == 0 || want > DFE_EXTENT_BLOCKS)
        return -EINVAL;
    if (want > room)
        want = (uint32_t)room;
    if (want == 0)
        return -ENOSPC;
    run_search(a, want, &run);
    DFE_ASSERT(run.len > 0); /* A3: free blocks are somewhere */
    if (run.len > want)
        run.len = want;
    bits_set(a->seg[run.seg].busy, run.at, run.len);
    a->info[run.seg].free -= run.len;
    a->free -= run.len;
    a->staged += use_reserved ? run.len : 0;
    a->next = ((uint64_t)run.seg * DFE_SEGMENT_BLOCKS + run.at + run.len) % a->n_blk;
    *blk = a->first_blk + (uint64_t)run.seg * DFE_SEGMENT_BLOCKS + run.at;
    *got = run.len;
    return 0;
}

/* -- state changes ----------------------------------------------------------------------------- */

static bool in_range(const struct alloc *a, uint64_t blk, uint32_t n)
{
    return n > 0 && blk >= a->first_blk && n <= a->n_blk && blk - a->first_blk <= a->n_blk - n;
}

/* Cuts the part of [*blk, *blk + *n) that lies in one segment off. */
static struct run next_part(const struct alloc *a, uint64_t *blk, uint32_t *n)
{
    uint64_t rel = *blk - a->first_blk;
    struct run r = {.seg = (uint32_t)(rel / DFE_SEGMENT_BLOCKS),
                    .at = (uint32_t)(rel % DFE_SEGMENT_BLOCKS)};

    r.len = DFE_SEGMENT_BLOCKS - r.at < *n ? DFE_SEGMENT_BLOCKS - r.at : *n;
    *blk += r.len;
    *n -= r.len;
    return r;
}

static uint32_t count_committed(const struct alloc *a, uint64_t blk, uint32_t n)
{
    uint32_t sum = 0;

    while (n) {
        struct run r = next_part(a, &blk, &n);
        sum += bits_count(a->seg[r.seg].committed, r.at, r.len);
    }
    return sum;
}

void alloc_cancel(struct alloc *a, uint64_t blk, uint32_t n)
{
    DFE_ASSERT(in_range(a, blk, n) && count_committed(a, blk, n) == 0);
    while (n) {
        struct run r = next_part(a, &blk, &n);
        struct seg *s = &a->seg[r.seg];
        DFE_ASSERT(bits_count(s->busy, r.at, r.len) == r.len);
        bits_clear(s->busy, r.at, r.len);
        a->info[r.seg].free += r.len;
        a->free += r.len;
    }
}

int alloc_commit(struct alloc *a, uint64_t blk, uint32_t n)
{
    if (!in_range(a, blk, n))
        return -EUCLEAN;
    if (count_committed(a, blk, n))
        return -EUCLEAN;
    while (n) {
        struct run r = next_part(a, &blk, &n);
        struct seg *s = &a->seg[r.seg];
        uint32_t fresh = r.len - bits_count(s->busy, r.at, r.len);
        bits_set(s->committed, r.at, r.len);
        bits_set(s->busy, r.at, r.len);
        a->info[r.seg].free -= fresh;
        a->info[r.seg].dirty = true;
        a->free -= fresh;
    }
    return 0;
}

int alloc_free(struct alloc *a, uint64_t blk, uint32_t n)
{
    if (!in_range(a, blk, n))
        return -EUCLEAN;
    if (count_committed(a, blk, n) != n)
        return -EUCLEAN;
    while (n) {
        struct run r = next_part(a, &blk, &n);
        struct seg *s = &a->seg[r.seg];
        bits_clear(s->committed, r.at, r.len);
        bits_set(s->wait[WAIT_NOW], r.at, r.len);
        a->info[r.seg].waiting[WAIT_NOW] += r.len;
        a->info[r.seg].dirty = true;
        a->waiting[WAIT_NOW] += r.len;
    }
    return 0;
}

/* -- checkpoint -------------------------------------------------------------------------------- */

/* Moves what waits from one set to the other. */
static void wait_move(struct alloc *a, uint32_t seg, int from, int to)
{
    struct seg_info *info = &a->info[seg];
    struct seg *s = &a->seg[seg];

    if (info->waiting[from] == 0)
        return;
    for (uint32_t w = 0; w < WORDS; w++) {
        s->wait[to][w] |= s->wait[from][w];
        s->wait[from][w] = 0;
    }
    a->waiting[to] += info->waiting[from];
    a->waiting[from] -= info->waiting[from];
    info->waiting[to] += info->waiting[from];
    info->waiting[from] = 0;
}

static void wait_release(struct alloc *a, uint32_t seg)
{
    struct seg_info *info = &a->info[seg];
    struct seg *s = &a->seg[seg];

    if (info->waiting[WAIT_FROZEN] == 0)
        return;
    for (uint32_t w = 0; w < WORDS; w++) {
        DFE_ASSERT((s->wait[WAIT_FROZEN][w] & s->committed[w]) == 0); /* A2 */
        s->busy[w] &= ~s->wait[WAIT_FROZEN][w];
        s->wait[WAIT_FROZEN][w] = 0;
    }
    info->free += info->waiting[WAIT_FROZEN];
    a->free += info->waiting[WAIT_FROZEN];
    a->waiting[WAIT_FROZEN] -= info->waiting[WAIT_FROZEN];
    info->waiting[WAIT_FROZEN] = 0;
}

int alloc_freeze(struct alloc *a,
                 int (*fn)(uint32_t seg, const void *bitmap, size_t len, void *arg), void *arg)
{
    int err = 0;

    DFE_ASSERT(!a->frozen);
    a->frozen = true;
    for (uint32_t i = 0; i < a->n_seg && err == 0; i++) {
        uint64_t le[WORDS];
        if (!a->info[i].dirty)
            continue;
        for (uint32_t w = 0; w < WORDS; w++)
            le[w] = htole64(a->seg[i].committed[w]);
        a->info[i].dirty = false;
        a->info[i].dirty_frozen = true;
        wait_move(a, i, WAIT_NOW, WAIT_FROZEN);
        err = fn(i, le, sizeof(le), arg);
    }
    if (err)
        alloc_done(a, false);
    return err;
}

void alloc_done(struct alloc *a, bool ok)
{
    DFE_ASSERT(a->frozen);
    a->frozen = false;
    for (uint32_t i = 0; i < a->n_seg; i++) {
        if (!a->info[i].dirty_frozen)
            continue;
        a->info[i].dirty_frozen = false;
        if (ok) {
            wait_release(a, i);
        } else {
            a->info[i].dirty = true;
            wait_move(a, i, WAIT_FROZEN, WAIT_NOW);
        }
    }
}

/* -- counting ---------------------------------------------------------------------------------- */

int alloc_reserve(struct alloc *a, uint64_t n_blk)
{
    if (n_blk > unpromised(a))
        return -ENOSPC;
    a->reserved += n_blk;
    return 0;
}

void alloc_unreserve(struct alloc *a, uint64_t n_blk)
{
    DFE_ASSERT(n_blk <= a->reserved);
    a->reserved -= n_blk;
}

void alloc_settle(struct alloc *a, uint64_t n_blk)
{
    DFE_ASSERT(n_blk <= a->staged);
    a->staged -= n_blk;
}

uint64_t alloc_free_blocks(const struct alloc *a)
{
    return a->free;
}

uint64_t alloc_reserved_blocks(const struct alloc *a)
{
    return a->reserved;
}

uint64_t alloc_promised_blocks(const struct alloc *a)
{
    return a->reserved > a->staged ? a->reserved - a->staged : 0;
}

uint64_t alloc_waiting_blocks(const struct alloc *a)
{
    return a->waiting[WAIT_NOW] + a->waiting[WAIT_FROZEN];
}

bool alloc_is_committed(const struct alloc *a, uint64_t blk)
{
    return in_range(a, blk, 1) && count_committed(a, blk, 1);
}
