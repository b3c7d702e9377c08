/* SPDX-License-Identifier: Apache-2.0 */
/* Block allocator against a shadow that keeps one byte a block. */
#include "base/clock.h"
#include "base/words.h"
#include "obj/alloc.h"
#include "test.h"

static uint64_t seed;

enum state { FREE, STAGED, COMMITTED, WAIT, WAIT_FROZEN };

#define FIRST 1000u
#define BLOCKS (2u * DFE_SEGMENT_BLOCKS + 777u)
#define SEGS 3u

static uint8_t shadow[BLOCKS];
static uint8_t stored[SEGS][ALLOC_SEG_VALUE_BYTES]; /* what the index has */
static uint8_t fresh[SEGS][ALLOC_SEG_VALUE_BYTES];  /* what the running checkpoint writes */
static unsigned frozen_segs, fail_after;

static int on_freeze(uint32_t seg, const void *bitmap, size_t len, void *arg)
{
    CHECK(seg < SEGS && len == ALLOC_SEG_VALUE_BYTES);
    memcpy(fresh[seg], bitmap, len);
    return ++frozen_segs == fail_after ? -EIO : 0;
}

/* What the checkpoint would store is exactly what is committed. */
static void check_fresh(void)
{
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t seg = i / DFE_SEGMENT_BLOCKS, bit = i % DFE_SEGMENT_BLOCKS;
        CHECK_EQ((fresh[seg][bit / 8] >> (bit % 8)) & 1, shadow[i] == COMMITTED);
    }
}

static uint64_t count(enum state s)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < BLOCKS; i++)
        n += shadow[i] == s;
    return n;
}

static void turn(enum state from, enum state to)
{
    for (uint32_t i = 0; i < BLOCKS; i++)
        if (shadow[i] == from)
            shadow[i] = (uint8_t)to;
}

static void paint(uint32_t at, uint32_t n, enum state from, enum state to)
{
    for (uint32_t i = at; i < at + n; i++) {
        CHECK_EQ(shadow[i], from);
        shadow[i] = (uint8_t)to;
    }
}

/* A random run of blocks of one state, at most 600 long. */
static uint32_t pick_run(enum state s, uint32_t *at)
{
    uint32_t n = 0, most = 1 + (uint32_t)(test_rand(&seed) % 600);

    *at = (uint32_t)(test_rand(&seed) % BLOCKS);
    for (uint32_t i = 0; i < 2000 && *at < BLOCKS && shadow[*at] != s; i++)
        ++*at;
    while (*at + n < BLOCKS && n < most && shadow[*at + n] == s)
        n++;
    return n;
}

static void step_take(struct alloc *a)
{
    uint32_t want = 1 + (uint32_t)(test_rand(&seed) % DFE_EXTENT_BLOCKS), got;
    uint64_t blk, avail = alloc_free_blocks(a) - alloc_reserved_blocks(a);
    int err = alloc_take(a, want, false, &blk, &got);

    CHECK_EQ(err, avail ? 0 : -ENOSPC);
    if (err == 0) {
        CHECK(got >= 1 && got <= want && got <= avail && blk >= FIRST);
        paint((uint32_t)(blk - FIRST), got, FREE, STAGED);
    }
}

static void step_refused(struct alloc *a)
{
    uint32_t at, n = pick_run(test_rand(&seed) % 2 ? FREE : WAIT, &at);
    uint64_t blk;
    uint32_t got;

    if (n)
        CHECK_EQ(alloc_free(a, FIRST + at, n), -EUCLEAN);
    n = pick_run(COMMITTED, &at);
    if (n)
        CHECK_EQ(alloc_commit(a, FIRST + at, n), -EUCLEAN);
    CHECK_EQ(alloc_commit(a, FIRST + BLOCKS - 1, 2), -EUCLEAN);
    CHECK_EQ(alloc_commit(a, FIRST - 1, 1), -EUCLEAN);
    CHECK_EQ(alloc_commit(a, UINT64_MAX, 1), -EUCLEAN);
    CHECK_EQ(alloc_commit(a, FIRST, UINT32_MAX), -EUCLEAN);
    CHECK_EQ(alloc_free(a, 0, 1), -EUCLEAN);
    CHECK_EQ(alloc_take(a, 0, false, &blk, &got), -EINVAL);
    CHECK_EQ(alloc_take(a, DFE_EXTENT_BLOCKS + 1, false, &blk, &got), -EINVAL);
}

static void checkpoint(struct alloc *a, bool *frozen)
{
    if (!*frozen) {
        memcpy(fresh, stored, sizeof(fresh));
        frozen_segs = 0;
        fail_after = test_rand(&seed) % 4 ? 0 : 1;
        int err = alloc_freeze(a, on_freeze, NULL);
        if (err)
            return;
        turn(WAIT, WAIT_FROZEN);
        check_fresh();
        *frozen = true;
        return;
    }
    bool ok = test_rand(&seed) % 3;
    alloc_done(a, ok);
    turn(WAIT_FROZEN, ok ? FREE : WAIT);
    if (ok)
        memcpy(stored, fresh, sizeof(stored));
    *frozen = false;
}

static void check_counts(const struct alloc *a)
{
    CHECK_EQ(alloc_free_blocks(a), count(FREE));
    CHECK_EQ(alloc_waiting_blocks(a), count(WAIT) + count(WAIT_FROZEN));
    for (int i = 0; i < 200; i++) {
        uint32_t at = (uint32_t)(test_rand(&seed) % BLOCKS);
        CHECK_EQ(alloc_is_committed(a, FIRST + at), shadow[at] == COMMITTED);
    }
}

/* What was stored loads again; what is committed since is made busy by replay. */
static void check_reload(void)
{
    struct alloc *a;
    uint32_t n = 0;

    CHECK_EQ(alloc_open(FIRST, BLOCKS, &a), 0);
    for (uint32_t seg = 0; seg < SEGS; seg++)
        CHECK_EQ(alloc_load(a, seg, stored[seg], ALLOC_SEG_VALUE_BYTES), 0);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t seg = i / DFE_SEGMENT_BLOCKS, bit = i % DFE_SEGMENT_BLOCKS;
        bool was = (stored[seg][bit / 8] >> (bit % 8)) & 1;
        CHECK_EQ(alloc_is_committed(a, FIRST + i), was);
        if (!was && shadow[i] == COMMITTED)
            CHECK_EQ(alloc_commit(a, FIRST + i, 1), 0);
        if (was && shadow[i] != COMMITTED)
            CHECK_EQ(alloc_free(a, FIRST + i, 1), 0);
        n += shadow[i] == COMMITTED || was;
    }
    CHECK_EQ(alloc_free_blocks(a), BLOCKS - n);
    alloc_close(a);
}

static void random_against_shadow(void)
{
    struct alloc *a;
    bool frozen = false;
    uint32_t at, n;

    CHECK_EQ(alloc_open(FIRST, BLOCKS, &a), 0);
    CHECK_EQ(alloc_segments(a), SEGS);
    for (int i = 0; i < 60000; i++) {
        bool filling = (i / 6000) % 2 == 0;
        switch (test_rand(&seed) % 10) {
        case 0:
        case 1:
        case 2:
        case 3:
            if (filling || test_rand(&seed) % 4 == 0)
                step_take(a);
            break;
        case 4:
        case 5:
            n = pick_run(STAGED, &at);
            if (n) {
                CHECK_EQ(alloc_commit(a, FIRST + at, n), 0);
                paint(at, n, STAGED, COMMITTED);
            }
            break;
        case 6:
            n = pick_run(STAGED, &at);
            if (n) {
                alloc_cancel(a, FIRST + at, n);
                paint(at, n, STAGED, FREE);
            }
            break;
        case 7:
            n = pick_run(COMMITTED, &at);
            if (n && (!filling || test_rand(&seed) % 4 == 0)) {
                CHECK_EQ(alloc_free(a, FIRST + at, n), 0);
                paint(at, n, COMMITTED, WAIT);
            }
            break;
        case 8:
            step_refused(a);
            break;
        default:
            if (test_rand(&seed) % 20 == 0)
                checkpoint(a, &frozen);
        }
        if (i % 500 == 0)
            check_counts(a);
    }
    check_counts(a);
    check_reload();
    alloc_close(a);
}

static void reserving(void)
{
    struct alloc *a;
    uint64_t blk, last = 0;
    uint32_t got;

    CHECK_EQ(alloc_open(0, 100, &a), 0);
    CHECK_EQ(alloc_reserve(a, 101), -ENOSPC);
    CHECK_EQ(alloc_reserve(a, 90), 0);
    CHECK_EQ(alloc_reserve(a, 11), -ENOSPC);
    CHECK_EQ(alloc_take(a, 50, false, &blk, &got), 0);
    CHECK_EQ(got, 10);
    CHECK_EQ(alloc_take(a, 50, false, &blk, &got), -ENOSPC);
    for (unsigned left = 90; left; left -= got) {
        CHECK_EQ(alloc_take(a, 7, true, &blk, &got), 0);
        CHECK(blk > last);
        last = blk;
        alloc_unreserve(a, got);
    }
    CHECK_EQ(alloc_free_blocks(a), 0);
    CHECK_EQ(alloc_take(a, 1, true, &blk, &got), -ENOSPC);
    alloc_close(a);
    CHECK_EQ(alloc_open(0, 0, &a), -EINVAL);
}

static void bad_bitmaps(void)
{
    static uint8_t map[ALLOC_SEG_VALUE_BYTES];
    struct alloc *a;

    CHECK_EQ(alloc_open(0, 100, &a), 0);
    CHECK_EQ(alloc_load(a, 0, map, sizeof(map) - 1), -EUCLEAN);
    CHECK_EQ(alloc_load(a, 1, map, sizeof(map)), -EUCLEAN);
    map[100 / 8] = 1 << (100 % 8);
    CHECK_EQ(alloc_load(a, 0, map, sizeof(map)), -EUCLEAN);
    CHECK_EQ(alloc_free_blocks(a), 100);
    map[100 / 8] = 1 << (99 % 8);
    CHECK_EQ(alloc_load(a, 0, map, sizeof(map)), 0);
    CHECK_EQ(alloc_free_blocks(a), 99);
    alloc_close(a);
}

/* A 1 TiB device, fragmented, 99.9 % full: reported. */
static void nearly_full(void)
{
    const uint32_t segs = 8192;
    static uint8_t map[ALLOC_SEG_VALUE_BYTES];
    struct alloc *a;
    uint64_t blk, t;
    uint32_t got, n = 0;

    CHECK_EQ(alloc_open(0, (uint64_t)segs * DFE_SEGMENT_BLOCKS, &a), 0);
    for (uint32_t i = 0; i < segs; i++) {
        memset(map, 0xff, sizeof(map));
        for (int k = 0; k < 32 && i % 64 == 0; k++)
            map[test_rand(&seed) % sizeof(map)] = 0xf0;
        CHECK_EQ(alloc_load(a, i, map, sizeof(map)), 0);
    }
    t = base_mono_ns();
    while (alloc_take(a, DFE_EXTENT_BLOCKS, false, &blk, &got) == 0)
        n++;
    t = base_mono_ns() - t;
    CHECK_EQ(alloc_free_blocks(a), 0);
    fprintf(stderr, "nearly full: %u takes, %.2f us each\n", n, (double)t / n / 1e3);
    alloc_close(a);
}

int main(void)
{
    seed = test_seed();
    RUN(random_against_shadow);
    RUN(reserving);
    RUN(bad_bitmaps);
    RUN(nearly_full);
    return 0;
}
