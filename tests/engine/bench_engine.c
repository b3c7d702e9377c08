/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the engine alone, through dfe.h. One JSON object a line:
 *   {"name": ..., "value": ..., "unit": ..., "peer": ...}   (peer only where it was measured here)
 *
 * Usage: bench_engine FOLDER FILES NAME...   everything it writes is below FOLDER.
 * `dfusepy bench` runs it, adds the peers that are other programs, and removes the folder.
 */
#include <dfe.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROOT = 1, BLOCK = 4096, MIB = 1 << 20, DIR_FILES = 10000, SMALL_BYTES = 100 };

static const char *folder;
static uint64_t files;
static char pool_path[4096];
static uint64_t arena_bytes; /* of the next pool; 0: the default */

/* A benchmark has nobody to return an error to. */
static long long must(long long result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "bench_engine: %s: %s (%s)\n", what, strerror((int)-result), dfe_errmsg());
        exit(1);
    }
    return result;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void report(const char *name, double value, const char *unit)
{
    printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", name, value, unit);
    fflush(stdout);
}

static void report_peer(const char *name, double value, const char *unit, double peer)
{
    printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"peer\": %.6g}\n", name, value,
           unit, peer);
    fflush(stdout);
}

/* -- a pool, a container and its file system --------------------------------------------------- */

struct bench {
    struct dfe_pool *pool;
    struct dfe_cont *cont;
    struct dfe_fs *fs;
};

static const struct dfe_cred cred = {0, 0, 0};

static void bench_open(struct bench *b)
{
    struct dfe_pool_open_opts opts = {.size = sizeof(opts), .path = pool_path};

    must(dfe_pool_open(&opts, &b->pool), "open pool");
    must(dfe_cont_open(b->pool, "bench", NULL, &b->cont), "open container");
    must(dfe_fs_open(b->cont, &b->fs), "open file system");
}

static void bench_create(struct bench *b, const char *name, const char *device, uint64_t size,
                         uint64_t journal)
{
    struct dfe_pool_create_opts opts = {
        .size = sizeof(opts), .path = pool_path, .label = "bench", .device = device};
    struct dfe_pool_open_opts open_opts = {
        .size = sizeof(open_opts), .path = pool_path, .arena_bytes = arena_bytes};

    snprintf(pool_path, sizeof(pool_path), "%s/%s", folder, name);
    opts.size_bytes = size;
    opts.journal_bytes = journal;
    must(dfe_pool_create(&opts), "create pool");
    must(dfe_pool_open(&open_opts, &b->pool), "open pool");
    must(dfe_cont_create(b->pool, "bench", 1, &cred, 0755), "create container");
    must(dfe_cont_open(b->pool, "bench", NULL, &b->cont), "open container");
    must(dfe_fs_open(b->cont, &b->fs), "open file system");
}

static void bench_close(struct bench *b)
{
    must(dfe_fs_close(b->fs), "close file system");
    must(dfe_cont_close(b->cont), "close container");
    must(dfe_pool_close(b->pool), "close pool");
}

static void bench_destroy(struct bench *b)
{
    bench_close(b);
    must(dfe_pool_destroy(pool_path, 1), "destroy pool");
}

static uint64_t make(struct bench *b, uint64_t dir, const char *name, uint32_t mode)
{
    struct dfe_attr attr;

    if (S_ISDIR(mode))
        must(dfe_fs_mkdir(b->fs, dir, name, strlen(name), mode, &cred, 0, &attr), "mkdir");
    else
        must(dfe_fs_mknod(b->fs, dir, name, strlen(name), mode, 0, &cred, 0, &attr), "mknod");
    return attr.ino;
}

/* Files in folders of 10,000. Names like those of programs, so that entries have a usual size. */
static void make_files(struct bench *b, uint64_t count, const char *prefix, size_t bytes)
{
    static const char content[SMALL_BYTES];
    uint64_t dir = 0, ino, at;
    char name[64];

    for (uint64_t i = 0; i < count; i++) {
        if (i % DIR_FILES == 0) {
            snprintf(name, sizeof(name), "%s-%llu", prefix, (unsigned long long)i);
            dir = make(b, ROOT, name, S_IFDIR | 0755);
        }
        snprintf(name, sizeof(name), "file-%08llu.dat", (unsigned long long)i);
        ino = make(b, dir, name, S_IFREG | 0644);
        if (bytes > 0)
            must(dfe_fs_write(b->fs, ino, 0, content, bytes, 0, &at), "write");
    }
}

/* -- 4 KiB and fsync, beside the file system below --------------------------------------------- */

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static double median_us(uint64_t *ns, size_t n)
{
    qsort(ns, n, sizeof(*ns), compare_u64);
    return (double)ns[n / 2] / 1000;
}

enum { SYNCS = 1000, ROUND = 100, SPAN_BLOCKS = 4096 };

struct sync_run {
    uint64_t ours[SYNCS], peer[SYNCS];
};

static uint64_t spot(unsigned i, int append)
{
    return append ? (uint64_t)i * BLOCK : (uint64_t)(i * 2654435761u % SPAN_BLOCKS) * BLOCK;
}

/* Rounds of ours and of the peer's alternate, so that both meet the same disk. */
static void sync_rounds(struct bench *b, uint64_t ino, int fd, int append, struct sync_run *run)
{
    static char block[BLOCK];
    uint64_t at;

    for (unsigned start = 0; start < SYNCS; start += ROUND) {
        for (unsigned i = start; i < start + ROUND; i++) {
            uint64_t begin = now_ns();
            memset(block, (int)i, sizeof(block));
            must(dfe_fs_write(b->fs, ino, spot(i, append), block, BLOCK, 0, &at), "write");
            must(dfe_fs_fsync(b->fs, ino, 0), "fsync");
            run->ours[i] = now_ns() - begin;
        }
        for (unsigned i = start; i < start + ROUND; i++) {
            uint64_t begin = now_ns();
            memset(block, (int)i, sizeof(block));
            if (pwrite(fd, block, BLOCK, (off_t)spot(i, append)) != BLOCK || fsync(fd) != 0)
                must(-1, "the peer's write and fsync");
            run->peer[i] = now_ns() - begin;
        }
    }
}

static void fill(struct bench *b, uint64_t ino, int fd)
{
    static char chunk[MIB];
    uint64_t at;

    memset(chunk, 0x5a, sizeof(chunk));
    for (uint64_t off = 0; off < (uint64_t)SPAN_BLOCKS * BLOCK; off += MIB) {
        must(dfe_fs_write(b->fs, ino, off, chunk, MIB, 0, &at), "write");
        if (pwrite(fd, chunk, MIB, (off_t)off) != MIB)
            must(-1, "the peer's write");
    }
    must(dfe_fs_fsync(b->fs, ino, 0), "fsync");
    fsync(fd);
}

static void bench_fsync(void)
{
    static struct sync_run run;
    struct bench b;
    char path[4096];

    bench_create(&b, "fsync", NULL, 256ull << 20, 0);
    for (int append = 0; append < 2; append++) {
        uint64_t ino = make(&b, ROOT, append ? "append" : "overwrite", S_IFREG | 0644);
        int fd;
        snprintf(path, sizeof(path), "%s/peer-%d", folder, append);
        fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (fd < 0)
            must(-1, "the peer's file");
        if (!append)
            fill(&b, ino, fd);
        sync_rounds(&b, ino, fd, append, &run);
        report_peer(append ? "fsync_append" : "fsync_overwrite", median_us(run.ours, SYNCS), "us",
                    median_us(run.peer, SYNCS));
        close(fd);
        unlink(path);
    }
    bench_destroy(&b);
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), compare_double);
    return v[n / 2];
}

/* -- 1 MiB sequentially ------------------------------------------------------------------------ */

enum { STREAM_BYTES = 192 * MIB, STREAM_ROUNDS = 3 };

/* MiB/s of one pass over the file. */
static double pass(struct bench *b, uint64_t ino, char *chunk, bool writing)
{
    uint64_t begin = now_ns(), at;

    for (uint64_t off = 0; off < STREAM_BYTES; off += MIB)
        if (writing)
            must(dfe_fs_write(b->fs, ino, off, chunk, MIB, 0, &at), "write");
        else
            must(dfe_fs_read(b->fs, ino, off, chunk, MIB, 0), "read");
    if (writing)
        must(dfe_fs_fsync(b->fs, ino, 0), "fsync");
    return (double)STREAM_BYTES / MIB / ((double)(now_ns() - begin) / 1e9);
}

/* As fio does it: a file that is there, blocks that have been written before, memory that has been
 * used before. The cache holds less than the file, so that reads come from the device. */
static void bench_sequential(void)
{
    double write[STREAM_ROUNDS], read[STREAM_ROUNDS];
    struct dfe_pool_info info;
    struct bench b;
    char *chunk = malloc(MIB);
    uint64_t ino;

    if (chunk == NULL)
        exit(1);
    memset(chunk, 0x5a, MIB);
    arena_bytes = STREAM_BYTES / 3 * 2;
    bench_create(&b, "sequential", NULL, 512ull << 20, 0);
    arena_bytes = 0;
    must(dfe_pool_query(b.pool, &info), "query");
    fprintf(stderr, "device: %s%s\n", info.backend, info.direct ? ", direct" : "");
    ino = make(&b, ROOT, "file", S_IFREG | 0644);
    for (int round = -3; round < STREAM_ROUNDS; round++) {
        double speed = pass(&b, ino, chunk, true);
        must(dfe_pool_checkpoint(b.pool), "checkpoint"); /* gives back the blocks from before */
        if (round < 0)
            continue;
        write[round] = speed;
        read[round] = pass(&b, ino, chunk, false);
    }
    report("sequential_write", median(write, STREAM_ROUNDS), "MiB/s");
    report("sequential_read", median(read, STREAM_ROUNDS), "MiB/s");
    free(chunk);
    bench_destroy(&b);
}

/* -- creates, memory, index -------------------------------------------------------------------- */

/* Bytes that the index takes for each of the files made since `before`. */
static double index_growth(struct bench *b, uint64_t before)
{
    struct dfe_pool_info info;

    must(dfe_fs_sync(b->fs), "sync");
    must(dfe_pool_checkpoint(b->pool), "checkpoint");
    must(dfe_pool_query(b->pool, &info), "query");
    return ((double)info.index_bytes - (double)before) / (double)files;
}

static void bench_creates(void)
{
    struct dfe_fs_info info;
    struct dfe_pool_info before;
    struct bench b;
    uint64_t begin;

    bench_create(&b, "creates", "mem:bench", 256ull << 20, 0);
    must(dfe_pool_query(b.pool, &before), "query");
    begin = now_ns();
    make_files(&b, files, "d", 0);
    report("creates", (double)files / ((double)(now_ns() - begin) / 1e9), "1/s");
    must(dfe_fs_query(b.fs, &info), "query");
    if (info.inodes_cached > 0)
        report("inode_memory", (double)info.inode_bytes / (double)info.inodes_cached, "B");
    report("index_per_file", index_growth(&b, before.index_bytes), "B");
    must(dfe_pool_query(b.pool, &before), "query");
    make_files(&b, files, "small", SMALL_BYTES);
    fprintf(stderr, "index: %.0f bytes for a file of %d, which are in it\n",
            index_growth(&b, before.index_bytes), SMALL_BYTES);
    bench_destroy(&b);
}

/* -- the longest stall during a checkpoint ----------------------------------------------------- */

enum { STALL_FILES = 200000, STALL_ROUNDS = 3 };

struct stall {
    struct bench *b;
    atomic_bool done;
    uint64_t took_ns;
};

static void *run_checkpoint(void *arg)
{
    struct stall *s = arg;
    uint64_t begin = now_ns();

    must(dfe_pool_checkpoint(s->b->pool), "checkpoint");
    s->took_ns = now_ns() - begin;
    atomic_store(&s->done, true);
    return NULL;
}

/* The longest of a create, a lookup and an unlink. */
static uint64_t stall_round(struct bench *b, uint64_t dir, uint64_t i)
{
    struct dfe_attr attr;
    uint64_t t[4], worst = 0;
    char name[64];

    snprintf(name, sizeof(name), "w-%llu", (unsigned long long)i);
    t[0] = now_ns();
    make(b, dir, name, S_IFREG | 0644);
    t[1] = now_ns();
    must(dfe_fs_lookup(b->fs, dir, name, strlen(name), 0, &attr), "lookup");
    t[2] = now_ns();
    must(dfe_fs_unlink(b->fs, dir, name, strlen(name), 0), "unlink");
    t[3] = now_ns();
    for (int k = 1; k < 4; k++)
        worst = t[k] - t[k - 1] > worst ? t[k] - t[k - 1] : worst;
    return worst;
}

/* ms, of the calls during one checkpoint; and of as many calls without one, which shows what the
 * host's other work does. */
static double stall_once(struct bench *b, uint64_t dir, double *without)
{
    struct stall s = {.b = b};
    uint64_t worst = 0, other = 0, n = 0, ns;
    pthread_t thread;

    if (pthread_create(&thread, NULL, run_checkpoint, &s) != 0)
        must(-1, "thread");
    for (; !atomic_load(&s.done); n++) {
        ns = stall_round(b, dir, n);
        worst = ns > worst ? ns : worst;
    }
    pthread_join(thread, NULL);
    for (uint64_t i = 0; i < n; i++) {
        ns = stall_round(b, dir, n + i);
        other = ns > other ? ns : other;
    }
    *without = (double)other / 1e6;
    fprintf(stderr, "checkpoint: %.0f ms, longest call %.1f ms, %.1f ms without; %llu rounds\n",
            (double)s.took_ns / 1e6, (double)worst / 1e6, *without, (unsigned long long)n);
    return (double)worst / 1e6;
}

static void bench_stall(void)
{
    double worst[STALL_ROUNDS], without[STALL_ROUNDS];
    uint64_t all = files, dir;
    struct bench b;
    char name[16];

    files = all < STALL_FILES ? all : STALL_FILES;
    /* a journal that holds all the changes: else most are checkpointed before it is measured */
    bench_create(&b, "stall", NULL, 512ull << 20, 256ull << 20);
    dir = make(&b, ROOT, "work", S_IFDIR | 0755);
    for (int round = 0; round < STALL_ROUNDS; round++) {
        snprintf(name, sizeof(name), "s%d", round);
        must(dfe_pool_checkpoint(b.pool), "checkpoint");
        make_files(&b, files, name, 0);
        must(dfe_pool_sync(b.pool), "sync"); /* the device's queue is not the checkpoint's */
        worst[round] = stall_once(&b, dir, &without[round]);
    }
    report("checkpoint_stall", median(worst, STALL_ROUNDS), "ms");
    files = all;
    bench_destroy(&b);
}

/* -- open after kill -9 ------------------------------------------------------------------------ */

static void bench_recovery(void)
{
    struct bench b;
    uint64_t begin;
    int status;
    pid_t pid;

    snprintf(pool_path, sizeof(pool_path), "%s/recovery", folder);
    pid = fork();
    if (pid < 0)
        must(-1, "fork");
    if (pid == 0) {
        /* the largest journal: as much as there can be to replay */
        bench_create(&b, "recovery", NULL, 512ull << 20, 256ull << 20);
        make_files(&b, files, "r", 0);
        must(dfe_fs_sync(b.fs), "sync");
        kill(getpid(), SIGKILL);
    }
    if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
        fprintf(stderr, "bench_engine: the child did not live until its end\n");
        exit(1);
    }
    begin = now_ns();
    bench_open(&b);
    report("open_after_kill", (double)(now_ns() - begin) / 1e9, "s");
    bench_destroy(&b);
}

static const struct {
    const char *name;
    void (*run)(void);
} benches[] = {
    {"fsync", bench_fsync}, {"sequential", bench_sequential}, {"creates", bench_creates},
    {"stall", bench_stall}, {"recovery", bench_recovery},
};

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: bench_engine FOLDER FILES NAME...\n");
        return 2;
    }
    folder = argv[1];
    files = strtoull(argv[2], NULL, 10);
    for (int i = 3; i < argc; i++)
        for (size_t k = 0; k < sizeof(benches) / sizeof(benches[0]); k++)
            if (strcmp(argv[i], benches[k].name) == 0)
                benches[k].run();
    return 0;
}
