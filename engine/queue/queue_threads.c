/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backend `threads`: a regular file or block device by pread and pwrite on a few threads, for hosts
 * that refuse io_uring (many containers do). Synchronous calls inside submit would be simpler, and
 * would let a device with a queue of its own serve one request at a time.
 *
 * One lock a device guards all its lists; it is never held during I/O, which costs far more.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "queue/queue_file.h"

#define THREADS 4
#define DEPTH 64

struct threads_dev {
    int fd;
    unsigned n_threads;
    pthread_t threads[THREADS];

    pthread_mutex_t lock; /* all that follows, and the queues */
    pthread_cond_t work;
    struct list todo; /* requests of all queues, first come, first served */
    bool stop;
};

struct threads_queue {
    pthread_cond_t ready;
    struct list finished; /* requests; the result is in their priv[1] */
};

/* priv[1] names the request's queue until it is performed, then holds the result. */
static void *serve(void *arg)
{
    struct threads_dev *d = arg;

    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (list_empty(&d->todo) && !d->stop)
            pthread_cond_wait(&d->work, &d->lock);
        if (list_empty(&d->todo))
            break;
        struct queue_req *req = container_of(d->todo.next, struct queue_req, link);
        struct threads_queue *tq = (struct threads_queue *)(uintptr_t)req->priv[1];
        list_del(&req->link);
        pthread_mutex_unlock(&d->lock);
        int64_t res = queue_file_perform(d->fd, req);
        pthread_mutex_lock(&d->lock);
        req->priv[1] = (uint64_t)res;
        list_add_tail(&tq->finished, &req->link);
        pthread_cond_signal(&tq->ready);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static void threads_close(struct queue_dev *dev)
{
    struct threads_dev *d = dev->priv;

    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->lock);
    for (unsigned i = 0; i < d->n_threads; i++)
        pthread_join(d->threads[i], NULL);
    close(d->fd);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static int threads_open(struct queue_dev *dev, const char *name, const struct queue_dev_opts *opts)
{
    struct threads_dev *d = calloc(1, sizeof(*d));
    int rc = 0;

    if (!d)
        return base_refuse(-ENOMEM, "device %s: out of memory", dev->uri);
    d->fd = queue_file_open(dev, name, opts);
    if (d->fd < 0) {
        rc = d->fd;
        free(d);
        return rc;
    }
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    list_init(&d->todo);
    dev->priv = d;
    while (d->n_threads < THREADS && rc == 0) {
        rc = -pthread_create(&d->threads[d->n_threads], NULL, serve, d);
        d->n_threads += rc == 0;
    }
    if (d->n_threads > 0)
        return 0; /* fewer than wanted still serve */
    threads_close(dev);
    if (opts->create)
        unlink(name);
    return base_fail(rc, "device %s: cannot start threads: %s", dev->uri, strerror(-rc));
}

static int threads_queue_open(struct queue *q)
{
    struct threads_queue *tq = calloc(1, sizeof(*tq));

    if (!tq)
        return base_refuse(-ENOMEM, "device %s: out of memory", q->dev->uri);
    pthread_cond_init(&tq->ready, NULL);
    list_init(&tq->finished);
    q->priv = tq;
    return 0;
}

static void threads_queue_close(struct queue *q)
{
    struct threads_queue *tq = q->priv;

    pthread_cond_destroy(&tq->ready);
    free(tq);
}

static void threads_submit(struct queue *q, struct queue_req *req)
{
    struct threads_dev *d = q->dev->priv;

    req->priv[1] = (uint64_t)(uintptr_t)q->priv;
    pthread_mutex_lock(&d->lock);
    list_add_tail(&d->todo, &req->link);
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
}

static int threads_poll(struct queue *q, bool wait)
{
    struct threads_dev *d = q->dev->priv;
    struct threads_queue *tq = q->priv;
    struct list batch;

    list_init(&batch);
    pthread_mutex_lock(&d->lock);
    while (wait && list_empty(&tq->finished))
        pthread_cond_wait(&tq->ready, &d->lock);
    list_splice_tail(&batch, &tq->finished);
    pthread_mutex_unlock(&d->lock);
    while (!list_empty(&batch)) {
        struct queue_req *req = container_of(batch.next, struct queue_req, link);
        list_del(&req->link);
        queue_done(q, req, (int64_t)req->priv[1]);
    }
    return 0;
}

const struct queue_backend queue_threads = {
    .scheme = "file",
    .name = "threads",
    .depth = DEPTH,
    .open = threads_open,
    .close = threads_close,
    .queue_open = threads_queue_open,
    .queue_close = threads_queue_close,
    .submit = threads_submit,
    .poll = threads_poll,
};
