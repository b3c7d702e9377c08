/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local store's own structures.
 *
 * State is three layers: the active overlay (changed by commits), the frozen overlay (being written
 * to the index by the checkpoint), the index. The newest layer that knows a key answers for it.
 *
 * Invariants
 *  O1  Everything here is changed under pool->lock only; the lock is never held over I/O, index
 *      reads or checksums of data.
 *  O2  pool->turn changes when the active overlay is frozen and when the frozen one is dropped.
 *      Overlay entries copied under the lock and index entries read afterwards belong to one state
 *      if turn is the same before and after; what the index said about a key that no overlay has
 *      holds as long as turn is the same.
 *  O3  A commit is one journal record of physical changes. It is appended before it is applied, and
 *      whatever can fail (memory, room, guards) fails before that.
 *  O4  Live entries of one array do not overlap, also those that a pending punch has made
 *      invisible. The blocks of every entry, live or in the side table, are committed in the
 *      allocator, once.
 *  O5  An entry is moved to the side table when it dies if a snapshot s with birth <= s < death
 *      exists then; else its blocks are freed.
 *  O6  With a pending punch W, a live entry in [W.lo, W.hi) born before W.epoch is dead since
 *      W.epoch.
 *  O7  Data carried by the journal is in pool->jdata from its commit until it is on its block and
 *      the device is flushed; nobody reads such a block from the device before.
 *  O8  The index is committed only after a device flush that follows the completion of every write
 *      of data it refers to; then the superblock names the checkpoint as the least one; only then
 *      may the journal overwrite what the checkpoint holds.
 *  O9  After a failed journal write or device flush the pool takes no more changes.
 */
#ifndef DFE_OBJ_INT_H
#define DFE_OBJ_INT_H

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/keep.h"
#include "base/list.h"
#include "base/log.h"
#include "base/words.h"
#include "obj/alloc.h"
#include "obj/index.h"
#include "obj/journal.h"
#include "obj/key.h"
#include "obj/obj.h"
#include "obj/obj_format.h"
#include "obj/overlay.h"
#include "obj/smap.h"
#include "obj/super.h"

#define OBJ_LIVE UINT64_MAX             /* "snapshot" of the newest state */
#define OBJ_VALUE_MAX 65600u            /* of obj_tx_put */
#define OBJ_OVERLAY_DEFAULT (64u << 20) /* checkpoint trigger; 200,000 changes are about 40 MiB */
#define OBJ_GENS 4096u                  /* change counters, objects hash onto them */
#define OBJ_JDATA_BUCKETS 4096u
#define OBJ_PUNCH_MAX 512u              /* entries removed at once; more is a continuation */
#define OBJ_PUNCH_BYTES (256u << 10)
/* Ids of continuations: epoch of the commit that starts them, and which of its own. */
#define OBJ_WORK_SHIFT 15
static_assert(2 * DFE_TX_OPS < 1u << OBJ_WORK_SHIFT, "continuations of one transaction");
#define OBJ_PAGE_KEYS 256u
#define OBJ_INDEX_ROOM (32u << 20)      /* index growth that is preallocated beyond need */

/* A container. Listed in pool->conts; under pool->lock. */
struct cont_rec {
    struct list link;
    uint32_t number;
    uint8_t uuid[16];
    int64_t created_ns;
    char label[64];
    unsigned opens;
    struct obj_snap_info *snaps; /* by epoch */
    unsigned n_snaps;
};

struct obj_cont {
    struct list link;
    struct obj_pool *pool;
    struct cont_rec *rec;
    uint32_t number;
    uint64_t snap; /* OBJ_LIVE, or the epoch it sees */
};

/* A continuation. Listed in pool->works. */
struct work {
    struct list link;
    uint64_t id, epoch;
    uint32_t cont;
    uint8_t kind;
    struct key lo, hi;
};

/* A pending punch on its way: what remains, and after a commit the last key it looked at. */
struct work_step {
    struct work work;
    struct key last;
    bool done;
};

/* One block of journal-carried data. */
struct jdata {
    struct jdata *hnext;
    struct list link; /* pool->jdata_active or jdata_frozen */
    uint64_t blk;
    uint64_t freeze; /* pool->ckpt_begun when it came: different now, it is frozen */
    unsigned refs; /* pool's own and readers' */
    uint8_t data[DFE_BLOCK_BYTES];
};

struct obj_pool {
    pthread_mutex_t tables_lock; /* above lock: one change of containers and snapshots at a time */
    pthread_mutex_t lock;
    pthread_cond_t wake_ckpt, wake_jrnl, wake_work; /* the threads */
    pthread_cond_t changed;                         /* progress that others wait for */

    char path[4096 - 512];
    int lock_fd;
    struct pool_record record;
    struct super super;
    struct queue_dev *dev;
    struct buf_arena *arena;
    struct keep *keep; /* or NULL */
    struct index *index;
    struct journal *journal;
    struct alloc *alloc;
    struct overlay *active, *frozen;
    uint64_t turn;
    uint32_t gens[OBJ_GENS];

    uint64_t epoch, durable_epoch;
    uint32_t next_cont;
    bool read_only; /* asked for, or damaged, or failed */
    bool salvage;   /* damaged: reads pass over bad index entries */
    bool failed;    /* O9 */
    char damage[256];

    struct list conts, works, handles; /* handles: open obj_conts */
    unsigned n_works;
    struct list jdata_active, jdata_frozen;
    struct jdata *jdata[OBJ_JDATA_BUCKETS];
    uint64_t n_jdata;

    struct list readers, txs; /* free ones, recycled */

    /* checkpoint */
    struct fmt_checkpoint ckpt;         /* of the index now */
    struct fmt_checkpoint ckpt_next;    /* of the frozen overlay */
    uint64_t ckpt_asked, ckpt_begun, ckpt_done; /* counts of freezes: wanted, made, finished */
    uint64_t ckpt_failures;
    int ckpt_err;      /* of the last failure; 0 since the last success */
    uint64_t ckpt_ns;  /* how long the last one took */
    uint64_t checkpoints;
    bool index_full;   /* the index cannot grow: changes that delete nothing are refused */

    /* journal thread */
    bool jrnl_dirty, jrnl_now;
    uint64_t jrnl_since_ns, jrnl_last_head;

    uint64_t overlay_limit, interval_ns;
    uint64_t checksum_errors, io_errors;
    bool stop, stop_work, threads, no_uring;
    pthread_t ckpt_thread, jrnl_thread, work_thread;
    uint64_t work_failures;
};

/* -- pool.c, recover.c ----------------------------------------------------------------------- */

/* The pool takes no more changes (O9). Under the lock. */
void pool_fail(struct obj_pool *pool, int err, const char *what);
/* Until pending deletions and a checkpoint have given back what they can. No lock. */
int space_wait(struct obj_pool *pool);
/* PATH/NAME; -ENAMETOOLONG. */
int pool_file(const char *path, const char *name, char *out, size_t cap);
/* Takes PATH/lock: -EBUSY where another process or handle has it. */
int pool_lock(const char *path, int *fd);
/* URI of the record's device; "data" is the file beside the record. */
int pool_device_uri(const char *path, const char *device, char *out, size_t cap);
int recover_open(struct obj_pool *pool);
/* Kept memory knows the checkpoint that is in the index, or about to be. */
void keep_checkpoint(struct obj_pool *pool, bool done);
/* What is wrong with the pool, for info.damage; the first wins. */
void pool_damaged(struct obj_pool *pool, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void pool_geometry(const struct super *s, struct fmt_checkpoint *c);

/* -- tables.c: what the pool keeps in memory of its own tables ------------------------------- */

/* A PUT or DEL of a pool table's key, committed or found at open. Under the lock. */
int tables_put(struct obj_pool *pool, const void *key, size_t klen, const void *val, size_t vlen);
void tables_del(struct obj_pool *pool, const void *key, size_t klen);
void tables_free(struct obj_pool *pool);
struct cont_rec *tables_cont(struct obj_pool *pool, uint32_t number);
struct cont_rec *tables_cont_label(struct obj_pool *pool, const char *label);

/* Latest epoch <= at since which a pending punch hides older entries at this key; 0: none (O6). */
uint64_t works_gone(const struct obj_pool *pool, const void *key, size_t klen, uint64_t at);
/* When an entry of this birth died by a pending punch; 0: alive. */
uint64_t works_death(const struct obj_pool *pool, const void *key, size_t klen, uint64_t birth);

/* -- jdata.c --------------------------------------------------------------------------------- */

int jdata_add(struct obj_pool *pool, uint64_t blk, const void *data);
void jdata_freed(struct obj_pool *pool, uint64_t blk, uint32_t n); /* the blocks have been freed */
struct jdata *jdata_get(struct obj_pool *pool, uint64_t blk);      /* takes a reference; or NULL */
void jdata_put(struct obj_pool *pool, struct jdata *jd);
/* Checkpoint: writes the frozen ones to their blocks (no lock held). */
int jdata_write_home(struct obj_pool *pool);
void jdata_drop_frozen(struct obj_pool *pool);
void jdata_free_all(struct obj_pool *pool);

/* -- extent.c -------------------------------------------------------------------------------- */

struct ext {
    uint64_t off, blk, birth; /* off, blk in blocks */
    uint32_t n;               /* blocks; 1 for inline */
    uint32_t bytes;           /* inline */
    uint8_t type;
    const uint8_t *body;      /* u32 LE checksums or inline bytes */
};

/* -EUCLEAN where it is not an extent's entry (live or side: the caller gives the live key). */
int ext_parse(const void *key, size_t klen, const void *val, size_t vlen, struct ext *e);
/* Encodes blocks [from, from + n) of e, which must be all of it for inline. */
size_t ext_encode(uint8_t *out, const struct ext *e, uint32_t from, uint32_t n);
/* Do the blocks lie in the device's data area? */
bool ext_in_device(const struct obj_pool *pool, const struct ext *e);

/* -- read.c: consistent pages of the three layers -------------------------------------------- */

struct page {
    struct key lo, hi;   /* [lo, hi), in one object's prefix; after: lo itself is not wanted */
    bool after;
    uint32_t limit;
    struct smap out;     /* entries found, physical (dead ones too) */
    bool more;           /* go on after `next` */
    struct key next;
    struct smap over, idx;
    bool over_more, idx_more;
};



struct gone { /* a pending punch, copied */
    struct key lo, hi;
    uint64_t epoch;
};

struct reader {
    struct list link;
    struct page page[2]; /* live, side */
    struct gone *gone;
    unsigned n_gone, cap_gone;
    struct smap scratch;
    uint64_t turn;       /* of the pages */
};

/* A key of any table, at the newest state. */
int kv_get_key(struct obj_pool *pool, const struct key *k, void *value, size_t cap, size_t *len);

struct reader *reader_get(struct obj_pool *pool);
void reader_put(struct obj_pool *pool, struct reader *r);
/* Fills the first n pages from one state, with the pending punches of it. */
int reader_fill(struct obj_pool *pool, struct reader *r, unsigned n);
/* Is an entry with this birth visible at `snap`? */
bool reader_visible(const struct reader *r, const void *key, size_t klen, uint64_t birth,
                    uint64_t snap);
uint64_t value_birth(const void *val, size_t vlen); /* vlen >= FMT_BIRTH_BYTES */
/* The first key that does not begin with k. */
void key_after_prefix(struct key *k);
/* Any visible entry in [lo, hi)? */
int read_any(struct obj_pool *pool, const struct key *lo, const struct key *hi, bool *any);

/* -- tx.c, commit.c -------------------------------------------------------------------------- */

enum tx_kind {
    TX_ABSENT, TX_EQUAL, TX_PROBE,                   /* guards */
    TX_PUT, TX_DEL, TX_ADD, TX_MAX,                  /* on KV keys */
    TX_PUNCH, /* live keys [key, value) of one object's table */
    TX_WRITE, TX_CUT,                                /* on arrays */
    TX_RAW_PUT, TX_RAW_DEL, TX_EPOCH_PUT, /* on any table; EPOCH: key ends in the epoch */
    TX_FREE,                                         /* blocks */
    TX_RESUME                                        /* a step of a pending punch */
};

struct tx_op {
    uint8_t kind;
    bool want_any;      /* TX_PROBE: the answer that holds */
    uint16_t klen;
    uint32_t koff, voff, vlen; /* in tx->buf */
    struct obj_id oid;
    union {
        int64_t delta;
        uint64_t value;
        struct { uint64_t a, b; } cut; /* blocks [a, b) */
        struct obj_stage *stage;
        struct { uint64_t blk; uint32_t n; } run;
        struct { uint32_t gen, slot; bool any; } probe;
        struct work_step *step;
    };
};

struct tx_want { /* something the index must be asked */
    uint32_t lo_off, hi_off; /* in tx->want_keys; a point has hi_len 0 */
    uint16_t lo_len, hi_len;
    uint32_t limit;
    bool filled, more;
};

struct obj_tx {
    struct list link;
    struct obj_cont *cont;   /* NULL: the pool's own */
    struct obj_pool *pool;
    uint32_t number;         /* container */
    struct obj_id home;
    struct tx_op *op;
    uint32_t n_op, cap_op;
    struct bytes buf;
    uint64_t bytes;          /* counted against DFE_TX_BYTES */
    bool deletes, reads_own, probes;

    /* computing */
    uint64_t turn;
    struct smap known;       /* what the index said; a tombstone: nothing */
    struct tx_want *want;
    uint32_t n_want, cap_want;
    struct smap asked;       /* ranges asked for, to their want */
    struct bytes want_keys;
    bool wanting;
    struct smap delta;       /* this tx's changes so far */
    struct smap found;       /* entries of a range */
    struct bytes rec;        /* the physical record */
    uint32_t n_rec;
    uint64_t epoch;          /* this commit's */
    struct cont_rec *crec;   /* NULL: gone, or the pool's own */
    struct key last;         /* the last key that tx_collect looked at */
    struct key_range *punched; /* continuations that this tx starts */
    uint32_t n_punched, cap_punched;
    bool appended;           /* the record is in the journal */
    bool tells;              /* its caller asks for the epoch */
};

struct key_range {
    struct key lo, hi;
};

int tx_begin_pool(struct obj_pool *pool, uint32_t number, struct obj_tx **out);
int tx_raw(struct obj_tx *tx, enum tx_kind kind, const struct key *key, const void *val,
           size_t len);
int tx_add_op(struct obj_tx *tx, const struct tx_op *op, const void *key, size_t klen,
              const void *val, size_t vlen, uint64_t bytes);
void tx_end(struct obj_tx *tx, bool committed);

/* tx_view.c: what a commit sees under the lock */
int tx_old(struct obj_tx *tx, const void *key, size_t klen, const void **val, size_t *vlen,
           enum overlay_state *state);
int tx_collect(struct obj_tx *tx, const struct key *lo, const struct key *hi, uint32_t limit,
               bool *more);
int tx_fill(struct obj_tx *tx);
void tx_forget(struct obj_tx *tx); /* what the index said */
/* Was the entry dead already, by a pending punch or one of this tx? */
bool tx_dead(const struct obj_tx *tx, const void *key, size_t klen, uint64_t birth);

/* tx_emit.c: the record */
int emit_put(struct obj_tx *tx, const void *key, size_t klen, const void *val, size_t vlen,
             const uint64_t *birth);
int emit_del(struct obj_tx *tx, const void *key, size_t klen);
int emit_blk(struct obj_tx *tx, uint8_t op, uint64_t blk, uint32_t n, const void *data);
/* The value leaves the live table: to the side table, or its blocks are freed (O5). */
int emit_death(struct obj_tx *tx, const void *key, size_t klen, const void *val, size_t vlen);

/* tx_array.c */
int compute_write(struct obj_tx *tx, const struct tx_op *op);
int compute_cut(struct obj_tx *tx, struct obj_id oid, uint64_t a, uint64_t b);
int compute_punch(struct obj_tx *tx, const struct key *lo, const struct key *hi);
/* [lo, hi) is dead from this commit on, and removed in the background. */
int emit_work(struct obj_tx *tx, const struct key *lo, const struct key *hi);
int compute_resume(struct obj_tx *tx, const struct tx_op *op);

int tx_commit(struct obj_tx *tx, unsigned flags, uint64_t *epoch);
/* Applies a well-formed record to overlay, allocator and tables. Under the lock. */
int rec_apply(struct obj_pool *pool, const uint8_t *rec, size_t len);

/* -- stage.c --------------------------------------------------------------------------------- */

struct stage_piece {
    uint64_t off, blk; /* blocks */
    uint32_t n;
    uint32_t crc;      /* index of its first checksum */
};

struct obj_stage {
    struct obj_pool *pool;
    struct stage_piece *piece;
    uint32_t n_piece, cap_piece;
    uint64_t settle_blk; /* taken out of what is reserved */
    uint8_t *crc;      /* u32 LE each */
    uint8_t *data;     /* JOURNAL: the blocks, in order; INLINE: the bytes */
    uint32_t inline_len;
    bool is_inline, committed;
};

int alloc_wait(struct obj_pool *pool, uint32_t want, bool reserved, uint64_t *blk, uint32_t *got);

/* -- checkpoint.c, journal thread, work.c ---------------------------------------------------- */

void checkpoint_kick(struct obj_pool *pool);             /* under the lock */
bool checkpoint_due(const struct obj_pool *pool);        /* under the lock */
int checkpoint_put(struct index_tx *tx, const struct fmt_checkpoint *c);
/* Until a checkpoint has finished: fresh, one that begins from now on. No lock. */
int checkpoint_wait(struct obj_pool *pool, bool fresh);
void *checkpoint_thread(void *arg);
int checkpoint_at_open(struct obj_pool *pool);           /* before threads run */
void *journal_thread(void *arg);
/* Something was appended. Under the lock. */
void journal_note(struct obj_pool *pool);
int journal_sync(struct obj_pool *pool, uint64_t pos, uint64_t epoch);
void *work_thread(void *arg);
int work_wait(struct obj_pool *pool, uint64_t id);       /* until it is done; 0: all */

#endif
