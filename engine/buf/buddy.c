/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buddy allocator of one extent.
 *
 * Invariants:
 *  1. the blocks, free and used, tile the extent; a block of order n starts at a multiple of 2^n;
 *  2. two free buddies never stand side by side below the largest order;
 *  3. bit n of avail is set if and only if head[n] is a block.
 */
#include "buf/buddy.h"

#include <assert.h>
#include <string.h>

#include "base/assert.h"

#define STATE_FREE 0x40
#define STATE_USED 0x80
#define TOP (BUDDY_ORDERS - 1)

static_assert(BUF_MIN_BYTES << TOP == BUF_MAX_BYTES, "orders cover the sizes of buffers");
static_assert(BUDDY_UNITS < BUDDY_NONE, "units fit 16 bits");

static void push(struct buddy *b, unsigned unit, unsigned order)
{
    uint16_t first = b->head[order];

    b->state[unit] = (uint8_t)(STATE_FREE | order);
    b->prev[unit] = BUDDY_NONE;
    b->next[unit] = first;
    if (first != BUDDY_NONE)
        b->prev[first] = (uint16_t)unit;
    b->head[order] = (uint16_t)unit;
    b->avail |= (uint16_t)(1u << order);
}

static void pull(struct buddy *b, unsigned unit, unsigned order)
{
    uint16_t next = b->next[unit], prev = b->prev[unit];

    if (prev != BUDDY_NONE)
        b->next[prev] = next;
    else
        b->head[order] = next;
    if (next != BUDDY_NONE)
        b->prev[next] = prev;
    if (b->head[order] == BUDDY_NONE)
        b->avail &= (uint16_t)~(1u << order);
    b->state[unit] = 0;
}

void buddy_init(struct buddy *b)
{
    /* The whole of it is written here, outside the caller's mutex, so that it faults now. */
    memset(b, 0, sizeof(*b));
    memset(b->head, 0xff, sizeof(b->head));
    for (unsigned unit = BUDDY_UNITS; unit > 0; unit -= 1u << TOP)
        push(b, unit - (1u << TOP), TOP);
}

int buddy_alloc(struct buddy *b, unsigned order)
{
    unsigned fits = (unsigned)b->avail >> order;

    if (!fits)
        return -1;
    unsigned from = order + (unsigned)__builtin_ctz(fits);
    unsigned unit = b->head[from];
    pull(b, unit, from);
    while (from > order) {
        from--;
        push(b, unit + (1u << from), from);
    }
    b->state[unit] = (uint8_t)(STATE_USED | order);
    b->used_units += 1u << order;
    return (int)unit;
}

void buddy_free(struct buddy *b, unsigned unit, unsigned order)
{
    DFE_ASSERT(b->state[unit] == (STATE_USED | order)); /* 1: freed once, with its own size */
    b->state[unit] = 0;
    b->used_units -= 1u << order;
    while (order < TOP) {
        unsigned buddy = unit ^ (1u << order);
        if (b->state[buddy] != (STATE_FREE | order))
            break;
        pull(b, buddy, order); /* 2 */
        unit &= ~(1u << order);
        order++;
    }
    push(b, unit, order);
}
