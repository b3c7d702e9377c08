/* SPDX-License-Identifier: Apache-2.0 */
/* Index keys: round trips, order, limits, and decoding of arbitrary bytes. */
#include "base/words.h"
#include "obj/key.h"
#include "test.h"

static uint64_t seed;
static const struct obj_id oid = {0x1122334455667788ull, 0x99aabbccddeeff00ull};

/* Bytes from a small alphabet, so that escapes and common prefixes are frequent. */
static uint16_t random_bytes(uint8_t *to, size_t least, size_t most)
{
    static const uint8_t some[] = {0, 0, 1, 2, 0xff, 'a', 'b'};
    size_t n = least + test_rand(&seed) % (most - least + 1);

    for (size_t i = 0; i < n; i++)
        to[i] = some[test_rand(&seed) % sizeof(some)];
    return (uint16_t)n;
}

struct pair {
    uint8_t d[200], a[200];
    struct obj_key k;
};

static void random_pair(struct pair *p, size_t most)
{
    p->k.dkey = p->d;
    p->k.dkey_len = random_bytes(p->d, 1, most);
    p->k.akey = p->a;
    p->k.akey_len = random_bytes(p->a, 0, most);
}

static int pair_cmp(const struct obj_key *a, const struct obj_key *b)
{
    int c = key_cmp(a->dkey, a->dkey_len, b->dkey, b->dkey_len);

    return c ? c : key_cmp(a->akey, a->akey_len, b->akey, b->akey_len);
}

static int sign(int v)
{
    return (v > 0) - (v < 0);
}

static void round_trips(void)
{
    uint8_t scratch[DFE_KEY_BYTES];
    struct pair p;
    struct key k, side, live;
    struct obj_key back;
    struct obj_id id;
    enum key_table table;
    uint64_t death, off;
    uint32_t cont;

    for (int i = 0; i < 20000; i++) {
        random_pair(&p, 40);
        CHECK_EQ(key_kv(&k, 7, oid, &p.k), 0);
        CHECK_EQ(key_parse_obj(k.b, k.len, &table, &cont, &id), 0);
        CHECK(table == KEY_KV && cont == 7 && id.hi == oid.hi && id.lo == oid.lo);
        CHECK_EQ(key_parse_kv(k.b, k.len, &back, scratch), 0);
        CHECK_EQ(pair_cmp(&back, &p.k), 0);
        CHECK_EQ(key_side(&side, &k, 1234), 0);
        CHECK_EQ(side.b[0], KEY_SKV);
        CHECK_EQ(key_parse_side(side.b, side.len, &live, &death), 0);
        CHECK_EQ(death, 1234);
        CHECK_EQ(key_cmp(live.b, live.len, k.b, k.len), 0);
    }
    key_ext(&k, 1, oid, 1ull << 40);
    CHECK_EQ(key_parse_ext(k.b, k.len, &off), 0);
    CHECK_EQ(off, 1ull << 40);
    CHECK_EQ(key_side(&side, &k, 9), 0);
    CHECK_EQ(key_parse_side(side.b, side.len, &live, &death), 0);
    CHECK_EQ(key_cmp(live.b, live.len, k.b, k.len), 0);
}

static void order_is_that_of_the_parts(void)
{
    struct pair p, q;
    struct key k, l, end;

    for (int i = 0; i < 50000; i++) {
        random_pair(&p, 5);
        random_pair(&q, 5);
        CHECK_EQ(key_kv(&k, 7, oid, &p.k), 0);
        CHECK_EQ(key_kv(&l, 7, oid, &q.k), 0);
        CHECK_EQ(sign(key_cmp(k.b, k.len, l.b, l.len)), sign(pair_cmp(&p.k, &q.k)));
        CHECK_EQ(key_kv_dkey_end(&end, 7, oid, q.d, q.k.dkey_len), 0);
        CHECK_EQ(key_cmp(k.b, k.len, end.b, end.len) < 0,
                 key_cmp(p.d, p.k.dkey_len, q.d, q.k.dkey_len) <= 0);
    }
}

static void side_keys_of_one_key_are_neighbours(void)
{
    struct pair p, q;
    struct key k, l, s, first, last;

    for (int i = 0; i < 20000; i++) {
        random_pair(&p, 4);
        random_pair(&q, 4);
        key_kv(&k, 7, oid, &p.k);
        key_kv(&l, 7, oid, &q.k);
        if (key_cmp(k.b, k.len, l.b, l.len) == 0)
            continue;
        CHECK_EQ(key_side(&first, &k, 0), 0);
        CHECK_EQ(key_side(&last, &k, UINT64_MAX), 0);
        CHECK_EQ(key_side(&s, &l, test_rand(&seed)), 0);
        CHECK_EQ(sign(key_cmp(first.b, first.len, s.b, s.len)),
                 sign(key_cmp(last.b, last.len, s.b, s.len)));
        CHECK_EQ(sign(key_cmp(first.b, first.len, s.b, s.len)),
                 sign(key_cmp(k.b, k.len, l.b, l.len)));
    }
}

static void limits(void)
{
    static uint8_t d[600], a[600];
    struct obj_key ok = {.dkey = d, .dkey_len = 0, .akey = a, .akey_len = 0};
    struct key k, side;

    memset(d, 'd', sizeof(d));
    CHECK_EQ(key_kv(&k, 1, oid, &ok), -EINVAL);
    CHECK_EQ(key_kv_dkey_end(&k, 1, oid, d, 0), -EINVAL);
    ok.dkey_len = DFE_NAME_BYTES;
    for (unsigned n = 0; n < sizeof(a); n++) {
        ok.akey_len = (uint16_t)n;
        int err = key_kv(&k, 1, oid, &ok);
        CHECK(err == 0 || err == -ENAMETOOLONG);
        if (err == 0)
            CHECK_EQ(key_side(&side, &k, UINT64_MAX), 0);
    }
    CHECK_EQ(key_pool(&k, KEY_META, d, sizeof(d)), -ENAMETOOLONG);
    CHECK_EQ(key_pool(&k, KEY_META, NULL, 0), 0);
    CHECK_EQ(k.len, 1);
}

/* What comes from the media: no form of bytes may be read beyond its end. */
static void arbitrary_bytes(void)
{
    uint8_t scratch[DFE_KEY_BYTES];
    struct obj_key ok;
    struct key live;
    uint64_t n;

    for (int i = 0; i < 200000; i++) {
        size_t len = test_rand(&seed) % 60;
        uint8_t *b = malloc(len ? len : 1);
        CHECK(b);
        random_bytes(b, len, len);
        if (len)
            b[0] = (uint8_t)(KEY_KV + test_rand(&seed) % 4);
        if (key_parse_kv(b, len, &ok, scratch) == 0)
            CHECK(ok.dkey_len > 0 && ok.dkey_len + ok.akey_len < len);
        (void)key_parse_ext(b, len, &n);
        (void)key_parse_side(b, len, &live, &n);
        free(b);
    }
}

int main(void)
{
    seed = test_seed();
    RUN(round_trips);
    RUN(order_is_that_of_the_parts);
    RUN(side_keys_of_one_key_are_neighbours);
    RUN(limits);
    RUN(arbitrary_bytes);
    return 0;
}
