/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures, is not a test: what kept memory costs a create and a write, by two stacks in turn, one
 * with it and one without. bench_keep [BATCHES]
 */
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/keep.h"
#include "ns/ns.h"
#include "test.h"

#define TX_BYTES (16u << 20)
#define DATA_BYTES (64u << 20)
#define BATCH 200u
#define FILE_BYTES (8u << 20)
#define BIG (1u << 20)

static const struct dfe_cred cred = {.uid = 7, .gid = 8};
static uint8_t buf[BIG];
static uint64_t seed;

struct stack {
    struct keep *keep;
    struct buf_arena *arena;
    struct obj_pool *pool;
    struct cache *cache;
    struct obj_cont *cont;
    struct ns *ns;
    uint64_t file, made;
};

static void stack_open(struct stack *s, const char *name, struct keep *keep)
{
    char path[600];
    struct obj_pool_create_opts m = {
        .size = sizeof(m), .path = path, .label = "t", .size_bytes = 512u << 20};
    struct obj_pool_open_opts p = {.size = sizeof(p), .path = path, .keep = keep};
    struct cache_opts c = {.size = sizeof(c), .keep = keep};
    struct ns_opts n = {.size = sizeof(n), .keep = keep};
    struct dfe_attr a;

    snprintf(path, sizeof(path), "%s/%s", test_dir(), name);
    CHECK_EQ(obj_pool_create(&m), 0);
    CHECK_EQ(buf_arena_open(128u << 20, BUF_PAGES, &s->arena), 0);
    p.arena = s->arena;
    CHECK_EQ(obj_pool_open(&p, &s->pool), 0);
    CHECK_EQ(cache_open(s->pool, s->arena, &c, &s->cache), 0);
    CHECK_EQ(obj_cont_create(s->pool, "c"), 0);
    CHECK_EQ(obj_cont_open(s->pool, "c", NULL, &s->cont), 0);
    CHECK_EQ(ns_format(s->cont, &cred, 0755), 0);
    CHECK_EQ(ns_open(s->cache, s->cont, &n, &s->ns), 0);
    CHECK_EQ(ns_mknod(s->ns, NS_ROOT_INO, "file", 4, S_IFREG | 0600, 0, &cred, DFE_REF, &a), 0);
    s->file = a.ino;
    s->keep = keep;
    for (uint64_t at = 0; at < FILE_BYTES; at += BIG)
        CHECK_EQ(ns_write(s->ns, s->file, at, buf, BIG, 0, NULL), BIG);
}

static void stack_close(struct stack *s)
{
    CHECK_EQ(ns_close(s->ns), 0);
    CHECK_EQ(cache_forget(s->cache, s->cont), 0);
    obj_cont_close(s->cont);
    CHECK_EQ(cache_close(s->cache), 0);
    CHECK_EQ(obj_pool_close(s->pool), 0);
    buf_arena_close(s->arena);
}

static void create(struct stack *s)
{
    char name[32];
    struct dfe_attr a;
    int len = snprintf(name, sizeof(name), "n%llu", (unsigned long long)s->made++);

    CHECK_EQ(ns_mknod(s->ns, NS_ROOT_INO, name, (size_t)len, S_IFREG | 0600, 0, &cred, 0, &a), 0);
}

static void write_4k(struct stack *s)
{
    uint64_t at = test_rand(&seed) % (FILE_BYTES / 4096) * 4096;

    CHECK_EQ(ns_write(s->ns, s->file, at, buf, 4096, 0, NULL), 4096);
}

static void write_1m(struct stack *s)
{
    uint64_t at = test_rand(&seed) % (FILE_BYTES / BIG) * BIG;

    CHECK_EQ(ns_write(s->ns, s->file, at, buf, BIG, 0, NULL), BIG);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Medians of batches, since others use the machine too. sync: what a batch wrote is published
 * before the next one; else the stack with the log publishes whenever that is half full. */
static void measure(const char *what, struct stack *s, void (*fn)(struct stack *), unsigned n,
                    unsigned batches, bool sync)
{
    uint64_t *ns[2] = {calloc(batches, 8), calloc(batches, 8)};

    CHECK(ns[0] && ns[1]);
    for (unsigned b = 0; b < 2 * batches; b++) {
        uint64_t began = base_mono_ns();
        for (unsigned i = 0; i < n; i++)
            fn(&s[b % 2]);
        ns[b % 2][b / 2] = (base_mono_ns() - began) / n;
        if (sync)
            CHECK_EQ(ns_sync(s[b % 2].ns), 0);
    }
    for (unsigned k = 0; k < 2; k++)
        qsort(ns[k], batches, 8, by_value);
    printf("%-12s %s without %llu ns, with %llu ns: x %.2f\n", what,
           sync ? "at rest,  " : "sustained,",
           (unsigned long long)ns[0][batches / 2], (unsigned long long)ns[1][batches / 2],
           (double)ns[1][batches / 2] / (double)ns[0][batches / 2]);
    free(ns[0]);
    free(ns[1]);
}

/* The copy that a kept write makes more, of memory that is as cold. */
static void copies(void)
{
    uint8_t *log = malloc(DATA_BYTES);
    uint64_t began;

    CHECK(log);
    memset(log, 1, DATA_BYTES);
    began = base_mono_ns();
    for (size_t at = 0; at + 4096 <= DATA_BYTES; at += 4096)
        memcpy(log + at, buf + at % BIG, 4096);
    printf("a copy of 4 KiB to cold memory: %llu ns\n",
           (unsigned long long)(base_mono_ns() - began) / (DATA_BYTES / 4096));
    free(log);
}

int main(int argc, char **argv)
{
    unsigned batches = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 200;
    size_t bytes = keep_bytes(TX_BYTES, DATA_BYTES);
    void *mem =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct stack s[2];
    struct keep *keep;

    memset(s, 0, sizeof(s));
    seed = test_seed();
    CHECK(mem != MAP_FAILED);
    CHECK_EQ(keep_format(mem, bytes, TX_BYTES, DATA_BYTES), 0);
    CHECK_EQ(keep_open(mem, bytes, &keep), 0);
    stack_open(&s[0], "without", NULL);
    stack_open(&s[1], "with", keep);
    copies();
    measure("create", s, create, BATCH, batches, false);
    measure("write 4 KiB", s, write_4k, BATCH, batches / 2, true);
    measure("write 4 KiB", s, write_4k, BATCH, batches, false);
    measure("write 1 MiB", s, write_1m, 1, batches / 2, true);
    measure("write 1 MiB", s, write_1m, 1, batches, false);
    for (unsigned i = 0; i < 2; i++)
        stack_close(&s[i]);
    keep_close(keep);
    return 0;
}
