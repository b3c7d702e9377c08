/* SPDX-License-Identifier: Apache-2.0 */
/* Listing: whatever comes and goes meanwhile, what stays is seen exactly once; from memory, from
 * the store, and from a directory that memory cannot hold. */
#include <stdbool.h>

#include "ns_help.h"

#define FILES 5000u

static struct world w;
static uint64_t seed, dir;
static uint64_t ino_of[FILES];
static bool there[FILES];
static unsigned seen[FILES];

static void name_of(unsigned i, char *out)
{
    sprintf(out, "file-%u", i);
}

static void fill(void)
{
    char name[32];

    dir = make_dir(&w, NS_ROOT_INO, "dir");
    for (unsigned i = 0; i < FILES; i++) {
        name_of(i, name);
        ino_of[i] = make_file(&w, dir, name);
        there[i] = true;
    }
}

/* One page; the cookie to go on from in *cookie. */
static bool page(uint64_t *cookie, size_t cap, unsigned flags)
{
    static char bytes[1 << 16];
    struct dfe_dirent ent;
    char name[256];
    ssize_t n;

    n = ns_readdir(w.ns, dir, *cookie, bytes, cap, flags);
    if (n == -EINPROGRESS)
        n = ns_readdir(w.ns, dir, *cookie, bytes, cap, flags & ~DFE_NOWAIT);
    CHECK(n >= 0 && (size_t)n <= cap);
    for (ssize_t at = 0; at < n; at += ent.rec_len) {
        unsigned i;

        memcpy(&ent, bytes + at, sizeof(ent));
        CHECK(ent.rec_len % 8 == 0 && ent.cookie > *cookie);
        *cookie = ent.cookie;
        memcpy(name, bytes + at + sizeof(ent), ent.name_len);
        name[ent.name_len] = '\0';
        CHECK_EQ(sscanf(name, "file-%u", &i), 1);
        CHECK(i < FILES);
        CHECK_EQ(ent.attr.ino, ino_of[i]);
        CHECK(S_ISREG(ent.attr.mode));
        if (flags & DFE_PLUS)
            CHECK_EQ(ent.attr.nlink, 1);
        if (flags & DFE_REF)
            ns_unref(w.ns, ent.attr.ino, 1);
        seen[i]++;
    }
    return n > 0;
}

static unsigned list(size_t cap, unsigned flags)
{
    uint64_t cookie = 0;
    unsigned n = 0;

    memset(seen, 0, sizeof(seen));
    while (page(&cookie, cap, flags))
        ;
    for (unsigned i = 0; i < FILES; i++) {
        CHECK_EQ(seen[i], there[i]);
        n += seen[i];
    }
    return n;
}

static void reopen(uint64_t bound)
{
    struct dfe_attr attr;

    CHECK_EQ(world_close(&w), 0);
    w.opts.inode_bound = bound;
    world_open(&w);
    CHECK_EQ(lookup(&w, NS_ROOT_INO, "dir", &attr), 0);
    dir = attr.ino;
    CHECK_EQ(ns_ref(w.ns, dir), 0);
}

static void test_pages(void)
{
    static const uint64_t bounds[] = {0, 100, 6000};
    char small[8];

    for (unsigned b = 0; b < 3; b++) {
        reopen(bounds[b]);
        CHECK_EQ(list(65536, 0), FILES);
        CHECK_EQ(list(1000, DFE_NOWAIT), FILES);
        reopen(bounds[b]);
        CHECK_EQ(list(65536, DFE_PLUS | DFE_REF | DFE_NOWAIT), FILES);
        CHECK_EQ(list(65536, DFE_PLUS | DFE_REF), FILES);
        CHECK_EQ(list(4096, DFE_REF), FILES);
    }
    CHECK_EQ(ns_readdir(w.ns, dir, 0, small, sizeof(small), 0), -EINVAL);
    CHECK_EQ(ns_readdir(w.ns, 999999, 0, small, sizeof(small), 0), -ESTALE);
}

/* Half of them go, and strangers come, while the directory is listed. */
static void test_removal(uint64_t bound)
{
    uint64_t cookie = 0;
    bool stays[FILES];
    struct dfe_attr attr;
    char name[32];

    reopen(bound);
    memcpy(stays, there, sizeof(stays));
    memset(seen, 0, sizeof(seen));
    while (page(&cookie, 8192, test_rand(&seed) % 2 ? DFE_PLUS : 0)) {
        for (unsigned k = 0; k < 40; k++) {
            unsigned i = (unsigned)(test_rand(&seed) % FILES);

            name_of(i, name);
            if (there[i] && i % 2) {
                CHECK_EQ(ns_unlink(w.ns, dir, N(name), 0), 0);
                there[i] = stays[i] = false;
            } else if (!there[i]) {
                CHECK_EQ(ns_mknod(w.ns, dir, N(name), S_IFREG, 0, &ROOT_CRED, 0, &attr), 0);
                ino_of[i] = attr.ino;
                there[i] = true;
            }
        }
    }
    for (unsigned i = 0; i < FILES; i++) {
        if (stays[i])
            CHECK_EQ(seen[i], 1);
        else
            CHECK(seen[i] <= 1);
    }
    list(65536, 0);
}

static void test_removals(void)
{
    test_removal(0);
    test_removal(500);
    test_removal(0);
}

/* rm -r: what was listed is removed at once. */
static void test_empty(void)
{
    char name[32];
    uint64_t cookie = 0;

    reopen(0);
    while (page(&cookie, 4096, 0)) {
        for (unsigned i = 0; i < FILES; i++) {
            if (seen[i] && there[i]) {
                name_of(i, name);
                CHECK_EQ(ns_unlink(w.ns, dir, N(name), 0), 0);
                there[i] = false;
            }
            seen[i] = 0;
        }
    }
    for (unsigned i = 0; i < FILES; i++)
        CHECK(!there[i]);
    CHECK_EQ(ns_rmdir(w.ns, NS_ROOT_INO, N("dir"), 0), 0);
    cookie = 0;
    CHECK(!page(&cookie, 4096, 0));
    ns_unref(w.ns, dir, 1);
    wait_reclaimed(&w);
}

int main(void)
{
    static const unsigned bits[] = {0, 13};

    seed = test_seed();
    for (unsigned b = 0; b < 2; b++) {
        world_make(&w, "readdir", bits[b]);
        model_nowait(test_rand(&seed), b ? 3 : 0);
        fill();
        RUN(test_pages);
        RUN(test_removals);
        memset(seen, 0, sizeof(seen));
        RUN(test_empty);
        world_end(&w);
    }
    return 0;
}
