/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of leases: the reader's half of the protocol in cache/lease.c, by the letter. */
#include "lease_reader.h"

#include <sys/mman.h>

#include "base/limits.h"
#include "test.h"

static const void *map_fd(int fd, size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

    CHECK(at != MAP_FAILED);
    close(fd);
    return at;
}

void reader_tables(struct lease_reader *r, int lines_fd, uint32_t lines, int records_fd,
                   uint32_t records)
{
    memset(r, 0, sizeof(*r));
    r->lines = lines;
    r->records = records;
    r->line = map_fd(lines_fd, lines * sizeof(*r->line));
    r->record = map_fd(records_fd, records * sizeof(*r->record));
}

static void unmap_extent(struct lease_reader *r, uint32_t extent)
{
    if (r->extent[extent].stamp)
        munmap((void *)r->extent[extent].at, DFE_ARENA_EXTENT_BYTES);
    r->extent[extent].stamp = 0;
}

void reader_extent(struct lease_reader *r, uint32_t extent, uint64_t stamp, int fd)
{
    CHECK(extent < READER_EXTENTS);
    unmap_extent(r, extent);
    r->extent[extent].at = map_fd(fd, DFE_ARENA_EXTENT_BYTES);
    r->extent[extent].stamp = stamp;
}

bool reader_has(const struct lease_reader *r, const struct buf_place *place)
{
    CHECK(place->extent < READER_EXTENTS);
    return r->extent[place->extent].stamp == place->stamp;
}

void reader_close(struct lease_reader *r)
{
    for (uint32_t i = 0; i < READER_EXTENTS; i++)
        unmap_extent(r, i);
    munmap((void *)r->line, r->lines * sizeof(*r->line));
    munmap((void *)r->record, r->records * sizeof(*r->record));
}

static bool same(const uint64_t *gen, uint64_t value)
{
    return __atomic_load_n(gen, __ATOMIC_RELAXED) == value;
}

/* R2 */
bool reader_record(const struct lease_reader *r, uint32_t i, uint64_t ino,
                   struct proto_record *out)
{
    const struct proto_record *from = &r->record[i];

    out->gen = __atomic_load_n(&from->gen, __ATOMIC_ACQUIRE);
    out->ino = __atomic_load_n(&from->ino, __ATOMIC_RELAXED);
    out->size = __atomic_load_n(&from->size, __ATOMIC_RELAXED);
    out->version = __atomic_load_n(&from->version, __ATOMIC_RELAXED);
    out->mtime_ns = __atomic_load_n(&from->mtime_ns, __ATOMIC_RELAXED);
    out->cont = __atomic_load_n(&from->cont, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return (out->gen & 1) == 0 && out->ino == ino && same(&from->gen, out->gen);
}

bool reader_copy(const struct lease_reader *r, const struct cache_lease *lease, unsigned n,
                 uint64_t ino, const uint64_t *off, const size_t *len, uint8_t *dst,
                 struct proto_record *out)
{
    for (unsigned i = 0; i < n; i++)
        if (__atomic_load_n(&r->line[lease[i].line].gen, __ATOMIC_ACQUIRE) != lease[i].gen)
            return false; /* R1 */
    if (!reader_record(r, lease[0].record, ino, out))
        return false;
    for (unsigned i = 0; i < n; i++) { /* R3 */
        const struct cache_lease *l = &lease[i];
        CHECK(reader_has(r, &l->place) && l->record == lease[0].record);
        CHECK(off[i] >= l->file_off && off[i] - l->file_off + len[i] <= l->len);
        memcpy(dst, r->extent[l->place.extent].at + l->place.off + (off[i] - l->file_off),
               len[i]);
        dst += len[i];
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE); /* R4 */
    for (unsigned i = 0; i < n; i++)
        if (!same(&r->line[lease[i].line].gen, lease[i].gen)) /* R5 */
            return false;
    return true;
}
