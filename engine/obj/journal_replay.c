/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Journal: replay after an opening, clean or not.
 *
 * Two passes over the valid run of batches: the first finds its end and the highest position that
 * is attested as flushed, the second hands out the records. Then a look over the rest of the ring:
 * a batch there that attests a position beyond the end of the run as flushed proves that the run
 * ends in damage and not in a crash.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/words.h"
#include "obj/journal_int.h"

/* Most batches are one small fsync. */
#define FIRST_READ_BYTES (64u << 10)
#define LOOK_BYTES (1u << 20)

struct replay {
    struct journal *j;
    uint8_t *buf;     /* BATCH_MAX_BYTES */
    uint64_t limit;   /* nothing of the run lies at or beyond it */
    uint64_t flushed; /* the highest position attested by the run */
    bool *damaged;
};

enum { BATCH_NONE, BATCH_VALID };

static bool frames_ok(const struct batch_disk *d)
{
    const uint8_t *p = (const uint8_t *)(d + 1);
    size_t left = le32toh(d->payload_bytes);
    uint32_t n = 0;

    for (; left >= RECORD_FRAME_BYTES; n++) {
        size_t len = get_le32(p), framed;
        if (len > left - RECORD_FRAME_BYTES)
            return false;
        framed = round_up(RECORD_FRAME_BYTES + len, RECORD_ALIGN_BYTES);
        if (framed > left)
            return false;
        p += framed;
        left -= framed;
    }
    return left == 0 && n == le32toh(d->n_records) && n > 0;
}

/* Could this be the header of a batch that begins at pos and ends by limit? */
static bool header_ok(const struct journal *j, const struct batch_disk *d, uint64_t pos,
                      uint64_t limit)
{
    uint64_t len = (uint64_t)le32toh(d->len_blk) * DFE_BLOCK_BYTES;

    return le64toh(d->magic) == JOURNAL_MAGIC && memcmp(d->uuid, j->uuid, sizeof(d->uuid)) == 0 &&
           le64toh(d->pos) == pos && len > 0 && len <= BATCH_MAX_BYTES && len <= limit - pos &&
           round_up(sizeof(*d) + (size_t)le32toh(d->payload_bytes), DFE_BLOCK_BYTES) == len &&
           le64toh(d->flushed) <= pos;
}

/* Reads the batch at pos into r->buf. BATCH_VALID, BATCH_NONE, or the device's error. */
static int read_batch(struct replay *r, uint64_t pos)
{
    struct batch_disk *d = (void *)r->buf;
    uint64_t left = r->limit - pos;
    size_t first = left < FIRST_READ_BYTES ? left : FIRST_READ_BYTES, len;
    int err;

    if (left == 0)
        return BATCH_NONE;
    err = journal_io(r->j, QUEUE_READ, pos, r->buf, first);
    if (err)
        return err;
    if (!header_ok(r->j, d, pos, r->limit))
        return BATCH_NONE;
    len = (size_t)le32toh(d->len_blk) * DFE_BLOCK_BYTES;
    if (len > first) {
        err = journal_io(r->j, QUEUE_READ, pos + first, r->buf + first, len - first);
        if (err)
            return err;
    }
    return journal_batch_crc(d) == le32toh(d->crc) && frames_ok(d) ? BATCH_VALID : BATCH_NONE;
}

static int unreadable(struct replay *r, uint64_t pos, int err)
{
    *r->damaged = true;
    return base_fail(err, "journal: read at %llu failed: %s", (unsigned long long)pos,
                     strerror(-err));
}

/* First pass. *end: where the run ends, *expect: the number that would follow. */
static int find_end(struct replay *r, uint64_t *end, uint64_t *expect)
{
    const struct batch_disk *d = (void *)r->buf;
    int got;

    for (;;) {
        got = read_batch(r, *end);
        if (got != BATCH_VALID || le64toh(d->expect) != *expect)
            break;
        if (le64toh(d->flushed) > r->flushed)
            r->flushed = le64toh(d->flushed);
        *expect = le64toh(d->seq) + 1;
        *end += (uint64_t)le32toh(d->len_blk) * DFE_BLOCK_BYTES;
    }
    if (got < 0)
        (void)unreadable(r, *end, got); /* the run ends here, and it is not known to be the end */
    return 0;
}

/* A valid batch between the end of the run and limit that attests more than the end as flushed. */
static int look_ahead(struct replay *r, uint64_t end)
{
    uint8_t *look = aligned_alloc(DFE_BLOCK_BYTES, LOOK_BYTES);
    int err = 0;

    if (!look)
        return -ENOMEM;
    for (uint64_t pos = end; pos < r->limit && !*r->damaged; pos += LOOK_BYTES) {
        size_t n = r->limit - pos < LOOK_BYTES ? r->limit - pos : LOOK_BYTES;
        err = journal_io(r->j, QUEUE_READ, pos, look, n);
        if (err) {
            err = unreadable(r, pos, err);
            break;
        }
        for (size_t at = 0; at < n && !*r->damaged; at += DFE_BLOCK_BYTES) {
            const struct batch_disk *d = (void *)(look + at);
            if (header_ok(r->j, d, pos + at, r->limit) && le64toh(d->flushed) > end &&
                read_batch(r, pos + at) == BATCH_VALID)
                *r->damaged = true;
        }
    }
    free(look);
    if (*r->damaged && err == 0)
        base_log(BASE_LOG_ERROR, "journal: damaged at %llu: a later batch says it was durable",
                 (unsigned long long)end);
    return 0; /* unreadable is damage, and told; the run itself is there */
}

/* Cuts the batch in r->buf off before record k, or forgets it (k 0), on the device. The number
 * changes, so that what followed it in the ring does not follow any more. */
static int discard_from(struct replay *r, uint32_t k, size_t payload, uint64_t *end,
                        uint64_t *expect)
{
    struct batch_disk *d = (void *)r->buf;
    uint64_t pos = le64toh(d->pos);
    size_t len = round_up(sizeof(*d) + payload, DFE_BLOCK_BYTES);
    uint64_t seq;
    int err;

    if (k == 0) {
        memset(r->buf, 0, DFE_BLOCK_BYTES);
        len = DFE_BLOCK_BYTES;
        *end = pos;
    } else {
        err = journal_new_seq(&seq);
        if (err)
            return err;
        memset(r->buf + sizeof(*d) + payload, 0, len - sizeof(*d) - payload);
        d->seq = htole64(seq);
        d->len_blk = htole32((uint32_t)(len / DFE_BLOCK_BYTES));
        d->payload_bytes = htole32((uint32_t)payload);
        d->n_records = htole32(k);
        d->crc = htole32(journal_batch_crc(d));
        *end = pos + len;
        *expect = seq + 1;
    }
    err = journal_io(r->j, QUEUE_WRITE, pos, r->buf, len);
    return err == -EROFS ? 0 : err;
}

/* The records of the batch in r->buf. 0, or fn's value; then *k and *payload tell before which. */
static int hand_out(struct replay *r, journal_fn fn, void *arg, uint32_t *k, size_t *payload)
{
    const struct batch_disk *d = (void *)r->buf;
    uint64_t pos = le64toh(d->pos);
    bool below = pos + (uint64_t)le32toh(d->len_blk) * DFE_BLOCK_BYTES <= r->flushed;
    const uint8_t *p = (const uint8_t *)(d + 1);

    *payload = 0;
    for (*k = 0; *k < le32toh(d->n_records); ++*k) {
        size_t len = get_le32(p + *payload);
        int ret = fn(p + *payload + RECORD_FRAME_BYTES, len, pos, below, arg);
        if (ret && ret != 1)
            return ret;
        if (ret == 1) {
            *r->damaged |= below;
            return 1;
        }
        *payload += round_up(RECORD_FRAME_BYTES + len, RECORD_ALIGN_BYTES);
    }
    return 0;
}

/* Second pass over [pos, *end). Both *end and *expect change where fn cuts the run short. */
static int replay_run(struct replay *r, uint64_t pos, journal_fn fn, void *arg, uint64_t *end,
                      uint64_t *expect)
{
    const struct batch_disk *d = (void *)r->buf;
    uint64_t last = *expect;
    size_t payload;
    uint32_t k;
    int ret;

    while (pos < *end) {
        ret = read_batch(r, pos);
        if (ret != BATCH_VALID)
            return base_fail(ret < 0 ? ret : -EUCLEAN, "journal: batch at %llu changed while read",
                             (unsigned long long)pos);
        last = le64toh(d->expect);
        ret = hand_out(r, fn, arg, &k, &payload);
        if (ret == 1) {
            *expect = last;
            if (!*r->damaged)
                return discard_from(r, k, payload, end, expect);
            *end = pos;
            return 0;
        }
        if (ret)
            return ret;
        pos += (uint64_t)le32toh(d->len_blk) * DFE_BLOCK_BYTES;
    }
    return 0;
}

int journal_replay(struct journal *j, uint64_t tail, uint64_t seq, journal_fn fn, void *arg,
                   bool *damaged)
{
    struct replay r = {.j = j, .limit = tail + j->ring_bytes, .damaged = damaged};
    uint64_t end = tail, run_end, expect = seq;
    int err;

    *damaged = false;
    if (tail % DFE_BLOCK_BYTES || r.limit < tail)
        return base_fail(-EUCLEAN, "journal: impossible tail %llu", (unsigned long long)tail);
    r.buf = aligned_alloc(DFE_BLOCK_BYTES, BATCH_MAX_BYTES);
    if (!r.buf)
        return -ENOMEM;
    err = find_end(&r, &end, &expect);
    run_end = end;
    if (err == 0 && !*damaged)
        err = look_ahead(&r, run_end);
    if (err == 0)
        err = replay_run(&r, tail, fn, arg, &end, &expect);
    free(r.buf);
    if (err)
        return err;
    /* New batches may attest this run as flushed: it must be. */
    err = queue_flush(j->dev);
    if (err && err != -EROFS)
        return base_fail(err, "journal: flush failed: %s", strerror(-err));
    j->tail = tail;
    j->written = j->durable = end;
    j->open->pos = end;
    j->expect = expect;
    return 0;
}
