/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a backend of the queue layer provides, and what the layer does for it.
 *
 * A backend is one const table. queue.c calls it with arguments already checked: requests are
 * aligned, in range, allowed, and no more than `depth` of a queue are with the backend at a time,
 * so that `submit` may use preallocated places and cannot fail for want of them.
 *
 * Threads: `open` and `close` are called once each, by one thread. The functions of one queue are
 * called by one thread at a time (the borrower); those of different queues run in parallel.
 *
 * The backend reports each request that it took once by queue_done, from inside `submit` or `poll`
 * of that queue. A transfer may be short: queue.c then submits the rest.
 */
#ifndef DFE_QUEUE_BACKEND_H
#define DFE_QUEUE_BACKEND_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/limits.h"
#include "queue/queue.h"

/* Of offsets, lengths and buffers, for all backends: what is written over one is right over all. */
#define QUEUE_ALIGN_BYTES DFE_BLOCK_BYTES

/* One transfer of a backend: below the kernel's 2 GiB - 4 KiB for a single call. */
#define QUEUE_TRANSFER_BYTES (1u << 30)

struct queue_backend;

struct queue_dev {
    const struct queue_backend *backend;
    char *uri;
    bool read_only;
    struct queue_dev_info info; /* `open` sets direct and size_bytes; queue.c the rest */
    atomic_bool registered;     /* becomes info.registered */
    void *priv;                 /* the backend's */

    pthread_mutex_t lock; /* the two that follow */
    struct list idle;     /* queues that nobody has borrowed */
    unsigned n_borrowed;

    pthread_mutex_t flush_lock; /* one queue_flush at a time */
    int flush_err;              /* of the first one that failed */
};

struct queue {
    struct queue_dev *dev;
    struct list idle_link;
    struct list completed; /* requests whose done has not run yet */
    unsigned in_flight;    /* submitted, done has not run */
    bool polling;
    void *priv; /* the backend's */
};

struct queue_backend {
    const char *scheme; /* of the URI; several tables of one scheme are tried in their order */
    const char *name;   /* of queue_dev_info */
    unsigned depth;     /* requests in flight on one queue */

    /* Opens, locks and with opts->create makes the device. -ENOTSUP: this host cannot do it this
     * way, nothing was touched, try the next table. Other errors carry a message (base_refuse). */
    int (*open)(struct queue_dev *dev, const char *name, const struct queue_dev_opts *opts);
    void (*close)(struct queue_dev *dev);

    int (*queue_open)(struct queue *q);
    void (*queue_close)(struct queue *q);

    /* Takes the request's rest (queue_rest). */
    void (*submit)(struct queue *q, struct queue_req *req);
    /* Reports what has completed, and with `wait` waits for one if there is none. 0 or an errno. */
    int (*poll)(struct queue *q, bool wait);
    /* May be NULL: a flush by the calling thread, where that is quicker than submit and poll. */
    int (*flush)(struct queue_dev *dev);
};

/* What is left of a request: all of it, or what follows a short transfer. */
struct queue_rest {
    uint64_t off;
    void *buf;
    size_t len; /* at most QUEUE_TRANSFER_BYTES for READ and WRITE */
};
struct queue_rest queue_rest(const struct queue_req *req);

/* res: bytes transferred for READ and WRITE, 0 for the others, or a negative errno. */
void queue_done(struct queue *q, struct queue_req *req, int64_t res);

/* Adds a table for the rest of the process (the tests' simulated device). Before any open, by one
 * thread; a table that is there already is left alone. */
void queue_backend_register(const struct queue_backend *backend);

extern const struct queue_backend queue_uring, queue_threads, queue_mem, queue_null;

#endif
