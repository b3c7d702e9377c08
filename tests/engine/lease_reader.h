/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of leases as another process is one: it has descriptors, maps them, copies, checks. */
#ifndef DFE_TEST_LEASE_READER_H
#define DFE_TEST_LEASE_READER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/window.h"
#include "cache/cache.h"

#define READER_EXTENTS 64u

struct lease_reader {
    const struct proto_line *line;
    const struct proto_record *record;
    uint32_t lines, records;
    struct {
        uint64_t stamp; /* 0: not mapped */
        const uint8_t *at;
    } extent[READER_EXTENTS];
};

/* Take over the descriptors. */
void reader_tables(struct lease_reader *r, int lines_fd, uint32_t lines, int records_fd,
                   uint32_t records);
void reader_extent(struct lease_reader *r, uint32_t extent, uint64_t stamp, int fd);
bool reader_has(const struct lease_reader *r, const struct buf_place *place);
void reader_close(struct lease_reader *r);

/* The record as it is at one moment; false: it is not ino's, or is changing. */
bool reader_record(const struct lease_reader *r, uint32_t i, uint64_t ino,
                   struct proto_record *out);
/* Copies len bytes at off of each of n leases (dst: one after the other). True: they are what the
 * file had there at one moment, the one of *out. */
bool reader_copy(const struct lease_reader *r, const struct cache_lease *lease, unsigned n,
                 uint64_t ino, const uint64_t *off, const size_t *len, uint8_t *dst,
                 struct proto_record *out);

#endif
