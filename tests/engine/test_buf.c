/* SPDX-License-Identifier: Apache-2.0 */
/* The arena of I/O buffers: sizes and alignment, growth and release, watcher, many threads. */
#include <pthread.h>

#include "base/assert.h"
#include "base/limits.h"
#include "buf/buf.h"
#include "test.h"

#define EXTENT ((uint64_t)DFE_ARENA_EXTENT_BYTES)
#define UNITS_PER_EXTENT (DFE_ARENA_EXTENT_BYTES / BUF_MIN_BYTES)
#define LARGE_PER_EXTENT (DFE_ARENA_EXTENT_BYTES / BUF_MAX_BYTES)

static uint64_t seed;

static struct buf_arena *arena_open(unsigned extents)
{
    struct buf_arena *a;
    CHECK_EQ(buf_arena_open(extents * EXTENT, BUF_HUGE, &a), 0);
    return a;
}

static uint64_t mapped(struct buf_arena *a)
{
    struct buf_info info;
    buf_arena_info(a, &info);
    CHECK_EQ(info.kind_bytes[0] + info.kind_bytes[1] + info.kind_bytes[2], info.mapped_bytes);
    return info.mapped_bytes;
}

static uint64_t used(struct buf_arena *a)
{
    struct buf_info info;
    buf_arena_info(a, &info);
    return info.used_bytes;
}

static void refuses_nonsense(void)
{
    struct buf_arena *a;

    CHECK_EQ(buf_arena_open(0, BUF_HUGE, &a), -EINVAL);
    CHECK_EQ(buf_arena_open(UINT64_MAX, BUF_HUGE, &a), -EINVAL);
    CHECK_EQ(buf_arena_open(EXTENT, (enum buf_kind)7, &a), -EINVAL);
    a = arena_open(1);
    CHECK(!buf_alloc(a, 0));
    CHECK(!buf_alloc(a, BUF_MAX_BYTES + 1));
    CHECK_EQ(mapped(a), 0);
    buf_free(a, NULL, 4096);
    buf_arena_close(a);
}

static void sizes_are_rounded_and_aligned(void)
{
    static const struct {
        size_t ask, get;
    } sizes[] = {{1, 4096},      {4096, 4096},        {4097, 8192},       {65536, 65536},
                 {65537, 131072}, {1000000, 1u << 20}, {1u << 20, 1u << 20}};
    struct buf_arena *a = arena_open(1);

    for (size_t i = 0; i < DFE_ARRAY_LEN(sizes); i++) {
        char *p = buf_alloc(a, sizes[i].ask);
        CHECK(p);
        CHECK_EQ((uintptr_t)p % sizes[i].get, 0);
        CHECK_EQ(used(a), sizes[i].get);
        memset(p, 0xa5, sizes[i].get);
        buf_free(a, p, sizes[i].ask);
        CHECK_EQ(used(a), 0);
    }
    buf_arena_close(a);
}

/* Each kind is tried; what the host refuses falls back and is reported. */
static void kinds_fall_back(void)
{
    for (int kind = BUF_HUGE; kind <= BUF_PAGES; kind++) {
        struct buf_arena *a;
        struct buf_info info;
        CHECK_EQ(buf_arena_open(1, (enum buf_kind)kind, &a), 0);
        char *p = buf_alloc(a, 1u << 20);
        CHECK(p);
        memset(p, 1, 1u << 20);
        buf_arena_info(a, &info);
        CHECK_EQ(info.bound_bytes, EXTENT);
        for (int better = 0; better < kind; better++)
            CHECK_EQ(info.kind_bytes[better], 0);
        fprintf(stderr, "asked for kind %d: huge %llu, thp %llu, pages %llu\n", kind,
                (unsigned long long)info.kind_bytes[BUF_HUGE],
                (unsigned long long)info.kind_bytes[BUF_THP],
                (unsigned long long)info.kind_bytes[BUF_PAGES]);
        buf_free(a, p, 1u << 20);
        buf_arena_close(a);
    }
}

/* Every byte up to the bound can be had, and not one buffer more; extents come and go whole. */
static void grows_to_the_bound_and_shrinks(void)
{
    enum { EXTENTS = 3, N = EXTENTS * LARGE_PER_EXTENT };
    struct buf_arena *a = arena_open(EXTENTS);
    void *p[N];

    for (int i = 0; i < N; i++) {
        CHECK(p[i] = buf_alloc(a, 1u << 20));
        CHECK_EQ(mapped(a), ((unsigned)i / LARGE_PER_EXTENT + 1) * EXTENT);
    }
    CHECK(!buf_alloc(a, 4096));
    CHECK_EQ(used(a), EXTENTS * EXTENT);
    for (int i = N - 1; i >= 0; i--)
        buf_free(a, p[i], 1u << 20);
    CHECK_EQ(used(a), 0);
    CHECK_EQ(mapped(a), EXTENT);
    for (int i = 0; i < N; i++)
        CHECK(p[i] = buf_alloc(a, 1u << 20));
    for (int i = 0; i < N; i++)
        buf_free(a, p[i], 1u << 20);
    CHECK_EQ(mapped(a), EXTENT);
    buf_arena_close(a);
}

/* Small buffers that are freed join again into large ones. */
static void buddies_join(void)
{
    enum { N = UNITS_PER_EXTENT };
    static void *p[N];
    struct buf_arena *a = arena_open(1);

    for (int i = 0; i < N; i++)
        CHECK(p[i] = buf_alloc(a, 4096));
    CHECK(!buf_alloc(a, 4096));
    for (int i = N - 1; i > 0; i--) { /* shuffle */
        int j = (int)(test_rand(&seed) % (unsigned)(i + 1));
        void *t = p[i];
        p[i] = p[j];
        p[j] = t;
    }
    for (int i = 0; i < N; i++)
        buf_free(a, p[i], 4096);
    for (unsigned i = 0; i < LARGE_PER_EXTENT; i++)
        CHECK(p[i] = buf_alloc(a, 1u << 20));
    for (unsigned i = 0; i < LARGE_PER_EXTENT; i++)
        buf_free(a, p[i], 1u << 20);
    buf_arena_close(a);
}

#define MAX_LIVE 4000

struct live {
    unsigned char *ptr;
    size_t len;
    uint64_t tag;
};

static size_t rounded(size_t len)
{
    size_t r = BUF_MIN_BYTES;
    while (r < len)
        r <<= 1;
    return r;
}

/* The first and the last words of a buffer: a neighbour that overlaps would break one of them. */
static void mark(const struct live *l)
{
    memcpy(l->ptr, &l->tag, 8);
    memcpy(l->ptr + rounded(l->len) - 8, &l->tag, 8);
}

static void check_mark(const struct live *l)
{
    CHECK(!memcmp(l->ptr, &l->tag, 8));
    CHECK(!memcmp(l->ptr + rounded(l->len) - 8, &l->tag, 8));
}

/* Random allocations and frees against a shadow map with one byte per 4 KiB of the arena. */
static void random_against_shadow(void)
{
    enum { EXTENTS = 48, UNITS = EXTENTS * UNITS_PER_EXTENT };
    static uint8_t shadow[UNITS];
    static struct live live[MAX_LIVE];
    struct buf_arena *a = arena_open(EXTENTS);
    const char *base = buf_arena_base(a);
    uint64_t want_used = 0;
    unsigned n = 0, refused = 0;

    memset(shadow, 0, sizeof(shadow));
    for (int step = 0; step < 200000; step++) {
        bool phase = (step / 20000) % 2; /* grow, shrink, grow ... */
        if (n < MAX_LIVE && test_rand(&seed) % 100 < (phase ? 40u : 60u)) {
            size_t len = 1 + test_rand(&seed) % (BUF_MIN_BYTES << (test_rand(&seed) % 9));
            struct live l = {buf_alloc(a, len), len, test_rand(&seed)};
            if (!l.ptr) {
                refused++;
                continue;
            }
            size_t unit = (size_t)((char *)l.ptr - base) / 4096;
            CHECK_EQ((uintptr_t)l.ptr % rounded(len), 0);
            for (size_t u = 0; u < rounded(len) / 4096; u++) {
                CHECK(unit + u < UNITS && !shadow[unit + u]);
                shadow[unit + u] = 1;
            }
            want_used += rounded(len);
            mark(&l);
            live[n++] = l;
        } else if (n) {
            unsigned k = (unsigned)(test_rand(&seed) % n);
            struct live l = live[k];
            check_mark(&l);
            memset(shadow + (size_t)((char *)l.ptr - base) / 4096, 0, rounded(l.len) / 4096);
            want_used -= rounded(l.len);
            buf_free(a, l.ptr, l.len);
            live[k] = live[--n];
        }
        CHECK_EQ(used(a), want_used);
    }
    fprintf(stderr, "%u live at the end, %u refused at the bound\n", n, refused);
    while (n) {
        n--;
        check_mark(&live[n]);
        buf_free(a, live[n].ptr, live[n].len);
    }
    CHECK_EQ(used(a), 0);
    CHECK_EQ(mapped(a), EXTENT);
    buf_arena_close(a);
}

/* What a registration sees: which extents exist. */
struct seen {
    char *base;
    bool there[8];
    int changes;
};

static void on_extent(void *arg, void *base, size_t len, enum buf_kind kind, bool is_mapped)
{
    struct seen *s = arg;
    size_t i = (size_t)((char *)base - s->base) / EXTENT;

    CHECK_EQ(len, EXTENT);
    CHECK(kind <= BUF_PAGES);
    CHECK(i < 8 && s->there[i] != is_mapped);
    s->there[i] = is_mapped;
    s->changes++;
}

static void watcher_sees_every_extent(void)
{
    enum { N = 4 * LARGE_PER_EXTENT, EARLY = 2 * LARGE_PER_EXTENT - 1 };
    struct buf_arena *a = arena_open(4);
    struct seen s = {.base = buf_arena_base(a)};
    void *p[N];

    for (int i = 0; i < EARLY; i++)
        CHECK(p[i] = buf_alloc(a, 1u << 20));
    CHECK_EQ(buf_arena_watch(a, on_extent, &s), 0);
    CHECK_EQ(buf_arena_watch(a, on_extent, &s), -EBUSY);
    CHECK(s.there[0] && s.there[1] && !s.there[2]);
    for (int i = EARLY; i < N; i++)
        CHECK(p[i] = buf_alloc(a, 1u << 20));
    CHECK(s.there[2] && s.there[3]);
    for (int i = 0; i < N; i++)
        buf_free(a, p[i], 1u << 20);
    CHECK_EQ(s.there[0] + s.there[1] + s.there[2] + s.there[3], 1);
    buf_arena_unwatch(a);
    int before = s.changes;
    for (int i = 0; i < EARLY; i++)
        CHECK(p[i] = buf_alloc(a, 1u << 20));
    CHECK_EQ(s.changes, before);
    for (int i = 0; i < EARLY; i++)
        buf_free(a, p[i], 1u << 20);
    buf_arena_close(a);
}

struct worker {
    pthread_t thread;
    struct buf_arena *arena;
    uint64_t seed;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct live live[200];
    unsigned n = 0;

    for (int step = 0; step < 20000; step++) {
        bool phase = (step / 1000) % 2;
        if (n < 200 && test_rand(&w->seed) % 100 < (phase ? 30u : 70u)) {
            size_t len = 1 + test_rand(&w->seed) % (BUF_MIN_BYTES << (test_rand(&w->seed) % 9));
            struct live l = {buf_alloc(w->arena, len), len, test_rand(&w->seed)};
            if (!l.ptr)
                continue;
            mark(&l);
            live[n++] = l;
        } else if (n) {
            unsigned k = (unsigned)(test_rand(&w->seed) % n);
            check_mark(&live[k]);
            buf_free(w->arena, live[k].ptr, live[k].len);
            live[k] = live[--n];
        }
    }
    while (n) {
        n--;
        check_mark(&live[n]);
        buf_free(w->arena, live[n].ptr, live[n].len);
    }
    return NULL;
}

static void many_threads(void)
{
    enum { N = 6 };
    struct worker w[N];
    struct buf_arena *a = arena_open(3);
    struct seen s = {.base = buf_arena_base(a)};

    CHECK_EQ(buf_arena_watch(a, on_extent, &s), 0);
    for (int i = 0; i < N; i++) {
        w[i] = (struct worker){.arena = a, .seed = test_rand(&seed) | 1};
        CHECK_EQ(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(w[i].thread, NULL);
    CHECK_EQ(used(a), 0);
    CHECK_EQ(mapped(a), EXTENT);
    fprintf(stderr, "%d extents came or went\n", s.changes);
    buf_arena_unwatch(a);
    buf_arena_close(a);
}

int main(void)
{
    seed = test_seed();
    RUN(refuses_nonsense);
    RUN(sizes_are_rounded_and_aligned);
    RUN(kinds_fall_back);
    RUN(grows_to_the_bound_and_shrinks);
    RUN(buddies_join);
    RUN(random_against_shadow);
    RUN(watcher_sees_every_extent);
    RUN(many_threads);
    return 0;
}
