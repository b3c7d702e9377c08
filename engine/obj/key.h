/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Index keys: one ordered key space for the whole pool. See FORMAT.md.
 *
 *   [table u8][container u32 BE][oid.hi u64 BE][oid.lo u64 BE] + what the table adds:
 *   KV    dkey escaped (00 -> 00 FF), terminator 00 01, akey raw
 *   EXT   offset in blocks u64 BE
 *   SKV   as KV: escaped dkey, 00 01, escaped akey, 00 01, death epoch u64 BE
 *   SEXT  offset in blocks u64 BE, death epoch u64 BE
 * and the pool's own tables, which have no object id:
 *   META  name bytes;  CONT  container u32 BE;  SNAP  container u32 BE, epoch u64 BE
 *   PROP  container u32 BE, name bytes;  SEG  segment u32 BE;  WORK  id u64 BE (continuations)
 *
 * The order of keys is the order of (container, object, dkey, akey) or of (container, object,
 * offset).
 */
#ifndef DFE_OBJ_KEY_H
#define DFE_OBJ_KEY_H

#include "base/limits.h"
#include "obj/obj.h"

enum key_table {
    KEY_META = 1,
    KEY_CONT = 2,
    KEY_SNAP = 3,
    KEY_PROP = 4,
    KEY_SEG = 5,
    KEY_WORK = 6,
    KEY_KV = 16,
    KEY_EXT = 17,
    KEY_SKV = 18,
    KEY_SEXT = 19
};

#define KEY_OBJ_BYTES 21 /* table, container, oid */

struct key {
    uint16_t len;
    uint8_t b[DFE_KEY_BYTES];
};

/* The prefix of one object in one table; len = KEY_OBJ_BYTES. */
void key_obj(struct key *k, enum key_table table, uint32_t cont, struct obj_id oid);
/* -ENAMETOOLONG where it, or its side key, does not fit (so that a snapshot can keep whatever was
 * accepted); -EINVAL for an empty dkey. */
int key_kv(struct key *k, uint32_t cont, struct obj_id oid, const struct obj_key *ok);
/* The first key after all those of this dkey (for punch and scan bounds). */
int key_kv_dkey_end(struct key *k, uint32_t cont, struct obj_id oid, const void *dkey,
                    uint16_t dkey_len);
void key_ext(struct key *k, uint32_t cont, struct obj_id oid, uint64_t off_blk);
/* The side key of a KV or EXT key that dies at `death`. Never fails for what key_kv or key_ext
 * made; -EUCLEAN for other keys. */
int key_side(struct key *k, const struct key *live, uint64_t death);
/* Pool tables; name may be NULL. */
int key_pool(struct key *k, enum key_table table, const void *name, size_t len);
void key_u32(struct key *k, enum key_table table, uint32_t v);
void key_u32_u64(struct key *k, enum key_table table, uint32_t a, uint64_t b);
void key_u64(struct key *k, enum key_table table, uint64_t v);

/* Decoding, for what comes from the index: -EUCLEAN where it is not of that form. dkey and akey are
 * unescaped into scratch (DFE_KEY_BYTES). */
int key_parse_obj(const void *k, size_t len, enum key_table *table, uint32_t *cont,
                  struct obj_id *oid);
int key_parse_kv(const void *k, size_t len, struct obj_key *out, uint8_t *scratch);
int key_parse_ext(const void *k, size_t len, uint64_t *off_blk);
/* The live key and the death epoch of a side key. */
int key_parse_side(const void *k, size_t len, struct key *live, uint64_t *death);

/* memcmp order, shorter first. */
int key_cmp(const void *a, size_t alen, const void *b, size_t blen);

#endif
