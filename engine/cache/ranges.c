/* SPDX-License-Identifier: Apache-2.0 */
/* Sorted, disjoint ranges of blocks: what was punched and is not published yet. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache/cache_int.h"

/* Index of the first range that ends after block. */
static uint32_t lower(const struct ranges *r, uint64_t block)
{
    uint32_t lo = 0, hi = r->n;

    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (r->r[mid].to <= block)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

bool ranges_has(const struct ranges *r, uint64_t block)
{
    uint32_t i;

    if (!r)
        return false;
    i = lower(r, block);
    return i < r->n && r->r[i].from <= block;
}

uint64_t ranges_next(const struct ranges *r, uint64_t block)
{
    uint32_t i;

    if (!r)
        return UINT64_MAX;
    i = lower(r, block);
    if (i >= r->n)
        return UINT64_MAX;
    return r->r[i].from > block ? r->r[i].from : block;
}

uint64_t ranges_end(const struct ranges *r, uint64_t block)
{
    return ranges_has(r, block) ? r->r[lower(r, block)].to : block;
}

int ranges_room(struct ranges **r, uint32_t more)
{
    uint32_t n = *r ? (*r)->n : 0, cap = *r ? (*r)->cap : 0;
    struct ranges *bigger;

    if (n + more <= cap)
        return 0;
    cap = cap * 2 > n + more ? cap * 2 : n + more;
    bigger = realloc(*r, sizeof(**r) + cap * sizeof(struct range));
    if (!bigger)
        return -ENOMEM;
    bigger->n = n;
    bigger->cap = cap;
    *r = bigger;
    return 0;
}

int ranges_add(struct ranges **rp, uint64_t from, uint64_t to)
{
    struct ranges *r;
    uint32_t i, j;
    int rc = ranges_room(rp, 1);

    if (rc < 0 || from >= to)
        return rc;
    r = *rp;
    i = from > 0 ? lower(r, from - 1) : 0; /* touching ranges become one */
    for (j = i; j < r->n && r->r[j].from <= to; j++) {
        if (r->r[j].from < from)
            from = r->r[j].from;
        if (r->r[j].to > to)
            to = r->r[j].to;
    }
    memmove(&r->r[i + 1], &r->r[j], (r->n - j) * sizeof(r->r[0]));
    r->r[i] = (struct range){from, to};
    r->n = r->n - (j - i) + 1;
    return 0;
}

int ranges_merge(struct ranges **into, struct ranges **from)
{
    int rc;

    if (!*into) {
        *into = *from;
        *from = NULL;
    }
    if (!*from)
        return 0;
    rc = ranges_room(into, (*from)->n);
    for (uint32_t i = 0; rc == 0 && i < (*from)->n; i++)
        rc = ranges_add(into, (*from)->r[i].from, (*from)->r[i].to);
    if (rc == 0) {
        free(*from);
        *from = NULL;
    }
    return rc;
}
