/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal ring.
 *
 * Records are appended to memory under the pool's mutex and go to the device in batches: a batch is
 * a run of blocks with one header (magic, pool uuid, sequence, position, length, flushed position,
 * CRC over header and payload) and whole records. Positions are bytes of the journal's endless
 * stream of blocks and never wrap; the ring place is position modulo its length.
 *
 * Invariants: J1 batches are written in order of position, and batch n + 1 is not submitted before
 * batch n has completed (its flush may be pending). J2 the header's flushed position is the highest
 * position known durable, data included, when the batch was built. J3 head - tail <= ring length: a
 * batch never overwrites what replay may need. J4 append never waits and never does I/O. J5
 * sequence numbers of each opening start at a random place, and a batch names the number that
 * replay expects where it lies: what an earlier opening left behind in the ring is never taken for
 * a continuation.
 *
 * Errors of the device: a failed write is kept and tried again by the next journal_write, and so is
 * a flush for which there was no memory (queue_transient). After a failed *flush* nobody knows what
 * a later, successful one has made durable: the journal refuses to go on (every journal_write
 * returns the error until the pool is opened again).
 */
#ifndef DFE_OBJ_JOURNAL_H
#define DFE_OBJ_JOURNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "obj/super.h"
#include "queue/queue.h"

struct journal;

/* The largest record: a transaction with what its encoding adds. */
#define JOURNAL_RECORD_BYTES (DFE_TX_BYTES + (1u << 20) - 64)

int journal_open(struct queue_dev *dev, const struct super *s, struct journal **out);
/* What was appended and not written is gone: journal_write first. */
void journal_close(struct journal *j);

/* From now on each record is also kept until it has been written (base/keep.h): whoever opens the
 * pool after this process was killed gets from there what the journal lacks. Before the first
 * append; what is there of an earlier process has been retired. */
struct keep;
/* Numbers of batches, after replay: the first one of this opening, and what is expected next. */
void journal_numbers(const struct journal *j, uint64_t *first, uint64_t *expect);
void journal_keep(struct journal *j, struct keep *keep);

/* Zero-writes the ring (creation), flushed. A new journal replays from (0, 0). */
int journal_format(struct queue_dev *dev, const struct super *s);

/*
 * Once, after open, before anything else. Replay from (tail, seq), both of which come from
 * journal_mark by way of the index's checkpoint record: fn for each record of each valid batch in
 * order, with the batch's position, and whether the whole batch lies below a position that any
 * batch of the valid run attests as flushed. Stops at the first invalid batch. *damaged: an invalid
 * batch lies below a position that a later valid batch attests as flushed (looked for over the rest
 * of the ring), or cannot be read, or fn refused one below the flushed position. fn's value other
 * than 0 stops replay there: that record and all after it are discarded (1; they cannot come back
 * in a later replay), or replay fails (negative). Afterwards the journal appends after the last
 * record kept, which is made durable. A device that is open read-only is left alone.
 */
typedef int (*journal_fn)(const void *rec, size_t len, uint64_t batch_pos, bool below_flushed,
                          void *arg);
int journal_replay(struct journal *j, uint64_t tail, uint64_t seq, journal_fn fn, void *arg,
                   bool *damaged);

/* Under the pool's mutex. Copies the record (several pieces, so that nobody assembles it twice)
 * into the open batch; nothing is kept of what v points to. *end: position that is durable once
 * this record is. -EINPROGRESS: the batch memory or the kept log (then journal_write without flush
 * makes room) or
 * the ring (journal_ring_full; then a checkpoint does) is full. -E2BIG over JOURNAL_RECORD_BYTES,
 * -ENOMEM. */
struct journal_piece {
    const void *ptr;
    size_t len;
};
int journal_append(struct journal *j, const struct journal_piece *v, unsigned n, uint64_t *end);
/* Would a record of len bytes not fit the ring now? Under the mutex. */
bool journal_ring_full(const struct journal *j, size_t len);

/*
 * Writes what has been appended so far; with `flush`, returns when everything up to `upto` is
 * durable (one device flush for all callers that wait: group commit). Called with no mutex held;
 * takes the pool's mutex (given here) for moments. The data of extents must have completed on the
 * device before their record is appended: whatever flush covers the record covers the data. upto: a
 * position from journal_append or journal_head; UINT64_MAX: all. (waits)
 */
int journal_write(struct journal *j, pthread_mutex_t *pool_mutex, uint64_t upto, bool flush);

/* Checkpoint: position and sequence where the next batch will start; everything before it is in the
 * overlay that is being frozen. Closes the open batch. Under the mutex. */
void journal_mark(struct journal *j, uint64_t *pos, uint64_t *seq);
/* The index is durable up to a mark: the ring before it may be overwritten. Under the mutex. What
 * is before the mark and not yet written still goes to the device first. */
void journal_trim(struct journal *j, uint64_t pos);

/* Under the mutex. */
uint64_t journal_used_bytes(const struct journal *j);
uint64_t journal_ring_bytes(const struct journal *j);
uint64_t journal_head(const struct journal *j); /* end of what was appended */
/* Where journal_write has to get for memory to be free again that is not now. */
uint64_t journal_room(const struct journal *j);
uint64_t journal_durable(const struct journal *j);

#endif
