/* SPDX-License-Identifier: Apache-2.0 */
/* The nth call of the store fails, for every n: the call reports it, memory still equals the store,
 * and nothing is half done. */
#include <stdbool.h>

#include "base/log.h"
#include "ns_help.h"

static struct world w;

/* A digest of the whole tree, by listing it. */
static uint64_t digest(uint64_t dir)
{
    char page[8192];
    uint64_t cookie = 0, sum = 0;
    ssize_t n;

    while ((n = ns_readdir(w.ns, dir, cookie, page, sizeof(page), DFE_PLUS)) > 0) {
        struct dfe_dirent ent;

        for (ssize_t at = 0; at < n; at += ent.rec_len) {
            uint64_t h = dir;

            memcpy(&ent, page + at, sizeof(ent));
            for (unsigned i = 0; i < ent.name_len; i++)
                h = h * 31 + (uint8_t)page[at + (ssize_t)sizeof(ent) + i];
            h = (h * 31 + ent.attr.ino) * 31 + ent.attr.mode;
            h = (h * 31 + ent.attr.nlink) * 31 + ent.attr.size;
            sum += h ^ h >> 29;
            cookie = ent.cookie;
            if (S_ISDIR(ent.attr.mode))
                sum += digest(ent.attr.ino);
        }
    }
    CHECK_EQ(n, 0);
    return sum;
}

static uint64_t state(void)
{
    struct dfe_attr attr = attr_of(&w, NS_ROOT_INO);

    return digest(NS_ROOT_INO) * 31 + attr.nlink * 7 + attr.size;
}

static void reopen(void)
{
    CHECK_EQ(world_close(&w), 0);
    world_open(&w);
}

/* A chain of calls, each of which needs the ones before; the first error ends it. */
static int script(unsigned steps)
{
    struct dfe_attr d, f, g, out, in = {.mode = 0700, .size = 2};
    struct ns *ns = w.ns;
    char text[8];
    int err;

    err = ns_lookup(ns, NS_ROOT_INO, N("old-dir"), 0, &d);
    if (!err && steps > 0)
        err = ns_mknod(ns, d.ino, N("new"), S_IFREG | 0644, 0, &ROOT_CRED, 0, &f);
    if (!err && steps > 1)
        err = ns_setxattr(ns, f.ino, N("user.x"), "x", 1, 0);
    if (!err && steps > 2)
        err = ns_link(ns, f.ino, NS_ROOT_INO, N("link"), 0, &out);
    if (!err && steps > 3)
        err = ns_mkdir(ns, d.ino, N("sub"), 0755, &ROOT_CRED, 0, &g);
    if (!err && steps > 4)
        err = ns_rename(ns, d.ino, N("sub"), NS_ROOT_INO, N("moved"), 0);
    if (!err && steps > 5)
        err = ns_setattr(ns, d.ino, &in, DFE_SET_MODE, 0, &out);
    if (!err && steps > 6)
        err = ns_rename(ns, d.ino, N("new"), NS_ROOT_INO, N("old-file"), 0);
    if (!err && steps > 7)
        err = ns_unlink(ns, NS_ROOT_INO, N("link"), 0);
    if (!err && steps > 8)
        err = ns_rmdir(ns, NS_ROOT_INO, N("moved"), 0);
    if (!err && steps > 9)
        err = ns_getxattr(ns, f.ino, N("user.x"), text, sizeof(text), 0) < 0 ? -EIO : 0;
    if (!err && steps > 10)
        err = ns_symlink(ns, d.ino, N("sym"), N("to"), &ROOT_CRED, 0, &out);
    if (!err && steps > 11)
        err = ns_rename(ns, d.ino, N("sym"), NS_ROOT_INO, N("old-file"), DFE_EXCHANGE);
    return err;
}

static void world_fresh(void)
{
    uint64_t d;

    world_make(&w, "fail", 3);
    d = make_dir(&w, NS_ROOT_INO, "old-dir");
    make_file(&w, d, "inside");
    make_file(&w, NS_ROOT_INO, "old-file");
    reopen();
}

static void fail_all(enum model_call call, unsigned nowait)
{
    unsigned done = 0;

    for (uint64_t n = 1; done < 3; n++) {
        uint64_t before;
        int err;

        world_fresh();
        model_nowait(n, nowait);
        model_fail(call, n, 1, -EIO);
        err = script(20);
        model_fail(call, 0, 0, 0);
        CHECK(err == 0 || err == -EIO);
        done += err == 0;
        before = state();
        wait_reclaimed(&w);
        CHECK_EQ(world_check(&w), 0);
        reopen();
        wait_reclaimed(&w);
        CHECK_EQ(state(), before);
        world_end(&w);
    }
}

static void test_commit(void)
{
    fail_all(MODEL_COMMIT, 0);
    fail_all(MODEL_COMMIT, 2);
}

static void test_get(void)
{
    fail_all(MODEL_KV_GET, 0);
    fail_all(MODEL_KV_GET, 2);
}

static void test_scan(void)
{
    fail_all(MODEL_KV_SCAN, 0);
    fail_all(MODEL_KV_SCAN, 2);
}

/* The power fails after each prefix of the script: the tree is that of the prefix. */
static void test_prefix(void)
{
    for (unsigned steps = 0; steps < 13; steps++) {
        uint64_t before;

        world_fresh();
        CHECK_EQ(script(steps), 0);
        CHECK_EQ(ns_sync(w.ns), 0);
        before = state();
        CHECK_EQ(script(0), 0);
        make_file(&w, NS_ROOT_INO, "too late");
        world_crash(&w, NULL);
        CHECK_EQ(state(), before);
        wait_reclaimed(&w);
        world_end(&w);
    }
}

/* A number that was handed out is not handed out again, although its create was lost. */
static void test_numbers(void)
{
    uint64_t lost;

    world_make(&w, "numbers", 0);
    for (unsigned i = 0; i < 3; i++) {
        lost = make_file(&w, NS_ROOT_INO, "lost");
        world_crash(&w, NULL);
        CHECK(make_file(&w, NS_ROOT_INO, "next") > lost);
        world_crash(&w, NULL);
    }
    world_end(&w);
}

static void quiet(int level, const char *text, void *arg)
{
    (void)level, (void)text, (void)arg;
}

int main(void)
{
    base_log_set(quiet, NULL);
    RUN(test_commit);
    RUN(test_get);
    RUN(test_scan);
    RUN(test_prefix);
    RUN(test_numbers);
    return 0;
}
