/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backend `uring`: a regular file or block device by io_uring, one ring a queue.
 *
 * Invariants:
 *  1. the submission ring has as many entries as a queue has depth, and queue.c never hands over
 *     more than that: io_uring_get_sqe cannot fail;
 *  2. fixed[i] of a queue is set only while extent i is registered with its ring. The arena tells
 *     of an extent before it hands out the first buffer in it and after the last came back, so no
 *     request ever meets a change of its own extent;
 *  3. a queue may be without a ring (has_ring false): the kernel charges rings to the user's locked
 *     memory and may refuse one more. Such a queue performs each request inside submit: slower, and
 *     right.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "queue/queue_file.h"

#define DEPTH 128

/* Small requests are handed to the kernel together, at the next poll or when this many wait: a
 * system call costs about as much as one of them. Larger ones start at once. */
#define BATCH 16
#define BATCH_BYTES (64u << 10)

/* Extents that can be registered: the kernel's limit on fixed buffers of a ring. 1 TiB. */
#define MAX_EXTENTS (1u << 14)

struct uring_dev {
    int fd;
    struct buf_arena *arena; /* watched, or NULL */
    char *arena_base;
    unsigned n_extents;

    pthread_mutex_t lock; /* all that follows; the arena's callback takes it */
    struct list queues;
    uint8_t *extents; /* 1: mapped, of a kind worth registering */
    bool refused;     /* the kernel refused memory once: it is not asked again */
};

struct uring_queue {
    struct list link;
    struct io_uring ring;
    unsigned waiting; /* entries that the kernel has not been given */
    bool has_ring, has_table;
    _Atomic uint8_t *fixed; /* by extent */
};

static int ring_open(struct io_uring *ring)
{
    return io_uring_queue_init(DEPTH, ring, 0);
}

/* 0, or why io_uring cannot be used here: refused by a container, switched off, too old. */
static int probe(void)
{
    static const int ops[] = {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED,
                              IORING_OP_WRITE_FIXED, IORING_OP_FSYNC, IORING_OP_FALLOCATE};
    struct io_uring ring;
    struct io_uring_probe *p;
    int rc = ring_open(&ring);

    if (rc < 0)
        return rc;
    p = io_uring_get_probe_ring(&ring);
    for (size_t i = 0; i < DFE_ARRAY_LEN(ops) && rc == 0; i++)
        if (!p || !io_uring_opcode_supported(p, ops[i]))
            rc = -ENOSYS;
    io_uring_free_probe(p);
    io_uring_queue_exit(&ring);
    return rc;
}

/* Under the device's lock: gives one extent to one ring, or takes it away. */
static void ring_update(struct queue_dev *dev, struct uring_queue *uq, unsigned i, bool mapped)
{
    struct uring_dev *d = dev->priv;
    struct iovec iov = {0};
    int rc;

    if (!uq->has_table || (mapped && d->refused) || (!mapped && !atomic_load(&uq->fixed[i])))
        return;
    if (mapped)
        iov = (struct iovec){d->arena_base + (size_t)i * DFE_ARENA_EXTENT_BYTES,
                             DFE_ARENA_EXTENT_BYTES};
    else
        atomic_store(&uq->fixed[i], 0);
    rc = io_uring_register_buffers_update_tag(&uq->ring, i, &iov, NULL, 1);
    if (rc == 1 && mapped) {
        atomic_store(&uq->fixed[i], 1);
        atomic_store(&dev->registered, true);
    } else if (rc < 0) {
        d->refused = true;
        atomic_store(&dev->registered, false);
        base_log(BASE_LOG_INFO, "device %s: buffers are not registered with the kernel: %s",
                 dev->uri, strerror(-rc));
    }
}

/* Ordinary pages stay unregistered: pinning would fill a whole extent at once and save little. */
static void on_extent(void *arg, void *base, size_t len, enum buf_kind kind, bool mapped)
{
    struct queue_dev *dev = arg;
    struct uring_dev *d = dev->priv;
    unsigned i = (unsigned)((size_t)((char *)base - d->arena_base) / len);

    if (kind == BUF_PAGES)
        return;
    pthread_mutex_lock(&d->lock);
    d->extents[i] = mapped;
    list_for_each(pos, &d->queues)
        ring_update(dev, container_of(pos, struct uring_queue, link), i, mapped);
    pthread_mutex_unlock(&d->lock);
}

/* An optimisation: whatever fails here leaves the device as it is, without registered buffers. */
static void watch_arena(struct queue_dev *dev, struct buf_arena *arena)
{
    struct uring_dev *d = dev->priv;
    struct buf_info info;

    buf_arena_info(arena, &info);
    d->n_extents = (unsigned)(info.bound_bytes / DFE_ARENA_EXTENT_BYTES);
    if (d->n_extents > MAX_EXTENTS)
        return;
    d->extents = calloc(d->n_extents, 1);
    d->arena_base = buf_arena_base(arena);
    if (d->extents && buf_arena_watch(arena, on_extent, dev) == 0)
        d->arena = arena;
}

static int uring_open(struct queue_dev *dev, const char *name, const struct queue_dev_opts *opts)
{
    struct uring_dev *d;
    int rc;

    if (opts->no_uring)
        return -ENOTSUP;
    rc = probe();
    if (rc < 0) {
        base_log(BASE_LOG_INFO, "device %s: io_uring is refused here (%s), threads are used",
                 dev->uri, strerror(-rc));
        return -ENOTSUP;
    }
    d = calloc(1, sizeof(*d));
    if (!d)
        return base_refuse(-ENOMEM, "device %s: out of memory", dev->uri);
    rc = queue_file_open(dev, name, opts);
    if (rc < 0) {
        free(d);
        return rc;
    }
    d->fd = rc;
    pthread_mutex_init(&d->lock, NULL);
    list_init(&d->queues);
    dev->priv = d;
    if (opts->arena)
        watch_arena(dev, opts->arena);
    return 0;
}

static void uring_close(struct queue_dev *dev)
{
    struct uring_dev *d = dev->priv;

    if (d->arena)
        buf_arena_unwatch(d->arena);
    close(d->fd);
    pthread_mutex_destroy(&d->lock);
    free(d->extents);
    free(d);
}

static int uring_queue_open(struct queue *q)
{
    struct uring_dev *d = q->dev->priv;
    struct uring_queue *uq = calloc(1, sizeof(*uq));
    int rc;

    if (!uq)
        return base_refuse(-ENOMEM, "device %s: out of memory", q->dev->uri);
    rc = ring_open(&uq->ring);
    uq->has_ring = rc == 0;
    if (rc < 0)
        base_log(BASE_LOG_INFO, "device %s: one more ring is refused (%s), this queue does without",
                 q->dev->uri, strerror(-rc));
    if (d->arena && uq->has_ring)
        uq->fixed = calloc(d->n_extents, 1);
    uq->has_table = uq->fixed && io_uring_register_buffers_sparse(&uq->ring, d->n_extents) == 0;
    q->priv = uq;
    pthread_mutex_lock(&d->lock);
    list_add_tail(&d->queues, &uq->link);
    for (unsigned i = 0; i < d->n_extents && d->extents; i++)
        if (d->extents[i])
            ring_update(q->dev, uq, i, true);
    pthread_mutex_unlock(&d->lock);
    return 0;
}

static void uring_queue_close(struct queue *q)
{
    struct uring_dev *d = q->dev->priv;
    struct uring_queue *uq = q->priv;

    pthread_mutex_lock(&d->lock);
    list_del(&uq->link);
    pthread_mutex_unlock(&d->lock);
    if (uq->has_ring)
        io_uring_queue_exit(&uq->ring);
    free((void *)uq->fixed);
    free(uq);
}

/* Index of the registered extent that holds the whole buffer, or -1. */
static int fixed_index(const struct uring_dev *d, struct uring_queue *uq,
                       const struct queue_rest *r)
{
    uintptr_t at = (uintptr_t)r->buf - (uintptr_t)d->arena_base; /* huge if below the arena */
    uintptr_t i = at / DFE_ARENA_EXTENT_BYTES;

    if (!uq->has_table || i >= d->n_extents)
        return -1;
    if (at % DFE_ARENA_EXTENT_BYTES + r->len > DFE_ARENA_EXTENT_BYTES)
        return -1;
    return atomic_load_explicit(&uq->fixed[i], memory_order_relaxed) ? (int)i : -1;
}

static void prepare(struct io_uring_sqe *sqe, const struct uring_dev *d, struct uring_queue *uq,
                    const struct queue_req *req)
{
    struct queue_rest r = queue_rest(req);
    int fixed = fixed_index(d, uq, &r);

    switch (req->op) {
    case QUEUE_READ:
        if (fixed >= 0)
            io_uring_prep_read_fixed(sqe, d->fd, r.buf, (unsigned)r.len, r.off, fixed);
        else
            io_uring_prep_read(sqe, d->fd, r.buf, (unsigned)r.len, r.off);
        break;
    case QUEUE_WRITE:
        if (fixed >= 0)
            io_uring_prep_write_fixed(sqe, d->fd, r.buf, (unsigned)r.len, r.off, fixed);
        else
            io_uring_prep_write(sqe, d->fd, r.buf, (unsigned)r.len, r.off);
        break;
    case QUEUE_FLUSH:
        io_uring_prep_fsync(sqe, d->fd, IORING_FSYNC_DATASYNC);
        break;
    case QUEUE_DISCARD:
        io_uring_prep_fallocate(sqe, d->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                (off_t)r.off, (off_t)r.len);
        break;
    }
}

/* What does not work now (no memory for a request, a signal) is tried again by the next poll. */
static bool transient(int rc)
{
    return rc == -EINTR || rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM;
}

/* Gives the kernel what waits, and waits for `wait` completions. */
static int enter(struct uring_queue *uq, unsigned wait)
{
    int rc = io_uring_submit_and_wait(&uq->ring, wait);

    uq->waiting = io_uring_sq_ready(&uq->ring);
    return rc < 0 ? rc : 0;
}

static void uring_submit(struct queue *q, struct queue_req *req)
{
    struct uring_dev *d = q->dev->priv;
    struct uring_queue *uq = q->priv;
    struct io_uring_sqe *sqe;

    if (!uq->has_ring) { /* 3 */
        queue_done(q, req, queue_file_perform(d->fd, req));
        return;
    }
    sqe = io_uring_get_sqe(&uq->ring);
    DFE_ASSERT(sqe); /* 1 */
    prepare(sqe, d, uq, req);
    io_uring_sqe_set_data(sqe, req);
    uq->waiting++;
    if (uq->waiting >= BATCH || req->op == QUEUE_FLUSH || req->len >= BATCH_BYTES)
        enter(uq, 0); /* a failure shows again, and is handled, in poll */
}

/* The kernel gave the request up without moving anything: a signal came while it made its first
 * worker thread (tried: -ECANCELED), or the host has no threads left. Asking again could spin. */
static bool not_done(int64_t res)
{
    return res == -EINTR || res == -EAGAIN || res == -ECANCELED;
}

static unsigned reap(struct queue *q)
{
    struct uring_dev *d = q->dev->priv;
    struct uring_queue *uq = q->priv;
    struct io_uring_cqe *cqe;
    unsigned n = 0;

    while (io_uring_peek_cqe(&uq->ring, &cqe) == 0) {
        struct queue_req *req = io_uring_cqe_get_data(cqe);
        int64_t res = cqe->res;
        io_uring_cqe_seen(&uq->ring, cqe); /* first: queue_done may submit the rest */
        if (req->op == QUEUE_DISCARD && res == -EOPNOTSUPP)
            res = 0; /* advice that this device does not take */
        if (not_done(res))
            res = queue_file_perform(d->fd, req);
        queue_done(q, req, res);
        n++;
    }
    return n;
}

static int uring_poll(struct queue *q, bool wait)
{
    struct uring_queue *uq = q->priv;
    unsigned n;
    int rc = 0;

    if (!uq->has_ring)
        return 0;
    n = reap(q);
    if (uq->waiting || (wait && n == 0)) {
        rc = enter(uq, wait && n == 0);
        if (transient(rc)) {
            if (rc == -ENOMEM || rc == -EAGAIN)
                usleep(1000); /* nothing of ours would wake us: the host is out of memory */
            rc = 0;
        }
        reap(q);
    }
    return rc < 0 ? base_fail(rc, "device %s: io_uring failed: %s", q->dev->uri, strerror(-rc)) : 0;
}

/* io_uring would have another thread do it: two switches between threads more. */
static int uring_flush(struct queue_dev *dev)
{
    const struct uring_dev *d = dev->priv;

    return (int)queue_file_perform(d->fd, &(struct queue_req){.op = QUEUE_FLUSH});
}

const struct queue_backend queue_uring = {
    .scheme = "file",
    .name = "uring",
    .depth = DEPTH,
    .open = uring_open,
    .close = uring_close,
    .queue_open = uring_queue_open,
    .queue_close = uring_queue_close,
    .submit = uring_submit,
    .poll = uring_poll,
    .flush = uring_flush,
};
