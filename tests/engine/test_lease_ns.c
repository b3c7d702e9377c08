/* SPDX-License-Identifier: Apache-2.0 */
/* Leases through the namespace: what they say of inodes, and that they end with them. */
#include "base/limits.h"
#include "lease_reader.h"
#include "ns_help.h"

#define BLOCK DFE_BLOCK_BYTES
#define DOMAIN 4u

static struct world w;
static struct lease_reader reader;

static void begin(void)
{
    int lines_fd, records_fd;
    uint32_t lines, records;

    world_make(&w, "lease_ns", 63);
    CHECK_EQ(world_close(&w), 0);
    w.opts.domain = DOMAIN;
    world_open(&w);
    CHECK_EQ(cache_tables(w.cache, &lines_fd, &lines, &records_fd, &records), 0);
    reader_tables(&reader, lines_fd, lines, records_fd, records);
}

static void end(void)
{
    reader_close(&reader);
    world_end(&w);
}

static void put(uint64_t ino, uint64_t off, size_t len, int byte)
{
    uint8_t *buf = malloc(len);

    memset(buf, byte, len);
    CHECK_EQ(ns_write(w.ns, ino, off, buf, len, 0, NULL), len);
    free(buf);
}

static struct cache_lease lease(uint64_t ino, uint64_t off, struct dfe_attr *attr)
{
    struct cache_lease l;
    uint32_t domain;
    int fd;

    CHECK_EQ(ns_lease(w.ns, ino, off, 0, &l, attr), 0);
    CHECK_EQ(l.place.domain, DOMAIN);
    fd = buf_extent_fd(w.arena, l.place.extent, l.place.stamp, &domain);
    CHECK(fd >= 0);
    reader_extent(&reader, l.place.extent, l.place.stamp, fd);
    return l;
}

static int look(const struct cache_lease *l, uint64_t ino, uint64_t off, struct proto_record *r)
{
    size_t one = 1;
    uint8_t byte;

    return reader_copy(&reader, l, 1, ino, &off, &one, &byte, r) ? byte : -1;
}

static void bytes_and_attributes(void)
{
    struct dfe_attr attr, in = {0};
    struct proto_record r;
    struct cache_lease l;
    uint64_t ino, dir;

    begin();
    ino = make_file(&w, NS_ROOT_INO, "file");
    dir = make_dir(&w, NS_ROOT_INO, "dir");
    put(ino, 0, 5000, 7);
    l = lease(ino, 4999, &attr);
    CHECK(attr.ino == ino && attr.size == 5000);
    CHECK_EQ(look(&l, ino, 4999, &r), 7);
    CHECK(r.size == 5000 && r.ino == ino && r.cont == DOMAIN - 1);
    CHECK_EQ(r.mtime_ns, attr.mtime_ns);
    CHECK_EQ(r.version, attr.version);

    in.mtime_ns = 12345;
    CHECK_EQ(ns_setattr(w.ns, ino, &in, DFE_SET_MTIME, 0, &attr), 0);
    CHECK_EQ(look(&l, ino, 0, &r), 7);
    CHECK_EQ(r.mtime_ns, 12345);
    in.size = 100;
    CHECK_EQ(ns_setattr(w.ns, ino, &in, DFE_SET_SIZE, 0, &attr), 0);
    CHECK_EQ(look(&l, ino, 0, &r), -1);
    CHECK(reader_record(&reader, l.record, ino, &r) && r.size == 100);

    CHECK_EQ(ns_lease(w.ns, ino, 5000, 0, &l, NULL), -ENXIO);
    CHECK_EQ(ns_lease(w.ns, dir, 0, 0, &l, NULL), -EISDIR);
    CHECK_EQ(ns_lease(w.ns, 999999, 0, 0, &l, NULL), -ESTALE);
    CHECK_EQ(ns_sync(w.ns), 0);
    cache_drop(w.cache, NULL);
    CHECK_EQ(ns_lease(w.ns, ino, 0, DFE_NOWAIT, &l, NULL), -EINPROGRESS);
    l = lease(ino, 0, NULL);
    CHECK_EQ(look(&l, ino, 99, &r), 7);
    end();
}

/* Unlinked and in use it can be read; when its last user goes, its record dies. */
static void records_end_with_inodes(void)
{
    struct proto_record r;
    struct cache_lease l;
    uint64_t ino;

    begin();
    ino = make_file(&w, NS_ROOT_INO, "file");
    put(ino, 0, BLOCK, 7);
    CHECK_EQ(ns_ref(w.ns, ino), 0);
    l = lease(ino, 0, NULL);
    CHECK_EQ(ns_unlink(w.ns, NS_ROOT_INO, N("file"), 0), 0);
    CHECK_EQ(look(&l, ino, 0, &r), 7);
    ns_unref(w.ns, ino, 1);
    wait_reclaimed(&w);
    CHECK_EQ(look(&l, ino, 0, &r), -1);
    CHECK(!reader_record(&reader, l.record, ino, &r));
    end();
}

int main(void)
{
    RUN(bytes_and_attributes);
    RUN(records_end_with_inodes);
    return 0;
}
