/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buddy allocator of one extent, in units of 4 KiB. Its lists live beside the memory and not in it,
 * so that nothing here touches (faults in) a buffer. The caller serialises.
 */
#ifndef DFE_BUF_BUDDY_H
#define DFE_BUF_BUDDY_H

#include <stdint.h>

#include "base/limits.h"
#include "buf/buf.h"

/* A block of order n is 2^n units, 4 KiB << n. */
#define BUDDY_ORDERS 9
#define BUDDY_UNITS (DFE_ARENA_EXTENT_BYTES / BUF_MIN_BYTES)
#define BUDDY_NONE UINT16_MAX

struct buddy {
    uint16_t head[BUDDY_ORDERS]; /* first free block of each order, or BUDDY_NONE */
    uint16_t avail;              /* bit n: there is a free block of order n */
    uint32_t used_units;
    uint16_t next[BUDDY_UNITS], prev[BUDDY_UNITS];
    uint8_t state[BUDDY_UNITS]; /* of a block's first unit: its order, free or used; else 0 */
};

/* All free, in blocks of the largest order. */
void buddy_init(struct buddy *b);

/* First unit of a block of that order, or -1 if there is none. */
int buddy_alloc(struct buddy *b, unsigned order);
/* Asserts that such a block is in use. */
void buddy_free(struct buddy *b, unsigned unit, unsigned order);

#endif
