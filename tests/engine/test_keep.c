/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept memory alone: a process that reserves, commits, cancels and retires records from several
 * threads is killed at any moment; whatever it acknowledged is there as a whole, whatever it
 * retired is not, and tags are answered. Then the next one goes on in the same memory.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/keep.h"
#include "base/log.h"
#include "test.h"

#define LOG_BYTES (16u << 20)
#define THREADS 3u
#define SLOTS 64u       /* records that a thread holds at most */
#define RECORD_MAX 200000u
#define ROUNDS 500u
#define PUT_BYTES RECORD_MAX

/* A record's bytes: this, then bytes made from it. */
struct body {
    uint64_t id, len; /* len: all of it */
    uint32_t crc;
    uint8_t pad[44];
};

/* What the writer has told: id is set before a call and ack after it. */
struct slot {
    _Atomic uint64_t id, ack, gone; /* gone: about to be retired */
    _Atomic uint64_t log;
};

struct world {
    struct slot slot[THREADS][SLOTS];
    _Atomic uint64_t ids;
    _Atomic uint64_t answered[THREADS], done[THREADS]; /* sequence numbers of requests */
    _Atomic uint64_t seq[THREADS];
};

static struct world *world;
static void *mem;
static size_t mem_bytes;
static uint64_t seed;

static void *shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(p != MAP_FAILED);
    return p;
}

_Static_assert(sizeof(struct body) == 64, "keep_copy wants whole lines");

static void fill(struct keep *keep, enum keep_log log, int64_t number, void *rec, uint64_t id,
                 size_t len)
{
    struct body *b = rec;

    static _Thread_local uint8_t bytes[RECORD_MAX + 5000];

    memset(bytes, (int)(id & 255), len - sizeof(*b));
    keep_copy(keep, log, number, b + 1, bytes, len - sizeof(*b));
    *b = (struct body){.id = id, .len = len, .crc = base_crc32c(0, bytes, len - sizeof(*b))};
}

static void check_body(const void *rec, size_t len)
{
    const struct body *b = rec;

    CHECK(len >= sizeof(*b));
    CHECK_EQ(b->len, len);
    CHECK_EQ(b->crc, base_crc32c(0, b + 1, len - sizeof(*b)));
}

/* -- the process that is killed -------------------------------------------------------------- */

struct writer {
    struct keep *keep;
    unsigned n;
    uint64_t rng;
    int64_t number[SLOTS];
};

static void retire_one(struct writer *w, unsigned i)
{
    struct slot *s = &world->slot[w->n][i];

    if (!w->number[i])
        return;
    s->gone = 1;
    keep_retire(w->keep, (enum keep_log)s->log, w->number[i]);
    w->number[i] = 0;
    s->ack = s->id = 0;
    s->gone = 0;
}

static void write_one(struct writer *w, unsigned i, bool tagged)
{
    struct slot *s = &world->slot[w->n][i];
    enum keep_log log = test_rand(&w->rng) % 2 ? KEEP_TX : KEEP_DATA;
    size_t len = sizeof(struct body) +
                 test_rand(&w->rng) % (test_rand(&w->rng) % 16 ? 5000 : RECORD_MAX);
    uint64_t id = ++world->ids, seq = ++world->seq[w->n];
    int64_t number;
    void *rec;

    if (tagged)
        keep_begin(w->keep, w->n + 1, seq);
    number = keep_reserve(w->keep, log, len, &rec);
    if (number == -EINPROGRESS) {
        keep_end(w->keep);
        for (unsigned k = 0; k < SLOTS; k++)
            retire_one(w, k);
        return;
    }
    CHECK(number > 0);
    fill(w->keep, log, number, rec, id, len);
    if (test_rand(&w->rng) % 16 == 0) {
        keep_cancel(w->keep, log, number);
        keep_end(w->keep);
        return;
    }
    s->log = log;
    s->id = id;
    keep_value(w->keep, id);
    keep_commit(w->keep, log, number, 0);
    s->ack = id;
    if (tagged)
        world->done[w->n] = seq;
    w->number[i] = number;
    if (test_rand(&w->rng) % 4 == 0)
        retire_one(w, i);
    if (tagged) {
        world->answered[w->n] = seq;
        keep_end(w->keep);
    }
}

static void *writer_run(void *arg)
{
    struct writer *w = arg;

    for (;;) {
        unsigned i = (unsigned)(test_rand(&w->rng) % SLOTS);

        if (w->number[i])
            retire_one(w, i);
        else
            write_one(w, i, test_rand(&w->rng) % 2);
    }
    return NULL;
}

static void child(uint64_t rng)
{
    struct writer w[THREADS];
    struct keep *keep;
    pthread_t t;

    CHECK_EQ(keep_open(mem, mem_bytes, &keep), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        w[i] = (struct writer){.keep = keep, .n = i, .rng = test_rand(&rng) | 1};
        CHECK_EQ(pthread_create(&t, NULL, writer_run, &w[i]), 0);
    }
    for (;;)
        pause();
}

/* -- the one who looks ----------------------------------------------------------------------- */

struct look {
    struct keep *keep;
    enum keep_log log;
    bool seen[THREADS][SLOTS];
};

static int look(int64_t number, const void *rec, size_t len, void *arg)
{
    const struct body *b = rec;
    struct look *l = arg;
    bool known = false;

    check_body(rec, len);
    for (unsigned t = 0; t < THREADS; t++)
        for (unsigned i = 0; i < SLOTS; i++)
            if (world->slot[t][i].id == b->id) {
                CHECK_EQ(world->slot[t][i].log, l->log);
                l->seen[t][i] = known = true;
            }
    CHECK(known); /* it was retired, or never written */
    keep_retire(l->keep, l->log, number);
    return 0;
}

static void check_round(void)
{
    struct look l = {0};
    uint64_t value;

    CHECK_EQ(keep_open(mem, mem_bytes, &l.keep), 0);
    for (unsigned t = 0; t < THREADS; t++) {
        uint64_t done = world->done[t], answered = world->answered[t];
        if (done > answered) /* acknowledged to be in, and not answered */
            CHECK(keep_done(l.keep, t + 1, done, &value) && value > 0);
        if (keep_done(l.keep, t + 1, world->seq[t], &value))
            CHECK_EQ(world->seq[t] >= done, 1);
        if (answered > 1)
            CHECK(!keep_done(l.keep, t + 1, answered - 1, &value));
        for (uint64_t q = answered; q <= world->seq[t]; q++)
            keep_answered(l.keep, t + 1, q);
        world->answered[t] = done;
    }
    for (l.log = 0; l.log < KEEP_LOGS; l.log++)
        CHECK_EQ(keep_replay(l.keep, l.log, look, &l), 0);
    CHECK(keep_empty(l.keep));
    for (unsigned t = 0; t < THREADS; t++)
        for (unsigned i = 0; i < SLOTS; i++)
            CHECK(world->slot[t][i].ack == 0 || world->slot[t][i].gone || l.seen[t][i]);
    for (unsigned t = 0; t < THREADS; t++)
        for (unsigned i = 0; i < SLOTS; i++)
            world->slot[t][i].id = world->slot[t][i].ack = world->slot[t][i].gone = 0;
    keep_close(l.keep);
}

static void kills(void)
{
    memset(world, 0, sizeof(*world));
    CHECK_EQ(keep_format(mem, mem_bytes, LOG_BYTES, LOG_BYTES), 0);
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t rng = test_rand(&seed), us = test_rand(&seed) % 12000;
        pid_t pid = fork();
        int status;

        CHECK(pid >= 0);
        if (pid == 0)
            child(rng);
        usleep((useconds_t)(300 + us));
        kill(pid, SIGKILL);
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        check_round();
    }
    fprintf(stderr, "   %llu records in %u rounds\n", (unsigned long long)world->ids, ROUNDS);
}

/* -- what it promises in one process --------------------------------------------------------- */

static struct keep *fresh(void)
{
    struct keep *keep;

    CHECK_EQ(keep_format(mem, mem_bytes, LOG_BYTES, LOG_BYTES), 0);
    CHECK_EQ(keep_open(mem, mem_bytes, &keep), 0);
    CHECK(keep_empty(keep));
    return keep;
}

static int64_t put(struct keep *keep, enum keep_log log, size_t len, uint64_t mark)
{
    void *rec;
    int64_t number = keep_reserve(keep, log, len, &rec);

    if (number < 0)
        return number;
    fill(keep, log, number, rec, mark, len);
    keep_commit(keep, log, number, mark);
    return number;
}

static void full(void)
{
    struct keep *keep = fresh();
    int64_t first = put(keep, KEEP_DATA, PUT_BYTES, 1), n;

    while ((n = put(keep, KEEP_DATA, PUT_BYTES, 1)) > 0)
        continue;
    CHECK_EQ(n, -EINPROGRESS);
    CHECK(keep_pressed(keep, KEEP_DATA) && !keep_pressed(keep, KEEP_TX));
    keep_retire(keep, KEEP_DATA, first);
    CHECK(put(keep, KEEP_DATA, PUT_BYTES, 1) > 0);
    CHECK_EQ(put(keep, KEEP_DATA, PUT_BYTES, 1), -EINPROGRESS);
    CHECK_EQ(put(keep, KEEP_TX, LOG_BYTES, 1), -E2BIG);
    keep_retire_upto(keep, KEEP_DATA, 1);
    for (unsigned i = 0; i < 1000; i++) {
        n = put(keep, KEEP_DATA, PUT_BYTES, i);
        CHECK(n > 0);
        keep_retire(keep, KEEP_DATA, n);
    }
    keep_close(keep);
}

static int count(int64_t number, const void *rec, size_t len, void *arg)
{
    (void)number;
    check_body(rec, len);
    ++*(unsigned *)arg;
    return 0;
}

static void marks(void)
{
    struct keep *keep = fresh();
    unsigned n = 0;

    for (uint64_t i = 1; i <= 100; i++)
        CHECK(put(keep, KEEP_TX, 1000, i) > 0);
    keep_retire_upto(keep, KEEP_TX, 40);
    keep_close(keep);
    CHECK_EQ(keep_open(mem, mem_bytes, &keep), 0);
    CHECK_EQ(keep_replay(keep, KEEP_TX, count, &n), 0);
    CHECK_EQ(n, 60);
    keep_close(keep);
}

/* Every second record is of one chain. */
static void chains(void)
{
    struct keep *keep = fresh();
    int64_t all[200];
    unsigned n = 0;

    for (unsigned i = 0; i < 200; i++) {
        all[i] = put(keep, KEEP_DATA, 100, 1);
        CHECK(all[i] > 0);
        if (i >= 2)
            keep_link(keep, KEEP_DATA, all[i - 2], all[i]);
    }
    keep_retire_chain(keep, KEEP_DATA, all[0], all[158]); /* 80 of 100 */
    keep_retire_chain(keep, KEEP_DATA, all[101], 0);      /* from the middle to the end: 50 */
    keep_retire_chain(keep, KEEP_DATA, 0, 0);
    keep_close(keep);
    CHECK_EQ(keep_open(mem, mem_bytes, &keep), 0);
    CHECK_EQ(keep_replay(keep, KEEP_DATA, count, &n), 0);
    CHECK_EQ(n, 70);
    keep_close(keep);
}

static void tags(void)
{
    struct keep *keep = fresh();
    uint64_t value = 0;
    int64_t n;

    keep_begin(keep, 1, 1); /* retired before it is answered */
    keep_value(keep, 77);
    n = put(keep, KEEP_TX, 100, 1);
    CHECK(!keep_done(keep, 1, 1, &value));
    keep_retire(keep, KEEP_TX, n);
    CHECK(keep_done(keep, 1, 1, &value));
    CHECK_EQ(value, 77);
    put(keep, KEEP_DATA, 100, 1); /* a second record */
    keep_value(keep, 78);
    keep_end(keep);
    CHECK(!keep_done(keep, 1, 1, &value));
    keep_begin(keep, 1, 2); /* a part is not all of it, and a pause is nobody's */
    keep_part(keep, true);
    put(keep, KEEP_DATA, 100, 1);
    keep_part(keep, false);
    keep_pause(keep);
    put(keep, KEEP_TX, 100, 1);
    keep_resume(keep);
    keep_begin(keep, 1, 3); /* left, then answered by name */
    put(keep, KEEP_DATA, 100, 1);
    keep_begin(keep, 1, 4); /* left */
    keep_value(keep, 4);
    put(keep, KEEP_DATA, 100, 1);
    keep_begin(keep, 1, 5);
    keep_answered(keep, 1, 3);
    keep_close(keep);
    CHECK_EQ(keep_open(mem, mem_bytes, &keep), 0);
    for (uint64_t seq = 1; seq < 6; seq++)
        CHECK_EQ(keep_done(keep, 1, seq, &value), seq == 4);
    CHECK_EQ(value, 4);
    keep_answered(keep, 1, 4);
    CHECK(!keep_done(keep, 1, 4, &value));
    keep_close(keep);
}

static void homes(void)
{
    struct keep *keep = fresh();
    uint64_t home = 0;

    for (uint64_t ino = 2; ino < 5000; ino++)
        keep_home_set(keep, 1 + ino % 3, ino, ino * 2);
    keep_home_clear(keep, 1 + 100 % 3, 100);
    keep_close(keep);
    CHECK_EQ(keep_open(mem, mem_bytes, &keep), 0);
    for (uint64_t ino = 2; ino < 5000; ino++) {
        CHECK_EQ(keep_home(keep, 1 + ino % 3, ino, &home), ino != 100);
        CHECK(ino == 100 || home == ino * 2);
        CHECK(!keep_home(keep, 1 + (ino + 1) % 3, ino, &home));
    }
    keep_close(keep);
}

static void quiet(int level, const char *text, void *arg)
{
    (void)level, (void)text, (void)arg;
}

static void refused(void)
{
    struct keep *keep = fresh();
    int64_t n = put(keep, KEEP_TX, 100, 1);
    uint8_t *at = mem;

    CHECK(n > 0);
    keep_close(keep);
    base_log_set(quiet, NULL);
    CHECK_EQ(keep_format(mem, mem_bytes - 1, LOG_BYTES, LOG_BYTES), -EINVAL);
    CHECK_EQ(keep_format(mem, mem_bytes, LOG_BYTES / 2, LOG_BYTES), -EINVAL);
    for (size_t i = 0; i <= 40; i += 8) { /* the magic, the length, places and sizes of tables */
        at[i] ^= 0x80;
        at[i + 7] ^= 0x80;
        CHECK_EQ(keep_open(mem, mem_bytes, &keep), -EUCLEAN);
        at[i] ^= 0x80;
        at[i + 7] ^= 0x80;
    }
    base_log_set(NULL, NULL);
    CHECK_EQ(keep_open(mem, mem_bytes, &keep), 0);
    keep_close(keep);
}

static void cost(void)
{
    struct keep *keep = fresh();
    uint64_t began, ns[2];
    uint8_t *src = malloc(4096), *dst = malloc(1 << 20);
    void *rec;

    CHECK(src && dst);
    memset(src, 1, 4096);
    memset(dst, 1, 1 << 20);
    for (unsigned lap = 0; lap < 2; lap++) { /* the first one meets untouched pages */
        began = base_mono_ns();
        for (unsigned i = 0; i < 40000; i++) {
            int64_t n = keep_reserve(keep, KEEP_DATA, 4096 + 80, &rec);
            CHECK(n > 0);
            keep_copy(keep, KEEP_DATA, n, rec, src, 4096);
            keep_commit(keep, KEEP_DATA, n, i);
            if (i % 1000 == 999)
                keep_retire_upto(keep, KEEP_DATA, i);
        }
        ns[0] = base_mono_ns() - began;
    }
    began = base_mono_ns();
    for (unsigned i = 0; i < 40000; i++) {
        memcpy(dst + i % 256 * 4096, src, 4096);
        src[i % 4096]++;
    }
    ns[1] = base_mono_ns() - began;
    fprintf(stderr, "   a record of 4 KiB: %llu ns, the copy alone: %llu ns\n",
            (unsigned long long)ns[0] / 40000, (unsigned long long)ns[1] / 40000);
    free(src);
    free(dst);
    keep_close(keep);
}

int main(void)
{
    seed = test_seed();
    mem_bytes = keep_bytes(LOG_BYTES, LOG_BYTES);
    mem = shared(mem_bytes);
    world = shared(sizeof(*world));
    RUN(full);
    RUN(marks);
    RUN(chains);
    RUN(tags);
    RUN(homes);
    RUN(refused);
    RUN(cost);
    RUN(kills);
    return 0;
}
