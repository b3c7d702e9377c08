/* SPDX-License-Identifier: Apache-2.0 */
/* How many references a file system holds on each inode, so that the next worker can be told. */
#include <errno.h>
#include <stdlib.h>

#include "api/remote.h"

/* Linear probing; at most three quarters are used. */
static size_t find(const struct remote_refs *refs, uint64_t ino)
{
    size_t at = (size_t)(ino * 0x9e3779b97f4a7c15ull >> 20) & (refs->cap - 1);

    while (refs->slots[at].ino && refs->slots[at].ino != ino)
        at = (at + 1) & (refs->cap - 1);
    return at;
}

static int grow(struct remote_refs *refs)
{
    struct remote_refs more = {.cap = refs->cap ? refs->cap * 2 : 64, .used = refs->used};

    more.slots = calloc(more.cap, sizeof(*more.slots));
    if (!more.slots)
        return -ENOMEM;
    for (size_t i = 0; i < refs->cap; i++)
        if (refs->slots[i].ino)
            more.slots[find(&more, refs->slots[i].ino)] = refs->slots[i];
    free(refs->slots);
    *refs = more;
    return 0;
}

int refs_count(struct remote_refs *refs, uint64_t ino, uint64_t n)
{
    struct remote_ref *ref;

    if ((refs->used + 1) * 4 > refs->cap * 3 && grow(refs) < 0)
        return -ENOMEM;
    ref = &refs->slots[find(refs, ino)];
    if (!ref->ino) {
        ref->ino = ino;
        refs->used++;
    }
    ref->count += n;
    return 0;
}

/* Frees a slot; those behind it that would not be found any more move up. */
static void vacate(struct remote_refs *refs, size_t at)
{
    refs->slots[at] = (struct remote_ref){0};
    refs->used--;
    for (;;) {
        struct remote_ref moved;

        at = (at + 1) & (refs->cap - 1);
        moved = refs->slots[at];
        if (!moved.ino)
            return;
        refs->slots[at] = (struct remote_ref){0};
        refs->slots[find(refs, moved.ino)] = moved;
    }
}

void refs_discount(struct remote_refs *refs, uint64_t ino, uint64_t n)
{
    size_t at;

    if (!refs->cap)
        return;
    at = find(refs, ino);
    if (!refs->slots[at].ino)
        return;
    if (refs->slots[at].count > n)
        refs->slots[at].count -= n;
    else
        vacate(refs, at);
}

void refs_free(struct remote_refs *refs)
{
    free(refs->slots);
    *refs = (struct remote_refs){0};
}
