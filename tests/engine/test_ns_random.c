/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random calls on the namespace and on a shadow tree, with colliding names, stores that make
 * callers wait, caches that evict, reopening, and power failures: after one, the tree is that of
 * some moment between the last sync and the failure.
 */
#include <stdbool.h>

#include "ns_help.h"
#include "ns_shadow.h"

#define STEPS 6000
#define HISTORY 400

static struct world w;
static struct shadow now, history[HISTORY]; /* since the last sync: history[0] is the synced one */
static unsigned moments;
static uint64_t seed;

static unsigned pick(unsigned n)
{
    return (unsigned)(test_rand(&seed) % n);
}

static const char *name_of(int i)
{
    static char text[SHADOW_NAMES][16];

    snprintf(text[i], sizeof(text[i]), "name-%d", i);
    return text[i];
}

static int pick_dir(void)
{
    for (;;) {
        int i = 1 + (int)pick(SHADOW_NODES - 1);

        if (now.node[i].nlink > 0 && S_ISDIR(now.node[i].mode))
            return i;
        if (pick(4) == 0)
            return 1;
    }
}

/* The number of a node, found from the root: nothing else keeps it in memory. */
static uint64_t resolve(const struct shadow *s, int node)
{
    struct dfe_attr attr;
    int dir, name;
    int err;

    if (node == 1)
        return NS_ROOT_INO;
    CHECK(shadow_where(s, node, &dir, &name));
    err = ns_lookup(w.ns, resolve(s, dir), N(name_of(name)), pick(2) ? DFE_NOWAIT : 0, &attr);
    if (err == -EINPROGRESS)
        err = ns_lookup(w.ns, resolve(s, dir), N(name_of(name)), 0, &attr);
    CHECK_EQ(err, 0);
    if (s->node[node].ino)
        CHECK_EQ(attr.ino, s->node[node].ino);
    CHECK_EQ(attr.mode, s->node[node].mode);
    CHECK_EQ(attr.nlink, s->node[node].nlink);
    return attr.ino;
}

/* -- comparing ---------------- */

static bool same_attr(const struct shadow_node *n, const struct dfe_attr *attr, unsigned entries)
{
    return attr->ino == n->ino && attr->mode == n->mode && attr->nlink == n->nlink &&
           (!S_ISDIR(n->mode) || attr->size == entries);
}

/* Everything below a directory, by listing it. */
static bool same_dir(const struct shadow *s, int dir, uint64_t ino)
{
    char page[2048];
    uint64_t cookie = 0;
    unsigned seen = 0;
    bool all = true;
    ssize_t n = 0;

    while (all && (n = ns_readdir(w.ns, ino, cookie, page, sizeof(page), DFE_PLUS | DFE_REF)) > 0) {
        struct dfe_dirent ent;

        for (ssize_t at = 0; at < n; at += ent.rec_len) {
            const char *name = page + at + sizeof(ent);
            bool same = false;

            memcpy(&ent, page + at, sizeof(ent));
            CHECK(ent.cookie > cookie);
            cookie = ent.cookie;
            for (int i = 0; all && i < SHADOW_NAMES; i++) {
                int node = s->node[dir].entry[i];

                if (node && strlen(name_of(i)) == ent.name_len &&
                    memcmp(name_of(i), name, ent.name_len) == 0)
                    same = same_attr(&s->node[node], &ent.attr, shadow_entries(s, node)) &&
                           (!S_ISDIR(ent.attr.mode) || same_dir(s, node, ent.attr.ino));
            }
            ns_unref(w.ns, ent.attr.ino, 1); /* all of the page's: the world may go on */
            all = all && same;
            seen++;
        }
    }
    CHECK(n >= 0);
    return all && seen == shadow_entries(s, dir);
}

static bool same(const struct shadow *s)
{
    struct dfe_attr attr = attr_of(&w, NS_ROOT_INO);

    return same_attr(&s->node[1], &attr, shadow_entries(s, 1)) && same_dir(s, 1, NS_ROOT_INO);
}

/* -- steps ---------------- */

static void step_create(unsigned flags)
{
    static const uint32_t modes[] = {S_IFREG | 0644, S_IFDIR | 0755, S_IFLNK | 0777,
                                     S_IFIFO | 0600};
    uint32_t mode = modes[pick(4)];
    int dir = pick_dir(), name = (int)pick(SHADOW_NAMES), node = 0, want, got;
    struct shadow before = now;
    struct dfe_attr attr;
    uint64_t ino = resolve(&now, dir);

    if (S_ISDIR(mode) && shadow_depth(&now, dir) > 4)
        return;
    want = shadow_create(&now, dir, name, mode, &node);
    if (want == -ENFILE)
        return;
    if (S_ISDIR(mode))
        got = ns_mkdir(w.ns, ino, N(name_of(name)), mode, &ROOT_CRED, flags, &attr);
    else if (S_ISLNK(mode))
        got = ns_symlink(w.ns, ino, N(name_of(name)), N("to"), &ROOT_CRED, flags, &attr);
    else
        got = ns_mknod(w.ns, ino, N(name_of(name)), mode, 0, &ROOT_CRED, flags, &attr);
    if (got == -EINPROGRESS) {
        CHECK(flags & DFE_NOWAIT);
        now = before;
        return;
    }
    CHECK_EQ(got, want);
    if (got == 0)
        now.node[node].ino = attr.ino;
}

static void step_link(unsigned flags)
{
    int node = 2 + (int)pick(SHADOW_NODES - 2), dir = pick_dir(), name = (int)pick(SHADOW_NAMES);
    struct shadow before = now;
    uint64_t ino, dir_ino;
    struct dfe_attr attr;
    int want, got;

    if (now.node[node].nlink == 0)
        return;
    dir_ino = resolve(&now, dir);
    ino = resolve(&now, node);
    want = shadow_link(&now, node, dir, name);
    got = ns_link(w.ns, ino, dir_ino, N(name_of(name)), flags, &attr);
    if (got == -EINPROGRESS)
        now = before;
    else
        CHECK_EQ(got, want);
}

static void step_remove(unsigned flags)
{
    int dir = pick_dir(), name = (int)pick(SHADOW_NAMES), want, got;
    uint64_t ino = resolve(&now, dir);
    struct shadow before = now;
    bool rmdir = pick(2);

    want = shadow_remove(&now, dir, name, rmdir);
    got = rmdir ? ns_rmdir(w.ns, ino, N(name_of(name)), flags)
                : ns_unlink(w.ns, ino, N(name_of(name)), flags);
    if (got == -EINPROGRESS)
        now = before;
    else
        CHECK_EQ(got, want);
}

static void step_rename(unsigned flags)
{
    int dir = pick_dir(), new_dir = pick(2) ? dir : pick_dir();
    int name = (int)pick(SHADOW_NAMES), new_name = (int)pick(SHADOW_NAMES), want, got;
    bool noreplace = pick(4) == 0, exchange = pick(3) == 0;
    uint64_t ino = resolve(&now, dir), new_ino = resolve(&now, new_dir);
    struct shadow before = now;
    int from = now.node[dir].entry[name];

    if (from && S_ISDIR(now.node[from].mode) && shadow_depth(&now, new_dir) > 4)
        return;
    flags |= (noreplace ? DFE_NOREPLACE : 0) | (exchange ? DFE_EXCHANGE : 0);
    want = shadow_rename(&now, dir, name, new_dir, new_name, noreplace, exchange);
    got = ns_rename(w.ns, ino, N(name_of(name)), new_ino, N(name_of(new_name)), flags);
    if (got == -EINPROGRESS)
        now = before;
    else
        CHECK_EQ(got, want);
}

static void step_chmod(unsigned flags)
{
    int node = 1 + (int)pick(SHADOW_NODES - 1), got;
    struct dfe_attr attr, in = {.mode = 0700 | pick(64)};

    if (now.node[node].nlink == 0 || S_ISLNK(now.node[node].mode))
        return;
    got = ns_setattr(w.ns, resolve(&now, node), &in, DFE_SET_MODE, flags, &attr);
    if (got == -EINPROGRESS)
        return;
    CHECK_EQ(got, 0);
    now.node[node].mode = (now.node[node].mode & S_IFMT) | in.mode;
    CHECK_EQ(attr.mode, now.node[node].mode);
}

static void remember(void)
{
    if (moments == HISTORY) {
        CHECK_EQ(ns_sync(w.ns), 0);
        moments = 0;
    }
    history[moments++] = now;
}

static void synced(void)
{
    moments = 0;
    remember();
}

static void step_crash(void)
{
    unsigned i;

    world_crash(&w, pick(4) ? &seed : NULL);
    CHECK_EQ(world_check(&w), 0);
    for (i = 0; i < moments && !same(&history[i]); i++)
        ;
    CHECK(i < moments);
    now = history[i];
    synced(); /* a crash leaves what is durable */
}

static void step_reopen(void)
{
    CHECK_EQ(world_close(&w), 0);
    w.opts.inode_bound = pick(2) ? 24 : 0;
    world_open(&w);
    CHECK(same(&now));
    synced();
}

static void step(void)
{
    unsigned flags = pick(3) == 0 ? DFE_NOWAIT : 0, what = pick(1000);

    if (what < 300)
        step_create(flags);
    else if (what < 400)
        step_link(flags);
    else if (what < 600)
        step_remove(flags);
    else if (what < 900)
        step_rename(flags);
    else if (what < 960)
        step_chmod(flags);
    else if (what < 980)
        CHECK(same(&now));
    else if (what < 985) {
        CHECK_EQ(ns_sync(w.ns), 0);
        synced();
        return;
    } else if (what < 988)
        CHECK_EQ(world_check(&w), 0);
    else if (what < 992)
        step_reopen();
    else if (what < 997)
        step_crash();
    remember();
}

int main(void)
{
    seed = test_seed();
    world_make(&w, "random", 4);
    model_nowait(test_rand(&seed), 3);
    shadow_init(&now, S_IFDIR | 0755);
    CHECK_EQ(ns_sync(w.ns), 0);
    synced();
    for (unsigned i = 0; i < STEPS; i++)
        step();
    wait_reclaimed(&w);
    world_end(&w);
    return 0;
}
