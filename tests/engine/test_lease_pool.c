/* SPDX-License-Identifier: Apache-2.0 */
/* Leases over the real store: a device reads into memory that others see, more data than memory. */
#include <sys/stat.h>

#include "api/api.h"
#include "api_fixture.h"
#include "base/limits.h"
#include "lease_reader.h"

#define MIB ((size_t)1 << 20)
#define FILE_MIB 40u
#define ARENA_MIB 16u

static uint8_t byte_at(uint64_t off)
{
    return (uint8_t)(off / DFE_BLOCK_BYTES * 37 + off % 251);
}

/* Maps the extent where it is not mapped yet. */
static void map(struct lease_reader *r, struct dfe_pool *pool, const struct buf_place *place)
{
    uint32_t domain;
    int fd;

    if (reader_has(r, place))
        return;
    fd = buf_extent_fd(api_pool_arena(pool), place->extent, place->stamp, &domain);
    CHECK(fd >= 0 && domain == place->domain);
    reader_extent(r, place->extent, place->stamp, fd);
}

/* Every byte of the file through leases; how many were taken. */
static unsigned read_all(struct lease_reader *r, struct dfe_pool *pool, struct ns *ns, uint64_t ino)
{
    uint8_t *buf = malloc(MIB);
    struct proto_record record;
    struct cache_lease l;
    unsigned n = 0;

    for (uint64_t off = 0; off < FILE_MIB * MIB; n++) {
        CHECK_EQ(ns_lease(ns, ino, off, 0, &l, NULL), 0);
        map(r, pool, &l.place);
        size_t len = (size_t)(l.file_off + l.len - off);
        CHECK(len <= MIB);
        if (!reader_copy(r, &l, 1, ino, &off, &len, buf, &record))
            continue; /* read-ahead has taken its memory */
        CHECK_EQ(record.size, FILE_MIB * MIB);
        for (size_t i = 0; i < len; i++)
            CHECK(buf[i] == byte_at(off + i));
        off += len;
    }
    free(buf);
    return n;
}

int main(void)
{
    struct dfe_pool_open_opts opts = {.size = sizeof(opts),
                                      .path = api_path("pool"),
                                      .arena_bytes = ARENA_MIB * MIB};
    struct api_hosted hosted = {.windows = true};
    struct dfe_cred cred = {.uid = 7, .gid = 8};
    struct lease_reader reader;
    uint8_t *buf = malloc(MIB);
    struct dfe_pool *pool;
    struct dfe_cont *cont;
    struct dfe_fs *fs;
    struct dfe_attr attr;
    uint32_t lines, records;
    int fd[2];

    CHECK_EQ(api_create(opts.path, 128 * MIB), 0);
    CHECK_EQ(api_pool_open_hosted(&opts, &hosted, &pool), 0);
    CHECK_EQ(dfe_cont_create(pool, "c", 1, &cred, 0755), 0);
    CHECK_EQ(dfe_cont_open(pool, "c", NULL, &cont), 0);
    CHECK_EQ(dfe_fs_open(cont, &fs), 0);
    CHECK_EQ(cache_tables(api_pool_cache(pool), &fd[0], &lines, &fd[1], &records), 0);
    reader_tables(&reader, fd[0], lines, fd[1], records);
    CHECK_EQ(dfe_fs_mknod(fs, 1, "f", 1, S_IFREG | 0600, 0, &cred, DFE_REF, &attr), 0);
    for (uint64_t off = 0; off < FILE_MIB * MIB; off += MIB) {
        for (size_t i = 0; i < MIB; i++)
            buf[i] = byte_at(off + i);
        CHECK_EQ(dfe_fs_write(fs, attr.ino, off, buf, MIB, 0, NULL), MIB);
    }
    CHECK_EQ(dfe_fs_fsync(fs, attr.ino, 0), 0);
    for (unsigned round = 0; round < 2; round++)
        fprintf(stderr, "%u leases\n", read_all(&reader, pool, api_fs_ns(fs), attr.ino));
    dfe_fs_unref(fs, attr.ino, 1);
    CHECK_EQ(dfe_fs_close(fs), 0);
    reader_close(&reader);
    api_teardown(opts.path, pool, cont);
    free(buf);
    return 0;
}
