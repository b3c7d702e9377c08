/* SPDX-License-Identifier: Apache-2.0 */
/* Public API: file systems: one at a time, every call reaches the namespace, pins, check,
 * snapshots. */
#include <sys/stat.h>

#include "api_session.h"

#define ROOT 1u

static const struct dfe_cred cred = {.uid = 7, .gid = 8};
static struct dfe_pool *pool;
static struct dfe_cont *cont;
static struct dfe_fs *fs;

static uint64_t make(const char *name)
{
    struct dfe_attr attr;

    CHECK_EQ(dfe_fs_mknod(fs, ROOT, name, strlen(name), S_IFREG | 0644, 0, &cred, 0, &attr), 0);
    return attr.ino;
}

static void one_at_a_time(void)
{
    struct dfe_cont *again, *plain;
    struct dfe_fs *second;

    CHECK_EQ(dfe_cont_open(pool, "c", NULL, &again), 0);
    if (!session_wanted()) /* a service's file systems are shared */
        CHECK_EQ(dfe_fs_open(again, &second), -EBUSY);
    CHECK_EQ(dfe_cont_close(again), 0);
    CHECK_EQ(dfe_cont_close(cont), -EBUSY);

    CHECK_EQ(dfe_cont_create(pool, "plain", 0, NULL, 0), 0);
    CHECK_EQ(dfe_cont_open(pool, "plain", NULL, &plain), 0);
    CHECK_EQ(dfe_fs_open(plain, &second), -ENODATA);
    CHECK_EQ(dfe_cont_check(plain, 1, NULL, 0, NULL, NULL), 0);
    CHECK_EQ(dfe_cont_close(plain), 0);
    CHECK_EQ(dfe_cont_destroy(pool, "plain"), 0);
}

static void names_and_attributes(void)
{
    struct dfe_attr attr, in = {.mode = 0600, .size = 5};
    uint64_t ino = make("file"), parent = 0;
    struct dfe_statfs st;
    struct dfe_fs_info info;
    uint8_t page[4096];
    char target[64];

    CHECK_EQ(dfe_fs_getattr(fs, ROOT, 0, &attr), 0);
    CHECK_EQ(attr.uid, 7);
    CHECK_EQ(attr.mode, S_IFDIR | 0755);
    CHECK_EQ(dfe_fs_lookup(fs, ROOT, "file", 4, DFE_REF, &attr), 0);
    CHECK_EQ(attr.ino, ino);
    CHECK_EQ(dfe_fs_ref(fs, ino), 0);
    dfe_fs_unref(fs, ino, 2);
    CHECK_EQ(dfe_fs_setattr(fs, ino, &in, DFE_SET_MODE | DFE_SET_SIZE, 0, &attr), 0);
    CHECK_EQ(attr.mode, S_IFREG | 0600);
    CHECK_EQ(attr.size, 5);

    CHECK_EQ(dfe_fs_mkdir(fs, ROOT, "dir", 3, 0755, &cred, 0, &attr), 0);
    CHECK_EQ(dfe_fs_parent(fs, attr.ino, 0, &parent), 0);
    CHECK_EQ(parent, ROOT);
    CHECK_EQ(dfe_fs_rename(fs, ROOT, "file", 4, attr.ino, "moved", 5, 0), 0);
    CHECK_EQ(dfe_fs_rmdir(fs, ROOT, "dir", 3, 0), -ENOTEMPTY);
    CHECK_EQ(dfe_fs_link(fs, ino, ROOT, "link", 4, 0, &attr), 0);
    CHECK_EQ(attr.nlink, 2);
    CHECK_EQ(dfe_fs_symlink(fs, ROOT, "sym", 3, "a/b", 3, &cred, 0, &attr), 0);
    CHECK_EQ(dfe_fs_readlink(fs, attr.ino, target, sizeof(target), 0), 3);
    CHECK(memcmp(target, "a/b", 3) == 0);
    CHECK(dfe_fs_readdir(fs, ROOT, 0, page, sizeof(page), DFE_PLUS) > 0);
    CHECK_EQ(dfe_fs_unlink(fs, ROOT, "sym", 3, 0), 0);
    CHECK_EQ(dfe_fs_unlink(fs, ROOT, "sym", 3, 0), -ENOENT);

    CHECK_EQ(dfe_fs_setxattr(fs, ino, "user.a", 6, "v", 1, 0), 0);
    CHECK_EQ(dfe_fs_getxattr(fs, ino, "user.a", 6, target, sizeof(target), 0), 1);
    CHECK_EQ(dfe_fs_listxattr(fs, ino, target, sizeof(target), 0), 7);
    CHECK_EQ(dfe_fs_removexattr(fs, ino, "user.a", 6, 0), 0);
    CHECK_EQ(dfe_fs_getxattr(fs, ino, "user.a", 6, target, sizeof(target), 0), -ENODATA);
    CHECK_EQ(dfe_fs_statfs(fs, &st), 0);
    CHECK(st.blocks > 0 && st.name_max == 255);
    CHECK_EQ(dfe_fs_query(fs, &info), 0);
    CHECK(info.inodes_cached > 0);
}

static void data_and_pins(void)
{
    uint64_t ino = make("data"), at = 0;
    struct dfe_pin pin, end;
    char got[16];

    CHECK_EQ(dfe_fs_write(fs, ino, 0, "hello", 5, 0, NULL), 5);
    CHECK_EQ(dfe_fs_write(fs, ino, 0, "!", 1, DFE_APPEND, &at), 1);
    CHECK_EQ(at, 5);
    CHECK_EQ(dfe_fs_read(fs, ino, 1, got, sizeof(got), 0), 5);
    CHECK(memcmp(got, "ello!", 5) == 0);

    CHECK_EQ(dfe_fs_pin(fs, ino, 0, 100, 0, &pin), 0);
    CHECK(pin.len == 6 && memcmp(pin.ptr, "hello!", 6) == 0);
    CHECK_EQ(dfe_fs_write(fs, ino, 0, "J", 1, 0, NULL), 1);
    CHECK(memcmp(pin.ptr, "hello!", 6) == 0);
    CHECK_EQ(dfe_fs_close(fs), -EBUSY);
    CHECK_EQ(dfe_fs_pin(fs, ino, 6, 100, 0, &end), 0);
    CHECK_EQ(end.len, 0);
    dfe_fs_unpin(fs, &end);
    dfe_fs_unpin(fs, &pin);
    dfe_fs_unpin(fs, &pin); /* harmless: its length is 0 now */

    CHECK_EQ(dfe_fs_next(fs, ino, 0, 0, &at), 0);
    CHECK_EQ(at, 0);
    CHECK_EQ(dfe_fs_next(fs, ino, 0, 7, &at), -EINVAL);
    CHECK_EQ(dfe_fs_punch(fs, ino, 0, 2, 0), 0);
    CHECK_EQ(dfe_fs_read(fs, ino, 0, got, 3, 0), 3);
    CHECK(memcmp(got, "\0\0l", 3) == 0);
    CHECK_EQ(dfe_fs_fsync(fs, ino, DFE_DATASYNC), 0);
    CHECK_EQ(dfe_fs_sync(fs), 0);
}

/* A snapshot holds what was written before it, published or not, and can be open beside the head.
 */
static void snapshot_of_dirty_data(void)
{
    uint64_t ino = make("snapped");
    struct dfe_cont *other, *then;
    struct dfe_attr attr;
    struct dfe_fs *old;
    char got[8];

    CHECK_EQ(dfe_fs_write(fs, ino, 0, "before", 6, 0, NULL), 6);
    CHECK_EQ(dfe_cont_open(pool, "c", NULL, &other), 0);
    CHECK_EQ(dfe_snap_create(other, "s", NULL), 0);
    CHECK_EQ(dfe_cont_close(other), 0);
    CHECK_EQ(dfe_fs_write(fs, ino, 0, "after!", 6, 0, NULL), 6);

    CHECK_EQ(dfe_cont_open(pool, "c", "s", &then), 0);
    CHECK_EQ(dfe_fs_open(then, &old), 0);
    CHECK_EQ(dfe_fs_lookup(old, ROOT, "snapped", 7, 0, &attr), 0);
    CHECK_EQ(attr.ino, ino);
    CHECK_EQ(attr.size, 6);
    CHECK_EQ(dfe_fs_read(old, ino, 0, got, 6, 0), 6);
    CHECK(memcmp(got, "before", 6) == 0);
    CHECK_EQ(dfe_fs_mkdir(old, ROOT, "d", 1, 0755, &cred, 0, &attr), -EROFS);
    CHECK_EQ(dfe_fs_close(old), 0);
    CHECK_EQ(dfe_cont_close(then), 0);
    CHECK_EQ(dfe_fs_read(fs, ino, 0, got, 6, 0), 6);
    CHECK(memcmp(got, "after!", 6) == 0);
    CHECK_EQ(dfe_snap_destroy(cont, "s"), 0);
}

static void count(uint64_t done, uint64_t total, void *arg)
{
    (void)done, (void)total;
    (*(unsigned *)arg)++;
}

static void check_open_and_closed(void)
{
    unsigned calls = 0;
    char report[4096];

    CHECK_EQ(dfe_cont_check(cont, 1, report, sizeof(report), count, &calls), 0);
    CHECK(report[0] == '\0');
    CHECK_EQ(dfe_fs_close(fs), 0);
    CHECK_EQ(dfe_cont_check(cont, 1, report, sizeof(report), NULL, NULL), 0);
    CHECK_EQ(dfe_fs_open(cont, &fs), 0);
}

int main(void)
{
    const char *path = api_path("pool");

    session_setup(path, 1, &pool, &cont);
    CHECK_EQ(dfe_fs_open(cont, &fs), 0);
    RUN(one_at_a_time);
    RUN(names_and_attributes);
    RUN(data_and_pins);
    RUN(snapshot_of_dirty_data);
    RUN(check_open_and_closed);
    CHECK_EQ(dfe_fs_close(fs), 0);
    session_teardown(path, pool, cont);
    return 0;
}
