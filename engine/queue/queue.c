/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the queue layer that is the same for all backends.
 *
 * Invariants:
 *  1. a request is in exactly one place from submit to done: with the backend, or on `completed`;
 *  2. in_flight counts both; it never exceeds the backend's depth;
 *  3. done runs in queue_poll only, when the request has left the queue (which it may enter again);
 *  4. req->priv[0] is the number of bytes transferred so far, a multiple of the alignment until the
 *     request is complete; priv[1] is the backend's, then the result until done runs.
 */
#include "queue/queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "queue/queue_backend.h"

#define RES_PENDING 1
#define MAX_BACKENDS 8

static const struct queue_backend *backends[MAX_BACKENDS] = {
    &queue_uring,
    &queue_threads,
    &queue_mem,
    &queue_null,
};

void queue_backend_register(const struct queue_backend *backend)
{
    int i = 0;

    while (i < MAX_BACKENDS && backends[i] && backends[i] != backend)
        i++;
    DFE_ASSERT(i < MAX_BACKENDS);
    backends[i] = backend;
}

/* Length of the URI's scheme, 0 when it is a bare path. */
static size_t scheme_len(const char *uri)
{
    size_t n = strspn(uri, "abcdefghijklmnopqrstuvwxyz0123456789");
    return uri[n] == ':' ? n : 0;
}

static int open_backend(struct queue_dev *dev, const struct queue_dev_opts *opts)
{
    size_t n = scheme_len(dev->uri);
    const char *scheme = n ? dev->uri : "file", *name = n ? dev->uri + n + 1 : dev->uri;
    int rc = -EINVAL;
    bool known = false;

    if (n == 0)
        n = strlen(scheme);
    for (int i = 0; i < MAX_BACKENDS && backends[i]; i++) {
        if (strncmp(backends[i]->scheme, scheme, n) != 0 || backends[i]->scheme[n])
            continue;
        known = true;
        dev->backend = backends[i];
        rc = dev->backend->open(dev, name, opts);
        if (rc != -ENOTSUP)
            return rc;
    }
    if (!known)
        return base_refuse(-EINVAL,
                           "device %s: unknown kind; write file:PATH, mem:NAME or null: (and "
                           "file:%s if it is a path)", dev->uri, dev->uri);
    return base_refuse(rc, "device %s: this host offers no way to use it", dev->uri);
}

static int check_opts(const char *uri, const struct queue_dev_opts *o)
{
    if (o->create && o->read_only)
        return base_refuse(-EINVAL, "device %s: cannot be created read-only", uri);
    if (o->create_bytes % QUEUE_ALIGN_BYTES)
        return base_refuse(-EINVAL, "device %s: its size must be a multiple of %u bytes", uri,
                           QUEUE_ALIGN_BYTES);
    if (o->create_bytes > (uint64_t)INT64_MAX)
        return base_refuse(-EFBIG, "device %s: a size of %llu bytes is not possible", uri,
                           (unsigned long long)o->create_bytes);
    return 0;
}

int queue_dev_open(const char *uri, const struct queue_dev_opts *opts, struct queue_dev **out)
{
    struct queue_dev_opts o = {0};
    struct queue_dev *dev;
    int rc;

    if (!uri || !*uri)
        return base_refuse(-EINVAL, "device: no name given");
    if (opts && opts->size == 0)
        return base_refuse(-EINVAL, "device %s: queue_dev_opts.size is not set", uri);
    if (opts) /* an older caller's struct is shorter */
        memcpy(&o, opts, opts->size < sizeof(o) ? opts->size : sizeof(o));
    rc = check_opts(uri, &o);
    if (rc < 0)
        return rc;
    dev = calloc(1, sizeof(*dev));
    if (!dev)
        return base_refuse(-ENOMEM, "device %s: out of memory", uri);
    dev->uri = strdup(uri);
    if (!dev->uri) {
        rc = base_refuse(-ENOMEM, "device %s: out of memory", uri);
        goto out;
    }
    dev->read_only = o.read_only;
    rc = open_backend(dev, &o);
    if (rc < 0)
        goto out;
    pthread_mutex_init(&dev->lock, NULL);
    pthread_mutex_init(&dev->flush_lock, NULL);
    list_init(&dev->idle);
    strncpy(dev->info.backend, dev->backend->name, sizeof(dev->info.backend) - 1);
    dev->info.align_bytes = QUEUE_ALIGN_BYTES;
    dev->info.depth = dev->backend->depth;
    dev->info.size_bytes -= dev->info.size_bytes % QUEUE_ALIGN_BYTES;
    *out = dev;
    return 0;
out:
    free(dev->uri);
    free(dev);
    return rc;
}

void queue_dev_close(struct queue_dev *dev)
{
    DFE_ASSERT(dev->n_borrowed == 0);
    list_for_each_safe(pos, tmp, &dev->idle) {
        struct queue *q = container_of(pos, struct queue, idle_link);
        dev->backend->queue_close(q);
        free(q);
    }
    dev->backend->close(dev);
    pthread_mutex_destroy(&dev->lock);
    pthread_mutex_destroy(&dev->flush_lock);
    free(dev->uri);
    free(dev);
}

void queue_dev_info(struct queue_dev *dev, struct queue_dev_info *out)
{
    *out = dev->info;
    out->registered = atomic_load(&dev->registered);
}

static int queue_make(struct queue_dev *dev, struct queue **out)
{
    struct queue *q = calloc(1, sizeof(*q));
    int rc;

    if (!q)
        return base_refuse(-ENOMEM, "device %s: out of memory", dev->uri);
    q->dev = dev;
    list_init(&q->idle_link);
    list_init(&q->completed);
    rc = dev->backend->queue_open(q);
    if (rc < 0) {
        free(q);
        return rc == -EAGAIN ? -ENOMEM : rc; /* threads are lacking; -EAGAIN means other things */
    }
    *out = q;
    return 0;
}

int queue_borrow(struct queue_dev *dev, struct queue **out)
{
    struct queue *q = NULL;
    int rc = 0;

    pthread_mutex_lock(&dev->lock);
    if (!list_empty(&dev->idle)) {
        q = container_of(dev->idle.next, struct queue, idle_link);
        list_del(&q->idle_link);
    }
    dev->n_borrowed++;
    pthread_mutex_unlock(&dev->lock);
    if (!q)
        rc = queue_make(dev, &q);
    if (rc < 0) {
        pthread_mutex_lock(&dev->lock);
        dev->n_borrowed--;
        pthread_mutex_unlock(&dev->lock);
        return rc;
    }
    *out = q;
    return 0;
}

void queue_return(struct queue_dev *dev, struct queue *q)
{
    DFE_ASSERT(q->dev == dev && q->in_flight == 0 && !q->polling);
    pthread_mutex_lock(&dev->lock);
    list_add(&dev->idle, &q->idle_link); /* the last one used is the warmest */
    dev->n_borrowed--;
    pthread_mutex_unlock(&dev->lock);
}

static int check_req(const struct queue_dev *dev, const struct queue_req *req)
{
    uint64_t size = dev->info.size_bytes;

    switch (req->op) {
    case QUEUE_FLUSH:
        return 0;
    case QUEUE_READ:
        break;
    case QUEUE_WRITE:
    case QUEUE_DISCARD:
        if (dev->read_only)
            return -EROFS;
        break;
    default:
        return -EINVAL;
    }
    if (req->len == 0 || (req->off | req->len) % QUEUE_ALIGN_BYTES)
        return -EINVAL;
    if (req->off > size || req->len > size - req->off)
        return -EINVAL;
    if (req->op != QUEUE_DISCARD && (!req->buf || (uintptr_t)req->buf % QUEUE_ALIGN_BYTES))
        return -EINVAL;
    return 0;
}

int queue_submit(struct queue *q, struct queue_req *req)
{
    int rc = check_req(q->dev, req);

    if (rc < 0)
        return rc;
    if (q->in_flight == q->dev->backend->depth)
        return -EAGAIN;
    q->in_flight++;
    req->res = RES_PENDING;
    req->priv[0] = 0;
    q->dev->backend->submit(q, req);
    return 0;
}

struct queue_rest queue_rest(const struct queue_req *req)
{
    uint64_t had = req->priv[0];
    size_t left = req->len - had;

    if (req->op == QUEUE_FLUSH || req->op == QUEUE_DISCARD)
        return (struct queue_rest){req->off, NULL, req->len};
    return (struct queue_rest){
        .off = req->off + had,
        .buf = (char *)req->buf + had,
        .len = left < QUEUE_TRANSFER_BYTES ? left : QUEUE_TRANSFER_BYTES,
    };
}

void queue_done(struct queue *q, struct queue_req *req, int64_t res)
{
    bool transfer = req->op == QUEUE_READ || req->op == QUEUE_WRITE;

    if (transfer && res >= 0 && req->priv[0] + (uint64_t)res < req->len) {
        /* Short. O_DIRECT can only go on from a block's start: a part of a block is done again. */
        uint64_t whole = (uint64_t)res - (uint64_t)res % QUEUE_ALIGN_BYTES;
        req->priv[0] += whole;
        if (whole) {
            q->dev->backend->submit(q, req);
            return;
        }
        res = base_fail(-EIO, "device %s: ends before offset %llu (was it truncated?)",
                        q->dev->uri, (unsigned long long)(req->off + req->priv[0]));
    }
    req->priv[1] = res < 0 ? (uint64_t)res : 0;
    list_add_tail(&q->completed, &req->link);
}

static unsigned run_completed(struct queue *q)
{
    struct list batch;
    unsigned ran = 0;

    list_init(&batch); /* what done submits may complete at once: it waits for its own turn */
    list_splice_tail(&batch, &q->completed);
    while (!list_empty(&batch)) {
        struct queue_req *req = container_of(batch.next, struct queue_req, link);
        list_del(&req->link);
        req->res = (int)(int64_t)req->priv[1];
        q->in_flight--;
        ran++;
        if (req->done)
            req->done(req);
    }
    return ran;
}

int queue_poll(struct queue *q, unsigned min)
{
    unsigned ran = 0;
    int rc;

    DFE_ASSERT(!q->polling);
    q->polling = true;
    do {
        rc = q->dev->backend->poll(q, ran < min && q->in_flight && list_empty(&q->completed));
        ran += run_completed(q);
    } while (rc == 0 && ran < min && q->in_flight);
    q->polling = false;
    return rc < 0 ? rc : (int)ran;
}

unsigned queue_in_flight(const struct queue *q)
{
    return q->in_flight;
}

int queue_run(struct queue *q, struct queue_req *reqs, unsigned n)
{
    int rc = 0;

    for (unsigned i = 0; i < n; i++) {
        int taken;
        while ((taken = queue_submit(q, &reqs[i])) == -EAGAIN) {
            rc = queue_poll(q, 1);
            if (rc < 0)
                return rc;
        }
        if (taken < 0)
            reqs[i].res = taken;
    }
    for (unsigned i = 0; i < n; i++) {
        while (reqs[i].res == RES_PENDING) {
            rc = queue_poll(q, 1);
            if (rc < 0)
                return rc;
        }
    }
    for (unsigned i = 0; i < n; i++)
        if (reqs[i].res < 0)
            return reqs[i].res;
    return 0;
}

bool queue_transient(int err)
{
    return err == -ENOMEM || err == -EMFILE || err == -ENFILE;
}

static int run_one(struct queue_dev *dev, struct queue_req req)
{
    struct queue *q;
    int rc = queue_borrow(dev, &q);

    if (rc < 0)
        return rc;
    rc = queue_run(q, &req, 1);
    queue_return(dev, q);
    return rc;
}

int queue_read(struct queue_dev *dev, uint64_t off, void *buf, size_t len)
{
    return run_one(dev, (struct queue_req){.op = QUEUE_READ, .off = off, .buf = buf, .len = len});
}

int queue_write(struct queue_dev *dev, uint64_t off, const void *buf, size_t len)
{
    struct queue_req req = {.op = QUEUE_WRITE, .off = off, .buf = (void *)buf, .len = len};
    return run_one(dev, req);
}

static int flush_once(struct queue_dev *dev, struct queue *q)
{
    struct queue_req req = {.op = QUEUE_FLUSH};
    int rc = check_req(dev, &req);

    if (rc == 0 && dev->backend->flush)
        return dev->backend->flush(dev);
    return rc == 0 ? queue_run(q, &req, 1) : rc;
}

/* The device has been asked, so a failure is never a transient one. */
static int flush_final(struct queue_dev *dev, struct queue *q)
{
    int rc = flush_once(dev, q);

    return queue_transient(rc) ? base_fail(-EIO, "device %s: flush failed: %s", dev->uri,
                                           strerror(-rc))
                               : rc;
}

int queue_flush(struct queue_dev *dev)
{
    struct queue *q;
    int rc = queue_borrow(dev, &q);

    if (rc < 0)
        return rc; /* not asked for: it may be asked for again */
    /* one at a time: a success must not overtake the news of a failure */
    pthread_mutex_lock(&dev->flush_lock);
    rc = dev->flush_err;
    if (rc == 0)
        rc = dev->flush_err = flush_final(dev, q);
    pthread_mutex_unlock(&dev->flush_lock);
    queue_return(dev, q);
    return rc;
}
