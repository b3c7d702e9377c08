/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of the local store's index values and journal records. All little-endian; see FORMAT.md.
 *
 * Index values: payload, then the birth epoch (u64) of what the payload says; index.c adds its CRC.
 * A piece cut from an extent keeps the birth of its data.
 *
 * Journal records are physical: replaying one twice, or onto a newer state, changes nothing.
 *   rec_head, then ops: rec_kv + key + value (PUT), rec_kv + key (DEL), rec_blk (ALLOC, FREE),
 *   rec_blk + n blocks of data (DATA)
 */
#ifndef DFE_OBJ_FORMAT_H
#define DFE_OBJ_FORMAT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"

#define FMT_BIRTH_BYTES 8u

/* EXT, SEXT: head, then crc32c u32[n] of the blocks, or n bytes of inline data; then birth. */
enum { FMT_EXTENT = 1, FMT_INLINE = 2 };

struct fmt_ext {
    uint64_t blk;   /* 0: first block on the device; 0 for inline */
    uint32_t n;     /* 8: blocks (1..DFE_EXTENT_BLOCKS), or bytes (1..DFE_INLINE_BYTES) */
    uint8_t type;   /* 12: FMT_EXTENT, FMT_INLINE */
    uint8_t reserved[3];
};
static_assert(sizeof(struct fmt_ext) == 16, "extent value");

#define FMT_EXT_MAX (sizeof(struct fmt_ext) + DFE_INLINE_BYTES + FMT_BIRTH_BYTES)
static_assert(DFE_INLINE_BYTES >= DFE_EXTENT_BLOCKS * 4, "an inline value is the longest");

/* CONT: key (container u32). */
struct fmt_cont {
    uint8_t uuid[16];
    int64_t created_ns; /* 16: wall clock */
    char label[64];     /* 24: zero-padded */
};
static_assert(sizeof(struct fmt_cont) == 88, "container value");

/* SNAP: key (container u32, epoch u64). */
struct fmt_snap {
    int64_t created_ns;
    char name[64]; /* 8: zero-padded */
};
static_assert(sizeof(struct fmt_snap) == 72, "snapshot value");

/*
 * WORK: key (id u64); a deletion that is logically done and physically goes on.
 *   PUNCH  live KV or EXT entries in [lo, hi) born before `epoch` are gone since `epoch`
 *   CONT   everything of container `cont`
 *   SNAP   side entries of `cont` that no snapshot sees any more
 * After the head: lo, hi (PUNCH).
 */
enum { FMT_WORK_PUNCH = 1, FMT_WORK_CONT = 2, FMT_WORK_SNAP = 3 };

struct fmt_work {
    uint8_t kind;
    uint8_t reserved[3];
    uint32_t cont;   /* 4 */
    uint64_t epoch;  /* 8 */
    uint16_t lo_len; /* 16 */
    uint16_t hi_len; /* 18 */
    uint32_t reserved2;
};
static_assert(sizeof(struct fmt_work) == 24, "work value");

/* META "checkpoint": what the index is a state of. The geometry is a copy of the superblock's, for
 * a device whose superblocks are both gone. */
struct fmt_checkpoint {
    uint64_t number;
    uint64_t journal_pos; /* 8: replay starts here */
    uint64_t journal_seq; /* 16 */
    uint64_t epoch;       /* 24: of the last commit inside */
    uint32_t next_cont;   /* 32: number of the next container */
    uint32_t format;      /* 36 */
    uint8_t uuid[16];     /* 40: of the pool */
    uint64_t size_blk;    /* 56 */
    uint64_t journal_blk, journal_len_blk; /* 64, 72 */
    uint64_t data_blk, data_len_blk;       /* 80, 88 */
};
static_assert(sizeof(struct fmt_checkpoint) == 96, "checkpoint value");

/* -- journal records ------------------------------------------------------------------------- */

enum { REC_PUT = 1, REC_DEL = 2, REC_ALLOC = 3, REC_FREE = 4, REC_DATA = 5 };

struct rec_head {
    uint32_t n_ops;
    uint32_t reserved;
    uint64_t epoch; /* 8: of the commit */
};
static_assert(sizeof(struct rec_head) == 16, "record head");

struct rec_kv {
    uint8_t op;
    uint8_t reserved;
    uint16_t klen; /* 2 */
    uint32_t vlen; /* 4: with its birth; 0 in DEL */
};
static_assert(sizeof(struct rec_kv) == 8, "record op on a key");

struct rec_blk {
    uint8_t op;
    uint8_t reserved[3];
    uint32_t n;   /* 4: blocks */
    uint64_t blk; /* 8 */
};
static_assert(sizeof(struct rec_blk) == 16, "record op on blocks");

#endif
