/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arena of I/O buffers.
 *
 * Invariants:
 *  1. extent i, when it exists, lies at base + i * 8 MiB: a buffer's address names its extent;
 *  2. bit i of a domain's fits[n] is set if and only if extent i is ready, the domain's, and has a
 *     free block of order n or more; the lowest such extent serves, so that the high ones drain and
 *     can be given back;
 *  3. extents are mapped, unmapped and shown to the watcher only by the thread that holds
 *     `changing`, with the mutex dropped: neither the kernel's work nor a page fault stops others;
 *  4. whoever drops `changing` has made sure that at most one ready extent is empty;
 *  5. an extent is of one domain from its mapping to its end, and its memory is never used again:
 *     whoever maps it for reading may keep it, and sees nothing that came later.
 */
#include "buf/buf.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/window.h"
#include "buf/buddy.h"
#include "buf/extent.h"

#define EXTENT ((uint64_t)DFE_ARENA_EXTENT_BYTES)
#define ADDRESS_BYTES (1ull << 46) /* half of what x86-64 gives a process */

/* Whom the extents may be shown to. Made when first asked for, kept until close. */
struct domain {
    struct domain *next;
    uint32_t id;
    uint64_t *fits[BUDDY_ORDERS];
};

struct extent {
    struct buddy *buddy; /* made at the first mapping, kept until close */
    struct domain *domain;
    uint64_t stamp;
    int fd; /* of its memory; -1: nobody else can map it */
    enum buf_kind kind;
    bool ready;
};

struct buf_arena {
    char *base;
    unsigned n_extents, n_words;
    enum buf_kind best;
    struct extent *extents;

    pthread_mutex_t lock; /* all that follows, and the extents */
    pthread_cond_t changed;
    struct domain *domains;
    uint64_t stamps; /* the last one given */
    unsigned n_fds;  /* of extents; changed by the thread that holds `changing` */
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
    uint64_t **fits = e->domain->fits;
    uint64_t bit = 1ull << (i % 64);

    for (unsigned order = 0; order < BUDDY_ORDERS; order++) {
        if (avail >> order)
            fits[order][i / 64] |= bit;
        else
            fits[order][i / 64] &= ~bit;
    }
}

static struct domain *domain_new(const struct buf_arena *a, uint32_t id)
{
    struct domain *d = calloc(1, sizeof(*d));

    if (!d)
        return NULL;
    d->fits[0] = calloc((size_t)a->n_words * BUDDY_ORDERS, sizeof(uint64_t));
    if (!d->fits[0]) {
        free(d);
        return NULL;
    }
    for (unsigned order = 1; order < BUDDY_ORDERS; order++)
        d->fits[order] = d->fits[order - 1] + a->n_words;
    d->id = id;
    return d;
}

/* Comes to the front of the list: few are in use at a time. NULL: no memory. */
static struct domain *domain_get(struct buf_arena *a, uint32_t id)
{
    struct domain **at = &a->domains, *d;

    while (*at && (*at)->id != id)
        at = &(*at)->next;
    d = *at;
    if (d)
        *at = d->next;
    else
        d = domain_new(a, id);
    if (!d)
        return NULL;
    d->next = a->domains;
    a->domains = d;
    return d;
}

static void arena_free(struct buf_arena *a)
{
    for (struct domain *d = a->domains, *next; d; d = next) {
        next = d->next;
        free(d->fits[0]);
        free(d);
    }
    free(a->extents);
    free(a);
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
    a->stamps = base_mono_ns(); /* those of a process before this one do not come again */
    a->info.bound_bytes = bound_bytes;
    a->n_extents = (unsigned)(bound_bytes / EXTENT);
    a->n_words = (a->n_extents + 63) / 64;
    a->extents = calloc(a->n_extents, sizeof(*a->extents));
    if (!a->extents || !domain_get(a, 0))
        goto out;
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
    arena_free(a);
    return rc;
}

void buf_arena_close(struct buf_arena *a)
{
    DFE_ASSERT(a->info.used_bytes == 0 && !a->watch_fn);
    extent_unreserve(a->base, a->info.bound_bytes);
    for (unsigned i = 0; i < a->n_extents; i++) {
        if (a->extents[i].ready && a->extents[i].fd >= 0)
            close(a->extents[i].fd);
        free(a->extents[i].buddy);
    }
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    arena_free(a);
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
    if (e->fd >= 0) {
        close(e->fd);
        a->n_fds--;
    }
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

/* Others need descriptors as well: half of what the process may have is theirs. */
static bool may_keep_fd(const struct buf_arena *a)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && a->n_fds < limit.rlim_cur / 2;
}

/* The mapping itself, with the mutex dropped; only `changing` protects the extent. */
static int map_extent(struct buf_arena *a, struct domain *d, unsigned i)
{
    struct extent *e = &a->extents[i];
    int rc;

    if (!e->buddy)
        e->buddy = malloc(sizeof(*e->buddy));
    if (!e->buddy)
        return -ENOMEM;
    buddy_init(e->buddy);
    rc = extent_map(extent_base(a, i), a->best, d->id != 0 && may_keep_fd(a), &e->kind, &e->fd);
    if (rc < 0)
        return rc;
    a->n_fds += e->fd >= 0;
    e->domain = d;
    e->stamp = ++a->stamps;
    if (a->watch_fn)
        a->watch_fn(a->watch_arg, extent_base(a, i), EXTENT, e->kind, true);
    return 0;
}

/* An extent's place for a new one: free, or of another domain that does not use it (5). */
static unsigned find_place(struct buf_arena *a)
{
    unsigned i = 0;

    while (i < a->n_extents && a->extents[i].ready)
        i++;
    if (i < a->n_extents || a->n_empty == 0)
        return i;
    for (i = 0; a->extents[i].buddy->used_units > 0; i++)
        ;
    release_extent(a, i);
    return i;
}

/* One extent more; the caller holds `changing`. -ENOMEM at the bound or when the host refuses. */
static int grow(struct buf_arena *a, struct domain *d)
{
    unsigned i = find_place(a);
    int rc;

    if (i == a->n_extents)
        return -ENOMEM;
    pthread_mutex_unlock(&a->lock);
    rc = map_extent(a, d, i);
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

static void *take(struct buf_arena *a, const struct domain *d, unsigned order)
{
    for (unsigned w = 0; w < a->n_words; w++) {
        if (!d->fits[order][w])
            continue;
        unsigned i = w * 64 + (unsigned)__builtin_ctzll(d->fits[order][w]);
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
    return buf_alloc_in(a, 0, len_bytes);
}

void *buf_alloc_in(struct buf_arena *a, uint32_t domain, size_t len_bytes)
{
    struct domain *d;
    void *ptr = NULL;

    if (len_bytes == 0 || len_bytes > BUF_MAX_BYTES)
        return NULL;
    unsigned order = order_of(len_bytes);
    pthread_mutex_lock(&a->lock);
    d = domain_get(a, domain);
    while (d && !(ptr = take(a, d, order))) {
        if (a->changing) { /* perhaps another thread is adding one: look again then */
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        change_begin(a);
        if (grow(a, d) == 0)
            ptr = take(a, d, order); /* before change_end may see two empty extents */
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

void buf_place(struct buf_arena *a, const void *ptr, struct buf_place *out)
{
    size_t at = (size_t)((const char *)ptr - a->base);
    const struct extent *e = &a->extents[at / EXTENT];

    /* no lock: the extent stays as it is while it has a buffer */
    DFE_ASSERT((const char *)ptr >= a->base && at < a->info.bound_bytes);
    *out = (struct buf_place){.stamp = e->stamp,
                              .extent = (uint32_t)(at / EXTENT),
                              .off = (uint32_t)(at % EXTENT),
                              .domain = e->fd >= 0 ? e->domain->id : 0};
}

int buf_extent_fd(struct buf_arena *a, uint32_t extent, uint64_t stamp, uint32_t *domain)
{
    const struct extent *e;
    int rc = -ESTALE;

    if (extent >= a->n_extents)
        return rc;
    pthread_mutex_lock(&a->lock);
    e = &a->extents[extent];
    if (e->ready && e->stamp == stamp) {
        *domain = e->fd >= 0 ? e->domain->id : 0;
        rc = *domain ? window_share(e->fd) : -EACCES;
    }
    pthread_mutex_unlock(&a->lock);
    return rc;
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
