/* SPDX-License-Identifier: Apache-2.0 */
/* Pools and containers: making, opening, refusing, damage, destroying. */
#include "obj_rig.h"

#include "obj/index.h"
#include "sim_device.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define MIB (1ull << 20)

static struct rig rig;

static void quiet(int level, const char *text, void *arg)
{
    (void)level, (void)text, (void)arg;
}

static void shell(const char *fmt, const char *a, const char *b)
{
    char cmd[1000];

    snprintf(cmd, sizeof(cmd), fmt, a, b);
    CHECK_EQ(system(cmd), 0);
}

static int create(const char *name, const char *label, const char *device, uint64_t bytes)
{
    char path[300];
    struct obj_pool_create_opts o = {.size = sizeof(o), .path = path, .label = label,
                                     .device = device, .size_bytes = bytes};

    snprintf(path, sizeof(path), "%s/%s", test_dir(), name);
    return obj_pool_create(&o);
}

static bool there(const char *name)
{
    char path[300];
    struct stat st;

    snprintf(path, sizeof(path), "%s/%s", test_dir(), name);
    return stat(path, &st) == 0;
}

static struct obj_pool_info query(void)
{
    struct obj_pool_info info;

    obj_pool_query(rig.pool, &info);
    return info;
}

static void creating(void)
{
    CHECK_EQ(create("p1", "-bad", "mem:p1", 64 * MIB), -EINVAL);
    CHECK_EQ(create("p1", "bad name", "mem:p1", 64 * MIB), -EINVAL);
    CHECK_EQ(create("p1", NULL, "mem:p1", 64 * MIB), -EINVAL);
    CHECK_EQ(create("p1", "p", NULL, 0), -EINVAL);
    CHECK_EQ(create("p1", "p", "mem:p1", MIB), -ENOSPC);
    CHECK(strstr(base_last_error(), "needed") != NULL);
    CHECK(!there("p1"));
    CHECK_EQ(create("no/such/folder", "p", "mem:p1", 64 * MIB), -ENOENT);
    CHECK_EQ(create("p1", "p", "file:/no/such/device", 0), -ENOENT);
    CHECK(!there("p1"));
    CHECK_EQ(create("p1", "p", "mem:p1", 64 * MIB), 0);
    CHECK_EQ(create("p1", "p", "mem:p2", 64 * MIB), -EEXIST);
    CHECK_EQ(create("p2", "p", "mem:p1", 64 * MIB), -EEXIST);
    CHECK(strstr(base_last_error(), "already holds pool") != NULL);
    CHECK(!there("p2"));
    CHECK_EQ(queue_mem_forget("p2"), -ENOENT);
    CHECK_EQ(create("p1/pool/x", "p", "mem:p3", 64 * MIB), -ENOTDIR);
    shell("mkdir %s/%s", test_dir(), "p3 ");
    CHECK_EQ(create("p3", "p", NULL, 24 * MIB), 0);
    CHECK(there("p3/data"));
}

/* Kills a creation after some time; what it leaves is in nobody's way. */
static void killed_creation(void)
{
    bool done = false;

    CHECK_EQ(sim_create("kill", 64 * MIB, 1), 0); /* in the child's memory, a copy */
    for (unsigned us = 100; !done; us += us / 4) {
        pid_t pid = fork();
        int status;

        CHECK(pid >= 0);
        if (pid == 0)
            _exit(create("killed", "p", us % 2 ? NULL : "sim:kill", 64 * MIB) != 0);
        usleep(us);
        kill(pid, SIGKILL);
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        done = there("killed");
        CHECK_EQ(done, there("killed/pool")); /* whole or not there */
        if (us % 3 == 0 && !done) {
            CHECK_EQ(create("killed", "p", NULL, 64 * MIB), 0);
            CHECK(!there(".killed.making"));
            shell("rm -r %s/%s", test_dir(), "killed");
        }
    }
    CHECK(!there(".killed.making"));
    CHECK_EQ(sim_destroy("kill"), 0);
}

/* A device on which a killed creation got as far as the superblocks. */
static void killed_on_device(void)
{
    char path[300];

    CHECK_EQ(create("half", "p", "mem:half", 64 * MIB), 0);
    shell("mv %s/half %s/.half.making", test_dir(), test_dir());
    CHECK_EQ(create("other", "p", "mem:half", 64 * MIB), -EEXIST);
    CHECK_EQ(create("half/", "p", "mem:half", 64 * MIB), 0);
    CHECK(!there(".half.making"));
    CHECK(!there("other") && !there(".other.making"));
    snprintf(path, sizeof(path), "%s/half", test_dir());
    CHECK_EQ(obj_pool_destroy(path, false), 0);
    CHECK_EQ(queue_mem_forget("half"), 0);
}

static void opening(void)
{
    struct obj_pool_open_opts o = {.size = sizeof(o), .path = rig.path};
    struct obj_pool_info info;
    struct obj_pool *other;

    snprintf(rig.path, sizeof(rig.path), "%s/none", test_dir());
    CHECK_EQ(obj_pool_open(&o, &other), -ENOENT);
    CHECK_EQ(obj_pool_peek(rig.path, &info), -ENOENT);
    rig_make(&rig, "open", NULL, 64);
    CHECK_EQ(obj_pool_open(&o, &other), -EBUSY);
    CHECK_EQ(obj_pool_destroy(rig.path, true), -EBUSY);
    CHECK_EQ(obj_pool_peek(rig.path, &info), 0);
    CHECK(strcmp(info.label, "rig") == 0 && strcmp(info.device, "mem:open") == 0);
    CHECK_EQ(obj_pool_close(rig.pool), -EBUSY); /* the container is open */
    CHECK_EQ(rig_put(&rig, 1, "k", "v"), 0);
    CHECK_EQ(rig_shut(&rig), 0);

    o.read_only = true;
    CHECK_EQ(obj_pool_open(&o, &rig.pool), 0);
    CHECK_EQ(obj_cont_open(rig.pool, "c", NULL, &rig.cont), 0);
    CHECK(strcmp(rig_get(rig.cont, 1, "k"), "v") == 0);
    CHECK(obj_cont_read_only(rig.cont));
    CHECK_EQ(obj_cont_create(rig.pool, "d"), -EROFS);
    CHECK_EQ(rig_check(&rig), 0);
    rig_reopen(&rig);
    rig_destroy(&rig);
    CHECK(!there("open"));
}

static int list_one(const struct obj_cont_info *c, void *arg)
{
    strcat(arg, c->label);
    strcat(arg, " ");
    return 0;
}

static void containers(void)
{
    char text[200] = "", value[100];
    struct obj_cont *c;
    struct obj_cont_info info;
    uint64_t free_blocks, epoch;

    rig_make(&rig, "conts", NULL, 64);
    free_blocks = rig_free_blocks(&rig);
    CHECK_EQ(obj_cont_create(rig.pool, "c"), -EEXIST);
    CHECK_EQ(obj_cont_create(rig.pool, ".x"), -EINVAL);
    CHECK_EQ(obj_cont_create(rig.pool, "d"), 0);
    CHECK_EQ(obj_cont_list(rig.pool, list_one, text), 0);
    CHECK(strcmp(text, "c d ") == 0);
    CHECK_EQ(obj_cont_open(rig.pool, "e", NULL, &c), -ENOENT);
    CHECK_EQ(obj_cont_open(rig.pool, "c", "s", &c), -ENOENT);
    CHECK_EQ(obj_cont_prop_get(rig.cont, "mode", value, sizeof(value)), -ENOENT);
    CHECK_EQ(obj_cont_prop_set(rig.cont, "mode", "0755"), 0);
    CHECK_EQ(obj_cont_prop_get(rig.cont, "mode", value, 4), -ERANGE);
    for (unsigned i = 0; i < 700; i++)
        CHECK_EQ(rig_write(&rig, i % 3, i * 2, 1, i, 0), 0);
    CHECK_EQ(obj_snap_create(rig.cont, "s", &epoch), 0);
    CHECK_EQ(obj_snap_create(rig.cont, "s", &epoch), -EEXIST);
    CHECK_EQ(obj_cont_open(rig.pool, "c", "s", &c), 0);
    CHECK_EQ(obj_snap_destroy(rig.cont, "s"), -EBUSY);
    CHECK_EQ(obj_snap_destroy(rig.cont, "t"), -ENOENT);
    CHECK_EQ(obj_cont_prop_set(c, "mode", "1"), -EROFS);
    obj_cont_close(c);
    CHECK_EQ(rig_write(&rig, 0, 0, 300, 77, 0), 0);
    CHECK_EQ(obj_cont_destroy(rig.pool, "c"), -EBUSY);
    rig_reopen(&rig);
    CHECK_EQ(obj_cont_prop_get(rig.cont, "mode", value, sizeof(value)), 0);
    CHECK(strcmp(value, "0755") == 0);
    obj_cont_query(rig.cont, &info);
    CHECK_EQ(info.snapshots, 1);
    CHECK_EQ(info.number, 1);
    obj_cont_close(rig.cont);
    CHECK_EQ(obj_cont_destroy(rig.pool, "c"), 0);
    CHECK_EQ(obj_cont_destroy(rig.pool, "c"), -ENOENT);
    CHECK_EQ(obj_cont_open(rig.pool, "c", NULL, &c), -ENOENT);
    CHECK_EQ(obj_cont_create(rig.pool, "c"), 0);
    CHECK_EQ(obj_cont_open(rig.pool, "c", NULL, &rig.cont), 0);
    obj_cont_query(rig.cont, &info);
    CHECK_EQ(info.number, 3);
    CHECK_EQ(info.snapshots, 0);
    CHECK_EQ(rig_free_blocks(&rig), free_blocks);
    CHECK_EQ(rig_check(&rig), 0);
    rig_destroy(&rig);
}

/* The index of an earlier time. */
static void index_older(void)
{
    char saved[400], cmd[2000];

    rig_make(&rig, "mis", NULL, 64);
    snprintf(saved, sizeof(saved), "%s/saved", test_dir());
    CHECK_EQ(rig_put(&rig, 1, "k", "1"), 0);
    CHECK_EQ(rig_shut(&rig), 0);
    shell("cp -r %s/index %s", rig.path, saved);
    rig_open(&rig, 0);
    CHECK_EQ(rig_put(&rig, 1, "k", "2"), 0);
    CHECK_EQ(rig_shut(&rig), 0);
    snprintf(cmd, sizeof(cmd), "mv %s/index %s.new && cp -r %s %s/index", rig.path, saved, saved,
             rig.path);
    CHECK_EQ(system(cmd), 0);
    CHECK_EQ(rig_try_open(&rig, 0), -ESTALE);
    CHECK(strstr(base_last_error(), "older than its device") != NULL);
    snprintf(cmd, sizeof(cmd), "rm -r %s/index && mv %s.new %s/index", rig.path, saved, rig.path);
    CHECK_EQ(system(cmd), 0);
    rig_open(&rig, 0);
    CHECK(strcmp(rig_get(rig.cont, 1, "k"), "2") == 0);
    rig_destroy(&rig);
}

static void wrong_device(void)
{
    char other[300], cmd[2000];

    rig_make(&rig, "mine", NULL, 64);
    CHECK_EQ(rig_shut(&rig), 0);
    CHECK_EQ(create("theirs", "t", "mem:theirs", 64 * MIB), 0);
    snprintf(other, sizeof(other), "%s/theirs", test_dir());
    snprintf(cmd, sizeof(cmd), "cp %s/pool %s/pool.bak && sed -i s/mem:mine/mem:theirs/ %s/pool",
             rig.path, rig.path, rig.path);
    CHECK_EQ(system(cmd), 0);
    CHECK_EQ(rig_try_open(&rig, 0), -EMEDIUMTYPE);
    CHECK_EQ(obj_pool_destroy(rig.path, true), -EMEDIUMTYPE);
    snprintf(cmd, sizeof(cmd), "mv %s/pool.bak %s/pool", rig.path, rig.path);
    CHECK_EQ(system(cmd), 0);
    rig_open(&rig, 0);
    rig_destroy(&rig);
    CHECK_EQ(obj_pool_destroy(other, false), 0);
}

/* One field of the index's checkpoint record gets another value and its checksum; the superblocks
 * are gone. */
static void impossible_geometry(size_t at)
{
    static const char key[] = "\x01" "checkpoint";
    static const uint64_t values[] = {0, 1u << 20, UINT64_MAX / 4096, UINT64_MAX};
    uint8_t old[200], v[200];
    struct index_tx *tx;
    struct index *ix;
    char dir[400];
    size_t len;

    snprintf(dir, sizeof(dir), "%s/index", rig.path);
    for (unsigned i = 0; i <= sizeof(values) / sizeof(*values); i++) {
        bool last = i == sizeof(values) / sizeof(*values);
        CHECK_EQ(index_open(dir, false, &ix), 0);
        if (i == 0)
            CHECK_EQ(index_get(ix, key, 11, old, sizeof(old), &len), 0);
        memcpy(v, old, len);
        if (!last)
            put_le64(v + at, values[i]);
        CHECK_EQ(index_begin(ix, &tx), 0);
        CHECK_EQ(index_put(tx, key, 11, v, len), 0);
        CHECK_EQ(index_commit(tx), 0);
        index_close(ix);
        CHECK_EQ(rig_try_open(&rig, 0), last ? 0 : -EUCLEAN);
    }
    CHECK_EQ(rig_shut(&rig), 0);
}

static void damaged_superblocks(void)
{
    CHECK_EQ(sim_create("dam", 64 * MIB, 1), 0);
    rig_make(&rig, "dam", "sim:dam", 64);
    CHECK_EQ(rig_put(&rig, 1, "k", "v"), 0);
    CHECK_EQ(rig_write(&rig, 1, 0, 10, 5, 0), 0);
    CHECK_EQ(rig_shut(&rig), 0);
    sim_flip_bit("dam", 100, 3);
    rig_open(&rig, 0); /* repaired from the copy */
    CHECK(query().damage[0] == '\0');
    CHECK_EQ(rig_shut(&rig), 0);
    sim_flip_bit("dam", 4096 + 100, 3);
    rig_open(&rig, 0);
    CHECK(query().damage[0] == '\0');
    CHECK_EQ(rig_shut(&rig), 0);
    sim_flip_bit("dam", 100, 3);
    sim_flip_bit("dam", 4096 + 100, 3);
    rig_open(&rig, 0);
    CHECK(query().read_only && strstr(query().damage, "superblock"));
    CHECK(strcmp(rig_get(rig.cont, 1, "k"), "v") == 0);
    CHECK(rig_check(&rig) == 1); /* the damage itself */
    CHECK_EQ(rig_shut(&rig), 0);
    for (size_t at = 64; at < 96; at += 8) /* and an index that tells nonsense */
        impossible_geometry(at);
    CHECK_EQ(obj_pool_destroy(rig.path, false), -EUCLEAN);
    CHECK_EQ(obj_pool_destroy(rig.path, true), 0);
    CHECK_EQ(sim_destroy("dam"), 0);
}

/* Blocks that are staged on a reservation are not counted as free twice over. */
static void free_while_staged(void)
{
    static uint8_t buf[8 * RIG_BLK] __attribute__((aligned(4096)));
    struct obj_io io = {.buf = buf, .len = sizeof(buf)};
    struct obj_stage *st;
    uint64_t all;

    rig_make(&rig, "free", NULL, 64);
    all = query().free_bytes;
    CHECK_EQ(obj_reserve(rig.pool, all, 0), 0);
    CHECK_EQ(obj_array_stage(rig.cont, rig_oid(1), &io, 1, OBJ_STAGE_RESERVED, &st), 0);
    CHECK_EQ(query().free_bytes, 0);
    obj_stage_drop(st);
    obj_unreserve(rig.pool, all);
    CHECK_EQ(query().free_bytes, all);
    rig_destroy(&rig);
}

static void bad_data_block(void)
{
    uint8_t *buf = aligned_alloc(RIG_BLK, 10 * RIG_BLK), want[RIG_BLK];
    struct obj_io io = {.buf = buf, .len = 10 * RIG_BLK};
    uint64_t at;

    CHECK_EQ(sim_create("bad", 64 * MIB, 1), 0);
    rig_make(&rig, "bad", "sim:bad", 64);
    CHECK_EQ(rig_write(&rig, 1, 0, 10, 5, 0), 0);
    rig_fill(want, 4, 5);
    for (at = 0; at < 64 * MIB; at += RIG_BLK) { /* where block 4 went */
        sim_peek("bad", at, buf, RIG_BLK);
        if (memcmp(buf, want, RIG_BLK) == 0)
            break;
    }
    CHECK(at < 64 * MIB);
    sim_flip_bit("bad", at + 77, 1);
    CHECK_EQ(obj_array_read(rig.cont, rig_oid(1), &io, 1), -EUCLEAN);
    CHECK_EQ(query().checksum_errors, 1);
    io.len = 4 * RIG_BLK;
    CHECK_EQ(obj_array_read(rig.cont, rig_oid(1), &io, 1), 0);
    CHECK_EQ(rig_check(&rig), 1);
    CHECK_EQ(rig_write(&rig, 1, 4, 1, 6, 0), 0); /* a full overwrite heals */
    CHECK_EQ(rig_check(&rig), 0);
    free(buf);
    rig_destroy(&rig);
    CHECK_EQ(sim_destroy("bad"), 0);
}

/* A hole in the middle of what the journal says is durable. */
static void damaged_journal(void)
{
    uint8_t block[RIG_BLK];
    unsigned hit = 0;

    CHECK_EQ(sim_create("jnl", 64 * MIB, 1), 0);
    rig_make(&rig, "jnl", "sim:jnl", 64);
    CHECK_EQ(obj_checkpoint(rig.pool), 0);
    for (unsigned i = 0; i < 20; i++) {
        CHECK_EQ(rig_put(&rig, 1, "k", i == 0 ? "first" : "later"), 0);
        CHECK_EQ(obj_sync(rig.pool), 0);
    }
    sim_power_cut("jnl", 0);
    CHECK_EQ(rig_put(&rig, 1, "k", "lost"), 0);
    CHECK(obj_sync(rig.pool) < 0);
    CHECK(query().damage[0]);
    CHECK(strcmp(rig_get(rig.cont, 1, "k"), "lost") == 0); /* kept in memory, and said */
    CHECK_EQ(rig_put(&rig, 1, "k", "more"), -EROFS);
    CHECK(rig_shut(&rig) < 0);
    for (uint64_t at = 2 * RIG_BLK; at < 8 * MIB && hit < 10; at += RIG_BLK) {
        sim_peek("jnl", at, block, RIG_BLK);
        if (memcmp(block, "DDFJRNL1", 8) == 0 && ++hit == 10)
            sim_flip_bit("jnl", at + 90, 0);
    }
    CHECK_EQ(hit, 10);
    rig_open(&rig, 0);
    CHECK(query().read_only);
    CHECK(strstr(query().damage, "journal") != NULL);
    CHECK_EQ(rig_shut(&rig), 0);
    CHECK_EQ(obj_pool_destroy(rig.path, true), 0);
    CHECK_EQ(sim_destroy("jnl"), 0);
}

int main(void)
{
    base_log_set(quiet, NULL);
    RUN(creating);
    RUN(killed_creation);
    RUN(killed_on_device);
    RUN(opening);
    RUN(containers);
    RUN(index_older);
    RUN(wrong_device);
    RUN(damaged_superblocks);
    RUN(free_while_staged);
    RUN(bad_data_block);
    RUN(damaged_journal);
    return 0;
}
