/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was acknowledged and is not on the device yet, in memory that outlives the process that
 * wrote it: the supervisor maps it shared, workers inherit it, and a new worker replays what the
 * dead one left.
 *
 * Two logs of records. KEEP_TX: a committed transaction as the journal has it, until the journal
 * has written it. KEEP_DATA: a change of a file's data stream, until the file's publication has
 * been committed. A record is there as a whole or not at all, whatever instruction the writer died
 * at.
 *
 * A thread that serves a request of a session marks what it changes with the request's tag; the
 * records of a tag stay until keep_end, so that a request which is submitted again to the next
 * worker is answered and not done twice.
 */
#ifndef DFE_BASE_KEEP_H
#define DFE_BASE_KEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct keep;

enum keep_log { KEEP_TX, KEEP_DATA, KEEP_LOGS };

/* Bytes that keep_format wants for logs of these sizes (tx_bytes >= 16 MiB, data_bytes >= 16 MiB).
 */
size_t keep_bytes(size_t tx_bytes, size_t data_bytes);
/* mem: zeroed, shared, page-aligned. Once, before the first worker. */
int keep_format(void *mem, size_t bytes, size_t tx_bytes, size_t data_bytes);
/* -EUCLEAN: not such memory. One at a time. */
int keep_open(void *mem, size_t bytes, struct keep **out);
void keep_close(struct keep *keep);
bool keep_empty(const struct keep *keep); /* nothing to replay */

/* -- tags, per thread. keep NULL: nothing happens. */
void keep_begin(struct keep *keep, uint64_t session, uint64_t seq);
void keep_value(struct keep *keep, uint64_t value); /* the answer's number (an inode, an offset) */
void keep_end(struct keep *keep); /* the request has been answered */
/* Was this request done by an earlier worker? Then *value. */
bool keep_done(struct keep *keep, uint64_t session, uint64_t seq, uint64_t *value);

/* -- records */
/* Reserves a record of len bytes (with head bytes that the caller knows) and returns its number, or
 * -EINPROGRESS: the log is full; keep_oldest says what must be written first. Never waits. */
int64_t keep_reserve(struct keep *keep, enum keep_log log, size_t len, void **ptr);
/* It is whole now. */
void keep_commit(struct keep *keep, enum keep_log log, int64_t number);
void keep_cancel(struct keep *keep, enum keep_log log, int64_t number);
/* What the record says is safe elsewhere. Any order. */
void keep_retire(struct keep *keep, enum keep_log log, int64_t number);

/* Records of the last worker, oldest first; fn's negative value ends it. Afterwards the caller
 * retires what need not stay. */
int keep_replay(struct keep *keep, enum keep_log log,
                int (*fn)(int64_t number, const void *rec, size_t len, void *arg), void *arg);

#endif
