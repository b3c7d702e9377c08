/* SPDX-License-Identifier: Apache-2.0 */
/* Overlay against a sorted array, walks within and across objects, and its speed. */
#include "base/clock.h"
#include "base/words.h"
#include "obj/key.h"
#include "obj/overlay.h"
#include "test.h"

static uint64_t seed;

/* -- the reference: a sorted array ------------------------------------------------------------- */

struct ref {
    struct key k;
    enum overlay_state state;
    size_t vlen;
    uint8_t val[80];
};

#define REF_MAX 4000
static struct ref *refs[REF_MAX];
static unsigned n_refs;

static unsigned ref_find(const struct key *k, int *equal)
{
    unsigned lo = 0, hi = n_refs;

    *equal = 0;
    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;
        int c = key_cmp(refs[mid]->k.b, refs[mid]->k.len, k->b, k->len);
        if (c < 0) {
            lo = mid + 1;
        } else {
            *equal |= c == 0;
            hi = mid;
        }
    }
    return lo;
}

static struct ref *ref_make(const struct key *k)
{
    int equal;
    unsigned at = ref_find(k, &equal);

    if (!equal) {
        CHECK(n_refs < REF_MAX);
        memmove(refs + at + 1, refs + at, (n_refs - at) * sizeof(refs[0]));
        refs[at] = calloc(1, sizeof(struct ref));
        CHECK(refs[at]);
        refs[at]->k = *k;
        n_refs++;
    }
    return refs[at];
}

static void refs_clear(void)
{
    while (n_refs)
        free(refs[--n_refs]);
}

/* Few objects, few different bytes after the prefix, all lengths: ties are frequent. */
static void random_key(struct key *k)
{
    static const uint8_t some[] = {0, 0, 1, 0xff, 'x'};
    struct obj_id oid = {test_rand(&seed) % 3, test_rand(&seed) % 4};
    unsigned extra = (unsigned)(test_rand(&seed) % 14);

    switch (test_rand(&seed) % 8) {
    case 0:
        key_u32(k, KEY_SEG, (uint32_t)(test_rand(&seed) % 50));
        return;
    case 1:
        key_pool(k, KEY_META, "name", test_rand(&seed) % 5);
        return;
    case 2:
        key_ext(k, 1, oid, test_rand(&seed) % 300);
        return;
    default:
        key_obj(k, KEY_KV, (uint32_t)(test_rand(&seed) % 2), oid);
        for (unsigned i = 0; i < extra; i++)
            k->b[k->len++] = some[test_rand(&seed) % sizeof(some)];
    }
}

static void cur_equals(const struct overlay_cur *cur, const struct ref *r)
{
    CHECK_EQ(key_cmp(cur->key, cur->klen, r->k.b, r->k.len), 0);
    CHECK_EQ(cur->state, r->state);
    if (r->state == OVERLAY_VALUE) {
        CHECK_EQ(cur->vlen, r->vlen);
        CHECK_EQ(memcmp(cur->val, r->val, r->vlen), 0);
    }
}

static unsigned prefix_of(const struct key *k)
{
    return k->b[0] < KEY_KV ? 1 : KEY_OBJ_BYTES;
}

/* Within the key's own prefix, sorted or not. */
static void check_seek(const struct overlay *o, const struct key *k)
{
    unsigned plen = prefix_of(k);
    struct overlay_cur cur;
    int equal, found = overlay_seek(o, k->b, k->len, &cur);
    unsigned at = ref_find(k, &equal);

    for (int steps = 0; steps < 40; steps++, at++) {
        if (at == n_refs || memcmp(refs[at]->k.b, k->b, plen) != 0) {
            CHECK(!found || memcmp(cur.key, k->b, plen) != 0);
            return;
        }
        CHECK_EQ(found, 1);
        cur_equals(&cur, refs[at]);
        found = overlay_next(o, &cur);
    }
}

static void check_get(const struct overlay *o, const struct key *k)
{
    const void *val = NULL;
    size_t vlen = 0;
    int equal;
    unsigned at = ref_find(k, &equal);
    enum overlay_state state = overlay_get(o, k->b, k->len, &val, &vlen);

    CHECK_EQ(state, equal ? refs[at]->state : OVERLAY_NONE);
    if (state == OVERLAY_VALUE) {
        CHECK_EQ(vlen, refs[at]->vlen);
        CHECK_EQ(memcmp(val, refs[at]->val, vlen), 0);
    }
}

static void check_whole(struct overlay *o)
{
    struct overlay_cur cur;
    struct key from;
    int equal, found;
    unsigned at = 0;

    CHECK_EQ(overlay_sort(o), 0);
    CHECK_EQ(overlay_keys(o), n_refs);
    for (found = overlay_seek(o, "", 0, &cur); found; found = overlay_next(o, &cur))
        cur_equals(&cur, refs[at++]);
    CHECK_EQ(at, n_refs);
    for (int i = 0; i < 300; i++) {
        random_key(&from);
        if (i % 3 == 0)
            from.len = (uint16_t)(test_rand(&seed) % (from.len + 1u));
        at = ref_find(&from, &equal);
        found = overlay_seek(o, from.b, from.len, &cur);
        CHECK_EQ(found, at < n_refs);
        if (found)
            cur_equals(&cur, refs[at]);
    }
}

static void random_against_reference(void)
{
    for (int round = 0; round < 12; round++) {
        unsigned steps = round < 6 ? 300u << round : 9000;
        struct overlay *o;
        struct key k;

        CHECK_EQ(overlay_open(&o), 0);
        for (unsigned i = 0; i < steps && n_refs < REF_MAX; i++) {
            random_key(&k);
            struct ref *r = ref_make(&k);
            if (test_rand(&seed) % 4 == 0) {
                r->state = OVERLAY_TOMB;
                CHECK_EQ(overlay_del(o, k.b, k.len), 0);
            } else {
                r->state = OVERLAY_VALUE;
                r->vlen = test_rand(&seed) % sizeof(r->val);
                memset(r->val, (int)test_rand(&seed), r->vlen);
                CHECK_EQ(overlay_put(o, k.b, k.len, r->val, r->vlen), 0);
            }
            random_key(&k);
            check_get(o, &k);
            check_seek(o, &k);
            if (i % 1000 == 0)
                check_whole(o);
        }
        check_whole(o);
        overlay_close(o);
        refs_clear();
    }
}

/* Trees of several levels, in every order of arrival. */
static void deep_trees(void)
{
    enum { N = 30000 };
    static uint32_t order[N];

    for (int way = 0; way < 4; way++) {
        struct overlay_cur cur;
        struct overlay *o;
        struct key k;
        uint32_t want = 0;

        for (uint32_t i = 0; i < N; i++)
            order[i] = way == 1 ? N - 1 - i : way == 2 ? i ^ 1 : i;
        for (uint32_t i = N - 1; way == 3 && i > 0; i--) {
            uint32_t j = (uint32_t)(test_rand(&seed) % (i + 1)), t = order[i];
            order[i] = order[j];
            order[j] = t;
        }
        CHECK_EQ(overlay_open(&o), 0);
        for (uint32_t i = 0; i < N; i++) {
            key_u32(&k, KEY_SEG, order[i] * 2);
            CHECK_EQ(overlay_put(o, k.b, k.len, &order[i], 4), 0);
        }
        for (uint32_t i = 0; i < N; i++) {
            const void *val;
            size_t len;
            key_u32(&k, KEY_SEG, i * 2);
            CHECK_EQ(overlay_get(o, k.b, k.len, &val, &len), OVERLAY_VALUE);
            CHECK_EQ(memcmp(val, &i, 4), 0);
            key_u32(&k, KEY_SEG, i * 2 - 1u);
            CHECK_EQ(overlay_get(o, k.b, k.len, &val, &len), OVERLAY_NONE);
            CHECK_EQ(overlay_seek(o, k.b, k.len, &cur), i > 0);
            if (i > 0)
                CHECK_EQ(memcmp(cur.val, &i, 4), 0);
        }
        key_u32(&k, KEY_SEG, 0);
        for (int more = overlay_seek(o, k.b, k.len, &cur); more; more = overlay_next(o, &cur))
            CHECK_EQ(get_be32((const uint8_t *)cur.key + 1), 2 * want++);
        CHECK_EQ(want, N);
        overlay_close(o);
    }
}

static void large_values_and_growth(void)
{
    static uint8_t val[65600];
    const void *got;
    struct overlay *o;
    struct key k;
    size_t len;

    CHECK_EQ(overlay_open(&o), 0);
    key_u32(&k, KEY_SEG, 1);
    for (size_t n = 0; n <= sizeof(val); n += 800) {
        memset(val, (int)(n / 800), n);
        CHECK_EQ(overlay_put(o, k.b, k.len, val, n), 0);
        CHECK_EQ(overlay_get(o, k.b, k.len, &got, &len), OVERLAY_VALUE);
        CHECK_EQ(len, n);
        CHECK_EQ(memcmp(got, val, n), 0);
    }
    CHECK(overlay_bytes(o) < 10 * sizeof(val));
    /* The value may come out of the overlay itself. */
    CHECK_EQ(overlay_put(o, k.b, k.len, got, len - 1), 0);
    CHECK_EQ(overlay_get(o, k.b, k.len, &got, &len), OVERLAY_VALUE);
    CHECK_EQ(memcmp(got, val, len), 0);
    CHECK_EQ(overlay_put(o, k.b, DFE_KEY_BYTES + 1, val, 1), -EINVAL);
    overlay_close(o);
}

/* -- speed: reported, and asserted only by an order of magnitude ------------------------------- */

#define MANY 500000u

/* As a directory's entries: a byte, a hash, a name. Made from i, so that the measurement does not
 * wait for keys that are not in the processor's cache. */
static void make_key(struct key *k, uint64_t i, unsigned objects)
{
    struct obj_id oid = {1, i % objects};

    key_obj(k, KEY_KV, 1, oid);
    memset(k->b + k->len, 'n', 26);
    put_be64(k->b + k->len + 1, i * 0x9E3779B97F4A7C15ull);
    k->len += 26;
}

static void measure(const char *what, unsigned objects)
{
    uint8_t val[100] = {1};
    struct overlay *o;
    struct overlay_cur cur;
    struct key k;
    uint64_t t, put, get, sort, walk, found = 0;

    CHECK_EQ(overlay_open(&o), 0);
    t = base_mono_ns();
    for (uint64_t i = 0; i < MANY; i++) {
        make_key(&k, i, objects);
        CHECK_EQ(overlay_put(o, k.b, k.len, val, sizeof(val)), 0);
    }
    put = base_mono_ns() - t;
    t = base_mono_ns();
    for (uint64_t i = 0; i < MANY; i++) {
        const void *v;
        size_t n;
        make_key(&k, i * 7919 % MANY, objects);
        found += overlay_get(o, k.b, k.len, &v, &n) == OVERLAY_VALUE;
    }
    get = base_mono_ns() - t;
    CHECK_EQ(found, MANY);
    t = base_mono_ns();
    CHECK_EQ(overlay_sort(o), 0);
    sort = base_mono_ns() - t;
    t = base_mono_ns();
    found = 0;
    for (int more = overlay_seek(o, "", 0, &cur); more; more = overlay_next(o, &cur))
        found++;
    walk = base_mono_ns() - t;
    CHECK_EQ(found, overlay_keys(o));
    fprintf(stderr,
            "%s: put %.3f us, get %.3f us, sort %.1f ms, walk %.3f us a key, %.0f bytes a key\n",
            what, (double)put / MANY / 1e3, (double)get / MANY / 1e3, (double)sort / 1e6,
            (double)walk / MANY / 1e3, (double)overlay_bytes(o) / MANY);
    CHECK(put / MANY < 10000 && get / MANY < 10000);
    overlay_close(o);
}

static void speed(void)
{
    measure("500,000 keys in 10 objects", 10);
    measure("500,000 objects of one key", MANY);
}

int main(void)
{
    seed = test_seed();
    RUN(random_against_reference);
    RUN(deep_trees);
    RUN(large_values_and_growth);
    RUN(speed);
    return 0;
}
