/* SPDX-License-Identifier: Apache-2.0 */
/* Public API over a store that fails: nothing is left half done. Uses the model store. */
#include <sys/stat.h>

#include "api_fixture.h"
#include "model_obj.h"

#define MIB (1u << 20)

static const struct dfe_cred cred = {.uid = 7, .gid = 8};
static struct dfe_pool *pool;
static struct dfe_cont *cont;

static void half_a_container_is_removed(void)
{
    struct dfe_cont *made;
    struct dfe_fs *fs;

    model_fail(MODEL_COMMIT, 1, 1, -EIO);
    CHECK_EQ(dfe_cont_create(pool, "d", 1, &cred, 0755), -EIO);
    model_fail(MODEL_SYNC, 1, 1, -EIO);
    CHECK_EQ(dfe_cont_create(pool, "d", 1, &cred, 0755), -EIO);
    model_fail(MODEL_SYNC, 0, 0, 0);
    CHECK_EQ(dfe_cont_list(pool, NULL, 0), 1);

    CHECK_EQ(dfe_cont_create(pool, "d", 1, &cred, 0755), 0);
    CHECK_EQ(dfe_cont_open(pool, "d", NULL, &made), 0);
    CHECK_EQ(dfe_fs_open(made, &fs), 0);
    CHECK_EQ(dfe_fs_close(fs), 0);
    CHECK_EQ(dfe_cont_close(made), 0);
    CHECK_EQ(dfe_cont_destroy(pool, "d"), 0);
}

/* The fault hits each step of a write of several pieces in turn: the old bytes stay, all of them.
 */
static void array_writes_are_whole(void)
{
    static const enum model_call steps[] = {MODEL_READ, MODEL_STAGE, MODEL_COMMIT};
    struct dfe_oid oid = {3, 4};
    size_t len = 3 * MIB;
    uint8_t *old = malloc(len), *new = malloc(len), *got = malloc(len);

    CHECK(old && new &&got);
    memset(old, 1, len);
    memset(new, 2, len);
    CHECK_EQ(dfe_array_write(cont, &oid, 0, old, len, 0), len);
    for (unsigned s = 0; s < 3; s++) {
        unsigned nth;

        for (nth = 1; nth < 20; nth++) {
            ssize_t ret;

            model_fail(steps[s], nth, 1, -EIO);
            ret = dfe_array_write(cont, &oid, 100, new, len - 200, 0);
            model_fail(steps[s], 0, 0, 0);
            if (ret >= 0)
                break;
            CHECK_EQ(ret, -EIO);
            CHECK_EQ(dfe_array_read(cont, &oid, 0, got, len), len);
            CHECK(memcmp(got, old, len) == 0);
            model_fail(steps[s], nth, 1, -EIO);
            ret = dfe_array_punch(cont, &oid, 100, len - 200);
            model_fail(steps[s], 0, 0, 0);
            if (ret < 0) {
                CHECK_EQ(dfe_array_read(cont, &oid, 0, got, len), len);
                CHECK(memcmp(got, old, len) == 0);
            } else {
                CHECK_EQ(dfe_array_write(cont, &oid, 0, old, len, 0), len);
            }
        }
        CHECK(nth > 1 && nth < 20); /* the step happens, and not for ever */
        CHECK_EQ(dfe_array_write(cont, &oid, 0, old, len, 0), len);
    }
    free(old);
    free(new);
    free(got);
}

static void a_failed_commit_ends_the_transaction(void)
{
    struct dfe_key key = {.dkey = "k", .dkey_len = 1};
    struct dfe_oid oid = {5, 6};
    struct dfe_tx *tx;
    char value[4];
    size_t len;

    CHECK_EQ(dfe_tx_begin(cont, &oid, &tx), 0);
    CHECK_EQ(dfe_tx_put(tx, &oid, &key, "v", 1), 0);
    model_fail(MODEL_COMMIT, 1, 1, -ENOSPC);
    CHECK_EQ(dfe_tx_commit(tx, 1, NULL), -ENOSPC);
    model_fail(MODEL_COMMIT, 0, 0, 0);
    CHECK_EQ(dfe_kv_get(cont, &oid, &key, value, sizeof(value), &len), -ENOENT);
}

/* A snapshot that would lack accepted data is refused. */
static void no_snapshot_without_the_data(void)
{
    struct dfe_attr attr;
    struct dfe_cont *c;
    struct dfe_fs *fs;

    CHECK_EQ(dfe_cont_create(pool, "s", 1, &cred, 0755), 0);
    CHECK_EQ(dfe_cont_open(pool, "s", NULL, &c), 0);
    CHECK_EQ(dfe_fs_open(c, &fs), 0);
    CHECK_EQ(dfe_fs_mknod(fs, 1, "f", 1, S_IFREG | 0644, 0, &cred, DFE_REF, &attr), 0);
    CHECK_EQ(dfe_fs_sync(fs), 0);
    model_fail(MODEL_STAGE, 1, 1000000, -EIO);
    CHECK_EQ(dfe_fs_write(fs, attr.ino, 0, "data", 4, 0, NULL), 4);
    CHECK(dfe_snap_create(c, "now", NULL) < 0);
    CHECK_EQ(dfe_snap_list(c, NULL, 0), 0);
    CHECK(dfe_fs_fsync(fs, attr.ino, 0) < 0);
    model_fail(MODEL_STAGE, 0, 0, 0);
    CHECK_EQ(dfe_fs_write(fs, attr.ino, 0, "data", 4, 0, NULL), 4);
    CHECK_EQ(dfe_fs_fsync(fs, attr.ino, 0), 0);
    CHECK_EQ(dfe_snap_create(c, "now", NULL), 0);
    dfe_fs_unref(fs, attr.ino, 1);
    CHECK_EQ(dfe_fs_close(fs), 0);
    CHECK_EQ(dfe_cont_close(c), 0);
    CHECK_EQ(dfe_snap_list(cont, NULL, 0), 0);
    CHECK_EQ(dfe_cont_destroy(pool, "s"), 0);
}

int main(void)
{
    const char *path = api_path("pool");

    api_setup(path, 0, &pool, &cont);
    RUN(half_a_container_is_removed);
    RUN(array_writes_are_whole);
    RUN(a_failed_commit_ends_the_transaction);
    RUN(no_snapshot_without_the_data);
    api_teardown(path, pool, cont);
    return 0;
}
