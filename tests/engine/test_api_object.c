/* SPDX-License-Identifier: Apache-2.0 */
/* Public API: key-value objects, arrays at any offset, transactions and their guards. */
#include <pthread.h>

#include "api_session.h"

#define BLOCK 4096u

static struct dfe_pool *pool;
static struct dfe_cont *cont;
static const struct dfe_oid oid = {11, 22};

static struct dfe_key key(const char *dkey, const char *akey)
{
    return (struct dfe_key){.dkey = dkey,
                            .akey = akey,
                            .dkey_len = (uint16_t)strlen(dkey),
                            .akey_len = (uint16_t)strlen(akey)};
}

static void put(const char *dkey, const char *akey, const char *value)
{
    struct dfe_key k = key(dkey, akey);
    struct dfe_tx *tx;

    CHECK_EQ(dfe_tx_begin(cont, &oid, &tx), 0);
    CHECK_EQ(dfe_tx_put(tx, &oid, &k, value, strlen(value)), 0);
    CHECK_EQ(dfe_tx_commit(tx, 0, NULL), 0);
}

/* 0 where the key has this value; value NULL: where there is no key. */
static int differs(const char *dkey, const char *akey, const char *value)
{
    struct dfe_key k = key(dkey, akey);
    char got[64];
    size_t len = 0;
    int ret = dfe_kv_get(cont, &oid, &k, got, sizeof(got), &len);

    if (!value)
        return ret != -ENOENT;
    return ret != 0 || len != strlen(value) || memcmp(got, value, len) != 0;
}

static void keys(void)
{
    struct dfe_key k = key("a", "");
    char got[2];
    size_t len = 0;

    put("a", "", "one");
    put("a", "x", "two");
    put("b", "", "");
    CHECK(!differs("a", "", "one"));
    CHECK(!differs("a", "x", "two"));
    CHECK(!differs("b", "", ""));
    CHECK(!differs("c", "", NULL));
    /* A short buffer gets what fits; the length is the whole value's. */
    CHECK_EQ(dfe_kv_get(cont, &oid, &k, got, sizeof(got), &len), 0);
    CHECK(len == 3 && memcmp(got, "on", 2) == 0);
}

static void scan_in_pages(void)
{
    struct dfe_oid id = {5, 5};
    struct dfe_key from;
    struct dfe_tx *tx;
    uint8_t page[256];
    char last[16] = "";
    unsigned seen = 0;

    CHECK_EQ(dfe_kv_scan(cont, &id, NULL, page, sizeof(page)), 0);
    CHECK_EQ(dfe_tx_begin(cont, &id, &tx), 0);
    for (int i = 0; i < 100; i++) {
        char name[16];
        struct dfe_key k;

        snprintf(name, sizeof(name), "k%03d", i);
        k = key(name, "");
        CHECK_EQ(dfe_tx_put(tx, &id, &k, name, strlen(name)), 0);
    }
    CHECK_EQ(dfe_tx_commit(tx, 0, NULL), 0);
    CHECK_EQ(dfe_kv_scan(cont, &id, NULL, page, 8), -E2BIG);

    for (;;) {
        ssize_t used;
        size_t at = 0;

        from = key(last, "");
        used = dfe_kv_scan(cont, &id, last[0] ? &from : NULL, page, sizeof(page));
        CHECK(used >= 0);
        while (at < (size_t)used) {
            uint16_t dkey_len, akey_len;
            uint32_t value_len;
            char name[16] = "";

            memcpy(&dkey_len, page + at, 2);
            memcpy(&akey_len, page + at + 2, 2);
            memcpy(&value_len, page + at + 4, 4);
            CHECK_EQ(dkey_len, 4);
            CHECK_EQ(akey_len, 0);
            CHECK_EQ(value_len, 4);
            memcpy(name, page + at + 8, 4);
            if (strcmp(name, last) != 0) {
                CHECK(strcmp(name, last) > 0);
                strcpy(last, name);
                seen++;
            }
            at += 8 + 4 + 4;
        }
        if (used <= 16)
            break;
    }
    CHECK_EQ(seen, 100);
}

static void guards(void)
{
    struct dfe_key absent = key("absent", ""), there = key("there", "");
    struct dfe_oid other = {77, 1}, empty = {77, 2};
    struct dfe_tx *tx;
    uint64_t epoch = 0;
    char got[8];
    size_t len;

    put("there", "", "v");
    CHECK_EQ(dfe_tx_begin(cont, &oid, &tx), 0);
    CHECK_EQ(dfe_tx_guard_absent(tx, &there), 0);
    CHECK_EQ(dfe_tx_put(tx, &oid, &absent, "x", 1), 0);
    CHECK_EQ(dfe_tx_put(tx, &other, &absent, "x", 1), 0);
    CHECK_EQ(dfe_tx_commit(tx, 0, NULL), -EAGAIN);
    CHECK(!differs("absent", "", NULL));
    CHECK_EQ(dfe_kv_get(cont, &other, &absent, got, sizeof(got), &len), -ENOENT);

    CHECK_EQ(dfe_tx_begin(cont, &oid, &tx), 0);
    CHECK_EQ(dfe_tx_guard_equal(tx, &there, "w", 1), 0);
    CHECK_EQ(dfe_tx_del(tx, &oid, &there), 0);
    CHECK_EQ(dfe_tx_commit(tx, 0, NULL), -EAGAIN);
    CHECK(!differs("there", "", "v"));

    CHECK_EQ(dfe_tx_begin(cont, &empty, &tx), 0);
    CHECK_EQ(dfe_tx_guard_exists(tx), 0);
    CHECK_EQ(dfe_tx_commit(tx, 0, NULL), -EAGAIN);

    CHECK_EQ(dfe_tx_begin(cont, &oid, &tx), 0);
    CHECK_EQ(dfe_tx_guard_exists(tx), 0);
    CHECK_EQ(dfe_tx_guard_absent(tx, &absent), 0);
    CHECK_EQ(dfe_tx_guard_equal(tx, &there, "v", 1), 0);
    CHECK_EQ(dfe_tx_del(tx, &oid, &there), 0);
    CHECK_EQ(dfe_tx_put(tx, &other, &absent, "x", 1), 0);
    CHECK_EQ(dfe_tx_commit(tx, 1, &epoch), 0);
    CHECK(epoch > 0);
    CHECK(!differs("there", "", NULL));
    CHECK_EQ(dfe_kv_get(cont, &other, &absent, got, sizeof(got), &len), 0);

    /* An aborted one leaves nothing; a container with a transaction in it does not close. */
    CHECK_EQ(dfe_tx_begin(cont, &oid, &tx), 0);
    CHECK_EQ(dfe_tx_put(tx, &oid, &there, "x", 1), 0);
    CHECK_EQ(dfe_cont_close(cont), -EBUSY);
    dfe_tx_abort(tx);
    dfe_tx_abort(NULL);
    CHECK(!differs("there", "", NULL));
}

static void counters_and_punches(void)
{
    struct dfe_key n = key("n", ""), m = key("m", "1"), m2 = key("m", "2");
    struct dfe_oid id = {8, 8};
    struct dfe_tx *tx;
    uint64_t value;
    size_t len;

    for (int i = 0; i < 2; i++) {
        CHECK_EQ(dfe_tx_begin(cont, &id, &tx), 0);
        CHECK_EQ(dfe_tx_add(tx, &id, &n, 5), 0);
        CHECK_EQ(dfe_tx_max(tx, &id, &m, i ? 3 : 9), 0);
        CHECK_EQ(dfe_tx_max(tx, &id, &m2, 1), 0);
        CHECK_EQ(dfe_tx_commit(tx, 0, NULL), 0);
    }
    CHECK_EQ(dfe_kv_get(cont, &id, &n, &value, sizeof(value), &len), 0);
    CHECK_EQ(value, 10);
    CHECK_EQ(dfe_kv_get(cont, &id, &m, &value, sizeof(value), &len), 0);
    CHECK_EQ(value, 9);

    CHECK_EQ(dfe_tx_begin(cont, &id, &tx), 0);
    CHECK_EQ(dfe_tx_punch_dkey(tx, &id, "m", 1), 0);
    CHECK_EQ(dfe_tx_commit(tx, 0, NULL), 0);
    CHECK_EQ(dfe_kv_get(cont, &id, &m, &value, sizeof(value), &len), -ENOENT);
    CHECK_EQ(dfe_kv_get(cont, &id, &m2, &value, sizeof(value), &len), -ENOENT);
    CHECK_EQ(dfe_kv_get(cont, &id, &n, &value, sizeof(value), &len), 0);

    CHECK_EQ(dfe_tx_begin(cont, &id, &tx), 0);
    CHECK_EQ(dfe_tx_punch_object(tx, &id), 0);
    CHECK_EQ(dfe_tx_commit(tx, 0, NULL), 0);
    CHECK_EQ(dfe_kv_get(cont, &id, &n, &value, sizeof(value), &len), -ENOENT);
}

/* Random writes, punches and reads at any offset and of any alignment, beside plain memory. */
static void arrays_at_any_offset(void)
{
    enum { SPAN = 5u << 20, STEPS = 300 };
    uint64_t seed = test_seed();
    struct dfe_oid id = {9, 9};
    uint8_t *model = calloc(1, SPAN), *buf = malloc(SPAN + 1);

    CHECK(model && buf);
    for (int step = 0; step < STEPS; step++) {
        uint64_t r = test_rand(&seed);
        uint64_t off = test_rand(&seed) % SPAN, len = test_rand(&seed);
        uint8_t *data = buf + (r & 64 ? 1 : 0);

        len %= r & 128 ? SPAN - off + 1 : (SPAN - off < 9000 ? SPAN - off + 1 : 9000);
        if (r & 32) {
            off &= ~(uint64_t)(BLOCK - 1);
            len &= ~(uint64_t)(BLOCK - 1);
        }
        switch (r & 3) {
        case 0:
        case 1:
            for (uint64_t i = 0; i < len; i++)
                data[i] = (uint8_t)(step + (int)(i >> 3));
            CHECK_EQ(dfe_array_write(cont, &id, off, data, len, (r & 4) != 0), len);
            memcpy(model + off, data, len);
            break;
        case 2:
            CHECK_EQ(dfe_array_punch(cont, &id, off, len), 0);
            memset(model + off, 0, len);
            break;
        default:
            memset(data, 0xEE, len);
            CHECK_EQ(dfe_array_read(cont, &id, off, data, len), len);
            CHECK(memcmp(data, model + off, len) == 0);
        }
    }
    CHECK_EQ(dfe_array_read(cont, &id, 0, buf, SPAN), SPAN);
    CHECK(memcmp(buf, model, SPAN) == 0);
    free(model);
    free(buf);
}

static void array_edges(void)
{
    struct dfe_oid id = {10, 10};
    uint8_t block[BLOCK] = {1};
    struct dfe_tx *tx;
    uint64_t at;

    CHECK_EQ(dfe_array_next(cont, &id, 0, 0, &at), -ENXIO);
    CHECK_EQ(dfe_array_next(cont, &id, 0, 2, &at), -EINVAL);
    CHECK_EQ(dfe_array_write(cont, &id, 0, block, 0, 0), 0);
    CHECK_EQ(dfe_array_write(cont, &id, (16ull << 40) - 1, block, 2, 0), -EFBIG);
    CHECK_EQ(dfe_array_write(cont, &id, UINT64_MAX, block, 2, 0), -EFBIG);
    CHECK_EQ(dfe_array_read(cont, &id, UINT64_MAX, block, 2), -EFBIG);

    CHECK_EQ(dfe_tx_begin(cont, &id, &tx), 0);
    CHECK_EQ(dfe_tx_write(tx, &id, 100, block, BLOCK), -EINVAL);
    CHECK_EQ(dfe_tx_write(tx, &id, 2 * BLOCK, block, 100), -EINVAL);
    CHECK_EQ(dfe_tx_write(tx, &id, 2 * BLOCK, block, BLOCK), 0);
    CHECK_EQ(dfe_tx_commit(tx, 1, NULL), 0);
    CHECK_EQ(dfe_array_next(cont, &id, 0, 0, &at), 0);
    CHECK_EQ(at, 2 * BLOCK);
    CHECK_EQ(dfe_array_next(cont, &id, at, 1, &at), 0);
    CHECK_EQ(at, 3 * BLOCK);

    /* To the end, however far that is. */
    CHECK_EQ(dfe_array_punch(cont, &id, BLOCK, UINT64_MAX), 0);
    CHECK_EQ(dfe_array_next(cont, &id, 0, 0, &at), -ENXIO);
}

enum { WRITERS = 4, ROUNDS = 50 };

/* The write that is too much for its transaction fails, and leaves it to be ended. */
static void too_many_writes(void)
{
    static const uint8_t block[BLOCK];
    struct dfe_oid id = {13, 13};
    struct dfe_tx *tx;
    unsigned n = 0;

    CHECK_EQ(dfe_tx_begin(cont, &id, &tx), 0);
    while (dfe_tx_write(tx, &id, n % 64 * BLOCK, block, BLOCK) == 0)
        n++;
    CHECK(session_wanted() ? n > 1000 && n < 10000 : n == 10000); /* it is one request, too */
    CHECK_EQ(dfe_tx_write(tx, &id, 0, block, BLOCK), -E2BIG);
    dfe_tx_abort(tx);
}

static void *write_own_bytes(void *arg)
{
    struct dfe_oid id = {12, 12};
    uint8_t value = (uint8_t)(uintptr_t)arg;

    for (int i = 0; i < ROUNDS; i++)
        CHECK_EQ(dfe_array_write(cont, &id, (uint64_t)i * WRITERS + value, &value, 1, 0), 1);
    return NULL;
}

/* Writers of neighbouring bytes in one block lose nothing to each other. */
static void neighbours_in_one_block(void)
{
    struct dfe_oid id = {12, 12};
    pthread_t threads[WRITERS];
    uint8_t got[WRITERS * ROUNDS];

    for (uintptr_t i = 0; i < WRITERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, write_own_bytes, (void *)i), 0);
    for (int i = 0; i < WRITERS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(dfe_array_read(cont, &id, 0, got, sizeof(got)), sizeof(got));
    for (unsigned i = 0; i < sizeof(got); i++)
        CHECK_EQ(got[i], i % WRITERS);
}

int main(void)
{
    const char *path = api_path("pool");

    session_setup(path, 0, &pool, &cont);
    RUN(keys);
    RUN(scan_in_pages);
    RUN(guards);
    RUN(counters_and_punches);
    RUN(arrays_at_any_offset);
    RUN(array_edges);
    RUN(too_many_writes);
    RUN(neighbours_in_one_block);
    session_teardown(path, pool, cont);
    return 0;
}
