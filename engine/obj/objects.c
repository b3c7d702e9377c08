/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of a container's objects.
 *
 * The active overlay is not ordered over objects, the index is: a checkpoint brings what exists now
 * into it. Objects that come later may be missed, as a walk may; each object found is then looked
 * at as it is.
 */
#include "obj/obj_int.h"

/* First object at or after *oid that has an entry in the table. -ENOENT: none. */
static int next_in_table(struct obj_cont *cont, struct reader *r, enum key_table table,
                         struct obj_id from, struct obj_id *oid)
{
    struct page *pg = &r->page[0];
    enum key_table found;
    uint32_t number;
    int rc;

    key_obj(&pg->lo, table, cont->number, from);
    key_u32(&pg->hi, table, cont->number);
    key_after_prefix(&pg->hi);
    pg->after = false;
    pg->limit = 4;
    for (;;) {
        rc = reader_fill(cont->pool, r, 1);
        if (rc < 0)
            return rc;
        if (pg->out.n > 0)
            return key_parse_obj(smap_key(&pg->out, 0), pg->out.e[0].klen, &found, &number, oid);
        if (!pg->more)
            return -ENOENT;
        pg->lo = pg->next;
        pg->after = true;
        pg->limit = OBJ_PAGE_KEYS;
    }
}

static bool before(struct obj_id a, struct obj_id b)
{
    return a.hi != b.hi ? a.hi < b.hi : a.lo < b.lo;
}

static int one_key(const struct obj_key *key, const void *value, size_t len, void *arg)
{
    *(bool *)arg = true;
    return 0;
}

static int has_anything(struct obj_cont *cont, struct obj_id oid, bool *any)
{
    uint64_t at;
    int rc;

    *any = false;
    rc = obj_kv_scan(cont, oid, NULL, 1, one_key, any);
    if (rc < 0 || *any)
        return rc;
    rc = obj_array_next(cont, oid, 0, OBJ_DATA, &at);
    *any = rc == 0;
    return rc == -ENXIO ? 0 : rc;
}

int obj_scan_objects(struct obj_cont *cont, const struct obj_id *from,
                     int (*fn)(struct obj_id oid, void *arg), void *arg)
{
    static const enum key_table tables[] = {KEY_KV, KEY_EXT, KEY_SKV, KEY_SEXT};
    unsigned n = cont->snap == OBJ_LIVE ? 2 : 4;
    struct obj_id at = from ? *from : (struct obj_id){0, 0}, oid = at, best = at;
    struct reader *r;
    int rc = cont->pool->threads ? checkpoint_wait(cont->pool, true) : 0;

    if (rc < 0)
        return rc;
    r = reader_get(cont->pool);
    if (!r)
        return -ENOMEM;
    for (;;) {
        bool found = false, any;
        for (unsigned i = 0; rc == 0 && i < n; i++) {
            rc = next_in_table(cont, r, tables[i], at, &oid);
            if (rc == 0 && (!found || before(oid, best)))
                best = oid;
            found = found || rc == 0;
            rc = rc == -ENOENT ? 0 : rc;
        }
        if (rc < 0 || !found)
            break;
        rc = has_anything(cont, best, &any);
        if (rc == 0 && any)
            rc = fn(best, arg);
        if (rc != 0 || (best.hi == UINT64_MAX && best.lo == UINT64_MAX))
            break;
        at = best;
        at.lo++;
        at.hi += at.lo == 0;
    }
    reader_put(cont->pool, r);
    return rc;
}
