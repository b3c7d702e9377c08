/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backend `mem`: memory that is kept by name in this process, from its creation to
 * queue_mem_forget. One read-write open, or several read-only ones, at a time.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "queue/queue_backend.h"

#define NAME_BYTES 64

struct mem_dev {
    struct list link; /* all of them, under mem_lock */
    char name[NAME_BYTES];
    char *data;
    uint64_t size_bytes;
    unsigned readers;
    bool writer;
};

static pthread_mutex_t mem_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list mem_all = {&mem_all, &mem_all};

/* Under mem_lock. */
static struct mem_dev *mem_find(const char *name)
{
    list_for_each(pos, &mem_all) {
        struct mem_dev *m = container_of(pos, struct mem_dev, link);
        if (strcmp(m->name, name) == 0)
            return m;
    }
    return NULL;
}

/* Under mem_lock. The host gives pages when they are written first, as for any program's memory. */
static int mem_create(const struct queue_dev *dev, const char *name, uint64_t size_bytes)
{
    struct mem_dev *m;

    if (size_bytes == 0)
        return base_refuse(-EINVAL, "device %s: no size given to create it with", dev->uri);
    m = calloc(1, sizeof(*m));
    if (!m)
        return base_refuse(-ENOMEM, "device %s: out of memory", dev->uri);
    m->data = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->data == MAP_FAILED) {
        free(m);
        return base_refuse(-ENOSPC, "device %s: no %llu bytes of address space", dev->uri,
                           (unsigned long long)size_bytes);
    }
    strcpy(m->name, name);
    m->size_bytes = size_bytes;
    list_add_tail(&mem_all, &m->link);
    return 0;
}

static int mem_open(struct queue_dev *dev, const char *name, const struct queue_dev_opts *opts)
{
    struct mem_dev *m;
    int rc = 0;

    if (!*name || strlen(name) >= NAME_BYTES)
        return base_refuse(-EINVAL, "device %s: mem: takes a name of 1 to %d bytes", dev->uri,
                           NAME_BYTES - 1);
    pthread_mutex_lock(&mem_lock);
    m = mem_find(name);
    if (opts->create) {
        rc = m ? base_refuse(-EEXIST, "device %s: exists already", dev->uri)
               : mem_create(dev, name, opts->create_bytes);
        if (rc < 0)
            goto out;
        m = mem_find(name);
    }
    if (!m) {
        rc = base_refuse(-ENOENT, "device %s: does not exist in this process", dev->uri);
        goto out;
    }
    if (m->writer || (m->readers && !opts->read_only)) {
        rc = base_refuse(-EBUSY, "device %s: is open already", dev->uri);
        goto out;
    }
    m->writer = !opts->read_only;
    m->readers += opts->read_only;
    dev->priv = m;
    dev->info.direct = true;
    dev->info.size_bytes = m->size_bytes;
out:
    pthread_mutex_unlock(&mem_lock);
    return rc;
}

static void mem_close(struct queue_dev *dev)
{
    struct mem_dev *m = dev->priv;

    pthread_mutex_lock(&mem_lock);
    if (dev->read_only)
        m->readers--;
    else
        m->writer = false;
    pthread_mutex_unlock(&mem_lock);
}

int queue_mem_forget(const char *name)
{
    struct mem_dev *m;
    int rc = 0;

    pthread_mutex_lock(&mem_lock);
    m = mem_find(name);
    if (!m) {
        rc = base_refuse(-ENOENT, "device mem:%s: does not exist in this process", name);
    } else if (m->writer || m->readers) {
        rc = base_refuse(-EBUSY, "device mem:%s: is open", name);
    } else {
        list_del(&m->link);
        munmap(m->data, m->size_bytes);
        free(m);
    }
    pthread_mutex_unlock(&mem_lock);
    return rc;
}

static int mem_queue_open(struct queue *q)
{
    return 0;
}

static void mem_queue_close(struct queue *q)
{
}

static void mem_submit(struct queue *q, struct queue_req *req)
{
    struct mem_dev *m = q->dev->priv;
    struct queue_rest r = queue_rest(req);
    int64_t res = (int64_t)r.len;

    switch (req->op) {
    case QUEUE_READ:
        memcpy(r.buf, m->data + r.off, r.len);
        break;
    case QUEUE_WRITE:
        memcpy(m->data + r.off, r.buf, r.len);
        break;
    case QUEUE_DISCARD: /* back to the host; such pages read as zeros */
        res = madvise(m->data + r.off, r.len, MADV_DONTNEED) < 0 ? -errno : 0;
        break;
    case QUEUE_FLUSH:
        res = 0;
        break;
    }
    queue_done(q, req, res);
}

static int mem_poll(struct queue *q, bool wait)
{
    return 0;
}

const struct queue_backend queue_mem = {
    .scheme = "mem",
    .name = "mem",
    .depth = 256,
    .open = mem_open,
    .close = mem_close,
    .queue_open = mem_queue_open,
    .queue_close = mem_queue_close,
    .submit = mem_submit,
    .poll = mem_poll,
};
