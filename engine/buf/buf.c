/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arena of I/O buffers.
 *
 * Invariants:
 *  1. extent i, when it exists, lies at base + i * 8 MiB: a buffer's address names its extent;
 *  2. bit i of fits[n] is set if and only if extent i is ready and has a free block of order n or
 *     more; the lowest such extent serves, so that the high ones drain and can be given back;
 *  3. extents are mapped, unmapped and shown to the watcher only by the thread that holds
 *     `changing`, with the mutex dropped: neither the kernel's work nor a page fault stops others;
 *  4. whoever drops `changing` has made sure that at most one ready extent is empty.
 */
#include "buf/buf.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/limits.h"
#include "base/log.h"
#include "buf/buddy.h"
#include "buf/extent.h"

#define EXTENT ((uint64_t)DFE_ARENA_EXTENT_BYTES)
#define ADDRESS_BYTES (1ull << 46) /* half of what x86-64 gives a process */

struct extent {
    struct buddy *buddy; /* made at the first mapping, kept until close */
    enum buf_kind kind;
    bool ready;
};

struct buf_arena {
    char *base;
    unsigned n_extents, n_words;
    enum buf_kind best;
    struct extent *extents;
    uint64_t *fits[BUDDY_ORDERS];

    pthread_mutex_t lock; /* all that follows, and the extents */
    pthread_cond_t changed;
    bool changing;
    unsigned n_empty;
    struct buf_info info;
    buf_extent_fn watch_fn;
    void *watch_arg;
};

static unsigned order_of(size_t len_bytes)
{
    unsigned order = 0;

    while (((size_t)BUF_MIN_BYTES << order) < len_bytes)
        order++;
    return order;
}

static char *extent_base(const struct buf_arena *a, unsigned i)
{
    return a->base + i * EXTENT;
}

/* Restores invariant 2 for one extent. */
static void publish(struct buf_arena *a, unsigned i)
{
    const struct extent *e = &a->extents[i];
    unsigned avail = e->ready ? e->buddy->avail : 0;
    uint64_t bit = 1ull << (i % 64);

    for (unsigned order = 0; order < BUDDY_ORDERS; order++) {
        if (avail >> order)
            a->fits[order][i / 64] |= bit;
        else
            a->fits[order][i / 64] &= ~bit;
    }
}

int buf_arena_open(uint64_t bound_bytes, enum buf_kind best, struct buf_arena **out)
{
    int rc = -ENOMEM;
    struct buf_arena *a;

    if (bound_bytes == 0 || bound_bytes > ADDRESS_BYTES || best > BUF_PAGES)
        return base_refuse(-EINVAL, "arena: a bound of %llu bytes makes no sense",
                           (unsigned long long)bound_bytes);
    bound_bytes = (bound_bytes + EXTENT - 1) / EXTENT * EXTENT;
    a = calloc(1, sizeof(*a));
    if (!a)
        return -ENOMEM;
    a->best = best;
    a->info.bound_bytes = bound_bytes;
    a->n_extents = (unsigned)(bound_bytes / EXTENT);
    a->n_words = (a->n_extents + 63) / 64;
    a->extents = calloc(a->n_extents, sizeof(*a->extents));
    a->fits[0] = calloc((size_t)a->n_words * BUDDY_ORDERS, sizeof(uint64_t));
    if (!a->extents || !a->fits[0])
        goto out;
    for (unsigned order = 1; order < BUDDY_ORDERS; order++)
        a->fits[order] = a->fits[order - 1] + a->n_words;
    a->base = extent_reserve(bound_bytes);
    if (!a->base) {
        base_refuse(rc, "arena: this process may not have %llu MiB of addresses (ulimit -v?)",
                    (unsigned long long)(bound_bytes >> 20));
        goto out;
    }
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    *out = a;
    return 0;
out:
    free(a->fits[0]);
    free(a->extents);
    free(a);
    return rc;
}

void buf_arena_close(struct buf_arena *a)
{
    DFE_ASSERT(a->info.used_bytes == 0 && !a->watch_fn);
    extent_unreserve(a->base, a->info.bound_bytes);
    for (unsigned i = 0; i < a->n_extents; i++)
        free(a->extents[i].buddy);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a->fits[0]);
    free(a->extents);
    free(a);
}

void *buf_arena_base(const struct buf_arena *a)
{
    return a->base;
}

static void change_begin(struct buf_arena *a)
{
    while (a->changing)
        pthread_cond_wait(&a->changed, &a->lock);
    a->changing = true;
}

static void release_extent(struct buf_arena *a, unsigned i)
{
    struct extent *e = &a->extents[i];

    e->ready = false;
    publish(a, i);
    a->n_empty--;
    a->info.mapped_bytes -= EXTENT;
    a->info.kind_bytes[e->kind] -= EXTENT;
    pthread_mutex_unlock(&a->lock);
    if (a->watch_fn)
        a->watch_fn(a->watch_arg, extent_base(a, i), EXTENT, e->kind, false);
    extent_unmap(extent_base(a, i));
    pthread_mutex_lock(&a->lock);
}

/* Gives back empty extents from the top until one is left (4), then lets others change. */
static void change_end(struct buf_arena *a)
{
    for (unsigned i = a->n_extents; a->n_empty > 1;) {
        const struct extent *e = &a->extents[--i];
        if (e->ready && e->buddy->used_units == 0) {
            release_extent(a, i);
            i = a->n_extents; /* the mutex was dropped: anything may have emptied */
        }
    }
    a->changing = false;
    pthread_cond_broadcast(&a->changed);
}

/* The mapping itself, with the mutex dropped; only `changing` protects the extent. */
static int map_extent(struct buf_arena *a, unsigned i)
{
    struct extent *e = &a->extents[i];
    int rc;

    if (!e->buddy)
        e->buddy = malloc(sizeof(*e->buddy));
    if (!e->buddy)
        return -ENOMEM;
    buddy_init(e->buddy);
    rc = extent_map(extent_base(a, i), a->best, &e->kind);
    if (rc == 0 && a->watch_fn)
        a->watch_fn(a->watch_arg, extent_base(a, i), EXTENT, e->kind, true);
    return rc;
}

/* One extent more; the caller holds `changing`. -ENOMEM at the bound or when the host refuses. */
static int grow(struct buf_arena *a)
{
    unsigned i = 0;
    int rc;

    while (i < a->n_extents && a->extents[i].ready)
        i++;
    if (i == a->n_extents)
        return -ENOMEM;
    pthread_mutex_unlock(&a->lock);
    rc = map_extent(a, i);
    pthread_mutex_lock(&a->lock);
    if (rc < 0)
        return rc;
    a->extents[i].ready = true;
    publish(a, i);
    a->n_empty++;
    a->info.mapped_bytes += EXTENT;
    a->info.kind_bytes[a->extents[i].kind] += EXTENT;
    return 0;
}

static void *take(struct buf_arena *a, unsigned order)
{
    for (unsigned w = 0; w < a->n_words; w++) {
        if (!a->fits[order][w])
            continue;
        unsigned i = w * 64 + (unsigned)__builtin_ctzll(a->fits[order][w]);
        struct extent *e = &a->extents[i];
        a->n_empty -= e->buddy->used_units == 0;
        int unit = buddy_alloc(e->buddy, order);
        DFE_ASSERT(unit >= 0); /* 2 */
        publish(a, i);
        a->info.used_bytes += (uint64_t)BUF_MIN_BYTES << order;
        return extent_base(a, i) + (size_t)unit * BUF_MIN_BYTES;
    }
    return NULL;
}

void *buf_alloc(struct buf_arena *a, size_t len_bytes)
{
    void *ptr;

    if (len_bytes == 0 || len_bytes > BUF_MAX_BYTES)
        return NULL;
    unsigned order = order_of(len_bytes);
    pthread_mutex_lock(&a->lock);
    while (!(ptr = take(a, order))) {
        if (a->changing) { /* perhaps another thread is adding one: look again then */
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        change_begin(a);
        if (grow(a) == 0)
            ptr = take(a, order); /* before change_end may see two empty extents */
        change_end(a);
        break;
    }
    pthread_mutex_unlock(&a->lock);
    return ptr;
}

void buf_free(struct buf_arena *a, void *ptr, size_t len_bytes)
{
    if (!ptr)
        return;
    size_t at = (size_t)((char *)ptr - a->base);
    unsigned order = order_of(len_bytes), i = (unsigned)(at / EXTENT);
    DFE_ASSERT((char *)ptr >= a->base && at < a->info.bound_bytes);
    DFE_ASSERT(at % ((size_t)BUF_MIN_BYTES << order) == 0);

    pthread_mutex_lock(&a->lock);
    struct extent *e = &a->extents[i];
    DFE_ASSERT(e->ready);
    buddy_free(e->buddy, (unsigned)(at % EXTENT / BUF_MIN_BYTES), order);
    publish(a, i);
    a->info.used_bytes -= (uint64_t)BUF_MIN_BYTES << order;
    a->n_empty += e->buddy->used_units == 0;
    if (a->n_empty > 1 && !a->changing) { /* else the thread that changes will see to it (4) */
        change_begin(a);
        change_end(a);
    }
    pthread_mutex_unlock(&a->lock);
}

void buf_arena_info(struct buf_arena *a, struct buf_info *out)
{
    pthread_mutex_lock(&a->lock);
    *out = a->info;
    pthread_mutex_unlock(&a->lock);
}

int buf_arena_watch(struct buf_arena *a, buf_extent_fn fn, void *arg)
{
    int rc = 0;

    pthread_mutex_lock(&a->lock);
    change_begin(a);
    if (a->watch_fn) {
        rc = -EBUSY;
    } else {
        a->watch_fn = fn;
        a->watch_arg = arg;
        pthread_mutex_unlock(&a->lock);
        for (unsigned i = 0; i < a->n_extents; i++)
            if (a->extents[i].ready)
                fn(arg, extent_base(a, i), EXTENT, a->extents[i].kind, true);
        pthread_mutex_lock(&a->lock);
    }
    change_end(a);
    pthread_mutex_unlock(&a->lock);
    return rc;
}

void buf_arena_unwatch(struct buf_arena *a)
{
    pthread_mutex_lock(&a->lock);
    change_begin(a);
    a->watch_fn = NULL;
    change_end(a);
    pthread_mutex_unlock(&a->lock);
}
