/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: what they say, that every change ends them, and that the tables stay within bounds. */
#include <sys/mman.h>

#include "base/limits.h"
#include "cache_rig.h"
#include "lease_reader.h"

#define BLOCK DFE_BLOCK_BYTES
#define INO 5u

static struct rig rig;
static struct rig_owner owner;
static struct cache_file *file;
static struct lease_reader reader;

static void begin(uint32_t lines)
{
    struct cache_opts opts = {.size = sizeof(opts), .windows = true, .window_lines = lines};
    int lines_fd, records_fd;
    uint32_t n, m;

    rig_make(&rig, 256 << 20);
    rig_open(&rig, &opts);
    cache_domain(rig.cache, rig.cont, 9);
    file = rig_file(&rig, &owner, INO);
    CHECK_EQ(cache_tables(rig.cache, &lines_fd, &n, &records_fd, &m), 0);
    CHECK_EQ(n, lines ? lines : 65536);
    reader_tables(&reader, lines_fd, n, records_fd, m);
}

static void end(void)
{
    cache_file_put(file);
    rig_close(&rig, false);
    reader_close(&reader);
    rig_free(&rig);
}

static void put(uint64_t off, size_t len, int byte)
{
    uint8_t *buf = malloc(len);

    memset(buf, byte, len);
    CHECK_EQ(cache_write(file, off, buf, len, 77, 0, NULL), len);
    free(buf);
}

/* A lease of the block at off, its extent mapped. */
static struct cache_lease lease(uint64_t off)
{
    struct cache_lease l;
    uint32_t domain;
    int fd;

    CHECK_EQ(cache_lease(file, off, 0, &l), 0);
    CHECK_EQ(l.place.domain, 9);
    CHECK(l.gen > 0 && l.gen % 2 == 0 && l.record_gen > 0 && l.record_gen % 2 == 0);
    CHECK(l.file_off <= off && off < l.file_off + l.len);
    if (!reader_has(&reader, &l.place)) {
        fd = buf_extent_fd(rig.arena, l.place.extent, l.place.stamp, &domain);
        CHECK(fd >= 0 && domain == 9);
        reader_extent(&reader, l.place.extent, l.place.stamp, fd);
    }
    return l;
}

/* The byte there, or -1: the lease has ended. */
static int look(const struct cache_lease *l, uint64_t off, struct proto_record *record)
{
    uint8_t byte;
    size_t one = 1;

    return reader_copy(&reader, l, 1, INO, &off, &one, &byte, record) ? byte : -1;
}

static void says_where_the_bytes_are(void)
{
    struct proto_record r;
    struct cache_lease l;
    struct cache_cut cut;

    begin(0);
    put(0, 10000, 1);
    l = lease(5000);
    CHECK_EQ(l.file_off, 0);
    CHECK(l.len >= 3 * BLOCK && l.len % BLOCK == 0);
    CHECK_EQ(look(&l, 0, &r), 1);
    CHECK_EQ(look(&l, 9999, &r), 1);
    CHECK_EQ(look(&l, 10000, &r), 0); /* zeros up to the end of the block */
    cache_file_cut(file, &cut);
    CHECK(r.size == 10000 && r.mtime_ns == 77 && r.version == cut.version && r.cont == 8);
    CHECK_EQ(r.gen, l.record_gen);
    end();
}

static void refusals(void)
{
    struct cache_opts plain = {.size = sizeof(plain)};
    struct cache_lease l;
    struct rig_owner other;
    struct cache_file *hidden;
    struct obj_cont *cont;
    uint32_t n;
    int fd;

    begin(0);
    CHECK_EQ(cache_lease(file, 0, 0, &l), -ENXIO);
    put(100 * BLOCK, BLOCK, 1);
    CHECK_EQ(cache_lease(file, 101 * BLOCK, 0, &l), -ENXIO);
    CHECK_EQ(cache_lease(file, 0, 0, &l), -ENXIO); /* a hole */
    CHECK_EQ(cache_lease(file, 100 * BLOCK + 1, CACHE_NOWAIT, &l), 0);
    CHECK_EQ(cache_publish(file, 0), 0);
    cache_drop(rig.cache, NULL);
    CHECK_EQ(cache_lease(file, 100 * BLOCK, CACHE_NOWAIT, &l), -EINPROGRESS);
    CHECK_EQ(cache_lease(file, 100 * BLOCK, 0, &l), 0);

    /* a container without a domain: other memory, no leases */
    CHECK_EQ(obj_cont_create(rig.pool, "d"), 0);
    CHECK_EQ(obj_cont_open(rig.pool, "d", NULL, &cont), 0);
    CHECK_EQ(cache_file_get(rig.cache, cont, (struct obj_id){1, 2}, NULL, NULL,
                            &(struct cache_cut){.size = BLOCK}, &hidden),
             0);
    CHECK_EQ(cache_lease(hidden, 0, 0, &l), -ENOTSUP);
    cache_file_put(hidden);
    CHECK_EQ(cache_forget(rig.cache, cont), 0);
    obj_cont_close(cont);
    end();

    rig_make(&rig, 64 << 20);
    rig_open(&rig, &plain);
    cache_domain(rig.cache, rig.cont, 9);
    file = rig_file(&rig, &other, INO);
    put(0, BLOCK, 1);
    CHECK_EQ(cache_lease(file, 0, 0, &l), -ENOTSUP);
    CHECK_EQ(cache_tables(rig.cache, &fd, &n, &fd, &n), -ENOTSUP);
    cache_file_put(file);
    rig_close(&rig, false);
    rig_free(&rig);
}

/* Each change of a leased slot ends the lease; changes elsewhere in the file show in the record
 * alone. */
static void changes_end_leases(void)
{
    struct cache_lease l, far;
    struct proto_record r;

    begin(0);
    put(0, 4 * BLOCK, 1);
    put(64 * BLOCK, BLOCK, 9);
    far = lease(64 * BLOCK);

    l = lease(0);
    put(5, 1, 2);
    CHECK_EQ(look(&l, 5, &r), -1);
    l = lease(0);
    CHECK_EQ(look(&l, 5, &r), 2);

    CHECK_EQ(cache_punch(file, BLOCK, BLOCK, 78, 0), 0);
    CHECK_EQ(look(&l, 0, &r), -1);
    l = lease(0);
    CHECK_EQ(l.len, BLOCK); /* not over the hole */
    CHECK_EQ(cache_punch(file, 10, 10, 78, 0), 0);
    CHECK_EQ(look(&l, 10, &r), -1);

    CHECK_EQ(look(&far, 64 * BLOCK, &r), 9);
    CHECK_EQ(r.mtime_ns, 78);
    CHECK_EQ(r.size, 65 * BLOCK);
    CHECK_EQ(cache_truncate(file, 100 * BLOCK, 79, 0), 0); /* only the size: the record's */
    CHECK_EQ(look(&far, 64 * BLOCK, &r), 9);
    CHECK(r.size == 100 * BLOCK && r.mtime_ns == 79);
    cache_file_set_mtime(file, 80);
    CHECK_EQ(look(&far, 64 * BLOCK, &r), 9);
    CHECK_EQ(r.mtime_ns, 80);
    l = lease(0);
    CHECK_EQ(cache_truncate(file, 100, 79, 0), 0);
    CHECK_EQ(look(&far, 64 * BLOCK, &r), -1);
    CHECK_EQ(look(&l, 0, &r), -1);
    CHECK(reader_record(&reader, l.record, INO, &r) && r.size == 100);
    end();
}

static void leaving_memory_ends_leases(void)
{
    struct cache_lease l;
    struct proto_record r;

    begin(0);
    put(0, 4 * BLOCK, 1);
    l = lease(0);
    CHECK_EQ(cache_publish(file, 0), 0);
    CHECK_EQ(look(&l, 0, &r), 1); /* it has been written back: the same bytes */
    cache_drop(rig.cache, file);
    CHECK_EQ(look(&l, 0, &r), -1);
    l = lease(0);
    CHECK_EQ(look(&l, 0, &r), 1);
    end();
}

/* A block of a slot on loan is replaced in another slot: its old place must not be read. */
static void moved_blocks_end_leases(void)
{
    struct cache_pin pin;
    struct cache_lease l;
    struct proto_record r;

    begin(0);
    put(0, 4 * BLOCK, 1);
    CHECK_EQ(cache_pin(file, 0, BLOCK, 0, &pin), 0);
    l = lease(0);
    put(0, BLOCK, 2);
    CHECK_EQ(*(const uint8_t *)pin.ptr, 1);
    CHECK_EQ(look(&l, 0, &r), -1);
    l = lease(0);
    CHECK_EQ(look(&l, 0, &r), 2);
    l = lease(BLOCK); /* still in the old one */
    CHECK_EQ(look(&l, BLOCK, &r), 1);
    CHECK_EQ(l.file_off, BLOCK);
    cache_unpin(rig.cache, &pin);
    CHECK_EQ(look(&l, BLOCK, &r), 1);
    end();
}

static void records_die_with_files(void)
{
    struct cache_lease l;
    struct proto_record r;

    begin(0);
    put(0, BLOCK, 1);
    l = lease(0);
    CHECK(reader_record(&reader, l.record, INO, &r));
    CHECK_EQ(cache_publish(file, 0), 0);
    cache_file_put(file); /* nobody has it: its owner may change it unseen */
    CHECK(!reader_record(&reader, l.record, INO, &r));
    CHECK_EQ(look(&l, 0, &r), -1);
    file = rig_file(&rig, &owner, INO);
    l = lease(0);
    CHECK_EQ(look(&l, 0, &r), 1);
    cache_file_discard(file);
    CHECK(!reader_record(&reader, l.record, INO, &r));
    CHECK_EQ(look(&l, 0, &r), -1);
    file = rig_file(&rig, &owner, INO);
    end();
}

/* 7 lines, more slots: the one leased longest ago pays. */
static void lines_are_recycled(void)
{
    enum { LINES = 7, SLOTS = 20 };
    struct cache_lease l[SLOTS], again;
    struct proto_record r;
    unsigned alive = 0;

    begin(LINES + 1);
    for (unsigned i = 0; i < SLOTS; i++)
        put(i * 16 * BLOCK, BLOCK, (int)i + 1);
    for (unsigned i = 0; i < SLOTS; i++) {
        l[i] = lease(i * 16 * BLOCK);
        CHECK(l[i].line > 0 && l[i].line <= LINES);
        CHECK_EQ(look(&l[i], i * 16 * BLOCK, &r), i + 1);
        again = lease(0); /* asked for all the time: stays */
        CHECK(i == 0 || again.gen == l[0].gen);
    }
    for (unsigned i = 0; i < SLOTS; i++)
        alive += look(&l[i], i * 16 * BLOCK, &r) == (int)i + 1;
    CHECK_EQ(alive, LINES);
    CHECK_EQ(look(&l[0], 0, &r), 1);
    CHECK_EQ(look(&l[1], 16 * BLOCK, &r), -1);
    end();
}

/* A record goes to another file; the lines of its old one go with it although others are free. */
static void lines_go_with_records(void)
{
    enum { RECORDS = 3 };
    struct cache_file *files[RECORDS + 1], *first;
    struct rig_owner owners[RECORDS + 1];
    struct cache_lease l[RECORDS + 1];
    struct proto_record r;

    begin(RECORDS + 1);
    first = file;
    for (unsigned i = 0; i <= RECORDS; i++) {
        file = files[i] = rig_file(&rig, &owners[i], 100 + i);
        put(0, BLOCK, 1);
        CHECK_EQ(cache_publish(file, 0), 0);
        if (i == RECORDS)
            for (unsigned k = 1; k < RECORDS; k++)
                cache_drop(rig.cache, files[k]);
        l[i] = lease(0);
    }
    CHECK_EQ(l[RECORDS].record, l[0].record);
    CHECK(l[RECORDS].line != l[0].line || l[RECORDS].gen != l[0].gen);
    CHECK(reader.line[l[0].line].gen != l[0].gen);
    CHECK(reader_record(&reader, l[RECORDS].record, 100 + RECORDS, &r));
    for (unsigned i = 0; i <= RECORDS; i++)
        cache_file_put(files[i]);
    file = first;
    end();
}

/* 3 records, more files: a record never speaks of another file to the leases of its old one. */
static void records_are_recycled(void)
{
    enum { RECORDS = 3, FILES = 5 };
    struct cache_file *files[FILES], *first;
    struct rig_owner owners[FILES];
    struct cache_lease l[FILES];
    struct proto_record r;
    uint64_t off = 0;
    size_t len = 1;
    uint8_t byte;

    begin(RECORDS + 1);
    first = file;
    for (unsigned i = 0; i < FILES; i++) {
        file = files[i] = rig_file(&rig, &owners[i], 100 + i);
        put(0, BLOCK, (int)i + 1);
        l[i] = lease(0);
    }
    for (unsigned i = 0; i < FILES; i++) {
        bool alive = i >= FILES - RECORDS;
        CHECK_EQ(reader_record(&reader, l[i].record, 100 + i, &r), alive);
        CHECK_EQ(reader_copy(&reader, &l[i], 1, 100 + i, &off, &len, &byte, &r), alive);
        CHECK(alive == (reader.line[l[i].line].gen == l[i].gen));
        cache_file_put(files[i]);
    }
    file = first;
    end();
}

/* One domain has the whole arena; another one's first slot costs it an extent or two, not all. */
static void domains_share_the_arena(void)
{
    enum { ARENA = 64 << 20 };
    struct cache_info before, after;
    struct rig_owner other;
    struct cache_file *mine, *theirs;
    struct obj_cont *cont, *first;
    struct cache_lease l;
    uint8_t *buf = calloc(1, ARENA);

    begin(0);
    put(0, 8 << 20, 1);
    for (uint64_t off = 8 << 20; off < ARENA; off += 8 << 20) {
        CHECK_EQ(cache_publish(file, 0), 0);
        put(off, 8 << 20, 1);
    }
    CHECK_EQ(cache_publish(file, 0), 0);
    CHECK_EQ(cache_read(file, 0, buf, ARENA, 0), ARENA);
    for (uint64_t k = 0; k < 64; k++) /* neighbours in memory were not used one after another */
        CHECK_EQ(cache_read(file, (k % 8 * 8 + k / 8) << 20, buf, 1 << 20, 0), 1 << 20);
    CHECK_EQ(obj_cont_create(rig.pool, "d"), 0);
    CHECK_EQ(obj_cont_open(rig.pool, "d", NULL, &cont), 0);
    cache_domain(rig.cache, cont, 10);
    first = rig.cont;
    mine = file;
    rig.cont = cont;
    file = theirs = rig_file(&rig, &other, INO);
    cache_query(rig.cache, &before);
    CHECK(before.slots_bytes > ARENA / 8 * 7);
    put(0, BLOCK, 3);
    cache_query(rig.cache, &after);
    CHECK(after.slots_bytes >= before.slots_bytes - 2 * DFE_ARENA_EXTENT_BYTES);
    CHECK_EQ(cache_lease(file, 0, 0, &l), 0);
    CHECK_EQ(l.place.domain, 10);
    rig.cont = first;
    file = mine;
    CHECK_EQ(cache_publish(theirs, 0), 0);
    cache_file_put(theirs);
    CHECK_EQ(cache_forget(rig.cache, cont), 0);
    obj_cont_close(cont);
    free(buf);
    end();
}

static void tables_are_sealed(void)
{
    struct proto_line line = {.gen = 2};
    uint32_t n;
    int fd[2];

    begin(0);
    CHECK_EQ(cache_tables(rig.cache, &fd[0], &n, &fd[1], &n), 0);
    for (int i = 0; i < 2; i++) {
        CHECK(pwrite(fd[i], &line, sizeof(line), 0) < 0);
        CHECK(ftruncate(fd[i], 0) < 0);
        CHECK(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd[i], 0) == MAP_FAILED);
        close(fd[i]);
    }
    end();
}

int main(void)
{
    RUN(says_where_the_bytes_are);
    RUN(refusals);
    RUN(changes_end_leases);
    RUN(leaving_memory_ends_leases);
    RUN(moved_blocks_end_leases);
    RUN(records_die_with_files);
    RUN(lines_are_recycled);
    RUN(records_are_recycled);
    RUN(lines_go_with_records);
    RUN(domains_share_the_arena);
    RUN(tables_are_sealed);
    return 0;
}
