/* SPDX-License-Identifier: Apache-2.0 */
/* The session client against a worker: calls, threads, waiting, leases, forks, restarts. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "channel_rig.h"
#include "test.h"

static uint64_t seed;

static void test_calls(void)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    uint8_t buf[3000];
    struct iovec push[2] = {{buf, 1000}, {buf + 1000, 2000}};
    struct client_call read_call = {.sqe = {.op = PROTO_READ, .ino = 5, .off = 77, .len = 4000},
                                    .reply_cap = 4096};
    struct client_call write_call = {.sqe = {.op = PROTO_WRITE}, .push = push, .n_push = 2};
    struct client_call odd = {.sqe = {.op = 999}, .reply_cap = 100};
    uint64_t sum = 0;

    CHECK_EQ(rig_nop(c), 0);
    CHECK_EQ(client_do(c, &read_call), 4000);
    for (unsigned i = 0; i < 4000; i++)
        CHECK_EQ(((const uint8_t *)read_call.reply)[i], rig_byte(5, 77 + i));
    for (unsigned i = 0; i < sizeof(buf); i++)
        sum += buf[i] = (uint8_t)i;
    CHECK_EQ(client_do(c, &write_call), 3000);
    CHECK_EQ(write_call.cqe.value, sum);
    CHECK_EQ(client_do(c, &odd), -EOPNOTSUPP);
    CHECK_EQ(odd.cqe.reply_len, 16);
    CHECK_EQ(memcmp(odd.reply, "no operation 999", 16), 0);
    CHECK(client_epoch(c));
    client_close(c);
}


/* -- threads ----------------------------------------------------------------------------------- */

#define THREADS 8
#define CALLS 400

struct job {
    struct client *c;
    uint64_t seed;
    atomic_ulong calls;
    unsigned max_pause_us;
};

static void one_call(struct client *c, uint64_t r)
{
    uint8_t buf[512];
    struct iovec push = {buf, r % sizeof(buf)};
    struct client_call call = {.reply_cap = 4096};
    uint64_t sum = 0;

    switch (r % 4) {
    case 0:
        CHECK_EQ(rig_nop(c), 0);
        break;
    case 1:
        call.sqe = (struct proto_sqe){.op = PROTO_READ, .ino = r, .off = r >> 8, .len = 512};
        CHECK_EQ(client_do(c, &call), 512);
        for (unsigned i = 0; i < 512; i++)
            CHECK_EQ(((const uint8_t *)call.reply)[i], rig_byte(r, (r >> 8) + i));
        break;
    case 2:
        for (size_t i = 0; i < push.iov_len; i++)
            sum += buf[i] = (uint8_t)(r + i);
        call.sqe = (struct proto_sqe){.op = PROTO_WRITE, .ino = rig_token()};
        call.push = &push;
        call.n_push = 1;
        CHECK_EQ(client_do(c, &call), (long long)push.iov_len);
        CHECK_EQ(call.cqe.value, sum);
        break;
    case 3:
        call.sqe = (struct proto_sqe){.op = PROTO_FSYNC, .off = r % 300};
        CHECK_EQ(client_do(c, &call), 0);
        CHECK(call.cqe.engine_ns >= r % 300 * 1000);
        break;
    }
}

static void *make_calls(void *arg)
{
    struct job *job = arg;
    uint64_t s = job->seed;

    for (unsigned i = 0; i < CALLS; i++) {
        one_call(job->c, test_rand(&s) >> 8);
        atomic_fetch_add(&job->calls, 1);
        if (job->max_pause_us && test_rand(&s) % 4 == 0)
            usleep((useconds_t)(test_rand(&s) % job->max_pause_us));
    }
    return NULL;
}

static void run_threads(struct client *c, unsigned n, unsigned max_pause_us)
{
    struct job jobs[THREADS] = {0};
    pthread_t ids[THREADS];

    for (unsigned i = 0; i < n; i++) {
        jobs[i].c = c;
        jobs[i].seed = test_rand(&seed);
        jobs[i].max_pause_us = max_pause_us;
        CHECK_EQ(pthread_create(&ids[i], NULL, make_calls, &jobs[i]), 0);
    }
    for (unsigned i = 0; i < n; i++)
        CHECK_EQ(pthread_join(ids[i], NULL), 0);
}

static void wait_channels(struct client *c, uint64_t n)
{
    struct dfe_service_info info;

    for (unsigned i = 0; i < 10000; i++) { /* 10 s: machines that run tests are busy */
        rig_info(c, &info);
        if (info.channels == n)
            return;
        usleep(1000);
    }
    CHECK_EQ(info.channels, n);
}

/* Threads come and go; with each its channel. */
static void test_threads(void)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    unsigned fds, maps;

    CHECK_EQ(rig_nop(c), 0);
    usleep(100000); /* the worker has closed what it sent */
    fds = rig_fds();
    maps = rig_maps();
    for (unsigned i = 0; i < 3; i++)
        run_threads(c, THREADS, 0);
    wait_channels(c, 1);
    CHECK_EQ(rig_fds(), fds);
    CHECK_EQ(rig_maps(), maps);
    client_close(c);
}

/* Both sides fall asleep and wake at random moments: a lost wake-up would hang for ever. */
static void test_storm(void)
{
    struct client *c = rig_client(PROTO_ROLE_API);

    alarm(100);
    for (unsigned i = 0; i < 3; i++)
        run_threads(c, 4, 1u << (2 * i + 4));
    alarm(0);
    client_close(c);
}

/* A client that closes while threads that used it live on; the threads end later. */
static void *hold(void *arg)
{
    pthread_barrier_t *b = ((void **)arg)[1];

    CHECK_EQ(rig_nop(((void **)arg)[0]), 0);
    pthread_barrier_wait(b);
    pthread_barrier_wait(b); /* closed meanwhile */
    return NULL;
}

static void test_close_before_threads(void)
{
    struct client *c = rig_client(PROTO_ROLE_API), *d;
    pthread_barrier_t b;
    void *arg[2] = {c, &b};
    pthread_t id;

    pthread_barrier_init(&b, NULL, 2);
    CHECK_EQ(pthread_create(&id, NULL, hold, arg), 0);
    pthread_barrier_wait(&b);
    CHECK_EQ(rig_nop(c), 0);
    client_close(c);
    for (unsigned i = 0; i < 20; i++) { /* structs of closed ones do not pile up in this thread */
        d = rig_client(PROTO_ROLE_API);
        CHECK_EQ(rig_nop(d), 0);
        client_close(d);
    }
    pthread_barrier_wait(&b);
    CHECK_EQ(pthread_join(id, NULL), 0);
    pthread_barrier_destroy(&b);
}

/* -- what a call may be ------------------------------------------------------------------------ */

static unsigned reports;

static void on_progress(uint64_t done, uint64_t total, void *arg)
{
    CHECK_EQ(total, 5);
    CHECK(done >= 1 && done <= 5);
    CHECK_EQ(*(int *)arg, 42);
    reports++;
}

static void test_progress(void)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    int arg = 42;
    struct client_call call = {
        .sqe = {.op = PROTO_CHECK}, .progress = on_progress, .arg = &arg, .reply_cap = 64};

    for (unsigned i = 0; i < 100; i++)
        CHECK_EQ(client_do(c, &call), 0);
    CHECK_EQ(reports, 500);
    client_close(c);
}

static void *wait_for_news(void *arg)
{
    struct client_call call = {.sqe = {.op = PROTO_INVAL_NEXT}};

    CHECK_EQ(client_do(arg, &call), -ESHUTDOWN);
    return NULL;
}

/* A request that waits for ever costs the engine no thread, and ends when it is told. */
static void test_news(void)
{
    struct client *c = rig_client(PROTO_ROLE_MOUNT);
    struct client_call stop = {.sqe = {.op = PROTO_INVAL_STOP}};
    pthread_t id;

    CHECK_EQ(pthread_create(&id, NULL, wait_for_news, c), 0);
    usleep(30000);
    CHECK_EQ(client_do(c, &stop), 0);
    CHECK_EQ(pthread_join(id, NULL), 0);
    client_close(c);
}

static void test_limits(void)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    size_t max = client_push_max(c);
    uint8_t *buf = malloc(max + 1);
    struct iovec push[2] = {{buf, max}, {buf, 1}};
    struct client_call call = {.sqe = {.op = PROTO_WRITE}, .push = push, .n_push = 1};
    struct client_opts o = {.size = sizeof(o), .path = "/nonexistent/s"};

    CHECK(buf);
    memset(buf, 1, max + 1);
    CHECK_EQ(client_do(c, &call), (long long)max);
    CHECK_EQ(call.cqe.value, max);
    call.n_push = 2;
    CHECK_EQ(client_do(c, &call), -E2BIG);
    call.n_push = 0;
    call.reply_cap = PROTO_REPLY_BYTES + 1;
    CHECK_EQ(client_do(c, &call), -E2BIG);
    call.sqe = (struct proto_sqe){.op = PROTO_READ, .len = PROTO_REPLY_BYTES};
    call.reply_cap = PROTO_REPLY_BYTES;
    CHECK_EQ(client_do(c, &call), PROTO_REPLY_BYTES);
    CHECK_EQ(((const uint8_t *)call.reply)[PROTO_REPLY_BYTES - 1],
             rig_byte(0, PROTO_REPLY_BYTES - 1));
    client_close(c);
    free(buf);
    CHECK_EQ(client_open(&o, &c), -ENOENT);
    o.path = rig_path();
    o.push_bytes = 5000;
    CHECK_EQ(client_open(&o, &c), -EINVAL);
}

static struct client *in_handler;
static volatile sig_atomic_t handled, refused;

static void on_signal(int sig)
{
    handled++;
    refused += rig_nop(in_handler) == -EDEADLK;
}

/* A handler that makes calls of its own, in the middle of others. */
static void test_signals(void)
{
    struct sigaction sa = {.sa_handler = on_signal}, old;
    struct client *c = rig_client(PROTO_ROLE_API);
    struct client_call call = {.sqe = {.op = PROTO_FSYNC, .off = 2000}};
    pid_t pid, me = getpid();

    in_handler = c;
    CHECK_EQ(sigaction(SIGUSR1, &sa, &old), 0);
    pid = fork();
    if (pid == 0) {
        while (getppid() == me) {
            kill(me, SIGUSR1);
            usleep(700);
        }
        _exit(1);
    }
    while (handled < 100) {
        errno = 12345;
        CHECK_EQ(client_do(c, &call), 0);
        CHECK_EQ(errno, 12345);
    }
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) != pid)
        CHECK_EQ(errno, EINTR);
    CHECK(refused > 0);
    CHECK_EQ(sigaction(SIGUSR1, &old, NULL), 0);
    client_close(c);
}

static void test_min_fd(void)
{
    struct client_opts o = {.size = sizeof(o), .path = rig_path(), .min_fd = 500};
    int before[600], fd;
    struct client *c;

    for (fd = 0; fd < 600; fd++)
        before[fd] = fcntl(fd, F_GETFD);
    CHECK_EQ(client_open(&o, &c), 0);
    CHECK_EQ(rig_nop(c), 0);
    CHECK(client_map_extent(c, 1, 1));
    for (fd = 0; fd < 500; fd++)
        CHECK_EQ(fcntl(fd, F_GETFD), before[fd]);
    CHECK(fcntl(500, F_GETFD) > before[500]);
    for (; fd < 600; fd++)
        CHECK(fcntl(fd, F_GETFD) == before[fd] || fcntl(fd, F_GETFD) == FD_CLOEXEC);
    client_close(c);
    for (fd = 0; fd < 600; fd++)
        CHECK_EQ(fcntl(fd, F_GETFD), before[fd]);
}

/* -- leases ------------------------------------------------------------------------------------ */

static void test_leases(void)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    struct proto_lease l = {.gen = 2 * 5 + 2, .stamp = 9, .file_off = 4096, .extent = 2,
                            .extent_off = 8192, .len = 4096, .line = 5, .record = 7, .ino = 8};
    struct proto_record rec;
    const uint8_t *base;
    uint8_t buf[5000];

    CHECK_EQ(client_lease_read(c, &l, 5000, buf, 100), -ESTALE); /* not mapped yet */
    base = client_map_extent(c, 2, 9);
    CHECK(base && base == client_map_extent(c, 2, 9));
    CHECK(!client_map_extent(c, 7, 9));
    CHECK(!client_map_extent(c, 7, 9));
    CHECK(!client_map_extent(c, 100, 9));
    CHECK_EQ(client_lease_read(c, &l, 5000, buf, 100), 100);
    for (unsigned i = 0; i < 100; i++)
        CHECK_EQ(buf[i], rig_byte(1, 8192 + 5000 - 4096 + i));
    /* the file ends at 7,000 */
    CHECK_EQ(client_lease_read(c, &l, 6990, buf, 100), 10);
    CHECK_EQ(client_lease_read(c, &l, 7000, buf, 100), 0);
    CHECK_EQ(client_lease_read(c, &l, 1u << 30, buf, 100), 0);
    CHECK_EQ(client_lease_read(c, &l, 4095, buf, 100), -ESTALE);
    l.record = 40, l.ino = 41; /* 40,000 bytes: the lease ends first */
    CHECK_EQ(client_lease_read(c, &l, 8000, buf, 5000), 192);
    CHECK_EQ(client_lease_read(c, &l, 8192, buf, 5000), -ESTALE);
    CHECK_EQ(client_record_read(c, 40, 41, &rec), 0);
    CHECK_EQ(rec.size, 40000);
    CHECK_EQ(client_record_read(c, 40, 40, &rec), -ESTALE);
    CHECK_EQ(client_record_read(c, RIG_RECORDS, 41, &rec), -ESTALE);
    l.ino = 40;
    CHECK_EQ(client_lease_read(c, &l, 8000, buf, 100), -ESTALE);
    l.ino = 41, l.gen += 2;
    CHECK_EQ(client_lease_read(c, &l, 8000, buf, 100), -ESTALE);
    l.gen -= 2, l.extent_off = RIG_EXTENT_BYTES - 100;
    CHECK_EQ(client_lease_read(c, &l, 8000, buf, 100), -ESTALE);
    l.extent_off = 8192;
    CHECK(client_map_extent(c, 2, 10) != base); /* another has its number now: zeros for the old */
    CHECK_EQ(client_lease_read(c, &l, 8000, buf, 100), -ESTALE);
    for (unsigned i = 0; i < 4096; i++)
        CHECK_EQ(base[i], 0);
    client_close(c);
}

static void test_prove(void)
{
    struct client *c = rig_client(PROTO_ROLE_IL);
    struct stat st;

    CHECK_EQ(stat(test_dir(), &st), 0);
    int fd = open(test_dir(), O_RDONLY | O_DIRECTORY);
    CHECK_EQ(client_prove(c, 3, st.st_ino, fd, O_RDONLY), 0);
    CHECK_EQ(client_prove(c, 3, st.st_ino + 1, fd, O_RDONLY), -EACCES);
    CHECK_EQ(rig_nop(c), 0);
    close(fd);
    client_close(c);
}

/* -- forks and restarts ------------------------------------------------------------------------ */

static void test_fork(void)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    int status;

    CHECK_EQ(rig_nop(c), 0);
    for (unsigned i = 0; i < 5; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            struct client *mine;
            client_forked(c);
            mine = rig_client(PROTO_ROLE_API);
            CHECK_EQ(rig_nop(mine), 0);
            client_close(mine);
            _exit(0);
        }
        CHECK_EQ(rig_nop(c), 0);
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK_EQ(status, 0);
    }
    client_close(c);
}

static atomic_uint resumptions;

static int on_resumed(struct client *c, void *arg)
{
    int64_t rc = rig_nop(c);

    atomic_fetch_add(&resumptions, 1);
    CHECK(rc == 0 || rc == -EOWNERDEAD); /* that one may have been killed, too */
    return rc < 0 ? (int)rc : *(int *)arg;
}

static void *kill_workers(void *arg)
{
    uint64_t s = *(uint64_t *)arg;

    for (unsigned i = 0; i < 10; i++) {
        usleep((useconds_t)(test_rand(&s) % 20000));
        rig_kill_worker();
    }
    return NULL;
}

/* The worker dies under threads that make calls: each of them is answered, done once. */
static void test_restarts(void)
{
    int arg = 0;
    struct client_opts o = {
        .size = sizeof(o), .path = rig_path(), .resumed = on_resumed, .arg = &arg};
    struct client *c;
    uint64_t epoch, killer_seed = test_rand(&seed);
    pthread_t killer;

    CHECK_EQ(client_open(&o, &c), 0);
    epoch = client_epoch(c);
    CHECK_EQ(pthread_create(&killer, NULL, kill_workers, &killer_seed), 0);
    for (unsigned i = 0; i < 4; i++)
        run_threads(c, 4, 100);
    CHECK_EQ(pthread_join(killer, NULL), 0);
    CHECK_EQ(rig_nop(c), 0);
    CHECK(client_epoch(c) != epoch);
    CHECK(atomic_load(&resumptions) > 0);
    client_close(c);
}

/* It dies after a request was done and before it was answered: the same number comes again. */
static void test_done_once(void)
{
    struct rig_state *st = rig_state();
    uint8_t buf[10] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    struct iovec push = {buf, sizeof(buf)};
    struct client *c;

    for (unsigned i = 0; i < 5; i++) {
        struct client_call call = {.push = &push, .n_push = 1};
        atomic_store(&st->writes, 0);
        atomic_store(&st->kill_at, 3);
        c = rig_client(PROTO_ROLE_API);
        for (unsigned n = 0; n < 5; n++) {
            call.sqe = (struct proto_sqe){.op = PROTO_WRITE, .ino = rig_token()};
            CHECK_EQ(client_do(c, &call), 10);
            CHECK_EQ(call.cqe.value, 10);
        }
        CHECK_EQ(atomic_load(&st->writes), 5);
        client_close(c);
    }
    atomic_store(&st->kill_at, 0);
}

static void test_no_resume(void)
{
    struct client_opts o = {.size = sizeof(o), .path = rig_path(), .no_resume = 1};
    int refusal = -EIO;
    struct client_opts r = {
        .size = sizeof(r), .path = rig_path(), .resumed = on_resumed, .arg = &refusal};
    struct client *c, *d;

    CHECK_EQ(client_open(&o, &c), 0);
    CHECK_EQ(client_open(&r, &d), 0);
    CHECK_EQ(rig_nop(c), 0);
    CHECK_EQ(rig_nop(d), 0);
    rig_kill_worker();
    CHECK_EQ(rig_nop(c), -EOWNERDEAD);
    CHECK_EQ(rig_nop(c), -EOWNERDEAD);
    CHECK_EQ(rig_nop(d), -EOWNERDEAD);
    client_close(c);
    client_close(d);
}

static void *call_until_gone(void *arg)
{
    int64_t rc;

    do
        rc = rig_nop(arg);
    while (rc == 0);
    CHECK_EQ(rc, -EOWNERDEAD);
    return NULL;
}

/* An orderly end is no restart: callers are told at once. */
static void test_gone(void)
{
    struct client *c = rig_client(PROTO_ROLE_API);
    pthread_t ids[3];
    uint64_t t;

    CHECK_EQ(rig_nop(c), 0);
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&ids[i], NULL, call_until_gone, c), 0);
    usleep(20000);
    CHECK_EQ(rig_stop(), 0);
    t = base_mono_ns();
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(pthread_join(ids[i], NULL), 0);
    CHECK_EQ(rig_nop(c), -EOWNERDEAD);
    CHECK(base_mono_ns() - t < 2000000000ull);
    client_close(c);
}

int main(void)
{
    seed = test_seed();
    rig_start(UINT32_MAX);
    RUN(test_calls);
    RUN(test_fork);
    RUN(test_signals);
    RUN(test_threads);
    RUN(test_storm);
    RUN(test_close_before_threads);
    RUN(test_progress);
    RUN(test_news);
    RUN(test_limits);
    RUN(test_min_fd);
    RUN(test_leases);
    RUN(test_prove);
    RUN(test_restarts);
    RUN(test_done_once);
    RUN(test_no_resume);
    RUN(test_gone);
    return 0;
}
