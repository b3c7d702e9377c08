/* SPDX-License-Identifier: Apache-2.0 */
/* The cache when things go wrong or run short: device errors, no space, no room; and what it asks
 * of the store for small files, streams and idle times. */
#include <sys/resource.h>

#include "base/clock.h"
#include "base/limits.h"
#include "cache_rig.h"

#define FOREVER (UINT64_MAX / 2 + 1)

static uint8_t bytes[4 << 20], back[4 << 20];

static struct cache_opts slow_opts(void)
{
    return (struct cache_opts){.size = sizeof(struct cache_opts), .commit_interval_ms = 3600000};
}

static void fill(uint8_t seed)
{
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7 + i / 4096 + seed);
}

static void write_all(struct cache_file *file, uint64_t off, size_t len)
{
    CHECK_EQ(cache_write(file, off, bytes + off, len, 1, 0, NULL), len);
}

static void check_all(struct cache_file *file, size_t size)
{
    memset(back, 0xee, sizeof(back));
    CHECK_EQ(cache_read(file, 0, back, sizeof(back), 0), size);
    CHECK(memcmp(bytes, back, size) == 0);
}

static void test_error_is_sticky_and_data_kept(void)
{
    struct cache_opts opts = slow_opts();
    struct rig_owner owner;
    struct cache_file *file;
    struct cache_info info;
    struct rig rig;

    fill(1);
    rig_make(&rig, 1 << 30);
    rig_open(&rig, &opts);
    file = rig_file(&rig, &owner, 1);
    write_all(file, 0, 3 << 20);
    model_fail(MODEL_STAGE, 1, FOREVER, -EIO);
    CHECK_EQ(cache_publish(file, 0), -EIO);
    CHECK_EQ(cache_publish(file, CACHE_SYNC), -EIO);
    CHECK(cache_file_dirty(file));
    CHECK_EQ(cache_truncate(file, (2 << 20) + 5, 2, 0), 0);
    CHECK_EQ(cache_punch(file, 8192, 4096, 2, 0), 0);
    memset(bytes + 8192, 0, 4096);
    CHECK_EQ(cache_publish(file, CACHE_SYNC), -EIO);
    check_all(file, (2 << 20) + 5);
    model_fail(MODEL_STAGE, 1, 0, 0);
    model_fail(MODEL_SYNC, 1, 1, -EIO); /* committed or not: the data goes again */
    CHECK_EQ(cache_publish(file, CACHE_SYNC), -EIO);
    CHECK_EQ(cache_publish(file, CACHE_SYNC), 0);
    CHECK(!cache_file_dirty(file));
    cache_query(rig.cache, &info);
    CHECK_EQ(info.dirty_bytes, 0);
    CHECK_EQ(info.writeback_errors, 4);
    cache_drop(rig.cache, NULL);
    check_all(file, (2 << 20) + 5);
    cache_file_put(file);
    rig_close(&rig, false);
    rig_free(&rig);
}

static void test_writers_fail_at_the_bound(void)
{
    struct cache_opts opts = slow_opts();
    struct rig_owner owner;
    struct cache_file *file;
    struct rig rig;
    ssize_t n = 0;
    uint64_t at = 0;

    fill(2);
    opts.dirty_bound_bytes = 1 << 20;
    rig_make(&rig, 1 << 30);
    rig_open(&rig, &opts);
    file = rig_file(&rig, &owner, 1);
    model_fail(MODEL_COMMIT, 1, FOREVER, -EIO);
    while (at < sizeof(bytes) && n >= 0) {
        n = cache_write(file, at, bytes + at, 65536, 1, 0, NULL);
        at += n > 0 ? 65536 : 0;
    }
    CHECK_EQ(n, -EIO);
    CHECK(at >= (512 << 10) && at <= (1 << 20));
    model_fail(MODEL_COMMIT, 1, 0, 0);
    CHECK_EQ(cache_publish(file, 0), 0);
    write_all(file, at, 65536);
    check_all(file, at + 65536);
    cache_file_put(file);
    rig_close(&rig, false);
    rig_free(&rig);
}

static void test_no_space_is_told_at_the_write(void)
{
    struct cache_opts opts = slow_opts();
    struct rig_owner owner;
    struct cache_file *file;
    struct rig rig;
    uint64_t at = 0;
    ssize_t n;

    fill(3);
    rig_make(&rig, 1 << 20);
    rig_open(&rig, &opts);
    file = rig_file(&rig, &owner, 1);
    while ((n = cache_write(file, at, bytes + at, 40000, 1, 0, NULL)) == 40000)
        at += 40000;
    CHECK_EQ(n, -ENOSPC);
    CHECK(at > (1 << 20) - 50000);
    check_all(file, at);
    CHECK_EQ(cache_publish(file, CACHE_SYNC), 0);
    cache_drop(rig.cache, NULL);
    check_all(file, at);
    CHECK_EQ(cache_truncate(file, 0, 1, 0), 0);
    write_all(file, 0, 500000);
    CHECK_EQ(cache_publish(file, CACHE_SYNC), 0);
    check_all(file, 500000);
    cache_file_put(file);
    rig_close(&rig, false);
    rig_free(&rig);
}

/* A caller that must not wait may hold locks that a publication takes: none happens within. */
static void test_no_space_publishes_nothing_within_nowait(void)
{
    struct cache_opts opts = slow_opts();
    struct rig_owner owner, other;
    struct cache_file *file, *grown;
    struct rig rig;
    uint64_t at = 0;

    fill(5);
    rig_make(&rig, 1 << 20);
    rig_open(&rig, &opts);
    file = rig_file(&rig, &owner, 1);
    grown = rig_file(&rig, &other, 2);
    while (cache_write(file, at, bytes + at, 4096, 1, 0, NULL) == 4096)
        at += 4096;
    CHECK_EQ(cache_publish(file, CACHE_SYNC), 0);
    CHECK_EQ(cache_truncate(grown, 1 << 20, 2, 0), 0); /* to be published, without any data */
    CHECK_EQ(cache_truncate(file, at - 100, 3, CACHE_NOWAIT), -EINPROGRESS);
    CHECK_EQ(cache_write(grown, 0, bytes, 100, 3, CACHE_NOWAIT, NULL), -EINPROGRESS);
    CHECK_EQ(other.cut.size, 0);
    cache_file_put(file);
    cache_file_put(grown);
    rig_close(&rig, false);
    rig_free(&rig);
}

static void test_read_errors_hit_only_their_reader(void)
{
    struct cache_opts opts = slow_opts();
    struct rig_owner owner;
    struct cache_file *file;
    struct rig rig;
    uint64_t at;

    fill(4);
    rig_make(&rig, 1 << 30);
    rig_open(&rig, &opts);
    file = rig_file(&rig, &owner, 1);
    write_all(file, 0, 1 << 20);
    CHECK_EQ(cache_publish(file, 0), 0);
    cache_drop(rig.cache, NULL);
    model_fail(MODEL_READ, 1, 1000, -EUCLEAN);
    CHECK_EQ(cache_read(file, 500000, back, 1000, 0), -EUCLEAN);
    /* a part needs the block's rest, the whole block heals it */
    CHECK_EQ(cache_write(file, 500000, bytes, 100, 1, 0, &at), -EUCLEAN);
    CHECK_EQ(cache_write(file, 122 * 4096, bytes + 122 * 4096, 4096, 1, 0, &at), 4096);
    CHECK_EQ(cache_read(file, 500000, back, 1000, 0), 1000);
    model_fail(MODEL_READ, 1, 0, 0);
    check_all(file, 1 << 20);
    cache_file_put(file);
    rig_close(&rig, false);
    rig_free(&rig);
}

static void test_small_files_go_inline(void)
{
    static const size_t sizes[] = {1, DFE_INLINE_BYTES - 1, DFE_INLINE_BYTES,
                                   DFE_INLINE_BYTES + 1, 4096};
    struct cache_opts opts = slow_opts();
    struct rig_owner owner;
    struct cache_file *file;
    uint64_t used, end;
    struct rig rig;

    fill(5);
    rig_make(&rig, 1 << 30);
    rig_open(&rig, &opts);
    for (unsigned i = 0; i < DFE_ARRAY_LEN(sizes); i++) {
        file = rig_file(&rig, &owner, i + 1);
        write_all(file, 0, sizes[i]);
        CHECK_EQ(cache_publish(file, CACHE_SYNC), 0);
        CHECK_EQ(obj_array_stat(rig.cont, owner.oid, &used, &end), 0);
        CHECK_EQ(used, sizes[i] <= DFE_INLINE_BYTES ? sizes[i] : 4096);
        cache_drop(rig.cache, NULL);
        check_all(file, sizes[i]);
        write_all(file, sizes[i], 9000); /* grows out of it */
        CHECK_EQ(cache_publish(file, 0), 0);
        cache_drop(rig.cache, NULL);
        check_all(file, sizes[i] + 9000);
        CHECK_EQ(cache_truncate(file, 100, 1, 0), 0);
        write_all(file, 0, 50);
        CHECK_EQ(cache_publish(file, 0), 0);
        CHECK_EQ(obj_array_stat(rig.cont, owner.oid, &used, &end), 0);
        CHECK_EQ(used, 100);
        check_all(file, 100);
        cache_file_put(file);
    }
    rig_close(&rig, false);
    rig_free(&rig);
}

static void test_a_stream_is_read_ahead(void)
{
    struct cache_opts opts = slow_opts();
    struct rig_owner owner;
    struct cache_file *file;
    struct cache_info info;
    struct rig rig;
    uint64_t reads;

    fill(6);
    rig_make(&rig, 1 << 30);
    rig_open(&rig, &opts);
    file = rig_file(&rig, &owner, 1);
    for (unsigned i = 0; i < 8; i++)
        CHECK_EQ(cache_write(file, (uint64_t)i << 22, bytes, sizeof(bytes), 1, 0, NULL),
                 sizeof(bytes));
    CHECK_EQ(cache_publish(file, 0), 0);
    cache_drop(rig.cache, NULL);
    reads = model_calls(MODEL_READ);
    for (uint64_t off = 0; off < 32u << 20; off += 1 << 20) {
        CHECK_EQ(cache_read(file, off, back, 1 << 20, 0), 1 << 20);
        CHECK(memcmp(back, bytes + off % sizeof(bytes), 1 << 20) == 0);
        usleep(2000);
    }
    cache_query(rig.cache, &info);
    reads = model_calls(MODEL_READ) - reads;
    fprintf(stderr, "misses %llu, read-ahead %llu, reads %llu\n", (unsigned long long)info.misses,
            (unsigned long long)info.readahead, (unsigned long long)reads);
    CHECK(info.readahead >= 4 && info.misses <= 16 && reads <= 40);
    cache_file_put(file);
    rig_close(&rig, false);
    rig_free(&rig);
}

/* A write during write-back neither waits for it nor changes what it writes. */
static void test_writers_do_not_wait_for_write_back(void)
{
    struct cache_opts opts = slow_opts();
    struct rig_owner owner;
    struct cache_file *file;
    struct rig rig;
    uint64_t t0;

    fill(7);
    opts.commit_interval_ms = 1;
    rig_make(&rig, 1 << 30);
    rig_open(&rig, &opts);
    file = rig_file(&rig, &owner, 1);
    model_delay(MODEL_STAGE, 300000);
    write_all(file, 0, 2 << 20);
    usleep(50000); /* the flush is under way */
    CHECK(cache_file_dirty(file));
    bytes[1000000] ^= 1;
    bytes[12] ^= 1;
    t0 = base_mono_ns();
    CHECK_EQ(cache_write(file, 1000000, bytes + 1000000, 1, 1, CACHE_NOWAIT, NULL), 1);
    CHECK_EQ(cache_write(file, 12, bytes + 12, 1, 1, CACHE_NOWAIT, NULL), 1);
    CHECK(base_mono_ns() - t0 < 200000000u);
    check_all(file, 2 << 20);
    model_delay(MODEL_STAGE, 0);
    CHECK_EQ(cache_publish(file, CACHE_SYNC), 0);
    cache_drop(rig.cache, NULL);
    check_all(file, 2 << 20);
    cache_file_put(file);
    rig_close(&rig, false);
    rig_free(&rig);
}

/* A device slower than its writer: the bound holds, no write waits long, data does not grow old. */
static void test_writers_are_slowed_not_stopped(void)
{
    struct cache_opts opts = {.size = sizeof(opts), .dirty_bound_bytes = 8 << 20};
    struct rig_owner owner;
    struct cache_file *file;
    struct cache_info info;
    struct rig rig;
    uint64_t worst_ns = 0, worst_dirty = 0, worst_age_ms = 0;

    fill(10);
    opts.commit_interval_ms = 50;
    rig_make(&rig, 1 << 30);
    rig_open(&rig, &opts);
    file = rig_file(&rig, &owner, 1);
    model_delay(MODEL_STAGE, 100000);
    for (unsigned i = 0; i < 400; i++) {
        uint64_t off = i * 65536ull, t0 = base_mono_ns();
        const uint8_t *src = bytes + off % sizeof(bytes);
        CHECK_EQ(cache_write(file, off, src, 65536, 1, 0, NULL), 65536);
        t0 = base_mono_ns() - t0;
        worst_ns = t0 > worst_ns ? t0 : worst_ns;
        cache_query(rig.cache, &info);
        worst_dirty = info.dirty_bytes > worst_dirty ? info.dirty_bytes : worst_dirty;
        worst_age_ms = info.dirty_age_ms > worst_age_ms ? info.dirty_age_ms : worst_age_ms;
    }
    fprintf(stderr, "longest write %llu ms, most dirty %llu KiB, oldest %llu ms\n",
            (unsigned long long)worst_ns / 1000000, (unsigned long long)worst_dirty >> 10,
            (unsigned long long)worst_age_ms);
    CHECK(worst_dirty <= 8 << 20);
    CHECK(worst_ns < 1000000000u);
    model_delay(MODEL_STAGE, 0);
    CHECK_EQ(cache_publish(file, 0), 0);
    CHECK_EQ(cache_truncate(file, sizeof(bytes), 1, 0), 0);
    check_all(file, sizeof(bytes));
    cache_file_put(file);
    rig_close(&rig, false);
    rig_free(&rig);
}

/* What a transaction can hold bounds a file's scattered dirty blocks: its writer publishes. */
static void test_scattered_blocks_fit_a_transaction(void)
{
    struct cache_opts opts = slow_opts();
    struct rig_owner owner;
    struct cache_file *file;
    struct cache_info info;
    struct rig rig;

    fill(11);
    rig_make(&rig, 1 << 30);
    rig_open(&rig, &opts);
    file = rig_file(&rig, &owner, 1);
    model_delay(MODEL_STAGE, 1000);
    for (uint64_t i = 0; i < 2600; i++)
        CHECK_EQ(cache_write(file, i * 8192, bytes, 4096, 1, 0, NULL), 4096);
    for (uint64_t i = 0; i < 3000; i++)
        CHECK_EQ(cache_punch(file, i * 8192, 4096, 1, 0), 0);
    cache_query(rig.cache, &info);
    CHECK(info.published > 0);
    CHECK_EQ(cache_publish(file, 0), 0);
    CHECK_EQ(cache_read(file, 0, back, 4096, 0), 4096);
    CHECK_EQ(back[1], 0);
    cache_file_put(file);
    rig_close(&rig, false);
    rig_free(&rig);
}

/* Free space in pieces may make a cut more than the store takes at once. */
static void test_too_large_goes_in_parts(void)
{
    struct cache_opts opts = slow_opts();
    struct rig_owner owner;
    struct cache_file *file;
    uint64_t commits;
    struct rig rig;

    fill(9);
    rig_make(&rig, 1 << 30);
    rig_open(&rig, &opts);
    file = rig_file(&rig, &owner, 1);
    write_all(file, 0, sizeof(bytes));
    CHECK_EQ(cache_publish(file, 0), 0);
    CHECK_EQ(cache_punch(file, 0, 1 << 20, 2, 0), 0);
    memset(bytes, 0, 1 << 20);
    for (size_t off = 8192; off < sizeof(bytes); off += 8192) {
        memset(bytes + off, (int)(off >> 13), 4096);
        write_all(file, off, 4096);
    }
    model_fail(MODEL_COMMIT, 1, 1, -E2BIG);
    commits = model_calls(MODEL_COMMIT);
    CHECK_EQ(cache_publish(file, CACHE_SYNC), 0);
    CHECK(model_calls(MODEL_COMMIT) - commits > 10);
    CHECK(!cache_file_dirty(file));
    cache_drop(rig.cache, NULL);
    check_all(file, sizeof(bytes));
    /* a part fails: everything is kept */
    for (size_t off = 8192; off < sizeof(bytes); off += 8192) {
        memset(bytes + off, (int)(off >> 12), 4096);
        write_all(file, off, 4096);
    }
    model_fail(MODEL_COMMIT, 1, 1, -E2BIG);
    model_fail(MODEL_SYNC, 1, 1, -EIO);
    CHECK_EQ(cache_publish(file, CACHE_SYNC), -EIO);
    CHECK(cache_file_dirty(file));
    CHECK_EQ(cache_publish(file, CACHE_SYNC), 0);
    cache_drop(rig.cache, NULL);
    check_all(file, sizeof(bytes));
    cache_file_put(file);
    rig_close(&rig, false);
    rig_free(&rig);
}

static void test_discard(void)
{
    struct cache_opts opts = slow_opts();
    struct rig_owner owner;
    struct cache_file *file;
    struct obj_pool_info info;
    struct cache_pin pin;
    struct rig rig;

    fill(8);
    rig_make(&rig, 1 << 30);
    rig_open(&rig, &opts);
    file = rig_file(&rig, &owner, 1);
    write_all(file, 0, 1 << 20);
    CHECK_EQ(cache_pin(file, 5000, 10, 0, &pin), 0);
    cache_file_discard(file);
    obj_pool_query(rig.pool, &info);
    CHECK_EQ(info.reserved_bytes, 0);
    CHECK(memcmp(pin.ptr, bytes + 5000, 10) == 0);
    cache_unpin(rig.cache, &pin);
    file = rig_file(&rig, &owner, 1);
    CHECK_EQ(cache_read(file, 0, back, 10, 0), 0);
    write_all(file, 0, 100);
    owner.err = -ESTALE; /* unlinked meanwhile */
    CHECK_EQ(cache_publish(file, 0), 0);
    CHECK(!cache_file_dirty(file));
    cache_file_put(file);
    rig_close(&rig, false);
    rig_free(&rig);
}

static uint64_t cpu_ns(void)
{
    struct rusage ru;

    getrusage(RUSAGE_SELF, &ru);
    return (uint64_t)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1000000000u +
           (uint64_t)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) * 1000u;
}

static void test_idle(void)
{
    struct cache_opts opts = {.size = sizeof(opts), .commit_interval_ms = 100};
    struct rig_owner owner;
    struct cache_file *file;
    struct cache_info info;
    struct rig rig;
    uint64_t cpu;

    fill(9);
    rig_make(&rig, 1 << 30);
    rig_open(&rig, &opts);
    file = rig_file(&rig, &owner, 1);
    write_all(file, 0, 1 << 20);
    usleep(400000);
    CHECK(!cache_file_dirty(file)); /* published by itself */
    cache_query(rig.cache, &info);
    CHECK_EQ(info.dirty_age_ms, 0);
    cpu = cpu_ns();
    usleep(500000);
    CHECK(cpu_ns() - cpu < 2500000); /* 0.5 % */
    cache_file_put(file);
    rig_close(&rig, false);
    rig_free(&rig);
}

int main(void)
{
    RUN(test_error_is_sticky_and_data_kept);
    RUN(test_writers_fail_at_the_bound);
    RUN(test_no_space_is_told_at_the_write);
    RUN(test_no_space_publishes_nothing_within_nowait);
    RUN(test_read_errors_hit_only_their_reader);
    RUN(test_small_files_go_inline);
    RUN(test_a_stream_is_read_ahead);
    RUN(test_writers_do_not_wait_for_write_back);
    RUN(test_writers_are_slowed_not_stopped);
    RUN(test_scattered_blocks_fit_a_transaction);
    RUN(test_too_large_goes_in_parts);
    RUN(test_discard);
    RUN(test_idle);
    return 0;
}
