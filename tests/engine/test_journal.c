/* SPDX-License-Identifier: Apache-2.0 */
/* Journal: what was appended comes back, in order; wrap-around, damage, cuts, group commit. */
#include "obj/journal.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/words.h"
#include "sim_device.h"
#include "test.h"

#define DEV_BYTES (20u << 20)

static uint64_t seed;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct super super;

struct env {
    struct queue_dev *dev;
    struct journal *j;
};

static void quiet(int level, const char *text, void *arg)
{
}

static struct queue_dev *open_dev(const char *uri)
{
    struct queue_dev *dev;

    CHECK_EQ(queue_dev_open(uri, NULL, &dev), 0);
    return dev;
}

static void make_dev_of(const char *name, uint64_t bytes, uint64_t journal)
{
    struct queue_dev *dev;
    char uri[64];

    sim_destroy(name);
    CHECK_EQ(sim_create(name, bytes, test_rand(&seed)), 0);
    snprintf(uri, sizeof(uri), "sim:%s", name);
    dev = open_dev(uri);
    CHECK_EQ(super_layout(bytes, journal, &super), 0);
    CHECK_EQ(uuid_make(super.uuid), 0);
    queue_dev_close(dev); /* the device is zeros already; formatting has its own test */
}

static void make_dev(const char *name)
{
    make_dev_of(name, DEV_BYTES, 0);
}

/* -- records: number, then bytes that follow from it ------------------------------------------- */

static size_t record_len(uint64_t i)
{
    uint64_t r = (i + 1) * 0x9E3779B97F4A7C15ull;
    unsigned kind = (unsigned)(r >> 60);

    r = test_rand(&r);
    return 8 + (kind < 12 ? r % 300 : kind < 15 ? r % 20000 : r % 200000);
}

static void fill(uint8_t *p, uint64_t i, size_t len)
{
    put_le64(p, i);
    for (size_t k = 8; k < len; k++)
        p[k] = (uint8_t)(i * 31 + k);
}

static int append_len(struct journal *j, uint64_t i, size_t len, uint64_t *end)
{
    static uint8_t rec[JOURNAL_RECORD_BYTES];
    struct journal_piece v[3];
    size_t cut = len / 3;

    fill(rec, i, len);
    v[0] = (struct journal_piece){rec, cut};
    v[1] = (struct journal_piece){NULL, 0};
    v[2] = (struct journal_piece){rec + cut, len - cut};
    return journal_append(j, v, 3, end);
}

static int append(struct journal *j, uint64_t i, uint64_t *end)
{
    return append_len(j, i, record_len(i), end);
}

struct seen {
    uint64_t next;   /* record expected */
    uint64_t refuse; /* number + 1 to answer 1 to; 0: none */
    uint64_t fail;   /* number + 1 to answer -EIO to */
    uint64_t last_pos;
    uint64_t below; /* records below the flushed position */
    bool any_len;
};

static int on_record(const void *rec, size_t len, uint64_t pos, bool below, void *arg)
{
    static uint8_t want[JOURNAL_RECORD_BYTES];
    struct seen *s = arg;

    CHECK_EQ(get_le64(rec), s->next);
    CHECK(pos >= s->last_pos);
    if (!s->any_len)
        CHECK_EQ(len, record_len(s->next));
    fill(want, s->next, len);
    CHECK_EQ(memcmp(want, rec, len), 0);
    CHECK(!below || s->below == s->next || s->below == 0);
    if (s->refuse == s->next + 1)
        return 1;
    if (s->fail == s->next + 1)
        return -EIO;
    if (below)
        s->below = s->next + 1;
    s->next++;
    s->last_pos = pos;
    return 0;
}

static struct env env_open(const char *uri, uint64_t tail, uint64_t seq, struct seen *s,
                           bool *damaged)
{
    struct env e = {.dev = open_dev(uri)};

    CHECK_EQ(journal_open(e.dev, &super, &e.j), 0);
    CHECK_EQ(journal_replay(e.j, tail, seq, on_record, s, damaged), 0);
    return e;
}

static void env_close(struct env *e)
{
    journal_close(e->j);
    queue_dev_close(e->dev);
}

/* -- tests ------------------------------------------------------------------------------------- */

static void formats(void)
{
    uint8_t block[DFE_BLOCK_BYTES] __attribute__((aligned(4096)));
    uint64_t at, end;
    struct queue_dev *dev;

    make_dev("j");
    at = super.journal_blk * DFE_BLOCK_BYTES;
    end = at + super.journal_len_blk * DFE_BLOCK_BYTES;
    sim_scribble("j", 0, DEV_BYTES);
    dev = open_dev("sim:j");
    CHECK_EQ(journal_format(dev, &super), 0);
    for (uint64_t off = at - sizeof(block); off <= end; off += sizeof(block)) {
        bool zero = true;
        sim_peek_durable("j", off, block, sizeof(block));
        for (size_t i = 0; i < sizeof(block); i++)
            zero &= block[i] == 0;
        CHECK_EQ(zero, off >= at && off < end);
    }
    queue_dev_close(dev);
}

static void comes_back_over_several_openings(void)
{
    uint64_t i = 0, end = 0;

    make_dev("j");
    for (int round = 0; round < 6; round++) {
        struct seen s = {0};
        bool damaged;
        struct env e = env_open("sim:j", 0, 0, &s, &damaged);

        CHECK(!damaged);
        CHECK_EQ(s.next, i);
        for (unsigned n = 0; n < 40; n++, i++) {
            CHECK_EQ(append(e.j, i, &end), 0);
            if (n % 7 == 0)
                CHECK_EQ(journal_write(e.j, &mutex, end, n % 2), 0);
        }
        CHECK_EQ(journal_head(e.j), end);
        CHECK_EQ(journal_write(e.j, &mutex, UINT64_MAX, true), 0);
        CHECK(journal_durable(e.j) >= end);
        env_close(&e);
    }
}

/* Over many laps, with marks and trims; replay from the last trimmed mark. */
static void wraps_around(void)
{
    uint64_t i = 0, end = 0, tail = 0, seq = 0, first = 0;
    uint64_t mark_pos, mark_seq;
    struct seen s = {0};
    bool damaged;

    make_dev("j");
    for (int opening = 0; opening < 3; opening++) {
        s = (struct seen){.next = first};
        struct env e = env_open("sim:j", tail, seq, &s, &damaged);
        CHECK(!damaged);
        CHECK_EQ(s.next, i);
        for (uint64_t stop = i + 1200; i < stop;) {
            int err = append(e.j, i, &end);
            if (err == 0) {
                if (++i % 50 == 0)
                    CHECK_EQ(journal_write(e.j, &mutex, end, i % 3), 0);
                continue;
            }
            CHECK_EQ(err, -EINPROGRESS);
            if (journal_ring_full(e.j, record_len(i))) {
                journal_mark(e.j, &mark_pos, &mark_seq);
                first = i;
                journal_trim(e.j, mark_pos);
                tail = mark_pos;
                seq = mark_seq;
            }
            CHECK_EQ(journal_write(e.j, &mutex, UINT64_MAX, false), 0);
            CHECK(journal_used_bytes(e.j) <= journal_ring_bytes(e.j));
        }
        CHECK_EQ(journal_write(e.j, &mutex, UINT64_MAX, true), 0);
        CHECK(journal_head(e.j) > (opening + 1) * journal_ring_bytes(e.j) / 2);
        env_close(&e);
    }
}

static void large_records(void)
{
    static const uint8_t byte[1];
    struct journal_piece big = {byte, JOURNAL_RECORD_BYTES + 1};
    struct seen s = {.any_len = true};
    uint64_t end;
    bool damaged;

    make_dev("j");
    struct env e = env_open("sim:j", 0, 0, &s, &damaged);
    CHECK_EQ(journal_append(e.j, &big, 1, &end), -E2BIG);
    CHECK_EQ(append_len(e.j, 0, 900000, &end), 0);
    CHECK_EQ(append_len(e.j, 1, JOURNAL_RECORD_BYTES, &end), 0);
    CHECK_EQ(append_len(e.j, 2, 8, &end), 0);
    CHECK_EQ(journal_write(e.j, &mutex, end, true), 0);
    CHECK_EQ(append_len(e.j, 3, DFE_TX_BYTES, &end), -EINPROGRESS);
    CHECK(journal_ring_full(e.j, DFE_TX_BYTES));
    CHECK_EQ(append_len(e.j, 3, 1 << 20, &end), 0);
    CHECK_EQ(journal_write(e.j, &mutex, end, false), 0);
    env_close(&e);
    s = (struct seen){.any_len = true};
    e = env_open("sim:j", 0, 0, &s, &damaged);
    CHECK_EQ(s.next, 4);
    env_close(&e);
}

/* Memory is full before a large ring is: writing what waits makes room, and all is there again. */
static void memory_full(void)
{
    struct seen s = {.any_len = true};
    uint64_t end, n = 0;
    bool damaged;

    make_dev_of("j", 100u << 20, 64u << 20);
    struct env e = env_open("sim:j", 0, 0, &s, &damaged);
    for (unsigned round = 0; round < 2; round++) {
        uint64_t room;
        int err;
        while ((err = append_len(e.j, n, 300000, &end)) == 0)
            n++;
        CHECK_EQ(err, -EINPROGRESS);
        CHECK(!journal_ring_full(e.j, 300000));
        room = journal_room(e.j);
        CHECK(room < journal_head(e.j));
        CHECK_EQ(journal_write(e.j, &mutex, room, false), 0);
        CHECK_EQ(append_len(e.j, n, 300000, &end), 0);
        n++;
    }
    CHECK_EQ(journal_write(e.j, &mutex, UINT64_MAX, true), 0);
    env_close(&e);
    s = (struct seen){.any_len = true};
    e = env_open("sim:j", 0, 0, &s, &damaged);
    CHECK_EQ(s.next, n);
    env_close(&e);
}

/* fn discards from a record on: what was kept comes back, what was discarded never, and new records
 * follow. */
static void discarding(void)
{
    for (uint64_t refuse = 0; refuse < 30; refuse += 1 + refuse / 6) {
        struct seen s = {0};
        uint64_t end;
        bool damaged;

        make_dev("j");
        struct env e = env_open("sim:j", 0, 0, &s, &damaged);
        for (uint64_t i = 0; i < 30; i++) {
            CHECK_EQ(append(e.j, i, &end), 0);
            if (i % 4 == 3)
                CHECK_EQ(journal_write(e.j, &mutex, end, false), 0);
        }
        CHECK_EQ(journal_write(e.j, &mutex, end, false), 0);
        env_close(&e);
        s = (struct seen){.refuse = refuse + 1};
        e = env_open("sim:j", 0, 0, &s, &damaged);
        CHECK(!damaged);
        CHECK_EQ(s.next, refuse);
        env_close(&e);
        s = (struct seen){0}; /* nothing was appended: still gone */
        e = env_open("sim:j", 0, 0, &s, &damaged);
        CHECK(!damaged);
        CHECK_EQ(s.next, refuse);
        for (uint64_t i = refuse; i < refuse + 5; i++) {
            CHECK_EQ(append(e.j, i, &end), 0);
            CHECK_EQ(journal_write(e.j, &mutex, end, false), 0);
        }
        env_close(&e);
        s = (struct seen){0};
        e = env_open("sim:j", 0, 0, &s, &damaged);
        CHECK_EQ(s.next, refuse + 5);
        env_close(&e);
    }
}

/* 20 batches, flushed one by one. A flipped bit in batch k: damage if a later batch attests it,
 * else the end. */
static void damage(void)
{
    uint64_t begin[21], end;
    struct seen s = {0};
    bool damaged;

    make_dev("d");
    struct env e = env_open("sim:d", 0, 0, &s, &damaged);
    begin[0] = 0;
    for (uint64_t i = 0; i < 20; i++) {
        CHECK_EQ(append(e.j, i, &end), 0);
        CHECK_EQ(journal_write(e.j, &mutex, end, true), 0);
        begin[i + 1] = journal_durable(e.j);
    }
    env_close(&e);
    for (int turn = 0; turn < 80; turn++) {
        uint64_t k = test_rand(&seed) % 20;
        size_t used = 72 + 4 + record_len(k);
        uint64_t byte = super.journal_blk * DFE_BLOCK_BYTES + begin[k] + test_rand(&seed) % used;
        unsigned bit = (unsigned)(test_rand(&seed) % 8);

        sim_flip_bit("d", byte, bit);
        s = (struct seen){0};
        e = env_open("sim:d", 0, 0, &s, &damaged);
        CHECK_EQ(s.next, k);
        CHECK_EQ(damaged, k < 19);
        env_close(&e);
        sim_flip_bit("d", byte, bit);
    }
    s = (struct seen){.refuse = 7 + 1}; /* its data is bad, and it was flushed */
    e = env_open("sim:d", 0, 0, &s, &damaged);
    CHECK(damaged && s.next == 7);
    env_close(&e);
    s = (struct seen){0}; /* damage changes nothing on the device */
    e = env_open("sim:d", 0, 0, &s, &damaged);
    CHECK(!damaged && s.next == 20 && s.below == 19);
    env_close(&e);
    sim_destroy("d");
}

static void unreadable(void)
{
    struct sim_fault f = {.ops = 1u << QUEUE_READ, .len = DFE_BLOCK_BYTES, .err = -EIO};
    struct seen s = {0};
    uint64_t end, third = 0;
    bool damaged;

    make_dev("j");
    struct env e = env_open("sim:j", 0, 0, &s, &damaged);
    for (uint64_t i = 0; i < 6; i++) {
        if (i == 3)
            third = journal_durable(e.j);
        CHECK_EQ(append_len(e.j, i, 100000, &end), 0);
        CHECK_EQ(journal_write(e.j, &mutex, end, true), 0);
    }
    env_close(&e);
    f.off = super.journal_blk * DFE_BLOCK_BYTES + third;
    sim_fault_add("j", &f);
    s = (struct seen){.any_len = true};
    e = env_open("sim:j", 0, 0, &s, &damaged);
    CHECK(damaged && s.next == 3);
    env_close(&e);
    sim_fault_clear("j");
}

static void device_errors(void)
{
    struct sim_fault f = {.ops = 1u << QUEUE_WRITE, .count = 3, .err = -EIO, .partial = true};
    struct seen s = {0};
    uint64_t end;
    bool damaged;

    make_dev("j");
    struct env e = env_open("sim:j", 0, 0, &s, &damaged);
    sim_fault_add("j", &f);
    for (uint64_t i = 0; i < 3; i++) { /* kept, and tried again */
        CHECK_EQ(append(e.j, i, &end), 0);
        CHECK_EQ(journal_write(e.j, &mutex, end, true), -EIO);
    }
    CHECK_EQ(journal_durable(e.j), 0);
    CHECK_EQ(journal_write(e.j, &mutex, end, true), 0);
    f = (struct sim_fault){.ops = 1u << QUEUE_FLUSH, .count = 1, .err = -EIO};
    sim_fault_add("j", &f);
    CHECK_EQ(append(e.j, 3, &end), 0);
    CHECK_EQ(journal_write(e.j, &mutex, end, true), -EIO);
    CHECK_EQ(journal_write(e.j, &mutex, end, true), -EIO); /* for good */
    env_close(&e);
    sim_fault_clear("j");
    s = (struct seen){0};
    e = env_open("sim:j", 0, 0, &s, &damaged);
    CHECK(!damaged && s.next >= 3);
    env_close(&e);
}

/* The cut may still be due, and fall into replay itself. */
static struct env env_open_after_loss(const char *uri, struct seen *s, bool *damaged)
{
    for (;;) {
        struct env e = {.dev = open_dev(uri)};
        int err;
        *s = (struct seen){0};
        CHECK_EQ(journal_open(e.dev, &super, &e.j), 0);
        err = journal_replay(e.j, 0, 0, on_record, s, damaged);
        if (err == 0)
            return e;
        CHECK(err == -EIO && sim_power_is_off(uri + 4));
        env_close(&e);
    }
}

/* The power fails at every change of a workload; what comes back is a prefix with all that was
 * durable; then it goes on, and fails again. */
static void power_loss(void)
{
    for (uint64_t cut = 0; cut < 40; cut++) {
        uint64_t i = 0, sure = 0, end;
        struct seen s;
        bool damaged;

        make_dev("p");
        for (int life = 0; life < 3; life++) {
            struct env e = env_open_after_loss("sim:p", &s, &damaged);
            CHECK(!damaged);
            CHECK(s.next >= sure && s.next <= i);
            i = s.next;
            sim_power_cut("p", life ? test_rand(&seed) % 50 : cut);
            for (int n = 0; n < 60; n++, i++) {
                CHECK_EQ(append(e.j, i, &end), 0);
                if (n % 3 == 0 && journal_write(e.j, &mutex, end, n % 2))
                    break;
                if (n % 6 == 3)
                    sure = i + 1;
            }
            i++;
            env_close(&e);
        }
    }
    sim_destroy("p");
}

/* -- threads ----------------------------------------------------------------------------------- */

#define THREADS 6
#define EACH 150

struct shared {
    struct journal *j;
    atomic_uint_fast64_t next;
};

static void *committer(void *arg)
{
    struct shared *sh = arg;
    uint64_t end;

    for (int n = 0; n < EACH; n++) {
        int err;
        pthread_mutex_lock(&mutex);
        while ((err = append_len(sh->j, sh->next, 8 + sh->next % 5000, &end)) == -EINPROGRESS) {
            pthread_mutex_unlock(&mutex);
            CHECK_EQ(journal_write(sh->j, &mutex, UINT64_MAX, false), 0);
            pthread_mutex_lock(&mutex);
        }
        CHECK_EQ(err, 0);
        sh->next++;
        pthread_mutex_unlock(&mutex);
        CHECK_EQ(journal_write(sh->j, &mutex, end, n % 4 != 0), 0);
        if (n % 4) {
            pthread_mutex_lock(&mutex);
            CHECK(journal_durable(sh->j) >= end);
            pthread_mutex_unlock(&mutex);
        }
    }
    return NULL;
}

static void group_commit(void)
{
    struct seen s = {.any_len = true};
    struct shared sh = {0};
    pthread_t t[THREADS];
    uint64_t flushes;
    bool damaged;

    make_dev("g");
    struct env e = env_open("sim:g", 0, 0, &s, &damaged);
    flushes = sim_count("g", QUEUE_FLUSH);
    sh.j = e.j;
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&t[i], NULL, committer, &sh), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    CHECK_EQ(journal_write(e.j, &mutex, UINT64_MAX, true), 0);
    flushes = sim_count("g", QUEUE_FLUSH) - flushes;
    fprintf(stderr, "%d commits of %d threads: %llu flushes\n", THREADS * EACH, THREADS,
            (unsigned long long)flushes);
    env_close(&e);
    s = (struct seen){.any_len = true};
    e = env_open("sim:g", 0, 0, &s, &damaged);
    CHECK_EQ(s.next, THREADS * EACH);
    env_close(&e);
    sim_destroy("g");
}

int main(void)
{
    seed = test_seed();
    base_log_set(quiet, NULL);
    RUN(formats);
    RUN(comes_back_over_several_openings);
    RUN(wraps_around);
    RUN(large_records);
    RUN(memory_full);
    RUN(discarding);
    RUN(damage);
    RUN(unreadable);
    RUN(device_errors);
    RUN(power_loss);
    RUN(group_commit);
    sim_destroy("j");
    return 0;
}
