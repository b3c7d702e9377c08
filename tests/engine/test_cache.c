/* SPDX-License-Identifier: Apache-2.0 */
/* The cache over the model store: random streams of changes against a shadow, errors, crashes. */
#include "base/crc32c.h"
#include "base/limits.h"
#include "base/log.h"
#include "cache_rig.h"

#define MAX_BYTES (2500u << 10)
#define FILES 3
#define VERSIONS 4096

/* What a file must hold, and a checksum of each of its moments by version. */
struct shadow {
    struct cache_file *file;
    struct rig_owner owner;
    uint8_t *bytes;
    uint64_t size;
    uint64_t first_version, synced_version;
    struct {
        uint64_t size;
        uint32_t crc;
        bool known;
    } moment[VERSIONS];
};

static uint64_t rng;
static uint8_t scratch[MAX_BYTES + 8];
static const uint8_t zeros[MAX_BYTES];
static bool history; /* moments are needed */
static bool faulty;  /* calls may fail, and then have changed nothing */

static uint64_t pick(uint64_t n)
{
    return test_rand(&rng) % n;
}

/* Offsets crowd at the edges of blocks and slots. */
static uint64_t pick_off(uint64_t max)
{
    static const uint64_t units[] = {1, 4096, 16384, 65536, 1 << 20};
    uint64_t unit = units[pick(DFE_ARRAY_LEN(units))];
    uint64_t off = pick(max / unit + 1) * unit + pick(3);

    return off > 0 ? (off - 1) % max : 0;
}

/* Whether a call was refused because of an injected fault. */
static bool refused(long rc)
{
    if (rc >= 0)
        return false;
    if (!faulty)
        CHECK_EQ(rc, 0);
    CHECK(rc == -EIO || rc == -EUCLEAN || rc == -ENOSPC);
    return true;
}

static void inject(void)
{
    static const int errs[] = {-EIO, -EUCLEAN, -ENOSPC};
    static const enum model_call calls[] = {MODEL_READ,   MODEL_STAGE, MODEL_COMMIT,
                                            MODEL_SYNC,   MODEL_NEXT,  MODEL_RESERVE};

    model_fail(calls[pick(DFE_ARRAY_LEN(calls))], 1 + pick(3), pick(3), errs[pick(3)]);
}

static void moment(struct shadow *s)
{
    struct cache_cut cut;
    uint64_t i;

    cache_file_cut(s->file, &cut);
    CHECK_EQ(cut.size, s->size);
    i = cut.version - s->first_version;
    CHECK(i < VERSIONS);
    s->moment[i].size = s->size;
    s->moment[i].crc = history ? base_crc32c(0, s->bytes, s->size) : 0;
    s->moment[i].known = true;
}

static ssize_t do_write(struct shadow *s, uint64_t off, const void *src, size_t len, unsigned flags,
                        uint64_t *at)
{
    ssize_t n = cache_write(s->file, off, src, len, 7, flags | CACHE_NOWAIT, at);

    if (n == -EINPROGRESS)
        n = cache_write(s->file, off, src, len, 7, flags, at);
    return n;
}

static void op_write(struct shadow *s, bool append)
{
    uint64_t off = append ? s->size : pick_off(MAX_BYTES), at, len;
    ssize_t n;

    len = pick(4) == 0 ? pick_off(1 << 20) + 1 : pick(20000) + 1;
    if (off >= MAX_BYTES)
        return;
    if (len > MAX_BYTES - off)
        len = MAX_BYTES - off;
    for (uint64_t i = 0; i < len; i += 8)
        *(uint64_t *)(scratch + i / 8 * 8) = test_rand(&rng);
    n = do_write(s, append ? 0 : off, scratch, len, append ? CACHE_APPEND : 0, &at);
    if (refused(n))
        return;
    CHECK_EQ(n, len);
    CHECK_EQ(at, off);
    if (off > s->size)
        memset(s->bytes + s->size, 0, off - s->size);
    memcpy(s->bytes + off, scratch, len);
    if (off + len > s->size)
        s->size = off + len;
    moment(s);
}

static void op_truncate(struct shadow *s)
{
    uint64_t size = pick(4) == 0 ? 0 : pick_off(MAX_BYTES);
    int rc = cache_truncate(s->file, size, 8, CACHE_NOWAIT);

    if (rc == -EINPROGRESS)
        rc = cache_truncate(s->file, size, 8, 0);
    if (refused(rc))
        return;
    if (size > s->size)
        memset(s->bytes + s->size, 0, size - s->size);
    s->size = size;
    moment(s);
}

static void op_punch(struct shadow *s)
{
    uint64_t off = pick_off(MAX_BYTES), len = pick_off(1 << 20) + 1;
    int rc = cache_punch(s->file, off, len, 9, CACHE_NOWAIT);

    if (rc == -EINPROGRESS)
        rc = cache_punch(s->file, off, len, 9, 0);
    if (refused(rc))
        return;
    if (off < s->size)
        memset(s->bytes + off, 0, len < s->size - off ? len : s->size - off);
    moment(s);
}

static void check_read(struct shadow *s, uint64_t off, size_t len)
{
    ssize_t n = cache_read(s->file, off, scratch, len, CACHE_NOWAIT);
    size_t want = off >= s->size ? 0 : (len < s->size - off ? len : s->size - off);

    if (n == -EINPROGRESS)
        n = cache_read(s->file, off, scratch, len, 0);
    if (refused(n))
        return;
    if (faulty && n > 0 && (size_t)n < want)
        want = (size_t)n; /* what comes before the fault */
    CHECK_EQ(n, want);
    for (size_t i = memcmp(scratch, s->bytes + off, want) ? 0 : want; i < want; i++)
        if (scratch[i] != s->bytes[off + i]) {
            fprintf(stderr, "file %llu byte %llu\n", (unsigned long long)s->owner.oid.lo,
                    (unsigned long long)(off + i));
            CHECK_EQ(scratch[i], s->bytes[off + i]);
        }
}

static void op_read(struct shadow *s)
{
    uint64_t off = pick_off(MAX_BYTES);

    if (pick(3) == 0) {
        for (off = 0; off < s->size; off += 65536)
            check_read(s, off, 65536);
    } else {
        check_read(s, off, pick_off(1 << 20) + 1);
    }
}

/* Writes into what read-ahead has under way. */
static void op_ahead(struct rig *rig, struct shadow *s)
{
    uint64_t from = pick(2) ? 0 : pick_off(MAX_BYTES);

    cache_publish(s->file, 0);
    cache_drop(rig->cache, s->file);
    check_read(s, from, 4096);
    for (unsigned i = 0; i < 3; i++) {
        check_read(s, from + 4096 + i * 65536u, 65536);
        op_write(s, false);
    }
    check_read(s, 0, MAX_BYTES);
}

/* Bytes on loan stay as they were, whatever happens to the file. */
static void op_pin(struct rig *rig, struct shadow *s)
{
    struct cache_pin pin;
    uint64_t off = pick_off(MAX_BYTES);
    uint8_t *copy;

    if (refused(cache_pin(s->file, off, 100000, 0, &pin)))
        return;
    CHECK((pin.len > 0) == (off < s->size));
    if (pin.len == 0)
        return;
    CHECK(memcmp(pin.ptr, s->bytes + off, pin.len) == 0);
    copy = malloc(pin.len);
    memcpy(copy, pin.ptr, pin.len);
    op_write(s, false);
    op_truncate(s);
    op_punch(s);
    CHECK(memcmp(pin.ptr, copy, pin.len) == 0);
    free(copy);
    cache_unpin(rig->cache, &pin);
    CHECK(pin.slot == NULL);
}

/* Where next says hole there are only zeros; and what is not zero is data. */
static void op_next(struct shadow *s)
{
    uint64_t at = 0, next;
    int rc;

    while ((rc = cache_next(s->file, at, OBJ_DATA, &next)) == 0) {
        CHECK(next >= at && next < s->size);
        CHECK(memcmp(s->bytes + at, zeros, next - at) == 0);
        at = next;
        if (refused(cache_next(s->file, at, OBJ_HOLE, &next)))
            return;
        CHECK(next > at && next <= s->size);
        at = next;
        if (at == s->size)
            break;
    }
    if (rc != -ENXIO && refused(rc))
        return;
    CHECK(memcmp(s->bytes + at, zeros, s->size - at) == 0);
}

static void op_publish(struct rig *rig, struct shadow *s)
{
    struct cache_cut cut;
    uint64_t used;

    switch (pick(4)) {
    case 0:
        refused(cache_publish(s->file, 0));
        break;
    case 1:
        if (refused(cache_publish(s->file, CACHE_SYNC)))
            return;
        cache_file_cut(s->file, &cut);
        s->synced_version = cut.version;
        break;
    case 2:
        cache_drop(rig->cache, pick(2) ? s->file : NULL);
        break;
    default:
        if (refused(cache_used(s->file, &used)))
            return;
        CHECK(used <= (s->size + 4095) / 4096 * 4096);
    }
}

static void shadow_open(struct rig *rig, struct shadow *s, uint64_t id)
{
    uint64_t i;

    s->file = rig_file(rig, &s->owner, id);
    if (!s->bytes)
        s->bytes = calloc(1, MAX_BYTES);
    i = s->owner.cut.version - s->first_version;
    if (s->first_version == 0) {
        s->first_version = s->synced_version = s->owner.cut.version;
        moment(s);
    } else { /* one moment of its history, no older than the last sync */
        CHECK(s->owner.cut.version >= s->synced_version);
        CHECK(i < VERSIONS && s->moment[i].known);
        CHECK_EQ(s->moment[i].size, s->owner.cut.size);
        s->size = s->owner.cut.size;
        CHECK_EQ(cache_read(s->file, 0, s->bytes, MAX_BYTES, 0), s->size);
        if (history)
            CHECK_EQ(base_crc32c(0, s->bytes, s->size), s->moment[i].crc);
        memset(s->moment, 0, sizeof(s->moment));
        s->first_version = s->synced_version = s->owner.cut.version;
        moment(s);
    }
}

static void random_ops(struct rig *rig, struct shadow *s, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct shadow *f = &s[pick(FILES)];
        unsigned dice = (unsigned)pick(20);
        if (faulty && pick(4) == 0)
            inject();
        if (dice < 6)
            op_write(f, false);
        else if (dice < 8)
            op_write(f, true);
        else if (dice < 10)
            op_truncate(f);
        else if (dice < 12)
            op_punch(f);
        else if (dice < 15)
            op_read(f);
        else if (dice == 15)
            op_ahead(rig, f);
        else if (dice == 16)
            op_pin(rig, f);
        else if (dice == 17)
            op_next(f);
        else
            op_publish(rig, f);
    }
}

static struct cache_opts random_opts(void)
{
    struct cache_opts opts = {.size = sizeof(opts)};

    opts.slots_bound_bytes = (3u << 20) << pick(5);
    opts.dirty_bound_bytes = pick(2) ? 0 : (1u << 20) << pick(3);
    opts.commit_interval_ms = pick(2) ? 5 : 1000;
    return opts;
}

static void run_random(unsigned rounds, bool crash)
{
    struct shadow *s = calloc(FILES, sizeof(*s));
    struct cache_opts opts;
    struct cache_cut cut;
    struct rig rig;

    history = crash;
    rig_make(&rig, 1u << 30);
    for (unsigned round = 0; round < rounds; round++) {
        opts = random_opts();
        rig_open(&rig, &opts);
        model_nowait(rng, (unsigned)pick(5));
        model_delay(MODEL_STAGE, (unsigned)pick(2) * 2000); /* so that others come in between */
        model_delay(MODEL_READ, (unsigned)pick(2) * 500);
        for (unsigned i = 0; i < FILES; i++)
            shadow_open(&rig, &s[i], i + 1);
        random_ops(&rig, s, 120);
        for (unsigned i = 0; i < MODEL_CALLS; i++)
            model_fail(i, 1, 0, 0);
        for (unsigned i = 0; i < FILES; i++)
            check_read(&s[i], 0, MAX_BYTES);
        if (crash)
            model_crash(RIG_PATH, &rng);
        for (unsigned i = 0; i < FILES; i++) {
            if (!crash) { /* closing publishes all */
                cache_file_cut(s[i].file, &cut);
                s[i].synced_version = cut.version;
            }
            cache_file_put(s[i].file);
        }
        rig_close(&rig, crash);
    }
    rig_free(&rig);
    for (unsigned i = 0; i < FILES; i++)
        free(s[i].bytes);
    free(s);
}

static void test_random(void)
{
    run_random(5, false);
}

static void test_crash(void)
{
    run_random(12, true);
}

static void test_faults(void)
{
    faulty = true;
    run_random(5, false);
    run_random(4, true);
}

static void no_log(int level, const char *text, void *arg)
{
    (void)level, (void)text, (void)arg;
}

int main(void)
{
    rng = test_seed();
    base_log_set(no_log, NULL); /* failed write-backs are the test's doing */
    RUN(test_random);
    RUN(test_crash);
    RUN(test_faults);
    return 0;
}
