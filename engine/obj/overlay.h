/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overlay: the ordered in-memory map of changes that the index does not have yet.
 *
 * A key is present with a value, present as a tombstone (deleted), or not there (ask the next
 * layer). The active overlay is used under the pool's mutex. A frozen one never changes again and
 * may be read without it until it is destroyed. Built for 200,000 creates a second: a put costs
 * well under 0.5 us at 500,000 keys (memory from chunks freed together; keys that share an object's
 * 21-byte prefix are kept under one node, found by hash, ordered inside by the rest of the key).
 */
#ifndef DFE_OBJ_OVERLAY_H
#define DFE_OBJ_OVERLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct overlay;

enum overlay_state { OVERLAY_NONE, OVERLAY_VALUE, OVERLAY_TOMB };

int overlay_open(struct overlay **out); /* -ENOMEM */
void overlay_close(struct overlay *o);

/* Copies key and value. Replacing is in place where it fits. -ENOMEM changes nothing. */
int overlay_put(struct overlay *o, const void *key, size_t klen, const void *val, size_t vlen);
int overlay_del(struct overlay *o, const void *key, size_t klen);

/* *val points into the overlay: valid until the key is put or deleted again. */
enum overlay_state overlay_get(const struct overlay *o, const void *key, size_t klen,
                               const void **val, size_t *vlen);

/* In key order over the *whole* overlay or within one prefix. A cursor must be sought again after
 * any put or delete. */
struct overlay_cur {
    const void *key, *val; /* not aligned */
    size_t klen, vlen;
    enum overlay_state state; /* VALUE or TOMB */
    void *pos[2];             /* the walk's own */
    unsigned slot;
};
/* First key >= the given one. 1 found, 0 none. */
int overlay_seek(const struct overlay *o, const void *key, size_t klen, struct overlay_cur *cur);
int overlay_next(const struct overlay *o, struct overlay_cur *cur);

uint64_t overlay_keys(const struct overlay *o);
uint64_t overlay_bytes(const struct overlay *o); /* memory, for the checkpoint's trigger */

/* Memory that the next puts will want, made ready without the mutex: the first touch of a huge page
 * was seen to take 5 ms. Under the mutex the active overlay is asked whether it is hungry, and is
 * given what was then made without it (NULL: nothing; ordinary pages will do). Another one may have
 * become the active one meanwhile, which takes a spare as well. One thread does all this. */
bool overlay_hungry(const struct overlay *o);
void *overlay_spare_make(void);
void overlay_spare_give(struct overlay *o, void *spare);

/* Called before an overlay is walked as a whole: makes the order over objects, so that puts need
 * not keep it (about 0.5 us an object; free when nothing has changed). Without it, a walk ends with
 * its object. On a frozen overlay the checkpoint thread calls it without the mutex while others
 * read; the active one may be sorted too, under the mutex, and stays sorted until a new object
 * appears. Walks within one object's prefix (a pool table: its first byte) never need it. -ENOMEM.
 */
int overlay_sort(struct overlay *o);

#endif
