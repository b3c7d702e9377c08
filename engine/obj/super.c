/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Superblock: its bytes, its two copies, the geometry of a device.
 *
 * Invariants: S1 a copy counts only if its CRC over the whole block is right. S2 the newest
 * copy is overwritten after the other one has been written and flushed: whatever fails, the newest
 * or the one that follows it is whole.
 */
#include "obj/super.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/words.h"

#define SUPER_COPIES 2u
#define SUPER_MAGIC 0x31304C4F4F504644ull /* "DFPOOL01" */
#define DATA_ALIGN_BLK ((1u << 20) / DFE_BLOCK_BYTES)
#define JOURNAL_MAX_BYTES (256ull << 20)

/* Little-endian, one block. */
struct super_disk {
    uint64_t magic;            /* 0 */
    uint32_t format;           /* 8 */
    uint32_t copy;             /* 12: 0 or 1, also its block */
    uint8_t uuid[16];          /* 16 */
    uint64_t generation;       /* 32 */
    uint64_t size_blk;         /* 40 */
    uint64_t journal_blk;      /* 48 */
    uint64_t journal_len_blk;  /* 56 */
    uint64_t data_blk;         /* 64 */
    uint64_t data_len_blk;     /* 72 */
    uint64_t least_checkpoint; /* 80 */
    uint32_t block_bytes;      /* 88 */
    uint8_t reserved[4000];    /* 92: zeros */
    uint32_t crc;              /* 4092: CRC32C of what is before it */
};
_Static_assert(sizeof(struct super_disk) == DFE_BLOCK_BYTES, "one block");
_Static_assert(offsetof(struct super_disk, block_bytes) == 88, "FORMAT.md");
_Static_assert(offsetof(struct super_disk, crc) == 4092, "FORMAT.md");

int super_layout(uint64_t size_bytes, uint64_t journal_bytes, struct super *out)
{
    uint64_t journal = journal_bytes, least, data_blk;

    if (journal == 0) {
        journal = size_bytes / 64;
        if (journal < SUPER_JOURNAL_MIN_BYTES)
            journal = SUPER_JOURNAL_MIN_BYTES;
        if (journal > JOURNAL_MAX_BYTES)
            journal = JOURNAL_MAX_BYTES;
    }
    if (journal < SUPER_JOURNAL_MIN_BYTES || journal > 1ull << 40)
        return base_refuse(-EINVAL, "a journal of %llu bytes: at least 8 MiB and at most 1 TiB",
                           (unsigned long long)journal);
    memset(out, 0, sizeof(*out));
    out->format = SUPER_FORMAT;
    out->size_blk = size_bytes / DFE_BLOCK_BYTES;
    out->journal_blk = SUPER_COPIES;
    out->journal_len_blk = (journal + DFE_BLOCK_BYTES - 1) / DFE_BLOCK_BYTES;
    data_blk = SUPER_COPIES + out->journal_len_blk + DATA_ALIGN_BLK - 1;
    out->data_blk = data_blk - data_blk % DATA_ALIGN_BLK;
    least = out->data_blk + DATA_ALIGN_BLK;
    if (out->size_blk < least)
        return base_refuse(-ENOSPC, "a device of %llu bytes is too small: %llu are needed",
                           (unsigned long long)size_bytes,
                           (unsigned long long)(least * DFE_BLOCK_BYTES));
    out->data_len_blk = out->size_blk - out->data_blk;
    return 0;
}

static void encode(const struct super *s, uint32_t copy, struct super_disk *d)
{
    memset(d, 0, sizeof(*d));
    d->magic = htole64(SUPER_MAGIC);
    d->format = htole32(s->format);
    d->copy = htole32(copy);
    memcpy(d->uuid, s->uuid, sizeof(d->uuid));
    d->generation = htole64(s->generation);
    d->size_blk = htole64(s->size_blk);
    d->journal_blk = htole64(s->journal_blk);
    d->journal_len_blk = htole64(s->journal_len_blk);
    d->data_blk = htole64(s->data_blk);
    d->data_len_blk = htole64(s->data_len_blk);
    d->least_checkpoint = htole64(s->least_checkpoint);
    d->block_bytes = htole32(DFE_BLOCK_BYTES);
    d->crc = htole32(base_crc32c(0, d, offsetof(struct super_disk, crc)));
}

/* [at, at + len) within [least, end), and not empty. */
static bool range_ok(uint64_t at, uint64_t len, uint64_t least, uint64_t end)
{
    return len > 0 && at >= least && at <= end && len <= end - at;
}

bool super_geometry_ok(const struct super *s)
{
    return range_ok(s->journal_blk, s->journal_len_blk, SUPER_COPIES, s->data_blk) &&
           range_ok(s->data_blk, s->data_len_blk, s->journal_blk, s->size_blk) &&
           s->journal_len_blk >= SUPER_JOURNAL_MIN_BYTES / DFE_BLOCK_BYTES &&
           s->size_blk <= UINT64_MAX / DFE_BLOCK_BYTES;
}

/* 0, -ENODATA (not a superblock), -EUCLEAN, -EPROTONOSUPPORT. */
static int decode(const struct super_disk *d, uint32_t copy, struct super *s)
{
    if (le64toh(d->magic) != SUPER_MAGIC)
        return -ENODATA;
    if (base_crc32c(0, d, offsetof(struct super_disk, crc)) != le32toh(d->crc) ||
        le32toh(d->copy) != copy)
        return -EUCLEAN;
    memset(s, 0, sizeof(*s));
    s->format = le32toh(d->format);
    if (s->format > SUPER_FORMAT)
        return -EPROTONOSUPPORT;
    memcpy(s->uuid, d->uuid, sizeof(s->uuid));
    s->generation = le64toh(d->generation);
    s->size_blk = le64toh(d->size_blk);
    s->journal_blk = le64toh(d->journal_blk);
    s->journal_len_blk = le64toh(d->journal_len_blk);
    s->data_blk = le64toh(d->data_blk);
    s->data_len_blk = le64toh(d->data_len_blk);
    s->least_checkpoint = le64toh(d->least_checkpoint);
    if (s->format == 0 || le32toh(d->block_bytes) != DFE_BLOCK_BYTES || !super_geometry_ok(s))
        return -EUCLEAN;
    return 0;
}

int super_write(struct queue_dev *dev, struct super *s)
{
    /* `next` is what is written; *s keeps to what is there */
    struct super next = *s;
    void *block = aligned_alloc(DFE_BLOCK_BYTES, DFE_BLOCK_BYTES);
    int err = 0;

    if (!block)
        return -ENOMEM;
    next.generation++;
    for (uint32_t i = 0; i < SUPER_COPIES && err == 0; i++) {
        uint32_t copy = SUPER_COPIES - 1 - s->newest;
        encode(&next, copy, block);
        err = queue_write(dev, (uint64_t)copy * DFE_BLOCK_BYTES, block, DFE_BLOCK_BYTES);
        if (err == 0)
            err = queue_flush(dev);
        if (err == 0) {
            s->newest = copy;
            s->generation = next.generation;
        }
    }
    free(block);
    return err ? base_fail(err, "superblock: write failed: %s", strerror(-err)) : 0;
}

/* Both copies' states to one answer; c[] holds the valid ones. */
static int choose(const int err[SUPER_COPIES], const struct super c[SUPER_COPIES],
                  struct super *out, bool *one_damaged)
{
    if (err[0] == -EPROTONOSUPPORT || err[1] == -EPROTONOSUPPORT)
        return base_fail(-EPROTONOSUPPORT, "superblock: written by a newer version");
    if (err[0] == -ENODATA && err[1] == -ENODATA)
        return -ENODATA;
    if (err[0] && err[1])
        return base_fail(-EUCLEAN, "superblock: both copies are damaged");
    *one_damaged = err[0] || err[1];
    if (*one_damaged)
        base_log(BASE_LOG_WARN, "superblock: copy %d is damaged, the other one is used", !err[0]);
    uint32_t newest = err[0] || (err[1] == 0 && c[1].generation > c[0].generation);
    *out = c[newest];
    out->newest = newest;
    return 0;
}

int super_read(struct queue_dev *dev, struct super *out, bool *one_damaged)
{
    struct super c[SUPER_COPIES];
    struct queue_dev_info info;
    int err[SUPER_COPIES], ret;
    void *block;

    *one_damaged = false;
    queue_dev_info(dev, &info);
    if (info.size_bytes < SUPER_COPIES * DFE_BLOCK_BYTES)
        return -ENODATA;
    block = aligned_alloc(DFE_BLOCK_BYTES, DFE_BLOCK_BYTES);
    if (!block)
        return -ENOMEM;
    for (uint32_t copy = 0; copy < SUPER_COPIES; copy++) {
        err[copy] = queue_read(dev, (uint64_t)copy * DFE_BLOCK_BYTES, block, DFE_BLOCK_BYTES);
        if (err[copy])
            base_log(BASE_LOG_ERROR, "superblock: copy %u: read failed: %s", copy,
                     strerror(-err[copy]));
        err[copy] = err[copy] ? -EUCLEAN : decode(block, copy, &c[copy]);
    }
    free(block);
    ret = choose(err, c, out, one_damaged);
    if (ret == 0 && info.size_bytes / DFE_BLOCK_BYTES < out->size_blk)
        ret = base_fail(-EUCLEAN, "superblock: the device has %llu bytes, the pool %llu",
                        (unsigned long long)info.size_bytes,
                        (unsigned long long)(out->size_blk * DFE_BLOCK_BYTES));
    return ret;
}

int super_wipe(struct queue_dev *dev)
{
    void *zeros = aligned_alloc(DFE_BLOCK_BYTES, SUPER_COPIES * DFE_BLOCK_BYTES);
    int err;

    if (!zeros)
        return -ENOMEM;
    memset(zeros, 0, SUPER_COPIES * DFE_BLOCK_BYTES);
    err = queue_write(dev, 0, zeros, SUPER_COPIES * DFE_BLOCK_BYTES);
    if (err == 0)
        err = queue_flush(dev);
    free(zeros);
    return err ? base_fail(err, "superblock: wipe failed: %s", strerror(-err)) : 0;
}
