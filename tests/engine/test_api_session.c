/* SPDX-License-Identifier: Apache-2.0 */
/* Public API over sessions: what only they have. Leases and loans, several sessions, a worker that
 * is killed, forks, a service that goes for good. */
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "api_session.h"

#define ROOT 1u
#define MIB (1u << 20)

static const struct dfe_cred cred = {.uid = 7, .gid = 8};

struct face {
    struct dfe_pool *pool;
    struct dfe_cont *cont;
    struct dfe_fs *fs;
};

static struct face a, b;
static const char *path;

static void open_face(struct face *f, bool mount)
{
    CHECK_EQ(session_open(path, mount, &f->pool), 0);
    CHECK_EQ(dfe_cont_open(f->pool, "c", NULL, &f->cont), 0);
    CHECK_EQ(dfe_fs_open(f->cont, &f->fs), 0);
}

static void close_face(struct face *f)
{
    CHECK_EQ(dfe_fs_close(f->fs), 0);
    CHECK_EQ(dfe_cont_close(f->cont), 0);
    CHECK_EQ(dfe_pool_close(f->pool), 0);
}

static uint64_t make(struct face *f, const char *name)
{
    struct dfe_attr attr;

    CHECK_EQ(dfe_fs_mknod(f->fs, ROOT, name, strlen(name), S_IFREG | 0644, 0, &cred, DFE_REF,
                          &attr),
             0);
    return attr.ino;
}

static struct dfe_service_info service(void)
{
    struct dfe_service_info info;

    CHECK_EQ(dfe_service_query(a.pool, &info), 0);
    return info;
}

/* What the service finds out by itself, soon. */
#define AWAIT(field, value) \
    do { \
        for (int i_ = 0; i_ < 500 && service().field != (value); i_++) \
            usleep(10000); \
        CHECK_EQ(service().field, value); \
    } while (0)

/* A file of one byte value, read by the other session: the second time without a message. */
static void leases(void)
{
    enum { LEN = 256u << 10, ROUNDS = 200 };
    static uint8_t data[LEN], got[LEN];
    uint64_t ino = make(&a, "leased"), before;

    memset(data, 1, LEN);
    CHECK_EQ(dfe_fs_write(a.fs, ino, 0, data, LEN, 0, NULL), LEN);
    CHECK_EQ(dfe_fs_read(b.fs, ino, 0, got, LEN, 0), LEN);
    CHECK(memcmp(got, data, LEN) == 0);
    CHECK_EQ(dfe_fs_read(b.fs, ino, 0, got, LEN, 0), LEN);

    before = service().requests;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t off = (uint64_t)i * 1237 % LEN;
        size_t len = 4096 < LEN - off ? 4096 : LEN - off;

        CHECK_EQ(dfe_fs_read(b.fs, ino, off, got, 4096, 0), len);
        CHECK(memcmp(got, data + off, len) == 0);
    }
    CHECK(service().requests - before < ROUNDS / 10);

    /* What the other one changes is seen at once, the size as well. */
    for (int i = 2; i < 50; i++) {
        memset(data, i, LEN);
        CHECK_EQ(dfe_fs_write(a.fs, ino, 4096, data, 100, 0, NULL), 100);
        CHECK_EQ(dfe_fs_read(b.fs, ino, 4096, got, 100, 0), 100);
        CHECK(memcmp(got, data, 100) == 0);
    }
    CHECK_EQ(dfe_fs_setattr(a.fs, ino, &(struct dfe_attr){.size = 5000}, DFE_SET_SIZE, 0,
                            &(struct dfe_attr){0}),
             0);
    CHECK_EQ(dfe_fs_read(b.fs, ino, 4096, got, LEN, 0), 904);
    CHECK_EQ(dfe_fs_read(b.fs, ino, 5000, got, LEN, 0), 0);
    CHECK_EQ(dfe_fs_write(a.fs, ino, 0, "end", 3, DFE_APPEND, NULL), 3);
    CHECK_EQ(dfe_fs_read(b.fs, ino, 5000, got, LEN, 0), 3);
    dfe_fs_unref(a.fs, ino, 1);
}

/* Longer than any request, with a hole in it. */
static void long_transfers(void)
{
    enum { LEN = 12 * MIB + 777 };
    uint8_t *data = malloc(LEN), *got = malloc(LEN);
    uint64_t ino = make(&a, "long"), at = 0;

    CHECK(data && got);
    for (size_t i = 0; i < LEN; i++)
        data[i] = (uint8_t)(i * 31 >> 8);
    CHECK_EQ(dfe_fs_write(a.fs, ino, 100, data, LEN, 0, &at), LEN);
    CHECK_EQ(at, 100);
    CHECK_EQ(dfe_fs_read(b.fs, ino, 100, got, LEN, 0), LEN);
    CHECK(memcmp(data, got, LEN) == 0);
    CHECK_EQ(dfe_fs_punch(a.fs, ino, 100 + MIB, 5 * MIB, 0), 0);
    memset(data + MIB, 0, 5 * MIB);
    CHECK_EQ(dfe_fs_read(b.fs, ino, 100, got, LEN, 0), LEN);
    CHECK(memcmp(data, got, LEN) == 0);
    dfe_fs_unref(a.fs, ino, 1);
    CHECK_EQ(dfe_fs_unlink(a.fs, ROOT, "long", 4, 0), 0);
    free(data);
    free(got);
}

/* Lent memory stays as it was while others write; what is given back is the engine's again. */
static void loans(void)
{
    enum { LEN = 64u << 10 };
    static uint8_t data[LEN];
    uint64_t ino = make(&a, "lent");
    struct dfe_pin pin, copy;

    memset(data, 7, LEN);
    CHECK_EQ(dfe_fs_write(a.fs, ino, 0, data, LEN, 0, NULL), LEN);
    CHECK_EQ(dfe_fs_pin(b.fs, ino, 0, LEN, 0, &pin), 0);
    CHECK(pin.len > 0 && pin.len <= LEN);
    CHECK(memcmp(pin.ptr, data, pin.len) == 0);
    CHECK_EQ(service().loans, 1);
    CHECK_EQ(dfe_fs_close(b.fs), -EBUSY);
    CHECK_EQ(dfe_fs_write(a.fs, ino, 0, "other", 5, 0, NULL), 5);
    CHECK(memcmp(pin.ptr, data, pin.len) == 0);
    dfe_fs_unpin(b.fs, &pin);
    CHECK_EQ(service().loans, 0);

    /* A hole is nobody's memory: a copy of zeros. */
    CHECK_EQ(dfe_fs_setattr(a.fs, ino, &(struct dfe_attr){.size = 9 * MIB}, DFE_SET_SIZE, 0,
                            &(struct dfe_attr){0}),
             0);
    CHECK_EQ(dfe_fs_pin(b.fs, ino, 8 * MIB, 100, 0, &copy), 0);
    CHECK(copy.len == 100 && ((const uint8_t *)copy.ptr)[99] == 0);
    dfe_fs_unpin(b.fs, &copy);
    CHECK_EQ(dfe_fs_pin(b.fs, ino, 9 * MIB, 100, 0, &copy), 0);
    CHECK_EQ(copy.len, 0);
    dfe_fs_unref(a.fs, ino, 1);
}

static void limits(void)
{
    static uint8_t value[65600];
    struct dfe_key key = {.dkey = value, .dkey_len = 8};
    struct dfe_oid oid = {1, 1};
    struct dfe_tx *tx;
    unsigned n = 0;

    CHECK_EQ(dfe_tx_begin(a.cont, &oid, &tx), 0);
    CHECK_EQ(dfe_tx_put(tx, &oid, &key, value, sizeof(value) + 1), -E2BIG);
    CHECK_EQ(dfe_tx_put(tx, &oid, &(struct dfe_key){.dkey = value, .dkey_len = 600}, "", 0),
             -ENAMETOOLONG);
    for (;; n++) {
        int ret;

        memcpy(value, &n, sizeof(n));
        ret = dfe_tx_put(tx, &oid, &key, value, sizeof(value));
        if (ret < 0) {
            CHECK_EQ(ret, -E2BIG);
            break;
        }
    }
    CHECK_EQ(n, 63); /* 4 MiB */
    CHECK_EQ(dfe_tx_commit(tx, 0, NULL), 0);
    n = 62;
    memcpy(value, &n, sizeof(n));
    CHECK_EQ(dfe_kv_get(a.cont, &oid, &key, NULL, 0, &(size_t){0}), 0);
    CHECK_EQ(dfe_fs_lookup(a.fs, ROOT, (const char *)value, 300, 0, &(struct dfe_attr){0}),
             -ENAMETOOLONG);
    CHECK_EQ(dfe_cont_open(a.pool, "none", NULL, &(struct dfe_cont *){0}), -ENOENT);
    CHECK(strstr(dfe_errmsg(), "none"));
}

/* -- a worker that is killed -------------------------------------------------------------------
 */

static void kill_worker(void)
{
    struct dfe_service_info info = service();

    CHECK_EQ(kill((pid_t)info.worker_pid, SIGKILL), 0);
}

/* A mount whose kernel forgets whatever it is told to. */
static void *forget_all(void *arg)
{
    struct dfe_inval inval = {0};
    int ret;

    do
        ret = dfe_fs_inval_next(arg, inval.id, &inval);
    while (ret == 0);
    return (void *)(intptr_t)ret;
}

/* Handles, references, data that nobody has synced, memory on loan: all is there as it was. */
static void after_a_kill(void)
{
    uint64_t ino = make(&a, "survivor"), gone = make(&a, "unlinked"), generation = 0;
    struct face m;
    struct dfe_pin pin;
    struct dfe_attr attr;
    pthread_t thread;
    void *ended;
    char got[8];

    open_face(&m, true);
    CHECK_EQ(dfe_fs_mount(m.fs, 0, &generation), 0);
    CHECK(generation > 0);
    CHECK_EQ(pthread_create(&thread, NULL, forget_all, m.fs), 0);
    CHECK_EQ(dfe_fs_write(a.fs, ino, 0, "written", 7, 0, NULL), 7);
    CHECK_EQ(dfe_fs_write(a.fs, gone, 0, "orphan!", 7, 0, NULL), 7);
    CHECK_EQ(dfe_fs_unlink(a.fs, ROOT, "unlinked", 8, 0), 0);
    CHECK_EQ(dfe_fs_pin(b.fs, ino, 0, 7, 0, &pin), 0);
    CHECK_EQ(dfe_fs_read(b.fs, ino, 0, got, 7, 0), 7);
    for (int i = 0; i < 3; i++) {
        uint64_t restarts = service().restarts;

        kill_worker();
        CHECK_EQ(dfe_fs_read(b.fs, ino, 0, got, 7, 0), 7);
        CHECK(memcmp(got, "written", 7) == 0);
        CHECK_EQ(dfe_fs_read(a.fs, gone, 0, got, 7, 0), 7);
        CHECK(memcmp(got, "orphan!", 7) == 0);
        CHECK(memcmp(pin.ptr, "written", 7) == 0);
        CHECK_EQ(service().restarts, restarts + 1);
    }
    AWAIT(mounts, 1);
    dfe_fs_unpin(b.fs, &pin); /* of a worker long gone */
    dfe_fs_unref(a.fs, gone, 1);
    CHECK_EQ(dfe_fs_getattr(a.fs, ino, 0, &attr), 0);
    CHECK_EQ(attr.size, 7);
    dfe_fs_unref(a.fs, ino, 1);
    dfe_fs_inval_stop(m.fs);
    CHECK_EQ(pthread_join(thread, &ended), 0);
    CHECK_EQ((intptr_t)ended, -ESHUTDOWN);
    close_face(&m);
}

static void *append_always(void *arg)
{
    uint64_t ino = *(uint64_t *)arg;

    for (uint32_t i = 0; i < 3000; i++)
        CHECK_EQ(dfe_fs_write(a.fs, ino, 0, &i, sizeof(i), DFE_APPEND, NULL), sizeof(i));
    return NULL;
}

/* Each append happens once, however often the worker dies under them. */
static void *pin_64k(void *arg)
{
    struct dfe_pin *pin = arg;

    CHECK_EQ(dfe_fs_pin(b.fs, (uint64_t)(uintptr_t)pin->slot, 0, 64u << 10, 0, pin), 0);
    return NULL;
}

/* A loan asked of one worker and given by the next is given back there; one of the worker before
 * is nobody's. */
static void loans_over_a_kill(void)
{
    static uint8_t data[64u << 10];
    uint64_t ino = make(&a, "lent again");
    struct dfe_pin before, asked = {.slot = (void *)(uintptr_t)ino};
    pid_t worker = (pid_t)service().worker_pid;
    pthread_t thread;

    CHECK_EQ(dfe_fs_write(a.fs, ino, 0, data, sizeof(data), 0, NULL), sizeof(data));
    CHECK_EQ(dfe_fs_pin(b.fs, ino, 0, sizeof(data), 0, &before), 0);
    CHECK_EQ(kill(worker, SIGSTOP), 0);
    CHECK_EQ(pthread_create(&thread, NULL, pin_64k, &asked), 0);
    usleep(100000);
    CHECK_EQ(kill(worker, SIGKILL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(service().loans, 1);
    dfe_fs_unpin(b.fs, &before);
    CHECK_EQ(service().loans, 1);
    dfe_fs_unpin(b.fs, &asked);
    CHECK_EQ(service().loans, 0);
    dfe_fs_unref(a.fs, ino, 1);
}

static void appends_under_kills(void)
{
    static uint32_t got[3001];
    uint64_t ino = make(&a, "log");
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, append_always, &ino), 0);
    for (int i = 0; i < 4; i++) {
        usleep(30000);
        kill_worker();
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(dfe_fs_read(a.fs, ino, 0, got, sizeof(got), 0), 3000 * sizeof(got[0]));
    for (uint32_t i = 0; i < 3000; i++)
        CHECK_EQ(got[i], i);
    dfe_fs_unref(a.fs, ino, 1);
}

/* -- threads ------------------------------------------------------------------------------------
 */

enum { THREADS = 4, PIECE = 8192, PIECES = 16, TURNS = 300 };

struct work {
    uint64_t shared, own, seed;
};

/* Each piece of the shared file always is of one value: a write of a piece is seen whole or not at
 * all, by lease, by loan and by message. Names and references go on beside it. */
static void *read_and_write(void *arg)
{
    struct work *w = arg;
    uint8_t piece[PIECE];

    for (int i = 0; i < TURNS; i++) {
        struct face *f = test_rand(&w->seed) % 2 ? &a : &b;
        uint64_t off = test_rand(&w->seed) % PIECES * PIECE;
        struct dfe_attr attr;
        struct dfe_pin pin;

        switch (test_rand(&w->seed) % 4) {
        case 0:
            memset(piece, i, PIECE);
            CHECK_EQ(dfe_fs_write(f->fs, w->shared, off, piece, PIECE, 0, NULL), PIECE);
            break;
        case 1:
            CHECK_EQ(dfe_fs_pin(f->fs, w->shared, off, PIECE, 0, &pin), 0);
            for (size_t n = 4096; n < pin.len; n++)
                CHECK_EQ(((const uint8_t *)pin.ptr)[n], ((const uint8_t *)pin.ptr)[4096]);
            dfe_fs_unpin(f->fs, &pin);
            break;
        case 2:
            CHECK_EQ(dfe_fs_lookup(f->fs, ROOT, "shared", 6, DFE_REF, &attr), 0);
            CHECK_EQ(attr.ino, w->shared);
            dfe_fs_unref(f->fs, attr.ino, 1);
            break;
        default:
            CHECK_EQ(dfe_fs_read(f->fs, w->shared, off, piece, 4096, 0), 4096);
            for (size_t n = 1; n < 4096; n++)
                CHECK_EQ(piece[n], piece[0]);
            CHECK_EQ(dfe_fs_write(a.fs, w->own, 0, &i, sizeof(i), DFE_APPEND, NULL), sizeof(i));
        }
    }
    return NULL;
}

static void threads_and_kills(void)
{
    static const uint8_t zeros[PIECE * PIECES];
    struct work work[THREADS];
    pthread_t threads[THREADS];
    uint64_t seed = test_seed(), shared = make(&a, "shared");

    CHECK_EQ(dfe_fs_write(a.fs, shared, 0, zeros, sizeof(zeros), 0, NULL), sizeof(zeros));
    for (unsigned i = 0; i < THREADS; i++) {
        char name[8];

        snprintf(name, sizeof(name), "own%u", i);
        work[i] = (struct work){.shared = shared, .own = make(&a, name), .seed = test_rand(&seed)};
        CHECK_EQ(pthread_create(&threads[i], NULL, read_and_write, &work[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        usleep(50000);
        kill_worker();
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    AWAIT(loans, 0);
}

/* -- mounts, forks, the end --------------------------------------------------------------------
 */

static void mounts(void)
{
    struct face first, second;
    pthread_t thread;
    uint64_t g1 = 0, g2 = 0;
    void *ret;

    open_face(&first, true);
    open_face(&second, true);
    CHECK_EQ(dfe_fs_mount(first.fs, 0, &g1), 0);
    CHECK_EQ(dfe_fs_mount(second.fs, 0, &g2), -EBUSY);
    CHECK_EQ(dfe_fs_mount(second.fs, 1, &g2), 0);
    CHECK(g1 && g2 && g1 != g2);
    CHECK_EQ(pthread_create(&thread, NULL, forget_all, first.fs), 0);
    usleep(20000);
    dfe_fs_inval_stop(first.fs);
    CHECK_EQ(pthread_join(thread, &ret), 0);
    CHECK_EQ((intptr_t)ret, -ESHUTDOWN);
    close_face(&first);
    close_face(&second);
}

static void child_of_a_session(const struct dfe_pin *pin)
{
    struct dfe_attr attr;
    struct face own;

    CHECK_EQ(dfe_fs_getattr(a.fs, ROOT, 0, &attr), -ESTALE);
    CHECK(strstr(dfe_errmsg(), "parent"));
    CHECK_EQ(dfe_fs_write(a.fs, 2, 0, "x", 1, 0, NULL), -ESTALE);
    dfe_fs_unref(a.fs, ROOT, 1);
    CHECK(memcmp(pin->ptr, "still here", 10) == 0);
    close_face(&b);
    open_face(&own, false);
    CHECK_EQ(dfe_fs_getattr(own.fs, ROOT, 0, &attr), 0);
    close_face(&own);
}

static void forks(void)
{
    uint64_t ino = make(&a, "forked");
    struct dfe_pin pin;
    int status = 0;
    pid_t pid;

    CHECK_EQ(dfe_fs_write(a.fs, ino, 0, "still here", 10, 0, NULL), 10);
    CHECK_EQ(dfe_fs_pin(a.fs, ino, 0, 10, 0, &pin), 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        child_of_a_session(&pin);
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    dfe_fs_unpin(a.fs, &pin);
    CHECK_EQ(service().loans, 0);
    AWAIT(sessions, 2);
    dfe_fs_unref(a.fs, ino, 1);
}

/* The service goes for good: errors, and views that stay. */
static void the_end(void)
{
    uint64_t ino = make(&a, "last");
    struct dfe_attr attr;
    struct dfe_pin pin;

    CHECK_EQ(dfe_fs_write(a.fs, ino, 0, "last words", 10, 0, NULL), 10);
    CHECK_EQ(dfe_fs_pin(b.fs, ino, 0, 10, 0, &pin), 0);
    session_end_service(path);
    CHECK_EQ(dfe_fs_getattr(b.fs, ino, 0, &attr), -EOWNERDEAD);
    CHECK(dfe_errmsg()[0]);
    CHECK(memcmp(pin.ptr, "last words", 10) == 0);
    dfe_fs_unpin(b.fs, &pin);
    dfe_fs_unref(a.fs, ino, 1);
    close_face(&a);
    close_face(&b);
}

int main(void)
{
    struct dfe_pool *none;

    path = api_path("pool");
    CHECK_EQ(api_create(path, 256u << 20), 0);
    CHECK(session_open(path, false, &none) < 0);
    session_serve(path);
    CHECK_EQ(session_open(path, false, &a.pool), 0);
    CHECK_EQ(dfe_cont_create(a.pool, "c", 1, &cred, 0755), 0);
    CHECK_EQ(dfe_pool_close(a.pool), 0);
    open_face(&a, false);
    open_face(&b, false);
    RUN(leases);
    RUN(long_transfers);
    RUN(loans);
    RUN(limits);
    RUN(mounts);
    RUN(forks);
    RUN(after_a_kill);
    RUN(loans_over_a_kill);
    RUN(appends_under_kills);
    RUN(threads_and_kills);
    RUN(the_end);
    CHECK_EQ(dfe_pool_destroy(path, 0), 0);
    return 0;
}
