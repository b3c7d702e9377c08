/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Superblock and pool record.
 *
 * The device begins with two copies of the superblock, blocks 0 and 1, written one after the other
 * (flush between), each with a generation; the valid one with the higher generation counts. Then
 * the journal ring, then data. PATH/pool is a text record: label, uuid, format, device; PATH/index
 * the index; PATH/lock is locked (flock) while the pool is open.
 */
#ifndef DFE_OBJ_SUPER_H
#define DFE_OBJ_SUPER_H

#include <stdbool.h>
#include <stdint.h>

#include "queue/queue.h"

#define SUPER_FORMAT 1u

/* In memory; super.c knows the bytes (FORMAT.md). */
struct super {
    uint8_t uuid[16];
    uint32_t format;
    uint64_t generation;
    uint32_t newest; /* the copy on the device that is whole and has this generation */
    uint64_t size_blk; /* of the device that is used */
    uint64_t journal_blk, journal_len_blk;
    uint64_t data_blk, data_len_blk;
    uint64_t least_checkpoint; /* an index whose checkpoint number is lower is too old */
};

/* The journal holds at least one batch of the largest transaction. */
#define SUPER_JOURNAL_MIN_BYTES (8ull << 20)

/* Geometry for a new device: 2 superblocks, journal, data (from a multiple of 1 MiB on). -ENOSPC:
 * too small (the text says how much is needed). journal_bytes 0: 1/64 of the device within [8 MiB,
 * 256 MiB]; -EINVAL below SUPER_JOURNAL_MIN_BYTES. Sets neither uuid nor generation. */
int super_layout(uint64_t size_bytes, uint64_t journal_bytes, struct super *out);
/* Both copies, flushed, the newest one last; generation + 1. After an error one copy may be
 * written: then `generation` and `newest` say so. */
int super_write(struct queue_dev *dev, struct super *s);
/* -ENODATA no superblock there (zeros or foreign), -EUCLEAN both damaged or a device that is
 * shorter than its superblock says, -EPROTONOSUPPORT newer format. One damaged copy: *one_damaged
 * is set and the good one is used (the next super_write heals the other). */
int super_read(struct queue_dev *dev, struct super *out, bool *one_damaged);
int super_wipe(struct queue_dev *dev);
/* Do superblocks, journal and data lie one after the other within size_blk? */
bool super_geometry_ok(const struct super *s);

struct pool_record {
    char label[64];
    uint8_t uuid[16];
    uint32_t format;
    char device[256]; /* URI; "data" is the file in the pool's directory */
};
/* Atomic, durable. -EINVAL: a label or a device that cannot be recorded. */
int record_write(const char *pool_dir, const struct pool_record *r);
/* -ENOENT, -EUCLEAN, -EPROTONOSUPPORT. */
int record_read(const char *pool_dir, struct pool_record *out);
/* Labels of pools, containers and snapshots: 1 to 63 of [A-Za-z0-9._-], not starting with '.' or
 * '-'. */
bool label_ok(const char *label);

int uuid_make(uint8_t uuid[16]); /* random, version 4; -EIO without a source of randomness */
void uuid_text(const uint8_t uuid[16], char text[37]);
int uuid_parse(const char *text, uint8_t uuid[16]); /* -EINVAL */

#endif
