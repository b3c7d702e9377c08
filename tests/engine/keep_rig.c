/* SPDX-License-Identifier: Apache-2.0 */
/* A stack over kept memory, in processes that may be killed. */
#include "keep_rig.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define LOG_BYTES (16u << 20)

const struct dfe_cred cred = {.uid = 7, .gid = 8};
uint64_t seed;
uint32_t grace_ms = 60000;
void *keep_mem;
size_t keep_mem_bytes;
char pool_path[600];

struct keep *keep;
struct obj_pool *pool;
struct cache *cache;
struct obj_cont *cont;
struct ns *ns;

static struct buf_arena *arena;

void *rig_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(p != MAP_FAILED);
    return p;
}

void rig_start(const char *name, void (*fn)(void))
{
    if (keep_mem)
        munmap(keep_mem, keep_mem_bytes);
    keep_mem_bytes = keep_bytes(LOG_BYTES, LOG_BYTES);
    keep_mem = rig_shared(keep_mem_bytes);
    CHECK_EQ(keep_format(keep_mem, keep_mem_bytes, LOG_BYTES, LOG_BYTES), 0);
    snprintf(pool_path, sizeof(pool_path), "%s/%s", test_dir(), name);
    rig_child(fn);
}

void rig_make(uint64_t bytes)
{
    struct obj_pool_create_opts o = {
        .size = sizeof(o), .path = pool_path, .label = "t", .size_bytes = bytes};
    struct obj_pool_open_opts p = {.size = sizeof(p), .path = pool_path};

    CHECK_EQ(obj_pool_create(&o), 0);
    CHECK_EQ(obj_pool_open(&p, &pool), 0);
    CHECK_EQ(obj_cont_create(pool, "c"), 0);
    CHECK_EQ(obj_cont_open(pool, "c", NULL, &cont), 0);
    CHECK_EQ(ns_format(cont, &cred, 0755), 0);
    obj_cont_close(cont);
    CHECK_EQ(obj_pool_close(pool), 0);
}

void rig_open(struct keep *with)
{
    struct obj_pool_open_opts p = {.size = sizeof(p), .path = pool_path, .keep = with};
    struct cache_opts c = {.size = sizeof(c), .keep = with, .dirty_bound_bytes = 4u << 20};
    struct ns_opts n = {.size = sizeof(n), .keep = with, .orphan_grace_ms = with ? grace_ms : 0};
    uint32_t interval = test_rand(&seed) % 2 ? 1000 : (uint32_t)(1 + test_rand(&seed) % 50);

    p.commit_interval_ms = c.commit_interval_ms = interval;
    if (test_rand(&seed) % 2)
        p.overlay_bytes = 256u << 10; /* checkpoints all the time */
    if (test_rand(&seed) % 4 == 0)
        c.dirty_bound_bytes = 16u << 20;
    CHECK_EQ(buf_arena_open(48u << 20, BUF_PAGES, &arena), 0);
    p.arena = arena;
    CHECK_EQ(obj_pool_open(&p, &pool), 0);
    CHECK_EQ(cache_open(pool, arena, &c, &cache), 0);
    CHECK_EQ(obj_cont_open(pool, "c", NULL, &cont), 0);
    CHECK_EQ(ns_open(cache, cont, &n, &ns), 0);
}

void rig_close(void)
{
    CHECK_EQ(ns_close(ns), 0);
    CHECK_EQ(cache_forget(cache, cont), 0);
    obj_cont_close(cont);
    CHECK_EQ(cache_close(cache), 0);
    CHECK_EQ(obj_pool_close(pool), 0);
    buf_arena_close(arena);
}

void rig_child(void (*fn)(void))
{
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        fn();
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
}

void rig_killed(void (*fn)(void))
{
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        fn();
        kill(getpid(), SIGKILL);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}
