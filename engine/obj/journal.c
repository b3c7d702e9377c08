/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Journal: appending and writing (invariants: journal.h).
 *
 * Two buffers: records go into `open` while `pending` is written. Whoever finds nobody writing
 * becomes the writer, whoever finds nobody flushing becomes the flusher: a batch may be written
 * while the flush of the one before it is under way. Everybody else waits on the condition.
 */
#include "obj/journal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/assert.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/words.h"
#include "obj/journal_int.h"

/* A buffer takes a record while it is shorter than this: the device may be busy with what a
 * checkpoint writes, and those who only append need not wait for it meanwhile. What was never used
 * costs no memory. */
#define BUF_SOFT_BYTES (16u << 20)
/* A record that is not larger than BATCH_SOFT_BYTES fits, so that append allocates nothing. */
#define BUF_BYTES (BUF_SOFT_BYTES + BATCH_SOFT_BYTES + 2 * DFE_BLOCK_BYTES)

int journal_new_seq(uint64_t *seq)
{
    if (getrandom(seq, sizeof(*seq), 0) != sizeof(*seq))
        return base_fail(-EIO, "no source of randomness");
    return 0;
}

uint32_t journal_batch_crc(const struct batch_disk *b)
{
    uint32_t crc = base_crc32c(0, b, offsetof(struct batch_disk, crc));

    return base_crc32c(crc, b + 1, le32toh(b->payload_bytes));
}

int journal_open(struct queue_dev *dev, const struct super *s, struct journal **out)
{
    struct journal *j = calloc(1, sizeof(*j));
    int err = -ENOMEM;

    if (!j)
        return -ENOMEM;
    pthread_cond_init(&j->cond, NULL);
    for (int i = 0; i < 2; i++) {
        j->bufs[i].mem = aligned_alloc(DFE_BLOCK_BYTES, BUF_BYTES);
        if (!j->bufs[i].mem)
            goto fail;
        j->bufs[i].cap = BUF_BYTES;
    }
    j->dev = dev;
    memcpy(j->uuid, s->uuid, sizeof(j->uuid));
    j->ring_at = s->journal_blk * DFE_BLOCK_BYTES;
    j->ring_bytes = s->journal_len_blk * DFE_BLOCK_BYTES;
    j->open = &j->bufs[0];
    err = journal_new_seq(&j->seq);
    if (err)
        goto fail;
    *out = j;
    return 0;
fail:
    journal_close(j);
    return err;
}

void journal_close(struct journal *j)
{
    if (!j)
        return;
    DFE_ASSERT(!j->writing && !j->flushing);
    for (int i = 0; i < 2; i++)
        free(j->bufs[i].mem);
    pthread_cond_destroy(&j->cond);
    free(j);
}

void journal_numbers(const struct journal *j, uint64_t *first, uint64_t *expect)
{
    *first = j->seq;
    *expect = j->expect;
}

void journal_keep(struct journal *j, struct keep *keep)
{
    j->keep = keep;
}

int journal_format(struct queue_dev *dev, const struct super *s)
{
    uint64_t at = s->journal_blk * DFE_BLOCK_BYTES, len = s->journal_len_blk * DFE_BLOCK_BYTES;
    void *zeros = aligned_alloc(DFE_BLOCK_BYTES, BATCH_SOFT_BYTES);
    int err = 0;

    if (!zeros)
        return -ENOMEM;
    memset(zeros, 0, BATCH_SOFT_BYTES);
    while (len && err == 0) {
        size_t n = len < BATCH_SOFT_BYTES ? len : BATCH_SOFT_BYTES;
        err = queue_write(dev, at, zeros, n);
        at += n;
        len -= n;
    }
    if (err == 0)
        err = queue_flush(dev);
    free(zeros);
    return err ? base_fail(err, "journal: cannot format: %s", strerror(-err)) : 0;
}

/* -- appending --------------------------------------------------------------------------------- */

static uint64_t buf_end(const struct batch_buf *b)
{
    return b->pos + b->closed + b->open;
}

/* Bytes the open buffer would hold, up to a whole block, with a record of len bytes more. */
static size_t bytes_with(const struct batch_buf *b, size_t len)
{
    size_t open = b->open ? b->open : sizeof(struct batch_disk);

    return b->closed +
           round_up(open + round_up(RECORD_FRAME_BYTES + len, RECORD_ALIGN_BYTES), DFE_BLOCK_BYTES);
}

bool journal_ring_full(const struct journal *j, size_t len)
{
    return j->open->pos + bytes_with(j->open, len) - j->tail > j->ring_bytes;
}

static int buf_grow(struct batch_buf *b, size_t bytes)
{
    uint8_t *mem = aligned_alloc(DFE_BLOCK_BYTES, bytes);

    if (!mem)
        return -ENOMEM;
    memcpy(mem, b->mem, b->closed + b->open);
    free(b->mem);
    b->mem = mem;
    b->cap = bytes;
    return 0;
}

/* The header but for what is known only when the batch is written (flushed, crc). */
static void batch_close(struct journal *j)
{
    struct batch_buf *b = j->open;
    struct batch_disk *d = (void *)(b->mem + b->closed);
    size_t len = round_up(b->open, DFE_BLOCK_BYTES);

    if (b->open == 0)
        return;
    memset(b->mem + b->closed + b->open, 0, len - b->open);
    memset(d, 0, sizeof(*d));
    d->magic = htole64(JOURNAL_MAGIC);
    memcpy(d->uuid, j->uuid, sizeof(d->uuid));
    d->seq = htole64(j->seq);
    d->expect = htole64(j->expect);
    d->pos = htole64(b->pos + b->closed);
    d->len_blk = htole32((uint32_t)(len / DFE_BLOCK_BYTES));
    d->payload_bytes = htole32((uint32_t)(b->open - sizeof(*d)));
    d->n_records = htole32(b->open_records);
    j->expect = ++j->seq;
    b->closed += len;
    b->open = 0;
    b->open_records = 0;
}

/* What is open is to be written; the other buffer, which is free, takes records. */
static void turn_over(struct journal *j)
{
    struct batch_buf *b = j->open;

    DFE_ASSERT(!j->pending);
    batch_close(j);
    j->pending = b;
    j->open = b == &j->bufs[0] ? &j->bufs[1] : &j->bufs[0];
    j->open->pos = buf_end(b);
    j->open->closed = 0;
}

/* A buffer with room, without waiting. */
static bool buf_room(struct journal *j)
{
    if (j->open->open >= BATCH_SOFT_BYTES)
        batch_close(j);
    if (j->open->closed + j->open->open < BUF_SOFT_BYTES)
        return true;
    if (j->pending)
        return false;
    turn_over(j);
    return true;
}

static uint8_t *copy_pieces(uint8_t *p, const struct journal_piece *v, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (v[i].len)
            memcpy(p, v[i].ptr, v[i].len);
        p += v[i].len;
    }
    return p;
}

/* The record counts there when this process is killed from now on: it is in the open batch, which
 * the mutex keeps from the writer, and nobody has been told yet. */
static int keep_record(struct journal *j, const struct journal_piece *v, unsigned n, size_t len,
                       uint64_t end)
{
    int64_t number;
    void *to;

    number = keep_reserve(j->keep, KEEP_TX, len, &to);
    if (number < 0)
        return (int)number;
    copy_pieces(to, v, n);
    keep_commit(j->keep, KEEP_TX, number, end);
    return 0;
}

int journal_append(struct journal *j, const struct journal_piece *v, unsigned n, uint64_t *end)
{
    struct batch_buf *b;
    int err;
    size_t len = 0, bytes, pad, at;
    uint8_t *p;

    for (unsigned i = 0; i < n; i++) {
        if (v[i].len > JOURNAL_RECORD_BYTES - len)
            return -E2BIG;
        len += v[i].len;
    }
    if (!buf_room(j) || journal_ring_full(j, len))
        return -EINPROGRESS;
    b = j->open;
    bytes = bytes_with(b, len);
    if (bytes > b->cap && buf_grow(b, bytes))
        return -ENOMEM;
    pad = round_up(RECORD_FRAME_BYTES + len, RECORD_ALIGN_BYTES) - RECORD_FRAME_BYTES - len;
    at = b->open ? b->open : sizeof(struct batch_disk);
    if (j->keep) { /* the last thing that can fail */
        err = keep_record(j, v, n, len, b->pos + b->closed + at + RECORD_FRAME_BYTES + len + pad);
        if (err < 0)
            return err;
    }
    b->open = at;
    p = b->mem + b->closed + b->open;
    put_le32(p, (uint32_t)len);
    p = copy_pieces(p + RECORD_FRAME_BYTES, v, n);
    memset(p, 0, pad);
    b->open += RECORD_FRAME_BYTES + len + pad;
    b->open_records++;
    *end = buf_end(b);
    return 0;
}

void journal_mark(struct journal *j, uint64_t *pos, uint64_t *seq)
{
    batch_close(j);
    *pos = buf_end(j->open);
    *seq = j->expect;
}

void journal_trim(struct journal *j, uint64_t pos)
{
    DFE_ASSERT(pos >= j->tail && pos <= buf_end(j->open));
    j->tail = pos;
}

/* -- writing ----------------------------------------------------------------------------------- */

int journal_io(struct journal *j, enum queue_op op, uint64_t pos, void *buf, size_t len)
{
    uint64_t place = pos % j->ring_bytes, first = j->ring_bytes - place;
    struct queue_req req[2] = {{.op = op, .off = j->ring_at + place, .buf = buf, .len = len}};
    struct queue *q;
    unsigned n = 1;
    int err;

    if (len > first) {
        req[0].len = first;
        req[1] = (struct queue_req){
            .op = op, .off = j->ring_at, .buf = (uint8_t *)buf + first, .len = len - first};
        n = 2;
    }
    err = queue_borrow(j->dev, &q);
    if (err)
        return err;
    err = queue_run(q, req, n);
    queue_return(j->dev, q);
    return err;
}

/* Writes the batches of a buffer from position `from` on, one after another (J1). */
static int write_batches(struct journal *j, struct batch_buf *b, uint64_t *from, uint64_t flushed)
{
    while (*from < b->pos + b->closed) {
        struct batch_disk *d = (void *)(b->mem + (*from - b->pos));
        size_t len = (size_t)le32toh(d->len_blk) * DFE_BLOCK_BYTES;
        int err;
        d->flushed = htole64(flushed);
        d->crc = htole32(journal_batch_crc(d));
        err = journal_io(j, QUEUE_WRITE, *from, d, len);
        if (err)
            return base_fail(err, "journal: write at %llu failed: %s", (unsigned long long)*from,
                             strerror(-err));
        *from += len;
    }
    return 0;
}

/* One turn as the writer: what waits for it, else what is open. The mutex is held on entry and on
 * return, not in between. */
static int turn_write(struct journal *j, pthread_mutex_t *mutex)
{
    uint64_t from = j->written, flushed = j->durable;
    struct batch_buf *b;
    int err;

    if (!j->pending)
        turn_over(j);
    b = j->pending;
    j->writing = true;
    pthread_mutex_unlock(mutex);
    err = write_batches(j, b, &from, flushed);
    if (j->keep) /* a killed process leaves what it has written */
        keep_retire_upto(j->keep, KEEP_TX, from);
    pthread_mutex_lock(mutex);
    j->writing = false;
    j->written = from;
    if (err == 0)
        j->pending = NULL;
    pthread_cond_broadcast(&j->cond);
    return err;
}

/* One turn as the flusher. */
static int turn_flush(struct journal *j, pthread_mutex_t *mutex)
{
    uint64_t covers = j->written;
    int err;

    j->flushing = true;
    pthread_mutex_unlock(mutex);
    err = queue_flush(j->dev);
    if (err)
        base_fail(err, "journal: flush failed: %s", strerror(-err));
    pthread_mutex_lock(mutex);
    j->flushing = false;
    if (err && !queue_transient(err))
        j->failed = err;
    else if (!err && covers > j->durable)
        j->durable = covers;
    pthread_cond_broadcast(&j->cond);
    return err;
}

int journal_write(struct journal *j, pthread_mutex_t *pool_mutex, uint64_t upto, bool flush)
{
    int err = 0;

    pthread_mutex_lock(pool_mutex);
    if (upto > buf_end(j->open))
        upto = buf_end(j->open);
    while (err == 0 && (flush ? j->durable : j->written) < upto) {
        if (j->failed)
            err = j->failed;
        else if (j->written < upto && !j->writing)
            err = turn_write(j, pool_mutex);
        else if (j->written >= upto && !j->flushing)
            err = turn_flush(j, pool_mutex);
        else
            pthread_cond_wait(&j->cond, pool_mutex);
    }
    pthread_mutex_unlock(pool_mutex);
    return err;
}

/* -- counting ---------------------------------------------------------------------------------- */

uint64_t journal_used_bytes(const struct journal *j)
{
    return buf_end(j->open) - j->tail;
}

uint64_t journal_ring_bytes(const struct journal *j)
{
    return j->ring_bytes;
}

uint64_t journal_head(const struct journal *j)
{
    return buf_end(j->open);
}

uint64_t journal_room(const struct journal *j)
{
    return j->pending ? buf_end(j->pending) : buf_end(j->open);
}

uint64_t journal_durable(const struct journal *j)
{
    return j->durable;
}
