/* SPDX-License-Identifier: Apache-2.0 */
/* Every call of the namespace that changes names: what it does, and each of its errors. */
#include <sys/sysmacros.h>

#include "ns_help.h"

static const uint64_t ROOT = NS_ROOT_INO;
static struct world w;

static void test_create(void)
{
    struct dfe_attr root = attr_of(&w, ROOT), attr, again;
    char long_name[256];
    uint64_t dir;

    CHECK_EQ(root.mode, S_IFDIR | 0755);
    CHECK_EQ(root.nlink, 2);
    memset(long_name, 'n', sizeof(long_name));
    CHECK_EQ(ns_mknod(w.ns, ROOT, N("f"), S_IFREG | 0666, 0, &USER_CRED, 0, &attr), 0);
    CHECK_EQ(attr.mode, S_IFREG | 0644);
    CHECK_EQ(attr.uid, 1000);
    CHECK_EQ(attr.nlink, 1);
    CHECK_EQ(attr.size, 0);
    CHECK(attr.mtime_ns >= root.mtime_ns && attr.btime_ns == attr.mtime_ns);
    CHECK_EQ(lookup(&w, ROOT, "f", &again), 0);
    CHECK(memcmp(&attr, &again, sizeof(attr)) == 0);
    CHECK_EQ(attr_of(&w, ROOT).mtime_ns, attr.mtime_ns);
    CHECK_EQ(ns_mknod(w.ns, ROOT, N("f"), S_IFREG, 0, &USER_CRED, 0, &attr), -EEXIST);
    CHECK_EQ(ns_mknod(w.ns, again.ino, N("x"), S_IFREG, 0, &USER_CRED, 0, &attr), -ENOTDIR);
    CHECK_EQ(ns_mknod(w.ns, 999, N("x"), S_IFREG, 0, &USER_CRED, 0, &attr), -ESTALE);
    CHECK_EQ(ns_mknod(w.ns, ROOT, long_name, 256, S_IFREG, 0, &USER_CRED, 0, &attr), -ENAMETOOLONG);
    CHECK_EQ(ns_mknod(w.ns, ROOT, long_name, 255, S_IFREG, 0, &USER_CRED, 0, &attr), 0);
    CHECK_EQ(ns_mknod(w.ns, ROOT, N("a/b"), S_IFREG, 0, &USER_CRED, 0, &attr), -EINVAL);
    CHECK_EQ(ns_mknod(w.ns, ROOT, "a\0b", 3, S_IFREG, 0, &USER_CRED, 0, &attr), -EINVAL);
    CHECK_EQ(ns_mknod(w.ns, ROOT, "", 0, S_IFREG, 0, &USER_CRED, 0, &attr), -ENOENT);
    CHECK_EQ(ns_mknod(w.ns, ROOT, N("d"), S_IFDIR, 0, &USER_CRED, 0, &attr), -EPERM);
    CHECK_EQ(ns_mknod(w.ns, ROOT, N("l"), S_IFLNK, 0, &USER_CRED, 0, &attr), -EINVAL);
    CHECK_EQ(ns_mknod(w.ns, ROOT, N("\n\xff"), S_IFSOCK | 0600, 7, &USER_CRED, 0, &attr), 0);
    CHECK_EQ(attr.rdev, 0);
    CHECK_EQ(ns_mknod(w.ns, ROOT, N("dev"), S_IFCHR | 0600, makedev(1, 3), &ROOT_CRED, 0, &attr),
             0);
    CHECK_EQ(attr_of(&w, attr.ino).rdev, makedev(1, 3));
    CHECK_EQ(ns_mknod(w.ns, ROOT, N("fifo"), S_IFIFO | 0600, 0, &ROOT_CRED, 0, &attr), 0);
    dir = make_dir(&w, ROOT, "d");
    CHECK_EQ(attr_of(&w, ROOT).nlink, 3);
    CHECK_EQ(attr_of(&w, dir).nlink, 2);
    CHECK_EQ(ns_mkdir(w.ns, ROOT, N("d"), 0755, &ROOT_CRED, 0, &attr), -EEXIST);
    CHECK_EQ(ns_rmdir(w.ns, ROOT, N("d"), 0), 0);
    CHECK_EQ(attr_of(&w, ROOT).nlink, 2);
}

static void test_setgid(void)
{
    struct dfe_attr in = {.mode = 02775, .gid = 77}, attr;
    uint64_t dir = make_dir(&w, ROOT, "sgid");

    CHECK_EQ(ns_setattr(w.ns, dir, &in, DFE_SET_MODE | DFE_SET_GID, 0, &attr), 0);
    CHECK_EQ(ns_mknod(w.ns, dir, N("f"), S_IFREG | 0644, 0, &USER_CRED, 0, &attr), 0);
    CHECK_EQ(attr.gid, 77);
    CHECK_EQ(attr.mode, S_IFREG | 0644);
    CHECK_EQ(ns_mkdir(w.ns, dir, N("d"), 0755, &USER_CRED, 0, &attr), 0);
    CHECK_EQ(attr.gid, 77);
    CHECK_EQ(attr.mode, S_IFDIR | 02755);
}

static void test_symlink(void)
{
    char target[4096], got[4096];
    struct dfe_attr attr;

    memset(target, 't', sizeof(target));
    CHECK_EQ(ns_symlink(w.ns, ROOT, N("s"), N("to/there"), &USER_CRED, 0, &attr), 0);
    CHECK_EQ(attr.mode, S_IFLNK | 0777);
    CHECK_EQ(attr.size, 8);
    CHECK_EQ(ns_readlink(w.ns, attr.ino, got, sizeof(got), 0), 8);
    CHECK(memcmp(got, "to/there", 8) == 0);
    CHECK_EQ(ns_readlink(w.ns, attr.ino, got, 2, 0), 2);
    CHECK_EQ(ns_readlink(w.ns, ROOT, got, 2, 0), -EINVAL);
    CHECK_EQ(ns_symlink(w.ns, ROOT, N("s"), N("x"), &USER_CRED, 0, &attr), -EEXIST);
    CHECK_EQ(ns_symlink(w.ns, ROOT, N("s2"), target, 0, &USER_CRED, 0, &attr), -ENOENT);
    CHECK_EQ(ns_symlink(w.ns, ROOT, N("s2"), target, 4096, &USER_CRED, 0, &attr), -ENAMETOOLONG);
    CHECK_EQ(ns_symlink(w.ns, ROOT, N("s2"), target, 4095, &USER_CRED, 0, &attr), 0);
    CHECK_EQ(ns_symlink(w.ns, ROOT, N("s3"), "a\0b", 3, &USER_CRED, 0, &attr), -EINVAL);
    CHECK_EQ(world_close(&w), 0);
    world_open(&w);
    CHECK_EQ(lookup(&w, ROOT, "s2", &attr), 0);
    CHECK_EQ(ns_readlink(w.ns, attr.ino, got, sizeof(got), 0), 4095);
    CHECK(memcmp(got, target, 4095) == 0);
}

static void test_link_unlink(void)
{
    uint64_t f = make_file(&w, ROOT, "l1"), d = make_dir(&w, ROOT, "ld");
    struct dfe_attr attr;

    CHECK_EQ(ns_link(w.ns, f, d, N("l2"), 0, &attr), 0);
    CHECK_EQ(attr.nlink, 2);
    CHECK_EQ(attr.ino, f);
    CHECK_EQ(ns_link(w.ns, f, d, N("l2"), 0, &attr), -EEXIST);
    CHECK_EQ(ns_link(w.ns, d, d, N("l3"), 0, &attr), -EPERM);
    CHECK_EQ(ns_link(w.ns, 999, d, N("l3"), 0, &attr), -ESTALE);
    CHECK_EQ(ns_link(w.ns, f, f, N("l3"), 0, &attr), -ENOTDIR);
    CHECK_EQ(ns_unlink(w.ns, ROOT, N("ld"), 0), -EISDIR);
    CHECK_EQ(ns_unlink(w.ns, ROOT, N("none"), 0), -ENOENT);
    CHECK_EQ(ns_rmdir(w.ns, ROOT, N("l1"), 0), -ENOTDIR);
    CHECK_EQ(ns_rmdir(w.ns, ROOT, N("ld"), 0), -ENOTEMPTY);
    CHECK_EQ(ns_rmdir(w.ns, ROOT, N("none"), 0), -ENOENT);
    CHECK_EQ(ns_unlink(w.ns, ROOT, N("l1"), 0), 0);
    CHECK_EQ(lookup(&w, ROOT, "l1", &attr), -ENOENT);
    CHECK_EQ(attr_of(&w, f).nlink, 1);
    CHECK_EQ(ns_ref(w.ns, f), 0);
    CHECK_EQ(ns_unlink(w.ns, d, N("l2"), 0), 0);
    CHECK_EQ(attr_of(&w, f).nlink, 0);
    CHECK_EQ(ns_link(w.ns, f, d, N("back"), 0, &attr), -ENOENT);
    ns_unref(w.ns, f, 1);
    wait_reclaimed(&w);
    CHECK_EQ(ns_getattr(w.ns, f, 0, &attr), -ESTALE);
    CHECK_EQ(ns_ref(w.ns, f), -ESTALE);
    CHECK_EQ(ns_ref(w.ns, d), 0);
    CHECK_EQ(ns_rmdir(w.ns, ROOT, N("ld"), 0), 0);
    CHECK_EQ(ns_mknod(w.ns, d, N("x"), S_IFREG, 0, &USER_CRED, 0, &attr), -ENOENT);
    CHECK_EQ(ns_parent(w.ns, d, 0, &f), -ENOENT);
    ns_unref(w.ns, d, 1);
}

static void test_rename_files(void)
{
    uint64_t a = make_file(&w, ROOT, "ra"), b = make_file(&w, ROOT, "rb");
    uint64_t d = make_dir(&w, ROOT, "rd");
    struct dfe_attr attr;

    CHECK_EQ(ns_rename(w.ns, ROOT, N("none"), ROOT, N("x"), 0), -ENOENT);
    CHECK_EQ(ns_rename(w.ns, ROOT, N("ra"), ROOT, N("rb"), DFE_NOREPLACE), -EEXIST);
    CHECK_EQ(ns_rename(w.ns, ROOT, N("ra"), ROOT, N("x"), DFE_EXCHANGE), -ENOENT);
    CHECK_EQ(ns_rename(w.ns, ROOT, N("ra"), ROOT, N("x"), DFE_EXCHANGE | DFE_NOREPLACE), -EINVAL);
    CHECK_EQ(ns_rename(w.ns, ROOT, N("ra"), ROOT, N("rd"), 0), -EISDIR);
    CHECK_EQ(ns_rename(w.ns, ROOT, N("rd"), ROOT, N("ra"), 0), -ENOTDIR);
    CHECK_EQ(ns_rename(w.ns, ROOT, N("ra"), 999, N("x"), 0), -ESTALE);
    CHECK_EQ(ns_rename(w.ns, ROOT, N("ra"), a, N("x"), 0), -ENOTDIR);
    CHECK_EQ(ns_rename(w.ns, ROOT, N("ra"), ROOT, N("ra"), 0), 0);
    CHECK_EQ(ns_rename(w.ns, ROOT, N("ra"), ROOT, N("rb"), DFE_EXCHANGE), 0);
    CHECK_EQ(lookup(&w, ROOT, "ra", &attr), 0);
    CHECK_EQ(attr.ino, b);
    CHECK_EQ(ns_rename(w.ns, ROOT, N("rb"), d, N("ra2"), DFE_NOREPLACE), 0);
    CHECK_EQ(lookup(&w, ROOT, "rb", &attr), -ENOENT);
    CHECK_EQ(lookup(&w, d, "ra2", &attr), 0);
    CHECK_EQ(attr.ino, a);
    CHECK_EQ(ns_rename(w.ns, d, N("ra2"), ROOT, N("ra"), 0), 0);
    CHECK_EQ(lookup(&w, ROOT, "ra", &attr), 0);
    CHECK_EQ(attr.ino, a);
    wait_reclaimed(&w);
    CHECK_EQ(ns_getattr(w.ns, b, 0, &attr), -ESTALE);
    CHECK_EQ(ns_link(w.ns, a, d, N("same"), 0, &attr), 0);
    CHECK_EQ(ns_rename(w.ns, ROOT, N("ra"), d, N("same"), 0), 0);
    CHECK_EQ(lookup(&w, ROOT, "ra", &attr), 0);
    CHECK_EQ(attr.nlink, 2);
}

static void test_rename_dirs(void)
{
    uint64_t a = make_dir(&w, ROOT, "da"), b = make_dir(&w, a, "db"), c = make_dir(&w, b, "dc");
    uint64_t other = make_dir(&w, ROOT, "do"), parent;
    struct dfe_attr attr;
    unsigned links = attr_of(&w, ROOT).nlink;

    CHECK_EQ(ns_rename(w.ns, ROOT, N("da"), c, N("x"), 0), -EINVAL);
    CHECK_EQ(ns_rename(w.ns, ROOT, N("da"), a, N("x"), 0), -EINVAL);
    CHECK_EQ(ns_rename(w.ns, b, N("dc"), ROOT, N("da"), DFE_EXCHANGE), -EINVAL);
    CHECK_EQ(ns_rename(w.ns, b, N("dc"), ROOT, N("da"), 0), -ENOTEMPTY);
    CHECK_EQ(ns_rename(w.ns, ROOT, N("do"), ROOT, N("da"), 0), -ENOTEMPTY);
    CHECK_EQ(ns_rename(w.ns, a, N("db"), other, N("moved"), 0), 0);
    CHECK_EQ(attr_of(&w, a).nlink, 2);
    CHECK_EQ(attr_of(&w, other).nlink, 3);
    CHECK_EQ(ns_parent(w.ns, b, 0, &parent), 0);
    CHECK_EQ(parent, other);
    CHECK_EQ(lookup(&w, b, "..", &attr), 0);
    CHECK_EQ(attr.ino, other);
    CHECK_EQ(lookup(&w, b, ".", &attr), 0);
    CHECK_EQ(attr.ino, b);
    CHECK_EQ(ns_rename(w.ns, other, N("moved"), ROOT, N("da"), 0), 0);
    CHECK_EQ(attr_of(&w, ROOT).nlink, links);
    make_file(&w, other, "file");
    CHECK_EQ(ns_rename(w.ns, other, N("file"), ROOT, N("da"), DFE_EXCHANGE), 0);
    CHECK_EQ(attr_of(&w, ROOT).nlink, links - 1);
    CHECK_EQ(attr_of(&w, other).nlink, 3);
    CHECK_EQ(ns_parent(w.ns, b, 0, &parent), 0);
    CHECK_EQ(parent, other);
    CHECK_EQ(lookup(&w, ROOT, "da", &attr), 0);
    CHECK(S_ISREG(attr.mode));
    wait_reclaimed(&w);
    CHECK_EQ(ns_getattr(w.ns, a, 0, &attr), -ESTALE);
}

/* What was born in a directory outlives it. */
static void test_birth(void)
{
    uint64_t d = make_dir(&w, ROOT, "birth"), f = make_file(&w, d, "f");
    struct dfe_attr attr;

    CHECK_EQ(ns_rename(w.ns, d, N("f"), ROOT, N("born"), 0), 0);
    CHECK_EQ(ns_rmdir(w.ns, ROOT, N("birth"), 0), 0);
    wait_reclaimed(&w);
    CHECK_EQ(world_check(&w), 0);
    CHECK_EQ(world_close(&w), 0);
    world_open(&w);
    CHECK_EQ(lookup(&w, ROOT, "born", &attr), 0);
    CHECK_EQ(attr.ino, f);
    CHECK_EQ(ns_unlink(w.ns, ROOT, N("born"), 0), 0);
    wait_reclaimed(&w);
}

static void test_setattr(void)
{
    struct dfe_attr in = {.mode = 06711, .uid = 5, .gid = 6, .atime_ns = -5, .mtime_ns = 123456789};
    uint64_t f = make_file(&w, ROOT, "attr");
    struct dfe_attr attr;

    CHECK_EQ(ns_setattr(w.ns, f, &in, DFE_SET_MODE | DFE_SET_ATIME | DFE_SET_MTIME, 0, &attr), 0);
    CHECK_EQ(attr.mode, S_IFREG | 06711);
    CHECK_EQ(attr.atime_ns, -5);
    CHECK_EQ(attr.mtime_ns, 123456789);
    CHECK(attr.ctime_ns > 123456789);
    CHECK_EQ(ns_setattr(w.ns, f, &in, DFE_SET_UID | DFE_SET_GID, 0, &attr), 0);
    CHECK_EQ(attr.mode, S_IFREG | 0711);
    CHECK_EQ(attr.uid, 5);
    CHECK_EQ(attr.gid, 6);
    in.size = 12345;
    CHECK_EQ(ns_setattr(w.ns, f, &in, DFE_SET_SIZE | DFE_SET_MTIME | DFE_SET_CTIME, 0, &attr), 0);
    CHECK_EQ(attr.size, 12345);
    CHECK_EQ(attr.mtime_ns, 123456789);
    CHECK_EQ(attr.ctime_ns, in.ctime_ns);
    CHECK_EQ(ns_setattr(w.ns, ROOT, &in, DFE_SET_SIZE, 0, &attr), -EISDIR);
    CHECK_EQ(ns_setattr(w.ns, 999, &in, DFE_SET_MODE, 0, &attr), -ESTALE);
    in.size = UINT64_MAX;
    CHECK_EQ(ns_setattr(w.ns, f, &in, DFE_SET_SIZE, 0, &attr), -EFBIG);
    CHECK_EQ(lookup(&w, ROOT, "s", &attr), 0);
    CHECK_EQ(ns_setattr(w.ns, attr.ino, &in, DFE_SET_MODE, 0, &attr), -EOPNOTSUPP);
    CHECK_EQ(ns_setattr(w.ns, attr.ino, &in, DFE_SET_SIZE, 0, &attr), -EINVAL);
    CHECK_EQ(world_close(&w), 0);
    world_open(&w);
    CHECK_EQ(lookup(&w, ROOT, "attr", &attr), 0);
    CHECK_EQ(attr.mode, S_IFREG | 0711);
    CHECK_EQ(attr.size, 12345);
    CHECK_EQ(attr.mtime_ns, 123456789);
    CHECK_EQ(attr.atime_ns, -5);
}

static void test_read_only(void)
{
    struct obj_cont *snap;
    struct dfe_attr attr, in = {0};
    struct ns *ns;

    CHECK_EQ(ns_sync(w.ns), 0);
    CHECK_EQ(obj_snap_create(w.cont, "snap", NULL), 0);
    make_file(&w, ROOT, "after the snapshot");
    CHECK_EQ(obj_cont_open(w.pool, "c", "snap", &snap), 0);
    CHECK_EQ(ns_format(snap, &ROOT_CRED, 0755), -EROFS);
    CHECK_EQ(ns_open(w.cache, snap, &w.opts, &ns), 0);
    CHECK_EQ(ns_lookup(ns, ROOT, N("after the snapshot"), 0, &attr), -ENOENT);
    CHECK_EQ(ns_lookup(ns, ROOT, N("attr"), 0, &attr), 0);
    CHECK_EQ(ns_mknod(ns, ROOT, N("x"), S_IFREG, 0, &ROOT_CRED, 0, &in), -EROFS);
    CHECK_EQ(ns_unlink(ns, ROOT, N("attr"), 0), -EROFS);
    CHECK_EQ(ns_rename(ns, ROOT, N("attr"), ROOT, N("x"), 0), -EROFS);
    CHECK_EQ(ns_setattr(ns, attr.ino, &in, DFE_SET_MODE, 0, &attr), -EROFS);
    CHECK_EQ(ns_link(ns, attr.ino, ROOT, N("x"), 0, &attr), -EROFS);
    CHECK_EQ(ns_setxattr(ns, attr.ino, N("user.a"), "", 0, 0), -EROFS);
    CHECK_EQ(ns_write(ns, attr.ino, 0, "x", 1, 0, NULL), -EROFS);
    CHECK_EQ(ns_punch(ns, attr.ino, 0, 1, 0), -EROFS);
    CHECK_EQ(ns_fsync(ns, attr.ino, 0), 0);
    CHECK_EQ(ns_sync(ns), 0);
    CHECK_EQ(ns_check(ns, true, NULL, NULL, NULL), 0);
    CHECK_EQ(ns_close(ns), 0);
    CHECK_EQ(cache_forget(w.cache, snap), 0);
    obj_cont_close(snap);
}

static void test_statfs(void)
{
    struct dfe_statfs fs;

    CHECK_EQ(ns_statfs(w.ns, &fs), 0);
    CHECK_EQ(fs.name_max, 255);
    CHECK(fs.blocks >= fs.blocks_free && fs.blocks > 0);
}

int main(void)
{
    for (unsigned bits = 0; bits <= 4; bits += 4) {
        world_make(&w, "ops", bits);
        RUN(test_create);
        RUN(test_setgid);
        RUN(test_symlink);
        RUN(test_link_unlink);
        RUN(test_rename_files);
        RUN(test_rename_dirs);
        RUN(test_birth);
        RUN(test_setattr);
        RUN(test_read_only);
        RUN(test_statfs);
        world_end(&w);
    }
    return 0;
}
