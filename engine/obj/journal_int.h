/* SPDX-License-Identifier: Apache-2.0 */
/* What journal.c and journal_replay.c share: the bytes of a batch and the journal's state. */
#ifndef DFE_OBJ_JOURNAL_INT_H
#define DFE_OBJ_JOURNAL_INT_H

#include "base/keep.h"
#include "base/limits.h"
#include "obj/journal.h"

#define JOURNAL_MAGIC 0x314C4E524A464444ull /* "DDFJRNL1" */

/* Little-endian, at the start of a block; the records follow at once. */
struct batch_disk {
    uint64_t magic;         /* 0 */
    uint8_t uuid[16];       /* 8: the pool's */
    uint64_t seq;           /* 24: of this batch */
    uint64_t expect;        /* 32: what follows in this place: seq, or the number that the previous
                             * opening would have used (first batch of an opening) */
    uint64_t pos;           /* 40: of this batch, bytes */
    uint64_t flushed;       /* 48: everything before this position was durable */
    uint32_t len_blk;       /* 56: blocks, header included */
    uint32_t payload_bytes; /* 60: records with their frames */
    uint32_t n_records;     /* 64 */
    uint32_t crc;           /* 68: CRC32C of bytes 0 to 68, then of the payload */
};
_Static_assert(sizeof(struct batch_disk) == 72, "FORMAT.md");
_Static_assert(offsetof(struct batch_disk, crc) == 68, "FORMAT.md");

/* A record: its length u32, its bytes, zeros up to a multiple of 8. */
#define RECORD_FRAME_BYTES 4u
#define RECORD_ALIGN_BYTES 8u

/* A batch takes a record while it is shorter than this: large enough that headers and padding do
 * not matter, small enough that a waiting fsync is not late. */
#define BATCH_SOFT_BYTES (1u << 20)
#define BATCH_MAX_BYTES (BATCH_SOFT_BYTES + DFE_TX_BYTES + (1u << 20) + 2 * DFE_BLOCK_BYTES)
_Static_assert(BATCH_MAX_BYTES < SUPER_JOURNAL_MIN_BYTES,
               "the smallest ring takes the largest batch");

/* Batches one after another, each a whole number of blocks; the last one may be open. */
struct batch_buf {
    uint8_t *mem;
    size_t cap;
    uint64_t pos;  /* of mem[0] in the journal */
    size_t closed; /* bytes of closed batches */
    size_t open;   /* bytes of the open batch so far; 0: none */
    uint32_t open_records;
};

struct journal {
    struct queue_dev *dev;
    struct keep *keep; /* or NULL */
    uint8_t uuid[16];
    uint64_t ring_at, ring_bytes; /* on the device */

    /* Everything below: the pool's mutex. */
    uint64_t tail;             /* what replay needs begins here */
    uint64_t written, durable; /* positions */
    uint64_t seq, expect;      /* of the open batch */
    struct batch_buf bufs[2];
    struct batch_buf *open; /* takes records */
    struct batch_buf
        *pending; /* taken from `open`, not yet written; the writer's while `writing` */
    bool writing, flushing;
    int failed; /* a flush failed: negative errno */
    pthread_cond_t cond;
};

static inline size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* CRC of a batch; len_blk and payload_bytes have been checked or are our own. */
uint32_t journal_batch_crc(const struct batch_disk *b);

/* Reads or writes [pos, pos + len) of the stream, in two parts where the ring ends. Waits. */
int journal_io(struct journal *j, enum queue_op op, uint64_t pos, void *buf, size_t len);

/* A number at random, so that the ones that follow it belong to this opening alone. */
int journal_new_seq(uint64_t *seq);

#endif
