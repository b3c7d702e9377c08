/* SPDX-License-Identifier: Apache-2.0 */
/* A table of held inodes: open addressing, linear probing, deletion by moving back. */
#include "service/dispatch_refs.h"

#include <errno.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/log.h"

#define REFS_FIRST 64u

void refs_open(struct refs *r, uint64_t bound)
{
    *r = (struct refs){.bound = bound};
    pthread_mutex_init(&r->lock, NULL);
}

void refs_close(struct refs *r, void (*fn)(uint64_t ino, void *arg), void *arg)
{
    for (uint64_t i = 0; r->entries && i <= r->mask; i++) {
        if (r->entries[i].ino && r->entries[i].count)
            fn(r->entries[i].ino, arg);
    }
    free(r->entries);
    pthread_mutex_destroy(&r->lock);
    *r = (struct refs){0};
}

static uint64_t refs_home(const struct refs *r, uint64_t ino)
{
    return (ino * 0x9e3779b97f4a7c15ull >> 20) & r->mask;
}

/* Its entry, or the free one where it would be. */
static struct refs_entry *refs_slot(struct refs *r, uint64_t ino)
{
    uint64_t i = refs_home(r, ino);

    while (r->entries[i].ino && r->entries[i].ino != ino)
        i = (i + 1) & r->mask;
    return &r->entries[i];
}

static struct refs_entry *refs_find(struct refs *r, uint64_t ino)
{
    struct refs_entry *e = r->entries ? refs_slot(r, ino) : NULL;

    return e && e->ino ? e : NULL;
}

/* Room for n more beside what is promised, never more than three quarters full. */
static int refs_grow(struct refs *r, uint64_t n)
{
    uint64_t need = r->used + r->reserved + n, size = r->entries ? r->mask + 1 : 0, old = size;
    struct refs_entry *from = r->entries, *to;

    if (n > r->bound || need > r->bound)
        return base_refuse(-ENFILE, "a session may hold %llu inodes of a file system",
                           (unsigned long long)r->bound);
    if (size == 0)
        size = REFS_FIRST;
    while (need > size / 4 * 3)
        size *= 2;
    if (size == old)
        return 0;
    to = calloc(size, sizeof(*to));
    if (!to)
        return -ENOMEM;
    r->entries = to;
    r->mask = size - 1;
    for (uint64_t i = 0; i < old; i++) {
        if (from[i].ino)
            *refs_slot(r, from[i].ino) = from[i];
    }
    free(from);
    return 0;
}

static void refs_remove(struct refs *r, struct refs_entry *e)
{
    uint64_t hole = (uint64_t)(e - r->entries), i = hole;

    for (;;) {
        uint64_t home;

        i = (i + 1) & r->mask;
        if (!r->entries[i].ino)
            break;
        home = refs_home(r, r->entries[i].ino);
        /* It may move back if its home is not between the hole and itself. */
        if (((i - home) & r->mask) >= ((i - hole) & r->mask)) {
            r->entries[hole] = r->entries[i];
            hole = i;
        }
    }
    r->entries[hole] = (struct refs_entry){0};
    r->used--;
}

int refs_reserve(struct refs *r, uint64_t n)
{
    int ret;

    pthread_mutex_lock(&r->lock);
    ret = refs_grow(r, n);
    if (ret == 0)
        r->reserved += n;
    pthread_mutex_unlock(&r->lock);
    return ret;
}

void refs_unreserve(struct refs *r, uint64_t n)
{
    pthread_mutex_lock(&r->lock);
    r->reserved -= n;
    pthread_mutex_unlock(&r->lock);
}

bool refs_add(struct refs *r, uint64_t ino, uint64_t count, unsigned marks)
{
    struct refs_entry *e;
    bool had;

    pthread_mutex_lock(&r->lock);
    DFE_ASSERT(r->entries && ino);
    e = refs_slot(r, ino);
    if (!e->ino) {
        e->ino = ino;
        r->used++;
    }
    had = count && e->count;
    e->count += count;
    e->marks |= marks;
    pthread_mutex_unlock(&r->lock);
    return had;
}

bool refs_drop(struct refs *r, uint64_t ino, uint64_t n)
{
    struct refs_entry *e;
    bool last = false;

    pthread_mutex_lock(&r->lock);
    e = refs_find(r, ino);
    if (e && e->count) {
        e->count -= e->count < n ? e->count : n;
        last = e->count == 0;
        if (last && ino != REFS_ROOT_INO)
            refs_remove(r, e);
    }
    pthread_mutex_unlock(&r->lock);
    return last;
}

int refs_mark(struct refs *r, uint64_t ino, unsigned marks)
{
    struct refs_entry *e;
    int ret = 0;

    pthread_mutex_lock(&r->lock);
    e = refs_find(r, ino);
    if (!e && ino) {
        ret = refs_grow(r, 1);
        if (ret == 0) {
            e = refs_slot(r, ino);
            e->ino = ino;
            r->used++;
        }
    }
    if (e)
        e->marks |= marks;
    pthread_mutex_unlock(&r->lock);
    return ret;
}

static unsigned refs_test(struct refs *r, uint64_t ino, unsigned marks, bool clear)
{
    struct refs_entry *e;
    unsigned had = 0;

    pthread_mutex_lock(&r->lock);
    e = refs_find(r, ino);
    if (e) {
        had = e->marks & marks;
        if (clear)
            e->marks &= ~marks;
        if (!e->marks && !e->count)
            refs_remove(r, e);
    }
    pthread_mutex_unlock(&r->lock);
    return had;
}

unsigned refs_marks(struct refs *r, uint64_t ino, unsigned marks)
{
    return refs_test(r, ino, marks, false);
}

unsigned refs_unmark(struct refs *r, uint64_t ino, unsigned marks)
{
    return refs_test(r, ino, marks, true);
}
