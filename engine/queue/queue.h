/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submit, poll, flush on one device.
 *
 * A device (queue_dev) is opened once by URI; each thread that does I/O borrows a queue of it: a
 * queue is used by one thread at a time and never shared, as with NVMe queue pairs. Backends are
 * const tables (struct queue_backend in queue_backend.h), chosen by the URI's scheme:
 *
 *   file:PATH or PATH   regular file or block device; io_uring, or threads where it is refused
 *   mem:NAME            memory kept by NAME in this process until queue_mem_forget (tests, benches)
 *   null:               completes at once, reads leave the buffer alone (measures the layers above)
 *
 * Contract, the same for all backends (tests/engine/test_queue_contract.c):
 *  - a request completes exactly once, by its done callback, inside queue_poll of the queue that
 *    took it, on the thread that polls; the order of completions is free;
 *  - res is 0 or a negative errno, never short: the layer continues partial transfers;
 *  - a FLUSH makes every write that had *completed* on the device, through any queue, durable;
 *  - off, len and buf are multiples of info.align_bytes (FLUSH has none of them), len is not 0 and
 *    the range lies on the device; anything else is refused with -EINVAL;
 *  - DISCARD is advice: a later read of that range finds the old bytes or zeros, and a write there
 *    may meet -ENOSPC, since a file gives its space back to the host;
 *  - done may submit to the queue that calls it (a place is free), but must not poll it; a small
 *    request may start only at the next poll;
 *  - nothing is allocated between submit and completion.
 */
#ifndef DFE_QUEUE_QUEUE_H
#define DFE_QUEUE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "buf/buf.h"

struct queue_dev;
struct queue;

enum queue_op { QUEUE_READ, QUEUE_WRITE, QUEUE_FLUSH, QUEUE_DISCARD };

/* Owned by the caller; belongs to the queue from submit until done is called. */
struct queue_req {
    enum queue_op op;
    int res;       /* out: 0 or negative errno; positive while the request is with the queue */
    uint64_t off;  /* bytes */
    void *buf;     /* READ, WRITE */
    size_t len;    /* bytes; READ, WRITE, DISCARD */
    void (*done)(struct queue_req *req);
    void *arg;     /* the caller's */
    struct list link; /* the caller's before submit, the queue's until done */
    uint64_t priv[2]; /* the layer's */
};

struct queue_dev_opts {
    size_t size;             /* sizeof(struct queue_dev_opts) */
    bool read_only;
    bool create;             /* file: create it (O_EXCL); mem: make it; -EEXIST if it is there */
    bool no_direct;          /* file: do not try O_DIRECT */
    bool no_uring;           /* file: threads even where io_uring works (tests) */
    uint64_t create_bytes;   /* with create: its size, allocated, -ENOSPC where it cannot be, which
                              * leaves nothing; a multiple of 4096. null: the size it pretends */
    struct buf_arena *arena; /* buffers to register, may be NULL; an optimisation that may fail */
};

struct queue_dev_info {
    char backend[16];     /* "uring", "threads", "mem", "null", ... */
    bool direct;          /* bypasses the page cache */
    bool registered;      /* the arena is registered with the kernel */
    uint32_t align_bytes; /* of off, len and buf: 4096 */
    uint32_t depth;       /* requests that one queue takes before -EAGAIN */
    uint64_t size_bytes;  /* whole blocks of align_bytes */
};

/* The device is locked against other opens (flock, and O_EXCL for block devices): -EBUSY; read-only
 * opens share it. Every error has its reason in base_last_error. opts may be NULL. */
int queue_dev_open(const char *uri, const struct queue_dev_opts *opts, struct queue_dev **out);
/* Every borrowed queue must have been returned. */
void queue_dev_close(struct queue_dev *dev);
void queue_dev_info(struct queue_dev *dev, struct queue_dev_info *out);

/* Any thread. Queues are made on demand and kept for the next borrower. */
int queue_borrow(struct queue_dev *dev, struct queue **out);
/* Nothing may be in flight. */
void queue_return(struct queue_dev *dev, struct queue *q);

/* Takes the request, or -EAGAIN (full: poll first), -EINVAL (alignment, range), -EROFS. */
int queue_submit(struct queue *q, struct queue_req *req);
/* Runs done callbacks; waits until at least min have run (0: no wait), no longer than is in flight.
 * Returns how many ran, or a negative errno (the ring itself failed). */
int queue_poll(struct queue *q, unsigned min);
unsigned queue_in_flight(const struct queue *q);

/* Submits n requests and waits for all; their done may be NULL. Returns the first error, 0 if none;
 * each req.res tells its own (a refused one's done is not called). */
int queue_run(struct queue *q, struct queue_req *reqs, unsigned n);

/* Is this an error that says only that the process lacked memory or descriptors for a moment? What
 * was asked for may be asked for again. */
bool queue_transient(int err);

/* Borrow, one request, return. */
int queue_read(struct queue_dev *dev, uint64_t off, void *buf, size_t len);
int queue_write(struct queue_dev *dev, uint64_t off, const void *buf, size_t len);
/* A transient error (queue_transient): the device has not been asked. Any other one stays until the
 * device is opened again: the kernel tells of lost writes once, to one caller, and nobody knows
 * what a later, successful flush covers. */
int queue_flush(struct queue_dev *dev);

/* Frees the memory of mem:NAME; it must not be open. -ENOENT if there is none. */
int queue_mem_forget(const char *name);

#endif
