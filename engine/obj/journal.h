/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal ring.
 *
 * Records are appended to memory under the pool's mutex and go to the device in batches: a batch is
 * a run of blocks with one header (magic, pool uuid, sequence, position, length, flushed position,
 * CRC over header and payload) and whole records. Positions are bytes of the journal's endless stream
 * of blocks and never wrap; the ring place is position modulo its length.
 *
 * Invariants: J1 batches are written in order of position, and batch n + 1 is not submitted before batch
 * n has completed (its flush may be pending). J2 the header's flushed position is the highest position
 * known durable, data included, when the batch was built. J3 head - tail <= ring length: a batch
 * never overwrites what replay may need. J4 append never waits and never does I/O.
 */
#ifndef DFE_OBJ_JOURNAL_H
#define DFE_OBJ_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "obj/super.h"
#include "queue/queue.h"

struct journal;

/* tail: where replay starts (from the index's checkpoint record), seq: sequence of the batch there. */
int journal_open(struct queue_dev *dev, const struct super *s, struct journal **out);
void journal_close(struct journal *j);

/* Zero-writes the ring (creation). progress may be NULL. */
int journal_format(struct queue_dev *dev, const struct super *s);

/*
 * Replay from (tail, seq): fn for each record of each valid batch in order, with the batch's position
 * and the flushed position that *its successors or itself* attest for certain (the highest seen in the
 * whole valid run). Stops at the first invalid batch. *damaged: an invalid batch lies below a position
 * that a later valid batch attests as flushed (look ahead over the ring). fn's value other than 0
 * stops replay there: that batch and all after it are discarded (1), or replay fails (negative).
 * Afterwards the journal appends after the last batch kept.
 */
typedef int (*journal_fn)(const void *rec, size_t len, uint64_t batch_pos, bool below_flushed,
                          void *arg);
int journal_replay(struct journal *j, uint64_t tail, uint64_t seq, journal_fn fn, void *arg,
                   bool *damaged);

/* Under the pool's mutex. Copies the record (several pieces, so that nobody assembles it twice) into the open batch. *end: position that is durable once
 * this record is. -EINPROGRESS: the ring or the batch memory is full (wait for a checkpoint or a write). */
struct journal_piece {
    const void *ptr;
    size_t len;
};
int journal_append(struct journal *j, const struct journal_piece *v, unsigned n, uint64_t *end);

/*
 * Writes what has been appended so far; with `flush`, returns when everything up to `upto` is durable
 * (one device flush for all callers that wait: group commit). Called with no mutex held; takes the
 * pool's mutex (given here) for moments. The data of extents must have completed on the device before the
 * call that flushes. (waits)
 */
int journal_write(struct journal *j, void *pool_mutex, uint64_t upto, bool flush);

/* Checkpoint: position and sequence where the next batch will start; everything before it is in the
 * overlay that is being frozen. Closes the open batch. Under the mutex. */
void journal_mark(struct journal *j, uint64_t *pos, uint64_t *seq);
/* The index is durable up to a mark: the ring before it may be overwritten. Under the mutex. */
void journal_trim(struct journal *j, uint64_t pos);

uint64_t journal_used_bytes(const struct journal *j);
uint64_t journal_ring_bytes(const struct journal *j);
uint64_t journal_head(const struct journal *j);    /* end of what was appended */
uint64_t journal_durable(const struct journal *j);

#endif
