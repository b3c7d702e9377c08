/* SPDX-License-Identifier: Apache-2.0 */
/* Index: answers against a reference, transactions, damage, concurrent readers. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/words.h"
#include "obj/index.h"
#include "obj/key.h"
#include "test.h"

static uint64_t seed;
static char dir[300], file[320];
static int n_dirs;

static struct index *fresh_index(void)
{
    struct index *ix;

    snprintf(dir, sizeof(dir), "%s/index%d", test_dir(), n_dirs++);
    snprintf(file, sizeof(file), "%s/data.mdb", dir);
    CHECK_EQ(index_create(dir), 0);
    CHECK_EQ(index_open(dir, false, &ix), 0);
    return ix;
}

/* Entry i: key, length and bytes of its value follow from i and gen. */
static size_t make_value(uint64_t i, uint64_t gen, uint8_t *val)
{
    static const uint16_t lens[] = {0, 8, 30, 100, 100, 100, 700, 1900, 3000, 4080, 9000};
    uint64_t r = (i + 1) * 0x9E3779B97F4A7C15ull ^ gen * 0xD1B54A32D192ED03ull;
    size_t len = lens[(r >> 32) % (sizeof(lens) / sizeof(lens[0]))];

    for (size_t k = 0; k < len; k++)
        val[k] = (uint8_t)test_rand(&r);
    return len;
}

static void make_key(uint64_t i, struct key *k)
{
    uint8_t d[40];
    struct obj_key ok = {.dkey = d, .dkey_len = (uint16_t)(9 + i % 31)};

    memset(d, 'k', sizeof(d));
    put_be64(d + 1, i * 1000);
    CHECK_EQ(key_kv(k, 1, (struct obj_id){0, i / 100}, &ok), 0);
}

static void put_range(struct index *ix, uint64_t from, uint64_t to, uint64_t gen)
{
    static uint8_t val[16384];
    struct index_tx *tx;
    struct key k;

    CHECK_EQ(index_begin(ix, &tx), 0);
    for (uint64_t i = from; i < to; i++) {
        make_key(i, &k);
        CHECK_EQ(index_put(tx, k.b, k.len, val, make_value(i, gen, val)), 0);
    }
    CHECK_EQ(index_commit(tx), 0);
}

/* 0: right; negative: what index_get said; a wrong value aborts. */
static int get_one(struct index *ix, uint64_t i, uint64_t gen)
{
    static _Thread_local uint8_t val[16384], want[16384];
    size_t len = 0, want_len = make_value(i, gen, want);
    struct key k;
    int err;

    make_key(i, &k);
    err = index_get(ix, k.b, k.len, val, sizeof(val), &len);
    if (err == 0) {
        CHECK_EQ(len, want_len);
        CHECK_EQ(memcmp(val, want, len), 0);
    }
    return err;
}

struct walk {
    uint64_t next, n, stop;
};

static int on_entry(const void *key, size_t klen, const void *val, size_t vlen, void *arg)
{
    static uint8_t want[16384];
    struct walk *w = arg;
    struct key k;
    uint64_t i = w->next++;

    make_key(i, &k);
    CHECK_EQ(key_cmp(key, klen, k.b, k.len), 0);
    CHECK_EQ(vlen, make_value(i, 0, want));
    CHECK_EQ(memcmp(val, want, vlen), 0);
    return ++w->n == w->stop ? 77 : 0;
}

static void basics(void)
{
    struct index *ix = fresh_index(), *other;
    struct index_tx *tx;
    struct walk w = {0};
    struct key k, to;
    uint8_t val[8];
    size_t len;

    CHECK_EQ(index_get(ix, "x", 1, val, 8, &len), -ENOENT);
    CHECK_EQ(index_get(ix, "", 0, val, 8, &len), -ENAMETOOLONG);
    put_range(ix, 0, 1000, 0);
    for (uint64_t i = 0; i < 1000; i++)
        CHECK_EQ(get_one(ix, i, 0), 0);
    CHECK_EQ(get_one(ix, 1000, 0), -ENOENT);
    make_key(5, &k);
    CHECK_EQ(index_get(ix, k.b, k.len, NULL, 0, &len), 0);
    CHECK_EQ(index_get(ix, k.b, k.len - 1u, val, 8, &len), -ENOENT);
    CHECK_EQ(index_scan(ix, NULL, 0, NULL, 0, on_entry, &w, NULL), 0);
    CHECK_EQ(w.n, 1000);
    w = (struct walk){.next = 5, .stop = 7};
    CHECK_EQ(index_scan(ix, k.b, k.len, NULL, 0, on_entry, &w, NULL), 77);
    CHECK_EQ(w.n, 7);
    w = (struct walk){.next = 5};
    make_key(900, &to);
    CHECK_EQ(index_scan(ix, k.b, k.len, to.b, to.len, on_entry, &w, NULL), 0);
    CHECK_EQ(w.next, 900);

    CHECK_EQ(index_begin(ix, &tx), 0);
    CHECK_EQ(index_del(tx, k.b, k.len), 0);
    CHECK_EQ(index_del(tx, "none", 4), 0);
    CHECK_EQ(get_one(ix, 5, 0), 0); /* not before commit */
    index_abort(tx);
    CHECK_EQ(get_one(ix, 5, 0), 0);
    CHECK_EQ(index_begin(ix, &tx), 0);
    CHECK_EQ(index_del(tx, k.b, k.len), 0);
    CHECK_EQ(index_commit(tx), 0);
    CHECK_EQ(get_one(ix, 5, 0), -ENOENT);
    CHECK(index_used_bytes(ix) > 1000 * 100);
    CHECK_EQ(index_reserve(ix, 8 << 20), 0);
    index_close(ix);

    CHECK_EQ(index_open(dir, true, &ix), 0);
    CHECK_EQ(get_one(ix, 6, 0), 0);
    CHECK_EQ(get_one(ix, 5, 0), -ENOENT);
    CHECK_EQ(index_begin(ix, &tx), -EACCES);
    index_close(ix);
    CHECK_EQ(index_create(dir), -EEXIST);
    CHECK_EQ(index_open("/nonexistent", false, &other), -ENOENT);
}

/* -- damage ------------------------------------------------------------------------------------ */

static struct {
    unsigned right, told, absent, refused, crashed;
} tally;

static int pass_over(const void *key, size_t klen, const void *val, size_t vlen, void *arg)
{
    uint64_t *n = arg;

    return ++*n > 100000 ? 1 : 0;
}

static void quiet(int level, const char *text, void *arg)
{
}

/* In a child: LMDB may crash on a mad page, which is what is counted. */
enum { RIGHT = 10, TOLD, ABSENT, REFUSED };

static void look_at_all(uint64_t n)
{
    int code = RIGHT;
    struct index *ix;
    uint64_t seen = 0, bad = 0;

    base_log_set(quiet, NULL);
    signal(SIGSEGV, SIG_DFL); /* the sanitizers' handlers make it an exit code or an abort */
    signal(SIGBUS, SIG_DFL);
    if (index_open(dir, true, &ix))
        _exit(REFUSED);
    for (uint64_t i = 0; i < n; i++) {
        int err = get_one(ix, i, 0);
        if (err == -ENOENT)
            code = ABSENT;
        else if (err && code == RIGHT)
            code = TOLD;
    }
    (void)index_scan(ix, NULL, 0, NULL, 0, pass_over, &seen, &bad);
    if (seen + bad != n && code == RIGHT)
        code = TOLD;
    index_close(ix);
    _exit(code);
}

static void judge(uint64_t n)
{
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0)
        look_at_all(n);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    switch (WIFEXITED(status) ? WEXITSTATUS(status) : 0) {
    case RIGHT:
        tally.right++;
        break;
    case TOLD:
        tally.told++;
        break;
    case ABSENT:
        tally.absent++;
        break;
    case REFUSED:
        tally.refused++;
        break;
    default:
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT); /* a wrong value, an assert */
        tally.crashed++;
    }
}

static void flips(void)
{
    const uint64_t n = 1000;
    struct index *ix = fresh_index();
    struct stat st;
    int fd;

    put_range(ix, 0, n, 1);
    put_range(ix, 0, n, 0);
    index_close(ix);
    fd = open(file, O_RDWR);
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    for (int i = 0; i < 300; i++) {
        off_t at = (off_t)(test_rand(&seed) % (uint64_t)st.st_size);
        uint8_t was, now;
        if (i % 3 == 0)
            at = at / 4096 * 4096 + (off_t)(test_rand(&seed) % 64); /* page headers and pointers */
        /* Root, last page and transaction of a meta page: LMDB's format cannot tell an older state
         * from this one. The checkpoint's number against the superblock's does (recovery). */
        if (at < 2 * 4096 && at % 4096 >= 128 && at % 4096 < 152)
            continue;
        CHECK_EQ(pread(fd, &was, 1, at), 1);
        now = was ^ (uint8_t)(1u << (test_rand(&seed) % 8));
        CHECK_EQ(pwrite(fd, &now, 1, at), 1);
        judge(n);
        CHECK_EQ(pwrite(fd, &was, 1, at), 1);
    }
    fprintf(stderr,
            "300 flips: %u without effect, %u told, %u refused at open, %u wrongly absent, "
            "%u crashed\n",
            tally.right, tally.told, tally.refused, tally.absent, tally.crashed);
    CHECK(tally.absent == 0 && tally.crashed == 0);
    close(fd);
}

/* Many changes in every order: what is read stays what was written, and the page checks see no
 * fault in sound pages. */
static void changes(void)
{
    enum { N = 3000 };
    static uint8_t gen[N], next[N]; /* 0: absent */
    static uint8_t val[16384];
    struct index *ix = fresh_index();
    struct index_tx *tx;
    struct key k;

    for (int round = 0; round < 40; round++) {
        uint64_t base = test_rand(&seed) % N, many = test_rand(&seed) % 800;
        bool commit = test_rand(&seed) % 8, grow = (round / 15) % 2 == 0;
        memcpy(next, gen, sizeof(gen));
        CHECK_EQ(index_begin(ix, &tx), 0);
        for (uint64_t n = 0; n < many; n++) {
            uint64_t i = round % 3 ? (base + n) % N : test_rand(&seed) % N;
            make_key(i, &k);
            next[i] = grow || test_rand(&seed) % 4 == 0 ? (uint8_t)(1 + test_rand(&seed) % 9) : 0;
            if (next[i])
                CHECK_EQ(index_put(tx, k.b, k.len, val, make_value(i, next[i], val)), 0);
            else
                CHECK_EQ(index_del(tx, k.b, k.len), 0);
        }
        if (commit) {
            CHECK_EQ(index_commit(tx), 0);
            memcpy(gen, next, sizeof(gen));
        } else {
            index_abort(tx);
        }
        for (uint64_t i = 0; i < N; i++)
            CHECK_EQ(get_one(ix, i, gen[i]), gen[i] ? 0 : -ENOENT);
    }
    index_close(ix);
}

static void speed(void)
{
    enum { N = 20000 };
    struct index *ix = fresh_index();
    uint64_t t, get = 0, absent = 0;

    put_range(ix, 0, N, 0);
    for (uint64_t i = 0; i < N; i++) {
        struct key k;
        uint8_t val[16];
        size_t len;
        make_key(i * 7919 % N, &k);
        t = base_mono_ns();
        CHECK_EQ(index_get(ix, k.b, k.len, val, sizeof(val), &len), 0);
        get += base_mono_ns() - t;
        k.b[k.len - 3]++;
        t = base_mono_ns();
        CHECK_EQ(index_get(ix, k.b, k.len, val, sizeof(val), &len), -ENOENT);
        absent += base_mono_ns() - t;
    }
    fprintf(stderr, "of %u keys: get %.2f us, absent %.2f us\n", N, (double)get / N / 1e3,
            (double)absent / N / 1e3);
    index_close(ix);
}

/* LMDB never writes pages that one transaction took and gave back, also where they are the last. */
static void unwritten_tail(void)
{
    struct index *ix = fresh_index();
    static const uint8_t val[300];
    struct index_tx *tx;
    struct stat st;
    struct key k;

    put_range(ix, 0, 100, 1);
    for (uint64_t n = 50; n <= 400; n += 50) {
        CHECK_EQ(index_begin(ix, &tx), 0);
        for (uint64_t i = 0; i < 2 * n; i++) {
            make_key(1000 + i % n, &k);
            CHECK_EQ(i < n ? index_put(tx, k.b, k.len, val, sizeof(val))
                           : index_del(tx, k.b, k.len), 0);
        }
        CHECK_EQ(index_commit(tx), 0);
        CHECK_EQ(stat(file, &st), 0);
        CHECK((uint64_t)st.st_size >= index_used_bytes(ix));
        index_close(ix);
        CHECK_EQ(index_open(dir, false, &ix), 0);
        for (uint64_t i = 0; i < 100; i++)
            CHECK_EQ(get_one(ix, i, 1), 0);
    }
    index_close(ix);
}

static void short_files(void)
{
    struct index *ix = fresh_index();
    struct stat st;

    put_range(ix, 0, 300, 0);
    index_close(ix);
    CHECK_EQ(stat(file, &st), 0);
    for (off_t len = st.st_size - 1; len >= 0; len -= st.st_size / 7) {
        CHECK_EQ(truncate(file, len), 0);
        CHECK_EQ(index_open(dir, false, &ix), -EUCLEAN);
    }
    CHECK_EQ(truncate(file, 0), 0);
    CHECK_EQ(index_open(dir, true, &ix), -EUCLEAN);
}

/* -- readers beside the writer ----------------------------------------------------------------- */

static atomic_uint gen_now;
static atomic_bool stop;

/* A commit is seen whole: all entries of one scan are of one generation, no older than the newest
 * commit before the scan. */
static int same_gen(const void *key, size_t klen, const void *val, size_t vlen, void *arg)
{
    unsigned *seen = arg, gen = get_le32(val);

    CHECK(*seen == UINT32_MAX || *seen == gen);
    *seen = gen;
    return 0;
}

static void *reader(void *arg)
{
    struct index *ix = arg;

    while (!atomic_load(&stop)) {
        unsigned least = atomic_load(&gen_now), seen = UINT32_MAX;
        CHECK_EQ(index_scan(ix, NULL, 0, NULL, 0, same_gen, &seen, NULL), 0);
        CHECK(seen != UINT32_MAX && seen >= least);
    }
    return NULL;
}

static void write_gen(struct index *ix, uint32_t gen)
{
    uint8_t val[64] = {0};
    struct index_tx *tx;
    struct key k;

    put_le32(val, gen);
    CHECK_EQ(index_begin(ix, &tx), 0);
    for (uint64_t i = 0; i < 300; i++) {
        make_key(i, &k);
        CHECK_EQ(index_put(tx, k.b, k.len, val, sizeof(val)), 0);
    }
    CHECK_EQ(index_commit(tx), 0);
    atomic_store(&gen_now, gen);
}

static void readers_and_a_writer(void)
{
    struct index *ix = fresh_index();
    pthread_t t[4];

    write_gen(ix, 1);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&t[i], NULL, reader, ix), 0);
    for (uint32_t gen = 2; gen < 60; gen++)
        write_gen(ix, gen);
    atomic_store(&stop, true);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    index_close(ix);
}

int main(void)
{
    seed = test_seed();
    RUN(basics);
    RUN(changes);
    RUN(speed);
    RUN(unwritten_tail);
    RUN(short_files);
    RUN(readers_and_a_writer);
    RUN(flips);
    return 0;
}
