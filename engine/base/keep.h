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
 * A thread that serves a request of a session marks what it changes with the request's tag. A tag
 * is remembered until its request has been answered, so that a request which is submitted again to
 * the next worker is answered and not done twice.
 *
 * Threads: any, but open and close; a tag belongs to its thread. The locks here are the last of
 * all. keep NULL: nothing happens, nothing is remembered.
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
/* Of the logs, about: others write to them. */
void keep_usage(const struct keep *keep, uint64_t *used, uint64_t *bytes);

/* -- tags, per thread */
void keep_begin(struct keep *keep, uint64_t session, uint64_t seq);
/* The answer's number (an inode, an offset, an epoch). The engine sets those that only it knows
 * before the change can be found: the number of a new inode, where a write went, the epoch of a
 * commit that asks for it. */
void keep_value(struct keep *keep, uint64_t value);
/* True: what this thread changes from now on is a part of the request, which is done only with the
 * last one; until then it is done again as a whole. False takes one true back, before the last
 * part: the engine's own steps nest inside their caller's. */
void keep_part(struct keep *keep, bool part);
/* In between the thread changes what is not the request's doing (publications, bookkeeping). */
void keep_pause(struct keep *keep);
void keep_resume(struct keep *keep);
void keep_end(struct keep *keep); /* the request has been answered */
/* The same from another thread, by name; and of a request that keep_done has answered. */
void keep_answered(struct keep *keep, uint64_t session, uint64_t seq);
/* Was this request done by an earlier worker? Then *value. */
bool keep_done(struct keep *keep, uint64_t session, uint64_t seq, uint64_t *value);

/* -- records */
/* Reserves a record of len bytes and returns its number (> 0, growing), or -EINPROGRESS: the log is
 * full. Never waits. */
int64_t keep_reserve(struct keep *keep, enum keep_log log, size_t len, void **ptr);
/* Copies bytes into a reserved record, past the processor's cache where the log holds more than
 * that keeps anyhow: nobody reads them unless this process is killed. to: a multiple of 64 from the
 * record's start. */
void keep_copy(struct keep *keep, enum keep_log log, int64_t number, void *to, const void *from,
               size_t len);
/* It is whole now. mark: for keep_retire_upto. */
void keep_commit(struct keep *keep, enum keep_log log, int64_t number, uint64_t mark);
void keep_cancel(struct keep *keep, enum keep_log log, int64_t number);
/* What the record says is safe elsewhere. Any order. */
void keep_retire(struct keep *keep, enum keep_log log, int64_t number);
/* All from `from` on along keep_next to `upto`, or to the chain's end where that is 0. */
void keep_retire_chain(struct keep *keep, enum keep_log log, int64_t from, int64_t upto);
/* All whose mark is at most this, oldest first; of a log whose marks grow. */
void keep_retire_upto(struct keep *keep, enum keep_log log, uint64_t mark);
/* Chains of this worker's records that are not retired: the one after it; 0: none. Under a lock of
 * the caller's. */
void keep_link(struct keep *keep, enum keep_log log, int64_t number, int64_t next);
int64_t keep_next(struct keep *keep, enum keep_log log, int64_t number);
/* More than half of the log is in use: time to write what it holds. */
bool keep_pressed(const struct keep *keep, enum keep_log log);

/* Records of earlier workers, oldest first, those that were not retired; fn's value other than 0
 * ends it and is returned. fn may retire the record. */
int keep_replay(struct keep *keep, enum keep_log log,
                int (*fn)(int64_t number, const void *rec, size_t len, void *arg), void *arg);

/* Words that say what the records continue; 0 at first. Each changes as a whole. */
enum { KEEP_NOTES = 8 };
void keep_note(struct keep *keep, unsigned i, uint64_t value);
uint64_t keep_noted(const struct keep *keep, unsigned i);

/* -- the tables of leases (base/window.h), generations and records. The process that outlives the
 * workers makes them, so that whoever still reads by a dead worker's leases, and has not heard of
 * its death, looks at the memory in which the next one begins with other generations. */
struct keep_tables {
    int lines_fd, records_fd; /* of the one who made them, as is the memory */
    void *lines, *records;
    size_t bytes; /* of each */
    void *roll;   /* of mounts (service/roll.h): no descriptor, it is the workers' alone */
};
/* Lent for keep's life; before anybody asks. */
void keep_lend_tables(struct keep *keep, const struct keep_tables *tables);
const struct keep_tables *keep_tables(const struct keep *keep); /* NULL: there are none */

/* -- where inodes are that somebody has referred to: number to home, for the next worker */
void keep_home_set(struct keep *keep, uint32_t cont, uint64_t ino, uint64_t home);
void keep_home_clear(struct keep *keep, uint32_t cont, uint64_t ino);
bool keep_home(struct keep *keep, uint32_t cont, uint64_t ino, uint64_t *home);

#endif
