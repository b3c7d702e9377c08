/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated device with a volatile write cache, faults and power loss (see sim_device.h).
 *
 * Invariants:
 *  1. `current` is `durable` with the records of `cache` applied in their order, except for
 *     discards, which may or may not have zeroed their range;
 *  2. a request is on `in_flight` from submit until it completes, with a copy of its data;
 *  3. all of a device is guarded by its lock; queue_done is called outside it, since it may submit.
 */
#include "sim_device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/list.h"
#include "base/log.h"
#include "queue/queue_backend.h"
#include "test.h"

#define NAME_BYTES 64
#define MAX_FAULTS 64
#define DEPTH 64
#define NO_CUT UINT64_MAX

/* A request on its way; afterwards, for a change, its record in the cache. */
struct sim_io {
    struct list link;  /* in_flight, or cache */
    struct list qlink; /* the queue's */
    struct queue_req *req;
    enum queue_op op;
    uint64_t off, len;
    uint64_t seq;  /* record: its place in the cache's order; FLUSH: the last one it covers */
    int64_t res;
    uint8_t *data; /* WRITE, READ: none; DISCARD: zeros */
};

struct sim {
    struct list link; /* all devices */
    char name[NAME_BYTES];
    uint64_t size_bytes;
    uint8_t *current, *durable;
    bool writer;
    unsigned readers;

    pthread_mutex_t lock; /* all that follows */
    uint64_t rng;
    struct list in_flight, cache;
    uint64_t seq, cache_bytes;
    uint64_t counts[4], changes;
    struct sim_fault faults[MAX_FAULTS];
    unsigned n_faults, short_permille;
    unsigned queues, most_queues;
    uint64_t cut_after;
    bool power_off;
};

struct sim_queue {
    struct list ios; /* by qlink */
    unsigned n;
};

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list all = {&all, &all};

static uint64_t draw(struct sim *s, uint64_t below)
{
    return test_rand(&s->rng) % below;
}

static struct sim *find(const char *name)
{
    struct sim *found = NULL;

    pthread_mutex_lock(&all_lock);
    list_for_each(pos, &all) {
        struct sim *s = container_of(pos, struct sim, link);
        if (strcmp(s->name, name) == 0)
            found = s;
    }
    pthread_mutex_unlock(&all_lock);
    return found;
}

/* The device of that name, locked. A test that names another is wrong. */
static struct sim *enter(const char *name)
{
    struct sim *s = find(name);

    CHECK(s);
    pthread_mutex_lock(&s->lock);
    return s;
}

static void leave(struct sim *s)
{
    pthread_mutex_unlock(&s->lock);
}

static uint8_t *image_new(uint64_t size_bytes)
{
    uint8_t *p = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Writes only the blocks that differ: a sparse image stays sparse. */
static void image_copy(uint8_t *to, const uint8_t *from, uint64_t size_bytes)
{
    for (uint64_t at = 0; at < size_bytes; at += QUEUE_ALIGN_BYTES)
        if (memcmp(to + at, from + at, QUEUE_ALIGN_BYTES) != 0)
            memcpy(to + at, from + at, QUEUE_ALIGN_BYTES);
}

int sim_create(const char *name, uint64_t size_bytes, uint64_t seed)
{
    struct sim *s;

    if (!*name || strlen(name) >= NAME_BYTES || !size_bytes || size_bytes % QUEUE_ALIGN_BYTES)
        return -EINVAL;
    if (find(name))
        return -EEXIST;
    s = calloc(1, sizeof(*s));
    CHECK(s);
    strcpy(s->name, name);
    s->size_bytes = size_bytes;
    s->current = image_new(size_bytes);
    s->durable = image_new(size_bytes);
    CHECK(s->current && s->durable);
    pthread_mutex_init(&s->lock, NULL);
    s->rng = seed ? seed : 1;
    list_init(&s->in_flight);
    list_init(&s->cache);
    s->cut_after = NO_CUT;
    pthread_mutex_lock(&all_lock);
    list_add_tail(&all, &s->link);
    pthread_mutex_unlock(&all_lock);
    return 0;
}

static void io_free(struct sim_io *io)
{
    free(io->data);
    free(io);
}

static void cache_drop(struct sim *s)
{
    list_for_each_safe(pos, tmp, &s->cache) {
        list_del(pos);
        io_free(container_of(pos, struct sim_io, link));
    }
    s->cache_bytes = 0;
}

int sim_destroy(const char *name)
{
    struct sim *s = find(name);

    if (!s)
        return -ENOENT;
    if (s->writer || s->readers)
        return -EBUSY;
    pthread_mutex_lock(&all_lock);
    list_del(&s->link);
    pthread_mutex_unlock(&all_lock);
    cache_drop(s);
    munmap(s->current, s->size_bytes);
    munmap(s->durable, s->size_bytes);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return 0;
}

/* Power loss. */

enum fate { KEPT, LOST, TORN };

/* A crash has a mood: mostly thirds, but also nearly all or nearly nothing survives, so that both
 * one lost write among many and one survivor among many are seen. */
static enum fate draw_fate(uint64_t *rng, unsigned mood)
{
    uint64_t luck = test_rand(rng) % 100;

    switch (mood) {
    case 0:
        return luck < 90 ? KEPT : luck < 95 ? LOST : TORN;
    case 1:
        return luck < 5 ? KEPT : luck < 90 ? LOST : TORN;
    default:
        return luck < 34 ? KEPT : luck < 67 ? LOST : TORN;
    }
}

static void survive_one(uint8_t *image, const struct sim_io *io, enum fate fate, uint64_t *rng)
{
    if (fate == LOST || !io->data)
        return;
    for (uint64_t at = 0; at < io->len; at += SIM_SECTOR_BYTES)
        if (fate == KEPT || test_rand(rng) & 1)
            memcpy(image + io->off + at, io->data + at, SIM_SECTOR_BYTES);
}

/* `image` holds the durable state and becomes one that a power loss may leave. */
static void survive(struct sim *s, uint8_t *image, uint64_t *rng)
{
    unsigned mood = (unsigned)(test_rand(rng) % 4);

    list_for_each(pos, &s->cache)
        survive_one(image, container_of(pos, struct sim_io, link), draw_fate(rng, mood), rng);
    list_for_each(pos, &s->in_flight)
        survive_one(image, container_of(pos, struct sim_io, link), draw_fate(rng, mood), rng);
}

static void lose_power(struct sim *s)
{
    survive(s, s->durable, &s->rng);
    image_copy(s->current, s->durable, s->size_bytes);
    cache_drop(s);
    s->power_off = true;
    s->cut_after = NO_CUT;
}

int sim_clone(const char *name, const char *new_name, uint64_t seed)
{
    struct sim *s = enter(name), *copy;
    int rc = sim_create(new_name, s->size_bytes, seed);

    if (rc == 0) {
        copy = find(new_name);
        image_copy(copy->durable, s->durable, s->size_bytes);
        survive(s, copy->durable, &copy->rng);
        image_copy(copy->current, copy->durable, s->size_bytes);
    }
    leave(s);
    return rc;
}

/* Completion of requests. */

static bool touches(const struct sim_fault *f, const struct sim_io *io)
{
    if (f->ops && !(f->ops & (1u << io->op)))
        return false;
    if (f->len == 0 || io->op == QUEUE_FLUSH)
        return true;
    return io->off < f->off + f->len && f->off < io->off + io->len;
}

/* The rule that makes this request fail, or NULL. Counts what each rule has seen. */
static const struct sim_fault *faulty(struct sim *s, const struct sim_io *io)
{
    for (unsigned i = 0; i < s->n_faults; i++) {
        struct sim_fault *f = &s->faults[i];
        if (f->err == 0 || !touches(f, io))
            continue;
        if (f->skip > 0) {
            f->skip--;
            continue;
        }
        if (f->count > 0 && --f->count == 0) {
            static _Thread_local struct sim_fault last;
            last = *f;
            f->err = 0; /* used up */
            return &last;
        }
        return f;
    }
    return NULL;
}

/* Takes effect now, and joins the cache. */
static void record(struct sim *s, struct sim_io *io, bool apply)
{
    if (apply)
        memcpy(s->current + io->off, io->data, io->len);
    io->seq = ++s->seq;
    s->cache_bytes += io->len;
    list_del(&io->link);
    list_add_tail(&s->cache, &io->link);
}

/* A failing write that moves some sectors: the others keep what they have. */
static void record_partly(struct sim *s, struct sim_io *io)
{
    for (uint64_t at = 0; at < io->len; at += SIM_SECTOR_BYTES)
        if (draw(s, 2))
            memcpy(io->data + at, s->current + io->off + at, SIM_SECTOR_BYTES);
    record(s, io, true);
}

static void flush_up_to(struct sim *s, uint64_t seq)
{
    list_for_each_safe(pos, tmp, &s->cache) {
        struct sim_io *io = container_of(pos, struct sim_io, link);
        if (io->seq > seq)
            break;
        memcpy(s->durable + io->off, io->data, io->len);
        s->cache_bytes -= io->len;
        list_del(&io->link);
        io_free(io);
    }
}

static void shorten(struct sim *s, struct sim_io *io)
{
    uint64_t sectors = (io->len - QUEUE_ALIGN_BYTES) / SIM_SECTOR_BYTES;

    if (io->len > QUEUE_ALIGN_BYTES && draw(s, 1000) < s->short_permille)
        io->len = QUEUE_ALIGN_BYTES + draw(s, sectors) * SIM_SECTOR_BYTES;
}

/* Returns whether the request has become a record of the cache. */
static bool perform(struct sim *s, struct sim_io *io)
{
    switch (io->op) {
    case QUEUE_READ:
        shorten(s, io);
        memcpy(queue_rest(io->req).buf, s->current + io->off, io->len);
        io->res = (int64_t)io->len;
        return false;
    case QUEUE_WRITE:
        CHECK(memcmp(queue_rest(io->req).buf, io->data, io->len) == 0); /* changed in flight */
        shorten(s, io);
        io->res = (int64_t)io->len;
        record(s, io, true);
        return true;
    case QUEUE_DISCARD:
        record(s, io, draw(s, 2));
        return true;
    case QUEUE_FLUSH:
        flush_up_to(s, io->seq);
        return false;
    }
    return false;
}

/* Sets io->res. Returns whether the cache has kept the io. */
static bool complete(struct sim *s, struct sim_io *io)
{
    const struct sim_fault *f;

    s->counts[io->op]++;
    io->res = -EIO;
    if (s->power_off)
        return false;
    if (io->op != QUEUE_READ) {
        if (s->cut_after != NO_CUT && s->cut_after-- == 0) {
            lose_power(s);
            return false;
        }
        s->changes++;
    }
    f = faulty(s, io);
    if (!f) {
        io->res = 0;
        return perform(s, io);
    }
    io->res = f->err;
    if (io->op != QUEUE_WRITE || !f->partial)
        return false;
    record_partly(s, io);
    return true;
}

/* The backend. */

static int sim_open(struct queue_dev *dev, const char *name, const struct queue_dev_opts *opts)
{
    struct sim *s;
    int rc = opts->create ? sim_create(name, opts->create_bytes, 1) : 0;

    if (rc < 0)
        return base_refuse(rc, "device %s: cannot be created: %s", dev->uri, strerror(-rc));
    s = find(name);
    if (!s)
        return base_refuse(-ENOENT, "device %s: does not exist", dev->uri);
    pthread_mutex_lock(&s->lock);
    if (s->writer || (s->readers && !opts->read_only)) {
        rc = base_refuse(-EBUSY, "device %s: is open already", dev->uri);
    } else {
        s->writer = !opts->read_only;
        s->readers += opts->read_only;
        s->power_off = false;
        dev->priv = s;
        dev->info.direct = true;
        dev->info.size_bytes = s->size_bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static void sim_close(struct queue_dev *dev)
{
    struct sim *s = dev->priv;

    pthread_mutex_lock(&s->lock);
    if (dev->read_only)
        s->readers--;
    else
        s->writer = false;
    pthread_mutex_unlock(&s->lock);
}

static int sim_queue_open(struct queue *q)
{
    struct sim *s = q->dev->priv;
    struct sim_queue *sq = NULL;

    pthread_mutex_lock(&s->lock);
    if (s->most_queues == 0 || s->queues < s->most_queues)
        sq = calloc(1, sizeof(*sq));
    s->queues += sq != NULL;
    pthread_mutex_unlock(&s->lock);
    if (!sq)
        return -ENOMEM;
    list_init(&sq->ios);
    q->priv = sq;
    return 0;
}

static void sim_queue_close(struct queue *q)
{
    struct sim *s = q->dev->priv;

    pthread_mutex_lock(&s->lock);
    s->queues--;
    pthread_mutex_unlock(&s->lock);
    free(q->priv);
}

/* Allocates, as no real backend may: a test device may spend memory for what it remembers. */
static void sim_submit(struct queue *q, struct queue_req *req)
{
    struct sim *s = q->dev->priv;
    struct sim_queue *sq = q->priv;
    struct queue_rest r = queue_rest(req);
    struct sim_io *io = calloc(1, sizeof(*io));

    CHECK(io);
    io->req = req;
    io->op = req->op;
    io->off = r.off;
    io->len = req->op == QUEUE_FLUSH ? 0 : r.len;
    if (req->op == QUEUE_WRITE || req->op == QUEUE_DISCARD) {
        io->data = calloc(1, io->len);
        CHECK(io->data);
    }
    if (req->op == QUEUE_WRITE)
        memcpy(io->data, r.buf, io->len);
    pthread_mutex_lock(&s->lock);
    io->seq = s->seq;
    list_add_tail(&s->in_flight, &io->link);
    list_add_tail(&sq->ios, &io->qlink);
    sq->n++;
    pthread_mutex_unlock(&s->lock);
}

static struct sim_io *pick(struct sim *s, struct sim_queue *sq)
{
    struct list *pos = sq->ios.next;

    for (uint64_t k = draw(s, sq->n); k > 0; k--)
        pos = pos->next;
    list_del(pos);
    sq->n--;
    return container_of(pos, struct sim_io, qlink);
}

static int sim_poll(struct queue *q, bool wait)
{
    struct sim *s = q->dev->priv;
    struct sim_queue *sq = q->priv;
    struct {
        struct queue_req *req;
        int64_t res;
    } done[DEPTH];
    unsigned n_done = 0;

    pthread_mutex_lock(&s->lock);
    if (sq->n > 0) {
        uint64_t want = wait ? 1 + draw(s, sq->n) : draw(s, sq->n + 1);
        while (n_done < want) {
            struct sim_io *io = pick(s, sq);
            bool kept = complete(s, io);
            done[n_done].req = io->req;
            done[n_done++].res = io->res;
            if (!kept) {
                list_del(&io->link);
                io_free(io);
            }
        }
    }
    pthread_mutex_unlock(&s->lock);
    for (unsigned i = 0; i < n_done; i++)
        queue_done(q, done[i].req, done[i].res);
    return 0;
}

static const struct queue_backend sim_backend = {
    .scheme = "sim",
    .name = "sim",
    .depth = DEPTH,
    .open = sim_open,
    .close = sim_close,
    .queue_open = sim_queue_open,
    .queue_close = sim_queue_close,
    .submit = sim_submit,
    .poll = sim_poll,
};

__attribute__((constructor)) static void sim_register(void)
{
    queue_backend_register(&sim_backend);
}

/* What a test says and asks. */

void sim_fault_add(const char *name, const struct sim_fault *fault)
{
    struct sim *s = enter(name);

    CHECK(s->n_faults < MAX_FAULTS && fault->err < 0);
    s->faults[s->n_faults++] = *fault;
    leave(s);
}

void sim_fault_clear(const char *name)
{
    struct sim *s = enter(name);

    s->n_faults = 0;
    leave(s);
}

void sim_short_transfers(const char *name, unsigned permille)
{
    struct sim *s = enter(name);

    s->short_permille = permille;
    leave(s);
}

void sim_limit_queues(const char *name, unsigned most)
{
    struct sim *s = enter(name);

    s->most_queues = most;
    leave(s);
}

void sim_power_cut(const char *name, uint64_t after)
{
    struct sim *s = enter(name);

    s->cut_after = after;
    leave(s);
}

bool sim_power_is_off(const char *name)
{
    struct sim *s = enter(name);
    bool off = s->power_off;

    leave(s);
    return off;
}

uint64_t sim_changes(const char *name)
{
    struct sim *s = enter(name);
    uint64_t n = s->changes;

    leave(s);
    return n;
}

uint64_t sim_count(const char *name, enum queue_op op)
{
    struct sim *s = enter(name);
    uint64_t n = s->counts[op];

    leave(s);
    return n;
}

uint64_t sim_volatile_bytes(const char *name)
{
    struct sim *s = enter(name);
    uint64_t n = s->cache_bytes;

    leave(s);
    return n;
}

/* In both images. A record of the cache that covers the place would undo it at its flush, so the
 * cache is written through first. */
void sim_flip_bit(const char *name, uint64_t byte_off, unsigned bit)
{
    struct sim *s = enter(name);

    CHECK(byte_off < s->size_bytes && bit < 8);
    flush_up_to(s, UINT64_MAX);
    s->durable[byte_off] ^= (uint8_t)(1u << bit);
    s->current[byte_off] ^= (uint8_t)(1u << bit);
    leave(s);
}

void sim_scribble(const char *name, uint64_t off, uint64_t len)
{
    struct sim *s = enter(name);

    CHECK(off <= s->size_bytes && len <= s->size_bytes - off);
    flush_up_to(s, UINT64_MAX);
    for (uint64_t i = off; i < off + len; i++)
        s->durable[i] = s->current[i] = (uint8_t)test_rand(&s->rng);
    leave(s);
}

void sim_peek(const char *name, uint64_t off, void *buf, uint64_t len)
{
    struct sim *s = enter(name);

    CHECK(off <= s->size_bytes && len <= s->size_bytes - off);
    memcpy(buf, s->current + off, len);
    leave(s);
}

void sim_peek_durable(const char *name, uint64_t off, void *buf, uint64_t len)
{
    struct sim *s = enter(name);

    CHECK(off <= s->size_bytes && len <= s->size_bytes - off);
    memcpy(buf, s->durable + off, len);
    leave(s);
}
