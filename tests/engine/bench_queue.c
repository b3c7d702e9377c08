/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of the queue layer: sequential requests of 1 MiB on a file, and the bare cost of a request
 * over null:. Prints one JSON line.
 *
 *     bench_queue FILE [MIB [DEPTH]]      FILE is made if it is missing, and kept
 */
#include <inttypes.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "queue/queue.h"
#include "test.h"

#define MIB (1u << 20)
#define MAX_DEPTH 64
#define NULL_REQUESTS 20000000u

/* One pass over a device, `depth` requests in flight; done submits the next. */
struct pass {
    struct queue *q;
    uint64_t next_off, end_off;
    uint32_t len;
    int rc;
};

static void next(struct queue_req *req)
{
    struct pass *p = req->arg;

    if (req->res < 0)
        p->rc = req->res;
    if (p->rc < 0 || p->next_off >= p->end_off)
        return;
    req->off = p->next_off;
    p->next_off += p->len;
    int rc = queue_submit(p->q, req);
    if (rc < 0)
        p->rc = rc;
}

/* Seconds, or a negative errno. Ends with a flush when it writes. */
static double run_pass(struct queue_dev *dev, enum queue_op op, struct queue_req *reqs,
                       unsigned depth, uint32_t len, uint64_t total)
{
    struct pass p = {.end_off = total, .len = len};
    uint64_t t;

    CHECK_EQ(queue_borrow(dev, &p.q), 0);
    t = base_mono_ns();
    for (unsigned i = 0; i < depth; i++) {
        reqs[i].op = op;
        reqs[i].len = len;
        reqs[i].done = next;
        reqs[i].arg = &p;
        reqs[i].res = 0;
        next(&reqs[i]);
    }
    while (queue_in_flight(p.q))
        CHECK(queue_poll(p.q, 1) >= 0);
    queue_return(dev, p.q);
    if (p.rc == 0 && op == QUEUE_WRITE)
        p.rc = queue_flush(dev);
    t = base_mono_ns() - t;
    return p.rc < 0 ? p.rc : (double)t / 1e9;
}

static double mib_per_s(struct queue_dev *dev, enum queue_op op, struct queue_req *reqs,
                        unsigned depth, uint64_t mib)
{
    double s = run_pass(dev, op, reqs, depth, MIB, mib * MIB);

    if (s < 0) {
        fprintf(stderr, "bench_queue: %s\n", strerror((int)-s));
        exit(1);
    }
    return (double)mib / s;
}

/* Nanoseconds of one request through the layer and back. */
static double null_ns(struct queue_req *reqs, unsigned depth)
{
    struct queue_dev_opts o = {.size = sizeof(o), .create_bytes = 4096ull * NULL_REQUESTS};
    struct queue_dev *dev;
    double s;

    CHECK_EQ(queue_dev_open("null:", &o, &dev), 0);
    s = run_pass(dev, QUEUE_READ, reqs, depth, 4096, o.create_bytes);
    queue_dev_close(dev);
    CHECK(s >= 0);
    return s * 1e9 / NULL_REQUESTS;
}

static struct queue_dev *open_file(const char *path, uint64_t mib, struct buf_arena *arena)
{
    struct queue_dev_opts o = {.size = sizeof(o), .arena = arena};
    struct queue_dev_info info;
    struct queue_dev *dev;

    if (access(path, F_OK) < 0) {
        o.create = true;
        o.create_bytes = mib * MIB;
    }
    if (queue_dev_open(path, &o, &dev) < 0) {
        fprintf(stderr, "bench_queue: %s\n", base_last_error());
        exit(1);
    }
    queue_dev_info(dev, &info);
    if (info.size_bytes < mib * MIB) {
        fprintf(stderr, "bench_queue: %s is smaller than %" PRIu64 " MiB\n", path, mib);
        exit(1);
    }
    return dev;
}

int main(int argc, char **argv)
{
    struct queue_req reqs[MAX_DEPTH] = {0};
    struct queue_dev_info info;
    struct buf_arena *arena;
    struct queue_dev *dev;
    uint64_t mib = argc > 2 ? strtoull(argv[2], NULL, 10) : 256;
    unsigned depth = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 8;
    double first, write, read, cost;

    if (argc < 2 || argc > 4 || mib == 0 || mib > (1u << 20) || depth == 0 || depth > MAX_DEPTH) {
        fprintf(stderr, "usage: bench_queue FILE [MIB [DEPTH]]   (depth 1 to %d)\n", MAX_DEPTH);
        return 2;
    }
    CHECK_EQ(buf_arena_open(2ull * DFE_ARENA_EXTENT_BYTES, BUF_HUGE, &arena), 0);
    for (unsigned i = 0; i < depth; i++) {
        CHECK(reqs[i].buf = buf_alloc(arena, MIB));
        memset(reqs[i].buf, (int)i + 1, MIB);
    }
    dev = open_file(argv[1], mib, arena);
    first = mib_per_s(dev, QUEUE_WRITE, reqs, depth, mib);
    write = mib_per_s(dev, QUEUE_WRITE, reqs, depth, mib);
    read = mib_per_s(dev, QUEUE_READ, reqs, depth, mib);
    cost = null_ns(reqs, depth);
    queue_dev_info(dev, &info);
    printf("{\"backend\": \"%s\", \"direct\": %s, \"registered\": %s, \"mib\": %" PRIu64
           ", \"depth\": %u, \"first_write_mib_s\": %.0f, \"write_mib_s\": %.0f, "
           "\"read_mib_s\": %.0f, \"null_request_ns\": %.1f}\n",
           info.backend, info.direct ? "true" : "false", info.registered ? "true" : "false", mib,
           depth, first, write, read, cost);
    queue_dev_close(dev);
    for (unsigned i = 0; i < depth; i++)
        buf_free(arena, reqs[i].buf, MIB);
    buf_arena_close(arena);
    return 0;
}
