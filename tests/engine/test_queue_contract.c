/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of the queue layer (queue.h): one suite, run for every backend. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "base/assert.h"
#include "base/limits.h"
#include "base/log.h"
#include "queue/queue.h"
#include "sim_device.h"
#include "test.h"

#define BLOCK 4096u
#define DEV_BYTES (16u << 20)
#define DEV_BLOCKS (DEV_BYTES / BLOCK)

/* One way to have a device. */
struct kind {
    const char *label, *uri, *backend;
    bool no_direct, no_uring;
    bool is_file, keeps_data;
    bool optional; /* where this host refuses it, another backend stands in */
};

static const struct kind kinds[] = {
    {"uring, direct", "file", "uring", .is_file = true, .keeps_data = true, .optional = true},
    {"uring, buffered", "file", "uring", .no_direct = true, .is_file = true, .keeps_data = true,
     .optional = true},
    {"threads, direct", "file", "threads", .no_uring = true, .is_file = true, .keeps_data = true},
    {"threads, buffered", "file", "threads", .no_uring = true, .no_direct = true, .is_file = true,
     .keeps_data = true},
    {"mem", "mem:contract", "mem", .keeps_data = true},
    {"sim", "sim:contract", "sim", .keeps_data = true},
    {"null", "null:", "null"},
};

static uint64_t seed;
static const struct kind *kind;
static char path[300];

static struct queue_dev_opts opts_of(void)
{
    return (struct queue_dev_opts){
        .size = sizeof(struct queue_dev_opts),
        .no_direct = kind->no_direct,
        .no_uring = kind->no_uring,
    };
}

static const char *uri(void)
{
    return kind->is_file ? path : kind->uri;
}

static struct queue_dev *open_dev(void)
{
    struct queue_dev_opts o = opts_of();
    struct queue_dev *dev;

    if (!kind->keeps_data)
        o.create_bytes = DEV_BYTES;
    CHECK_EQ(queue_dev_open(uri(), &o, &dev), 0);
    return dev;
}

static void create_dev(void)
{
    struct queue_dev_opts o = opts_of();
    struct queue_dev *dev;

    o.create = true;
    o.create_bytes = DEV_BYTES;
    CHECK_EQ(queue_dev_open(uri(), &o, &dev), 0);
    queue_dev_close(dev);
    if (strcmp(kind->backend, "sim") == 0)
        sim_short_transfers("contract", 300);
}

static void remove_dev(void)
{
    if (kind->is_file)
        CHECK_EQ(unlink(path), 0);
    else if (strcmp(kind->backend, "mem") == 0)
        CHECK_EQ(queue_mem_forget("contract"), 0);
    else if (strcmp(kind->backend, "sim") == 0)
        CHECK_EQ(sim_destroy("contract"), 0);
}

static uint8_t *blocks(unsigned n)
{
    uint8_t *p = aligned_alloc(BLOCK, (size_t)n * BLOCK);
    CHECK(p);
    memset(p, 0, (size_t)n * BLOCK);
    return p;
}

static void fill(uint8_t *p, size_t len, uint64_t tag)
{
    for (size_t i = 0; i < len; i += 8, tag = tag * 6364136223846793005ull + 1442695040888963407ull)
        memcpy(p + i, &tag, 8);
}

static void info_is_true(void)
{
    struct queue_dev *dev = open_dev();
    struct queue_dev_info info;

    queue_dev_info(dev, &info);
    if (!kind->optional)
        CHECK(strcmp(info.backend, kind->backend) == 0);
    CHECK_EQ(info.size_bytes, DEV_BYTES);
    CHECK_EQ(info.align_bytes, BLOCK);
    CHECK(info.depth >= 16);
    CHECK(!kind->no_direct || !info.direct);
    fprintf(stderr, "   %s: backend %s, direct %d, depth %u\n", kind->label, info.backend,
            info.direct, info.depth);
    queue_dev_close(dev);
}

/* What a done callback knows of its run. */
struct run {
    struct queue *q;
    uint64_t rng;
    unsigned submitted, done, target;
};

struct counted {
    struct queue_req req;
    unsigned times;
};

static void count_done(struct queue_req *req)
{
    struct run *run = req->arg;
    struct counted *c = container_of(req, struct counted, req);

    CHECK_EQ(req->res, 0);
    c->times++;
    run->done++;
}

static void completes_exactly_once(void)
{
    enum { N = 1000 };
    static struct counted c[N];
    struct queue_dev *dev = open_dev();
    struct run run = {.rng = test_rand(&seed) | 1};
    uint8_t *buf = blocks(4 * N);

    memset(c, 0, sizeof(c));
    CHECK_EQ(queue_borrow(dev, &run.q), 0);
    for (unsigned i = 0; i < N;) {
        uint64_t r = test_rand(&run.rng), n = 1 + r % 4;
        c[i].req = (struct queue_req){
            .op = (r >> 8) % 50 == 0 ? QUEUE_FLUSH : QUEUE_READ,
            .off = (r >> 16) % (DEV_BLOCKS - 4) * BLOCK,
            .buf = buf + (size_t)i * 4 * BLOCK,
            .len = n * BLOCK,
            .done = count_done,
            .arg = &run,
        };
        int rc = queue_submit(run.q, &c[i].req);
        if (rc == -EAGAIN) {
            rc = queue_poll(run.q, (unsigned)(r >> 40) % 8);
            CHECK(rc >= 0);
            continue;
        }
        CHECK_EQ(rc, 0);
        i++;
        CHECK_EQ(queue_in_flight(run.q), i - run.done);
    }
    while (queue_in_flight(run.q))
        CHECK(queue_poll(run.q, 1) >= 1);
    CHECK_EQ(queue_poll(run.q, 5), 0); /* nothing in flight: does not wait */
    for (unsigned i = 0; i < N; i++)
        CHECK_EQ(c[i].times, 1);
    queue_return(dev, run.q);
    queue_dev_close(dev);
    free(buf);
}

static void depth_is_a_limit(void)
{
    struct queue_dev *dev = open_dev();
    struct queue_dev_info info;
    struct run run = {0};
    uint8_t *buf;

    queue_dev_info(dev, &info);
    buf = blocks(info.depth + 1);
    struct counted *c = calloc(info.depth + 1, sizeof(*c));
    CHECK_EQ(queue_borrow(dev, &run.q), 0);
    for (unsigned i = 0; i <= info.depth; i++) {
        c[i].req = (struct queue_req){.op = QUEUE_READ, .buf = buf + (size_t)i * BLOCK,
                                      .len = BLOCK, .done = count_done, .arg = &run};
        CHECK_EQ(queue_submit(run.q, &c[i].req), i < info.depth ? 0 : -EAGAIN);
        CHECK_EQ(run.done, 0); /* never inside submit */
    }
    CHECK(queue_poll(run.q, 1) >= 1);
    CHECK_EQ(queue_submit(run.q, &c[info.depth].req), 0);
    CHECK(queue_poll(run.q, UINT32_MAX) >= 1);
    CHECK_EQ(run.done, info.depth + 1);
    queue_return(dev, run.q);
    queue_dev_close(dev);
    free(c);
    free(buf);
}

static void chain_done(struct queue_req *req)
{
    struct run *run = req->arg;

    run->done++;
    if (run->submitted < run->target) {
        run->submitted++;
        req->off = test_rand(&run->rng) % DEV_BLOCKS * BLOCK;
        CHECK_EQ(queue_submit(run->q, req), 0);
    }
}

/* done submits the next request, at full depth. */
static void done_may_submit(void)
{
    struct queue_dev *dev = open_dev();
    struct queue_dev_info info;
    struct run run = {.rng = test_rand(&seed) | 1, .target = 2000};
    uint8_t *buf;

    queue_dev_info(dev, &info);
    buf = blocks(info.depth);
    struct queue_req *reqs = calloc(info.depth, sizeof(*reqs));
    CHECK_EQ(queue_borrow(dev, &run.q), 0);
    for (; run.submitted < info.depth; run.submitted++) {
        reqs[run.submitted] = (struct queue_req){
            .op = QUEUE_READ, .buf = buf + (size_t)run.submitted * BLOCK, .len = BLOCK,
            .done = chain_done, .arg = &run};
        CHECK_EQ(queue_submit(run.q, &reqs[run.submitted]), 0);
    }
    while (queue_in_flight(run.q))
        CHECK(queue_poll(run.q, 1) >= 1);
    CHECK_EQ(run.done, run.target);
    queue_return(dev, run.q);
    queue_dev_close(dev);
    free(reqs);
    free(buf);
}

static void refuses_what_does_not_fit(void)
{
    struct queue_dev *dev = open_dev();
    uint8_t *buf = blocks(2);
    const struct queue_req bad[] = {
        {.op = QUEUE_READ, .off = 512, .buf = buf, .len = BLOCK},
        {.op = QUEUE_READ, .off = 0, .buf = buf, .len = 512},
        {.op = QUEUE_READ, .off = 0, .buf = buf, .len = 0},
        {.op = QUEUE_READ, .off = 0, .buf = buf + 512, .len = BLOCK},
        {.op = QUEUE_READ, .off = 0, .buf = NULL, .len = BLOCK},
        {.op = QUEUE_WRITE, .off = DEV_BYTES, .buf = buf, .len = BLOCK},
        {.op = QUEUE_WRITE, .off = DEV_BYTES - BLOCK, .buf = buf, .len = 2 * BLOCK},
        {.op = QUEUE_WRITE, .off = UINT64_MAX - BLOCK + 1, .buf = buf, .len = 2 * BLOCK},
        {.op = QUEUE_WRITE, .off = BLOCK, .buf = buf, .len = SIZE_MAX - BLOCK + 1},
        {.op = QUEUE_DISCARD, .off = DEV_BYTES, .len = BLOCK},
        {.op = QUEUE_DISCARD, .off = 1, .len = BLOCK},
        {.op = (enum queue_op)99, .off = 0, .buf = buf, .len = BLOCK},
    };
    struct queue *q;

    CHECK_EQ(queue_borrow(dev, &q), 0);
    for (size_t i = 0; i < DFE_ARRAY_LEN(bad); i++) {
        struct queue_req req = bad[i];
        CHECK_EQ(queue_submit(q, &req), -EINVAL);
        CHECK_EQ(queue_run(q, &req, 1), -EINVAL);
        CHECK_EQ(req.res, -EINVAL);
        CHECK_EQ(queue_in_flight(q), 0);
    }
    queue_return(dev, q);
    queue_dev_close(dev);
    free(buf);
}

/* Random writes of distinct ranges, many at a time, against a shadow; then all read back. */
static void reads_what_was_written(void)
{
    enum { BATCH = 40, MAX = 16 };
    struct queue_dev *dev = open_dev();
    uint8_t *shadow = blocks(DEV_BLOCKS), *all = blocks(DEV_BLOCKS);
    struct queue *q;

    CHECK_EQ(queue_read(dev, 0, shadow, DEV_BYTES), 0);
    CHECK_EQ(queue_borrow(dev, &q), 0);
    for (int round = 0; round < 6; round++) {
        struct queue_req reqs[BATCH];
        unsigned n = 0;
        for (unsigned at = test_rand(&seed) % 64; n < BATCH;) {
            unsigned len = 1 + test_rand(&seed) % MAX;
            if (at + len > DEV_BLOCKS)
                break;
            fill(shadow + (size_t)at * BLOCK, (size_t)len * BLOCK, test_rand(&seed));
            reqs[n++] = (struct queue_req){.op = QUEUE_WRITE, .off = (uint64_t)at * BLOCK,
                                           .buf = shadow + (size_t)at * BLOCK,
                                           .len = (size_t)len * BLOCK};
            at += len + test_rand(&seed) % 150;
        }
        CHECK_EQ(queue_run(q, reqs, n), 0);
        for (unsigned i = 0; i < n; i++)
            CHECK_EQ(reqs[i].res, 0);
    }
    queue_return(dev, q);
    CHECK_EQ(queue_flush(dev), 0);
    CHECK_EQ(queue_read(dev, 0, all, DEV_BYTES), 0); /* one large request */
    if (kind->keeps_data)
        CHECK(memcmp(shadow, all, DEV_BYTES) == 0);
    queue_dev_close(dev);

    dev = open_dev();
    memset(all, 0, DEV_BYTES);
    CHECK_EQ(queue_read(dev, 0, all, DEV_BYTES), 0);
    if (kind->keeps_data)
        CHECK(memcmp(shadow, all, DEV_BYTES) == 0);
    queue_dev_close(dev);
    free(shadow);
    free(all);
}

/* Only the discarded range may change, and it can be written again. */
static void discard_is_confined(void)
{
    struct queue_dev *dev = open_dev();
    uint8_t *buf = blocks(16), *back = blocks(16);
    struct queue_req discard = {.op = QUEUE_DISCARD, .off = 4 * BLOCK, .len = 8 * BLOCK};
    struct queue *q;

    fill(buf, 16 * BLOCK, test_rand(&seed));
    CHECK_EQ(queue_write(dev, 0, buf, 16 * BLOCK), 0);
    CHECK_EQ(queue_borrow(dev, &q), 0);
    CHECK_EQ(queue_run(q, &discard, 1), 0);
    queue_return(dev, q);
    CHECK_EQ(queue_read(dev, 0, back, 16 * BLOCK), 0);
    if (kind->keeps_data) {
        CHECK(memcmp(buf, back, 4 * BLOCK) == 0);
        CHECK(memcmp(buf + 12 * BLOCK, back + 12 * BLOCK, 4 * BLOCK) == 0);
    }
    CHECK_EQ(queue_write(dev, 4 * BLOCK, buf + 4 * BLOCK, 8 * BLOCK), 0);
    CHECK_EQ(queue_flush(dev), 0);
    CHECK_EQ(queue_read(dev, 0, back, 16 * BLOCK), 0);
    CHECK(!kind->keeps_data || memcmp(buf, back, 16 * BLOCK) == 0);
    queue_dev_close(dev);
    free(buf);
    free(back);
}

static void read_only_refuses_changes(void)
{
    struct queue_dev_opts o = opts_of();
    struct queue_dev *dev, *second;
    uint8_t *buf = blocks(1);
    struct queue_req discard = {.op = QUEUE_DISCARD, .len = BLOCK};
    struct queue *q;

    o.read_only = true;
    CHECK_EQ(queue_dev_open(uri(), &o, &dev), 0);
    CHECK_EQ(queue_write(dev, 0, buf, BLOCK), -EROFS);
    CHECK_EQ(queue_borrow(dev, &q), 0);
    CHECK_EQ(queue_run(q, &discard, 1), -EROFS);
    queue_return(dev, q);
    CHECK_EQ(queue_read(dev, 0, buf, BLOCK), 0);
    CHECK_EQ(queue_flush(dev), 0);
    CHECK_EQ(queue_dev_open(uri(), &o, &second), 0); /* readers share */
    queue_dev_close(second);
    if (kind->keeps_data) {
        o.read_only = false;
        CHECK_EQ(queue_dev_open(uri(), &o, &second), -EBUSY);
    }
    queue_dev_close(dev);
    free(buf);
}

/* In this process and, for files, in another one. */
static void one_writer_at_a_time(void)
{
    struct queue_dev_opts o = opts_of();
    struct queue_dev *dev, *second;

    if (!kind->keeps_data)
        return;
    dev = open_dev();
    CHECK_EQ(queue_dev_open(uri(), &o, &second), -EBUSY);
    CHECK(strstr(base_last_error(), uri()));
    o.read_only = true;
    CHECK_EQ(queue_dev_open(uri(), &o, &second), -EBUSY);
    if (kind->is_file) {
        /* A thread of the backend does not survive fork; the child only opens. */
        pid_t pid = fork();
        int status;
        if (pid == 0)
            _exit(queue_dev_open(uri(), &o, &second) == -EBUSY ? 0 : 1);
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK_EQ(status, 0);
    }
    queue_dev_close(dev);
    queue_dev_close(open_dev());
}

struct worker {
    pthread_t thread;
    struct queue_dev *dev;
    uint64_t seed;
    unsigned first, n;
};

/* Its own part of the device, through its own queue. */
static void *work(void *arg)
{
    struct worker *w = arg;
    uint8_t *mine = blocks(w->n), *back = blocks(w->n);
    struct queue *q;

    for (int round = 0; round < 3; round++) {
        struct queue_req reqs[32];
        unsigned each = w->n / 32;
        CHECK_EQ(queue_borrow(w->dev, &q), 0);
        fill(mine, (size_t)w->n * BLOCK, test_rand(&w->seed));
        for (int pass = 0; pass < 2; pass++) {
            for (unsigned i = 0; i < 32; i++)
                reqs[i] = (struct queue_req){
                    .op = pass ? QUEUE_READ : QUEUE_WRITE,
                    .off = (uint64_t)(w->first + i * each) * BLOCK,
                    .buf = (pass ? back : mine) + (size_t)i * each * BLOCK,
                    .len = (size_t)each * BLOCK,
                };
            CHECK_EQ(queue_run(q, reqs, 32), 0);
        }
        CHECK(!kind->keeps_data || memcmp(mine, back, (size_t)w->n * BLOCK) == 0);
        queue_return(w->dev, q);
        CHECK_EQ(queue_flush(w->dev), 0);
    }
    free(mine);
    free(back);
    return NULL;
}

static void threads_have_their_own_queues(void)
{
    enum { N = 4 };
    struct queue_dev *dev = open_dev();
    struct worker w[N];

    for (unsigned i = 0; i < N; i++) {
        w[i] = (struct worker){.dev = dev, .seed = test_rand(&seed) | 1,
                               .first = i * (DEV_BLOCKS / N), .n = DEV_BLOCKS / N};
        CHECK_EQ(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (unsigned i = 0; i < N; i++)
        pthread_join(w[i].thread, NULL);
    queue_dev_close(dev);
}

/* Buffers of an arena, which comes to life after the device and gives extents back meanwhile. */
static void arena_buffers(void)
{
    enum { N = 2 * DFE_ARENA_EXTENT_BYTES / BUF_MAX_BYTES + 2 }; /* in three extents */
    struct buf_arena *arena;
    struct queue_dev_opts o = opts_of();
    struct queue_dev_info info;
    struct queue_dev *dev;
    struct queue *q;
    uint8_t *p[N], *back = blocks(256);

    CHECK_EQ(buf_arena_open(4ull * DFE_ARENA_EXTENT_BYTES, BUF_HUGE, &arena), 0);
    o.arena = arena;
    o.create_bytes = kind->keeps_data ? 0 : DEV_BYTES;
    CHECK_EQ(queue_dev_open(uri(), &o, &dev), 0);
    CHECK_EQ(queue_borrow(dev, &q), 0);
    for (int round = 0; round < 2; round++) {
        for (unsigned i = 0; i < N; i++)
            CHECK(p[i] = buf_alloc(arena, 1u << 20));
        for (unsigned i = 0; i < N; i += 43) {
            uint64_t off = (uint64_t)(i % 16) << 20;
            struct queue_req w = {.op = QUEUE_WRITE, .off = off, .buf = p[i], .len = 1u << 20};
            struct queue_req r = {.op = QUEUE_READ, .off = off, .buf = back, .len = 1u << 20};
            fill(p[i], 1u << 20, test_rand(&seed));
            CHECK_EQ(queue_run(q, &w, 1), 0);
            CHECK_EQ(queue_run(q, &r, 1), 0);
            CHECK(!kind->keeps_data || memcmp(p[i], back, 1u << 20) == 0);
            memset(p[i], 0, 1u << 20);
            r.buf = p[i];
            CHECK_EQ(queue_run(q, &r, 1), 0);
            CHECK(!kind->keeps_data || memcmp(p[i], back, 1u << 20) == 0);
        }
        for (unsigned i = 0; i < N; i++)
            buf_free(arena, p[i], 1u << 20);
    }
    queue_dev_info(dev, &info);
    fprintf(stderr, "   registered: %d\n", info.registered);
    queue_return(dev, q);
    queue_dev_close(dev);
    buf_arena_close(arena);
    free(back);
}

static void on_alarm(int sig)
{
    (void)sig;
}

/* Every wait of the layer is interrupted now and then. */
static void signals_do_no_harm(void)
{
    struct sigaction sa = {.sa_handler = on_alarm}; /* no SA_RESTART */
    struct itimerval often = {{0, 500}, {0, 500}}, off = {{0, 0}, {0, 0}};

    CHECK_EQ(sigaction(SIGALRM, &sa, NULL), 0);
    CHECK_EQ(setitimer(ITIMER_REAL, &often, NULL), 0);
    reads_what_was_written();
    completes_exactly_once();
    threads_have_their_own_queues();
    CHECK_EQ(setitimer(ITIMER_REAL, &off, NULL), 0);
}

/* No descriptor is left for one more ring: the queue works without. */
static void works_when_rings_run_out(void)
{
    struct queue_dev *dev = open_dev();
    struct rlimit had, none;
    struct queue *q;
    int next_fd = dup(2);

    CHECK(next_fd > 2);
    close(next_fd);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &had), 0);
    none = had;
    none.rlim_cur = (rlim_t)next_fd;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    CHECK_EQ(queue_borrow(dev, &q), 0);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &had), 0);
    uint8_t *buf = blocks(512), *back = blocks(512);
    struct queue_req reqs[] = {
        {.op = QUEUE_WRITE, .off = BLOCK, .buf = buf, .len = 512 * BLOCK},
        {.op = QUEUE_FLUSH},
        {.op = QUEUE_READ, .off = BLOCK, .buf = back, .len = 512 * BLOCK},
    };
    fill(buf, 512 * BLOCK, test_rand(&seed));
    for (size_t i = 0; i < DFE_ARRAY_LEN(reqs); i++)
        CHECK_EQ(queue_run(q, &reqs[i], 1), 0);
    CHECK(!kind->keeps_data || memcmp(buf, back, 512 * BLOCK) == 0);
    queue_return(dev, q);
    queue_dev_close(dev);
    free(buf);
    free(back);
}

/* A file that is cut while open gives errors, not old bytes. */
static void truncated_file_is_an_error(void)
{
    struct queue_dev *dev;
    uint8_t *buf;

    if (!kind->is_file)
        return;
    buf = blocks(4);
    dev = open_dev();
    CHECK_EQ(truncate(path, 2 * BLOCK), 0);
    CHECK_EQ(queue_read(dev, 0, buf, 4 * BLOCK), -EIO);
    CHECK_EQ(queue_read(dev, 0, buf, 2 * BLOCK), 0);
    queue_dev_close(dev);
    CHECK_EQ(truncate(path, DEV_BYTES), 0);
    free(buf);
}

static void creation_is_whole_or_not_at_all(void)
{
    struct queue_dev_opts o = opts_of();
    struct queue_dev *dev;
    char other[320];

    if (!kind->keeps_data)
        return;
    o.create = true;
    o.create_bytes = DEV_BYTES;
    CHECK_EQ(queue_dev_open(uri(), &o, &dev), -EEXIST);
    snprintf(other, sizeof(other), "%s-new", uri());
    o.create_bytes = 0;
    CHECK_EQ(queue_dev_open(other, &o, &dev), -EINVAL);
    o.create_bytes = BLOCK + 1;
    CHECK_EQ(queue_dev_open(other, &o, &dev), -EINVAL);
    o.create_bytes = UINT64_MAX - BLOCK + 1;
    CHECK_EQ(queue_dev_open(other, &o, &dev), -EFBIG);
    if (kind->is_file) {
        o.create_bytes = 1ull << 43; /* 8 TiB: more than a test machine has */
        int rc = queue_dev_open(other, &o, &dev);
        CHECK(rc == -ENOSPC || rc == -EFBIG);
        CHECK(strstr(base_last_error(), "nothing was created"));
    }
    o.create_bytes = BLOCK;
    o.read_only = true;
    CHECK_EQ(queue_dev_open(other, &o, &dev), -EINVAL);
    o.create = o.read_only = false;
    CHECK_EQ(queue_dev_open(other, &o, &dev), -ENOENT);
}

/* As in many containers: io_uring_setup gives -EPERM. In a child: a filter cannot be lifted. */
static void threads_stand_in_for_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {DFE_ARRAY_LEN(code), code};
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        struct queue_dev_info info;
        struct queue_dev *dev;
        CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
        kind = &kinds[0];
        dev = open_dev();
        queue_dev_info(dev, &info);
        CHECK(strcmp(info.backend, "threads") == 0);
        queue_dev_close(dev);
        reads_what_was_written();
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
}

static void names_that_mean_nothing(void)
{
    static const char *const bad[] = {"", "file:", "nvme:x", "mem:", "null:x", "c:d"};
    char fifo[300], missing[300];
    struct queue_dev *dev;

    for (size_t i = 0; i < DFE_ARRAY_LEN(bad); i++) {
        base_clear_error();
        CHECK_EQ(queue_dev_open(bad[i], NULL, &dev), -EINVAL);
        CHECK(*base_last_error());
    }
    CHECK_EQ(queue_dev_open(NULL, NULL, &dev), -EINVAL);
    CHECK_EQ(queue_dev_open(test_dir(), NULL, &dev), -EISDIR);
    snprintf(fifo, sizeof(fifo), "%s/fifo", test_dir());
    CHECK_EQ(mkfifo(fifo, 0600), 0);
    CHECK_EQ(queue_dev_open(fifo, NULL, &dev), -EINVAL);
    CHECK_EQ(queue_dev_open("/dev/null", NULL, &dev), -EINVAL);
    snprintf(missing, sizeof(missing), "file:%s/missing", test_dir());
    CHECK_EQ(queue_dev_open(missing, NULL, &dev), -ENOENT);
    CHECK_EQ(queue_mem_forget("missing"), -ENOENT);
}

int main(void)
{
    seed = test_seed();
    snprintf(path, sizeof(path), "%s/device", test_dir());
    RUN(names_that_mean_nothing);
    for (size_t i = 0; i < DFE_ARRAY_LEN(kinds); i++) {
        kind = &kinds[i];
        fprintf(stderr, "== %s\n", kind->label);
        if (kind->keeps_data)
            create_dev();
        RUN(info_is_true);
        RUN(completes_exactly_once);
        RUN(depth_is_a_limit);
        RUN(done_may_submit);
        RUN(refuses_what_does_not_fit);
        RUN(reads_what_was_written);
        RUN(discard_is_confined);
        RUN(read_only_refuses_changes);
        RUN(one_writer_at_a_time);
        RUN(threads_have_their_own_queues);
        RUN(arena_buffers);
        RUN(signals_do_no_harm);
        RUN(works_when_rings_run_out);
        RUN(truncated_file_is_an_error);
        RUN(creation_is_whole_or_not_at_all);
        if (kind->keeps_data)
            remove_dev();
    }
    kind = &kinds[0];
    create_dev();
    RUN(threads_stand_in_for_uring);
    remove_dev();
    return 0;
}
