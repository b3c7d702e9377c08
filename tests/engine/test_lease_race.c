/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases across processes: readers with read-only maps copy while this process writes, truncates,
 * punches, publishes, lends and evicts. Whatever a reader accepts must be the file as it was right
 * after one change, the one whose version the record shows.
 *
 * One thread changes each file and notes a change under the version that it will make before it
 * makes it. So a reader knows every version's bytes: it does the same changes to a copy of its own.
 * Usage: test_lease_race [MILLISECONDS of each run].
 */
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/limits.h"
#include "cache_rig.h"
#include "lease_reader.h"

#define FILES 3u
#define READERS 2u
#define BLOCK ((size_t)DFE_BLOCK_BYTES)
#define FILE_BYTES ((size_t)4 << 20)
#define COPY_BYTES ((size_t)192 << 10)
#define CHANGES 200000u
#define WORD 8u

enum kind { WRITE, PUNCH, TRUNCATE };

struct change {
    uint64_t off, len; /* TRUNCATE: off is the new size */
    uint64_t size;     /* of the file, afterwards */
    uint32_t kind;
};

/* Shared with the readers. */
struct board {
    bool stop;
    uint64_t begun[FILES]; /* the first version */
    uint64_t acked[FILES]; /* the call that made it has returned */
    uint64_t accepted[READERS], refused[READERS], leases[READERS], pairs[READERS];
    struct change change[FILES][CHANGES]; /* by version - begun */
};

struct ask {
    uint32_t file; /* FILES: an extent */
    uint32_t extent;
    uint64_t off, stamp;
};

struct told {
    int rc;
    struct cache_lease lease;
};

static struct board *board;
static struct rig rig;
static struct obj_cont *second;
static struct cache_file *files[FILES];
static struct rig_owner owners[FILES];
static uint64_t seed, run_ms = 1500;

static uint64_t file_ino(unsigned i)
{
    return 100 + i;
}

static bool stopped(void)
{
    return __atomic_load_n(&board->stop, __ATOMIC_RELAXED);
}

static uint64_t word_of(uint64_t version, uint64_t off)
{
    return version << 32 | off / WORD;
}

/* -- messages with descriptors --------------------------------------------------------------- */

static void post(int sock, const void *msg, size_t len, const int *fds, unsigned n)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } ctl = {0};
    struct iovec iov = {(void *)msg, len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n > 0) {
        m.msg_control = ctl.bytes;
        m.msg_controllen = CMSG_SPACE(n * sizeof(int));
        ctl.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(n * sizeof(int)),
                                    .cmsg_level = SOL_SOCKET,
                                    .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&ctl.head), fds, n * sizeof(int));
    }
    CHECK_EQ(sendmsg(sock, &m, MSG_NOSIGNAL), len);
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
}

/* False: the other side is gone. */
static bool get(int sock, void *msg, size_t len, int fds[2])
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } ctl;
    struct iovec iov = {msg, len};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = ctl.bytes,
                       .msg_controllen = sizeof(ctl)};
    ssize_t n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;

    fds[0] = fds[1] = -1;
    if (c)
        memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
    CHECK(n <= 0 || (size_t)n == len);
    return n > 0;
}

/* -- the reader: a process of its own --------------------------------------------------------- */

struct child {
    unsigned k;
    int sock;
    uint64_t rng;
    struct lease_reader reader;
    uint64_t *shadow[FILES]; /* the file at version[i] */
    uint64_t version[FILES];
    uint8_t *copy;
};

static void apply(uint64_t *shadow, const struct change *c, uint64_t version)
{
    uint64_t from = c->off, to = c->kind == TRUNCATE ? FILE_BYTES : c->off + c->len;

    for (uint64_t at = from; at < to; at += WORD)
        shadow[at / WORD] = c->kind == WRITE ? word_of(version, at) : 0;
}

static void shadow_to(struct child *c, unsigned i, uint64_t version)
{
    CHECK(version >= c->version[i]); /* nobody goes back in time */
    while (c->version[i] < version) {
        c->version[i]++;
        apply(c->shadow[i], &board->change[i][c->version[i] - board->begun[i]], c->version[i]);
    }
}

static void check_bytes(const struct child *c, unsigned i, uint64_t off, size_t len,
                        const uint8_t *bytes)
{
    const uint64_t *want = c->shadow[i] + off / WORD;
    uint64_t have;

    if (memcmp(bytes, want, len) == 0)
        return;
    for (size_t at = 0; at < len; at += WORD) {
        memcpy(&have, bytes + at, WORD);
        if (have == want[at / WORD])
            continue;
        fprintf(stderr, "file %u at %llu: version %llu says %llx, found %llx\n", i,
                (unsigned long long)(off + at), (unsigned long long)c->version[i],
                (unsigned long long)want[at / WORD], (unsigned long long)have);
        abort();
    }
}

static void check_moment(struct child *c, unsigned i, uint64_t acked,
                         const struct proto_record *r)
{
    const struct change *last = &board->change[i][r->version - board->begun[i]];

    CHECK(r->version >= acked); /* no older than what was acknowledged before it was looked at */
    if (r->version > board->begun[i]) {
        CHECK_EQ(r->size, last->size);
        CHECK_EQ(r->mtime_ns, r->version);
    }
    shadow_to(c, i, r->version);
}

static int ask(struct child *c, unsigned i, uint64_t off, struct cache_lease *lease)
{
    struct ask a = {.file = i, .off = off};
    struct told t;
    int fds[2];

    post(c->sock, &a, sizeof(a), NULL, 0);
    if (!get(c->sock, &t, sizeof(t), fds))
        return -EPIPE;
    if (t.rc < 0)
        return t.rc;
    *lease = t.lease;
    board->leases[c->k]++;
    if (reader_has(&c->reader, &lease->place))
        return 0;
    a = (struct ask){.file = FILES, .extent = lease->place.extent, .stamp = lease->place.stamp};
    post(c->sock, &a, sizeof(a), NULL, 0);
    if (!get(c->sock, &t, sizeof(t), fds))
        return -EPIPE;
    if (t.rc == 0)
        reader_extent(&c->reader, lease->place.extent, lease->place.stamp, fds[0]);
    return t.rc;
}

/* Up to some copies out of one or two leases of a file, until they have ended. */
static void copies(struct child *c, unsigned i, const struct cache_lease *l, unsigned n)
{
    for (unsigned k = 0; k < 60; k++) {
        uint64_t acked = __atomic_load_n(&board->acked[i], __ATOMIC_ACQUIRE), off[2] = {0};
        struct proto_record r;
        size_t len[2] = {0};
        for (unsigned m = 0; m < n; m++) {
            off[m] = l[m].file_off + test_rand(&c->rng) % (l[m].len / WORD) * WORD;
            len[m] = l[m].file_off + l[m].len - off[m];
            if (len[m] > COPY_BYTES / 2)
                len[m] = COPY_BYTES / 2;
        }
        if (!reader_copy(&c->reader, l, n, file_ino(i), off, len, c->copy, &r)) {
            board->refused[c->k]++;
            return;
        }
        board->accepted[c->k]++;
        board->pairs[c->k] += n > 1;
        check_moment(c, i, acked, &r);
        check_bytes(c, i, off[0], len[0], c->copy);
        if (n > 1)
            check_bytes(c, i, off[1], len[1], c->copy + len[0]);
    }
}

static void child_main(unsigned k, int sock)
{
    struct child c = {.k = k, .sock = sock, .rng = (seed ^ (k + 1) * 7919) | 1};
    uint32_t tables[2];
    int fds[2];

    CHECK(get(sock, tables, sizeof(tables), fds));
    reader_tables(&c.reader, fds[0], tables[0], fds[1], tables[1]);
    c.copy = malloc(COPY_BYTES);
    for (unsigned i = 0; i < FILES; i++) {
        c.shadow[i] = calloc(1, FILE_BYTES);
        c.version[i] = board->begun[i];
    }
    while (!stopped()) {
        unsigned i = (unsigned)(test_rand(&c.rng) % FILES), n = 1;
        uint64_t off = test_rand(&c.rng) % FILE_BYTES;
        struct cache_lease l[2];
        struct proto_record r;
        if (ask(&c, i, off, &l[0]) < 0)
            continue;
        off = test_rand(&c.rng) % FILE_BYTES;
        if (test_rand(&c.rng) % 3 == 0 && ask(&c, i, off, &l[1]) == 0 &&
            l[1].record == l[0].record && reader_has(&c.reader, &l[0].place))
            n = 2;
        if (!reader_has(&c.reader, &l[0].place))
            continue;
        copies(&c, i, l, n);
        if (reader_record(&c.reader, l[0].record, file_ino(i), &r))
            check_moment(&c, i, 0, &r);
    }
    reader_close(&c.reader);
    for (unsigned i = 0; i < FILES; i++)
        free(c.shadow[i]);
    free(c.copy);
    close(sock);
    exit(0);
}

/* -- the engine's side ------------------------------------------------------------------------ */

static void *server(void *arg)
{
    int sock = (int)(intptr_t)arg, fds[2];
    uint64_t rng = seed + (uintptr_t)arg * 101;
    struct ask a;

    while (get(sock, &a, sizeof(a), fds)) {
        unsigned flags = test_rand(&rng) % 4 == 0 ? CACHE_NOWAIT : 0, n = 0;
        struct told t = {0};
        uint32_t domain;
        if (a.file < FILES) {
            t.rc = cache_lease(files[a.file], a.off, flags, &t.lease);
            CHECK(t.rc == 0 || t.rc == -ENXIO || (t.rc == -EINPROGRESS && flags));
        } else {
            fds[0] = buf_extent_fd(rig.arena, a.extent, a.stamp, &domain);
            CHECK(fds[0] >= 0 || fds[0] == -ESTALE);
            n = fds[0] >= 0;
            t.rc = n ? 0 : fds[0];
        }
        post(sock, &t, sizeof(t), fds, n);
    }
    close(sock);
    return NULL;
}

static struct change random_change(uint64_t *rng, uint64_t size)
{
    struct change c = {.off = test_rand(rng) % (FILE_BYTES / WORD) * WORD, .size = size};
    unsigned dice = (unsigned)(test_rand(rng) % 100);
    size_t most = dice % 4 == 0 ? 300 * BLOCK / 4 : 3 * BLOCK;

    c.len = (1 + test_rand(rng) % (most / WORD)) * WORD;
    if (c.len > FILE_BYTES - c.off)
        c.len = FILE_BYTES - c.off;
    if (dice < 10 && c.off + c.len <= size) {
        c.kind = PUNCH;
    } else if (dice < 14) {
        c.kind = TRUNCATE;
        c.size = c.off;
    } else {
        c.kind = WRITE;
        c.size = c.off + c.len > size ? c.off + c.len : size;
    }
    return c;
}

static int make_change(struct cache_file *file, const struct change *c, uint64_t version,
                       uint64_t *buf, unsigned flags)
{
    ssize_t n;

    if (c->kind == PUNCH)
        return cache_punch(file, c->off, c->len, (int64_t)version, flags);
    if (c->kind == TRUNCATE)
        return cache_truncate(file, c->off, (int64_t)version, flags);
    for (uint64_t at = 0; at < c->len; at += WORD)
        buf[at / WORD] = word_of(version, c->off + at);
    n = cache_write(file, c->off, buf, c->len, (int64_t)version, flags, NULL);
    CHECK(n < 0 || (size_t)n == c->len);
    return n < 0 ? (int)n : 0;
}

static void *writer(void *arg)
{
    unsigned i = (unsigned)(uintptr_t)arg;
    uint64_t rng = (seed ^ (i + 1) * 104729) | 1, version = board->begun[i], size = 0;
    uint64_t *buf = malloc(FILE_BYTES);

    while (!stopped() && version - board->begun[i] < CHANGES - 1) {
        struct change c = random_change(&rng, size);
        unsigned flags = test_rand(&rng) % 3 == 0 ? CACHE_NOWAIT : 0;
        int rc;
        board->change[i][version + 1 - board->begun[i]] = c;
        rc = make_change(files[i], &c, version + 1, buf, flags);
        if (rc == -EINPROGRESS && flags)
            continue;
        CHECK_EQ(rc, 0);
        version++;
        size = c.size;
        __atomic_store_n(&board->acked[i], version, __ATOMIC_RELEASE);
        usleep((useconds_t)(test_rand(&rng) % 300));
    }
    free(buf);
    return NULL;
}

/* Frozen slots, evictions, extents that come and go. */
static void *disturber(void *arg)
{
    uint64_t rng = seed ^ 0xabcdef;
    struct cache_pin pin[4] = {0};
    (void)arg;

    while (!stopped()) {
        struct cache_file *file = files[test_rand(&rng) % FILES];
        unsigned dice = (unsigned)(test_rand(&rng) % 10);
        struct cache_pin *p = &pin[test_rand(&rng) % 4];
        int rc = 0;
        if (dice < 3)
            rc = cache_publish(file, 0);
        else if (dice == 3)
            cache_drop(rig.cache, test_rand(&rng) % 2 ? file : NULL);
        else if (dice < 7 && p->slot)
            cache_unpin(rig.cache, p);
        else if (dice < 7)
            rc = cache_pin(file, test_rand(&rng) % FILE_BYTES, FILE_BYTES, 0, p);
        else
            usleep(300);
        CHECK_EQ(rc, 0);
    }
    for (unsigned i = 0; i < 4; i++)
        cache_unpin(rig.cache, &pin[i]);
    return NULL;
}

/* Two containers, each with its domain. */
static void open_all(const struct cache_opts *opts)
{
    rig_make(&rig, 1 << 30);
    rig_open(&rig, opts);
    CHECK_EQ(obj_cont_create(rig.pool, "d"), 0);
    CHECK_EQ(obj_cont_open(rig.pool, "d", NULL, &second), 0);
    cache_domain(rig.cache, rig.cont, 1);
    cache_domain(rig.cache, second, 2);
    for (unsigned i = 0; i < FILES; i++) {
        struct obj_cont *first = rig.cont;
        struct cache_cut cut;
        if (i % 2)
            rig.cont = second;
        files[i] = rig_file(&rig, &owners[i], file_ino(i));
        rig.cont = first;
        cache_file_cut(files[i], &cut);
        board->begun[i] = board->acked[i] = cut.version;
    }
}

static void close_all(void)
{
    for (unsigned i = 0; i < FILES; i++)
        cache_file_put(files[i]);
    CHECK_EQ(cache_forget(rig.cache, second), 0);
    obj_cont_close(second);
    rig_close(&rig, false);
    rig_free(&rig);
}

static void report(void)
{
    uint64_t accepted = 0;

    for (unsigned k = 0; k < READERS; k++) {
        accepted += board->accepted[k];
        fprintf(stderr, "reader %u: %llu leases, %llu good copies (%llu of two), %llu refused\n", k,
                (unsigned long long)board->leases[k], (unsigned long long)board->accepted[k],
                (unsigned long long)board->pairs[k], (unsigned long long)board->refused[k]);
    }
    for (unsigned i = 0; i < FILES; i++)
        fprintf(stderr, "file %u: %llu changes\n", i,
                (unsigned long long)(board->acked[i] - board->begun[i]));
    CHECK(accepted > 0);
}

static void race(uint64_t slots_bytes, uint32_t lines)
{
    struct cache_opts opts = {.size = sizeof(opts),
                              .slots_bound_bytes = slots_bytes,
                              .commit_interval_ms = 5,
                              .windows = true,
                              .window_lines = lines};
    pthread_t threads[READERS + FILES + 1];
    pid_t pid[READERS];
    int sock[READERS][2], fds[2], status;
    uint32_t tables[2];
    unsigned n = 0;

    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    for (unsigned k = 0; k < READERS; k++) { /* before there are threads, or an arena to inherit */
        CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock[k]), 0);
        pid[k] = fork();
        CHECK(pid[k] >= 0);
        for (unsigned j = 0; j <= k && pid[k] == 0; j++)
            close(sock[j][0]);
        if (pid[k] == 0)
            child_main(k, sock[k][1]);
        close(sock[k][1]);
    }
    open_all(&opts);
    for (unsigned k = 0; k < READERS; k++) {
        CHECK_EQ(cache_tables(rig.cache, &fds[0], &tables[0], &fds[1], &tables[1]), 0);
        post(sock[k][0], tables, sizeof(tables), fds, 2);
        CHECK_EQ(pthread_create(&threads[n++], NULL, server, (void *)(intptr_t)sock[k][0]), 0);
    }
    for (unsigned i = 0; i < FILES; i++)
        CHECK_EQ(pthread_create(&threads[n++], NULL, writer, (void *)(uintptr_t)i), 0);
    CHECK_EQ(pthread_create(&threads[n++], NULL, disturber, NULL), 0);
    usleep((useconds_t)(run_ms * 1000));
    __atomic_store_n(&board->stop, true, __ATOMIC_RELAXED);
    for (unsigned k = 0; k < READERS; k++) {
        CHECK_EQ(waitpid(pid[k], &status, 0), pid[k]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    while (n > 0)
        pthread_join(threads[--n], NULL);
    report();
    close_all();
    munmap(board, sizeof(*board));
}

static void roomy(void)
{
    race(0, 0);
}

static void evictions(void)
{
    race(6 << 20, 0);
}

static void few_lines(void)
{
    race(0, 6);
}

int main(int argc, char **argv)
{
    seed = test_seed();
    if (argc > 1)
        run_ms = strtoull(argv[1], NULL, 10);
    RUN(roomy);
    RUN(evictions);
    RUN(few_lines);
    return 0;
}
