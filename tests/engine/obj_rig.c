/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the local store share. */
#include "obj_rig.h"

void rig_make(struct rig *r, const char *name, const char *device, unsigned size_mib)
{
    struct obj_pool_create_opts o = {.size = sizeof(o), .path = r->path, .label = "rig",
                                     .device = r->device, .size_bytes = (uint64_t)size_mib << 20};

    memset(r, 0, sizeof(*r));
    snprintf(r->path, sizeof(r->path), "%s/%s", test_dir(), name);
    snprintf(r->device, sizeof(r->device), "%s%s", device ? device : "mem:", device ? "" : name);
    CHECK_EQ(obj_pool_create(&o), 0);
    {
        struct obj_pool_open_opts p = {.size = sizeof(p), .path = r->path};
        CHECK_EQ(obj_pool_open(&p, &r->pool), 0);
    }
    CHECK_EQ(obj_cont_create(r->pool, "c"), 0);
    CHECK_EQ(obj_cont_open(r->pool, "c", NULL, &r->cont), 0);
}

int rig_try_open(struct rig *r, uint64_t overlay_bytes)
{
    struct obj_pool_open_opts o = {.size = sizeof(o), .path = r->path,
                                   .overlay_bytes = overlay_bytes};
    int rc = obj_pool_open(&o, &r->pool);

    if (rc < 0)
        return rc;
    rc = obj_cont_open(r->pool, "c", NULL, &r->cont);
    if (rc < 0) {
        obj_pool_close(r->pool);
        r->pool = NULL;
    }
    return rc;
}

void rig_open(struct rig *r, uint64_t overlay_bytes)
{
    CHECK_EQ(rig_try_open(r, overlay_bytes), 0);
}

int rig_shut(struct rig *r)
{
    int rc;

    obj_cont_close(r->cont);
    rc = obj_pool_close(r->pool);
    r->cont = NULL;
    r->pool = NULL;
    return rc;
}

void rig_reopen(struct rig *r)
{
    CHECK_EQ(rig_shut(r), 0);
    rig_open(r, 0);
}

void rig_destroy(struct rig *r)
{
    if (r->pool)
        CHECK_EQ(rig_shut(r), 0);
    CHECK_EQ(obj_pool_destroy(r->path, false), 0);
    if (strncmp(r->device, "mem:", 4) == 0)
        CHECK_EQ(queue_mem_forget(r->device + 4), 0);
}

struct obj_key rig_key(const char *dkey)
{
    return (struct obj_key){.dkey = dkey, .dkey_len = (uint16_t)strlen(dkey)};
}

struct obj_id rig_oid(uint64_t lo)
{
    return (struct obj_id){.hi = 7, .lo = lo};
}

int rig_put(struct rig *r, uint64_t oid, const char *key, const char *value)
{
    struct obj_key k = rig_key(key);
    struct obj_tx *tx;
    int rc = obj_tx_begin(r->cont, rig_oid(oid), &tx);

    if (rc < 0)
        return rc;
    CHECK_EQ(obj_tx_put(tx, OBJ_HOME, rig_oid(oid), &k, value, strlen(value)), 0);
    return obj_tx_commit(tx, 0, NULL);
}

int rig_del(struct rig *r, uint64_t oid, const char *key)
{
    struct obj_key k = rig_key(key);
    struct obj_tx *tx;
    int rc = obj_tx_begin(r->cont, rig_oid(oid), &tx);

    if (rc < 0)
        return rc;
    CHECK_EQ(obj_tx_del(tx, OBJ_HOME, rig_oid(oid), &k), 0);
    return obj_tx_commit(tx, 0, NULL);
}

const char *rig_get(struct obj_cont *cont, uint64_t oid, const char *key)
{
    static char value[70000];
    struct obj_key k = rig_key(key);
    size_t len;
    int rc = obj_kv_get(cont, rig_oid(oid), &k, value, sizeof(value) - 1, &len);

    if (rc == -ENOENT)
        return NULL;
    CHECK_EQ(rc, 0);
    CHECK(len < sizeof(value));
    value[len] = '\0';
    return value;
}

static int scan_one(const struct obj_key *key, const void *value, size_t len, void *arg)
{
    char *s = arg;
    size_t n = strlen(s);

    snprintf(s + n, 60000 - n, "%.*s=%.*s ", key->dkey_len, (const char *)key->dkey, (int)len,
             (const char *)value);
    return 0;
}

const char *rig_scan(struct obj_cont *cont, uint64_t oid)
{
    static char text[60000];

    text[0] = '\0';
    CHECK_EQ(obj_kv_scan(cont, rig_oid(oid), NULL, 0, scan_one, text), 0);
    return text;
}

void rig_fill(uint8_t *to, uint64_t blk, uint32_t tag)
{
    uint64_t x = blk * 0x9E3779B97F4A7C15ull + tag + 1;

    for (unsigned i = 0; i < RIG_BLK; i += 8)
        put_le64(to + i, x += 0x632BE59BD9B4E019ull);
}

int rig_write(struct rig *r, uint64_t oid, uint64_t blk, uint64_t n, uint32_t tag, unsigned flags)
{
    uint8_t *buf = aligned_alloc(RIG_BLK, n * RIG_BLK);
    struct obj_io io = {.off = blk * RIG_BLK, .buf = buf, .len = n * RIG_BLK};
    struct obj_stage *st;
    struct obj_tx *tx;
    int rc;

    CHECK(buf);
    for (uint64_t i = 0; i < n; i++)
        rig_fill(buf + i * RIG_BLK, blk + i, tag);
    rc = obj_array_stage(r->cont, rig_oid(oid), &io, 1, flags, &st);
    free(buf);
    if (rc < 0)
        return rc;
    rc = obj_tx_begin(r->cont, rig_oid(oid), &tx);
    if (rc < 0) {
        obj_stage_drop(st);
        return rc;
    }
    CHECK_EQ(obj_tx_write(tx, OBJ_HOME, rig_oid(oid), st), 0);
    return obj_tx_commit(tx, 0, NULL);
}

uint64_t rig_free_blocks(struct rig *r)
{
    struct obj_pool_info info;

    CHECK_EQ(obj_checkpoint(r->pool), 0);
    obj_pool_query(r->pool, &info);
    return info.free_bytes / RIG_BLK;
}

static void print_fault(const char *text, void *arg)
{
    (void)arg;
    fprintf(stderr, "fault: %s\n", text);
}

int rig_check(struct rig *r)
{
    return obj_check(r->cont, true, print_fault, NULL, NULL);
}
