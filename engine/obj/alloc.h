/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block allocator: two bitmaps a segment of 32,768 blocks.
 *
 *   committed  what the index (with the overlay) refers to: this is what a checkpoint writes
 *   busy       committed, plus staged and not yet committed, plus freed and not yet checkpointed
 *
 * Invariants: A1 committed is a subset of busy. A2 a block freed by a transaction is handed out
 * again only after the checkpoint that holds the freeing has completed. A3 free = blocks - busy;
 * what is promised (reserved and not staged) is <= free at the time of reserving.
 * Used under the pool's mutex.
 */
#ifndef DFE_OBJ_ALLOC_H
#define DFE_OBJ_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"

#define ALLOC_SEG_VALUE_BYTES (DFE_SEGMENT_BLOCKS / 8)

struct alloc;

/* Blocks [first_blk, first_blk + n_blk) of the device are for data. */
int alloc_open(uint64_t first_blk, uint64_t n_blk, struct alloc **out);
void alloc_close(struct alloc *a);
uint32_t alloc_segments(const struct alloc *a);

/* At open: the segment's bitmap from the index (absent: all free). -EUCLEAN: wrong size, or blocks
 * beyond the end. */
int alloc_load(struct alloc *a, uint32_t seg, const void *bitmap, size_t len);

/* Up to want (<= DFE_EXTENT_BLOCKS) contiguous blocks become busy: as many as one run gives, near
 * the last allocation (sequential writes get sequential blocks). use_reserved: out of what is
 * reserved, which promises so much less until alloc_settle. -ENOSPC. */
int alloc_take(struct alloc *a, uint32_t want, bool use_reserved, uint64_t *blk, uint32_t *got);
/* busy -> free at once: staged and never committed. */
void alloc_cancel(struct alloc *a, uint64_t blk, uint32_t n);
/* A transaction refers to the blocks now. Replay calls it for blocks that are not busy yet: it
 * makes them busy too. -EUCLEAN if out of range or committed already (media damage). */
int alloc_commit(struct alloc *a, uint64_t blk, uint32_t n);
/* A transaction let go of them: committed -> waiting. -EUCLEAN if they are not committed. */
int alloc_free(struct alloc *a, uint64_t blk, uint32_t n);

/* Checkpoint. freeze: calls fn for each segment whose committed bitmap changed since the last
 * successful freeze (its encoded value), and notes the frees so far as belonging to this
 * checkpoint. A value other than 0 of fn ends it: nothing is frozen then, do not call done.
 * done(true): those blocks are free. done(false): the checkpoint failed; segments stay dirty. */
int alloc_freeze(struct alloc *a,
                 int (*fn)(uint32_t seg, const void *bitmap, size_t len, void *arg), void *arg);
void alloc_done(struct alloc *a, bool ok);

int alloc_reserve(struct alloc *a, uint64_t n_blk); /* -ENOSPC */
void alloc_unreserve(struct alloc *a, uint64_t n_blk);
/* Blocks taken with use_reserved are committed or cancelled: the reservation promises as before,
 * until its holder gives it up. */
void alloc_settle(struct alloc *a, uint64_t n_blk);

uint64_t alloc_free_blocks(const struct alloc *a); /* not busy, reserved ones included */
uint64_t alloc_reserved_blocks(const struct alloc *a);
uint64_t alloc_promised_blocks(const struct alloc *a); /* reserved and not staged */
uint64_t alloc_waiting_blocks(const struct alloc *a);         /* would be free after a checkpoint */
bool alloc_is_committed(const struct alloc *a, uint64_t blk); /* for checks */

#endif
