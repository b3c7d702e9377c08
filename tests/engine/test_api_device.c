/* SPDX-License-Identifier: Apache-2.0 */
/* Public API on a device that fails under it: everything can be closed, and what was synced is
 * there when it is opened again. */
#include <sys/stat.h>

#include "api_fixture.h"
#include "sim_device.h"

#define ROOT 1u

static const struct dfe_cred cred = {.uid = 7, .gid = 8};
static struct dfe_pool *pool;
static struct dfe_cont *cont;
static struct dfe_fs *fs;

static void quiet(int level, const char *text, void *arg)
{
    (void)level, (void)text, (void)arg;
}

static void open_all(const char *path)
{
    CHECK_EQ(api_open(path, 0, &pool), 0);
    CHECK_EQ(dfe_cont_open(pool, "c", NULL, &cont), 0);
    CHECK_EQ(dfe_fs_open(cont, &fs), 0);
}

static uint64_t make(const char *name)
{
    struct dfe_attr attr;

    CHECK_EQ(dfe_fs_mknod(fs, ROOT, name, strlen(name), S_IFREG | 0644, 0, &cred, DFE_REF, &attr),
             0);
    CHECK_EQ(dfe_fs_write(fs, attr.ino, 0, name, strlen(name), 0, NULL), strlen(name));
    return attr.ino;
}

/* Files that are removed, dirty, both, or neither when the power fails, and open until after it. */
static void close_without_power(void)
{
    static const char *const names[] = {"kept", "removed", "dirty", "lost"};
    struct dfe_pool_create_opts opts = {
        .size = sizeof(opts), .path = api_path("pool"), .label = "t", .device = "sim:api"};
    const char *path = opts.path;
    struct dfe_attr attr;
    uint64_t ino[4];
    char text[8];

    CHECK_EQ(sim_create("api", 32u << 20, 1), 0);
    CHECK_EQ(dfe_pool_create(&opts), 0);
    CHECK_EQ(api_open(path, 0, &pool), 0);
    CHECK_EQ(dfe_cont_create(pool, "c", 1, &cred, 0755), 0);
    CHECK_EQ(dfe_pool_close(pool), 0);
    open_all(path);
    for (unsigned i = 0; i < 4; i++)
        ino[i] = make(names[i]);
    CHECK_EQ(dfe_fs_sync(fs), 0);
    CHECK_EQ(dfe_fs_write(fs, ino[2], 0, "other", 5, 0, NULL), 5);
    CHECK_EQ(dfe_fs_write(fs, ino[3], 0, "other", 5, 0, NULL), 5);
    CHECK_EQ(dfe_fs_unlink(fs, ROOT, "removed", 7, 0), 0);
    CHECK_EQ(dfe_fs_unlink(fs, ROOT, "lost", 4, 0), 0);
    sim_power_cut("api", 0);
    CHECK(dfe_fs_sync(fs) < 0);
    for (unsigned i = 0; i < 4; i++)
        dfe_fs_unref(fs, ino[i], 1);
    CHECK(dfe_fs_close(fs) < 0);
    CHECK_EQ(dfe_cont_close(cont), 0);
    CHECK(dfe_pool_close(pool) < 0);

    open_all(path);
    CHECK_EQ(dfe_fs_lookup(fs, ROOT, "kept", 4, 0, &attr), 0);
    CHECK_EQ(dfe_fs_read(fs, attr.ino, 0, text, sizeof(text), 0), 4);
    CHECK_EQ(memcmp(text, "kept", 4), 0);
    CHECK_EQ(dfe_cont_check(cont, 1, NULL, 0, NULL, NULL), 0);
    CHECK_EQ(dfe_fs_close(fs), 0);
    api_teardown(path, pool, cont);
    CHECK_EQ(sim_destroy("api"), 0);
}

int main(void)
{
    dfe_log_set(quiet, NULL);
    RUN(close_without_power);
    return 0;
}
