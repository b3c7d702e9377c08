/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the cache: what its files share.
 *
 * One mutex (cache.lock) guards every structure here; it is never held across I/O, copies of user
 * data or calls of the owner. Above it each file has an operation lock (op_*, a shared/exclusive
 * lock made of a counter): reads share it, changes of the data and a publication's cut exclude.
 *
 * Invariants
 *  1. A block is valid in at most one slot. Slots may overlap, even coincide; validity decides.
 *  2. A block that is not valid reads as zeros where it was punched since the last publication
 *     (pending, flying) or lies past dev_end; else the store holds it, unchanged until somebody
 *     changes the file, which grows cut.version. So a load that saw one version from start to end
 *     is right, whatever was published meanwhile.
 *  3. Bytes of the last block past the file's size are zeros.
 *  4. A block under write-back (wb) or in a slot on loan is not modified: its writer puts
 *     the new block into another slot, a fresh one of 64 KiB at most. The blocks around it stay
 *     where they are: they are not on the device yet.
 *  5. dirty is part of valid. Each dirty block, and each block of the flight, has 4 KiB reserved.
 *  6. A file has one publication at a time; what it carries is the file at one moment.
 */
#ifndef DFE_CACHE_CACHE_INT_H
#define DFE_CACHE_CACHE_INT_H

#include <pthread.h>

#include "base/limits.h"
#include "base/list.h"
#include "cache/bits.h"
#include "cache/cache.h"

#define BLOCK DFE_BLOCK_BYTES
#define SLOT_ORDER_MAX 8u /* log2 of blocks: 1 MiB */
#define COW_ORDER 4u      /* 64 KiB */

/* A publication is one transaction of at most DFE_TX_BYTES of records. A file whose next one needs
 * this much is published now (KICK) or by its next writer (BOUND). Each run may split an extent of
 * 1 MiB: its checksums are then written again, and once more where a snapshot keeps it. */
#define TX_COST_KICK (1u << 20)
#define TX_COST_BOUND (5u << 19)
#define TX_RUN_COST 1536u
#define TX_BLOCK_COST 4u /* a checksum */
#define PUNCHES_MAX 256u /* and no more of these */

struct slot {
    struct slot *hash_next;
    struct list file_link;   /* cache_file.slots */
    struct list dirty_link;  /* cache_file.dirty_slots while any block is dirty */
    struct list lru;         /* cache.lru while evictable: clean and not pinned */
    struct list neighbours;  /* cache.extents */
    struct cache *cache;
    struct cache_file *file; /* NULL: out of the index, lives until its last pin goes */
    uint64_t first;          /* block of the file, aligned to the slot's length */
    uint8_t *data;
    uint32_t pins;           /* whoever needs the memory */
    uint32_t loans;          /* those among the pins that need the bytes unchanged */
    uint16_t dirty_runs;
    uint8_t order;
    uint32_t line;           /* of the lease table; 0: none */
    struct bits valid, dirty, wb, loading;
};

struct range {
    uint64_t from, to; /* blocks; to UINT64_MAX: to the end */
};

struct ranges {
    uint32_t n, cap;
    struct range r[];
};

struct cache_file {
    struct list hash_link;
    struct list flush_link; /* cache.dirty_files while changed */
    struct list ra_link;    /* cache.ra_files while read-ahead is wanted */
    struct list slots, dirty_slots;
    struct cache *cache;
    struct obj_cont *cont;
    struct obj_id oid;
    const struct cache_owner_ops *ops;
    void *owner;
    struct cache_cut cut;
    uint64_t dev_end; /* block: nothing published lies at or past it */
    struct ranges *pending; /* punched since the last cut */
    struct ranges *flying;  /* in the publication under way, or in the last one, which failed */
    uint64_t since_ns;    /* monotonic: oldest unpublished change */
    uint64_t retry_ns;    /* monotonic: not before, after a failure */
    uint64_t used_bytes;  /* published, where used_known */
    uint32_t dirty_blocks, dirty_runs;
    uint32_t refs, busy;  /* the owner's; ours */
    int32_t op;           /* operation lock: n shared holders, -1 exclusive */
    uint16_t excl_waiting, shared_waiting; /* for it */
    uint64_t ra_last, ra_next; /* bytes: where the last read began and ended */
    uint64_t ra_from, ra_to;   /* blocks: wanted from read-ahead, asked so far */
    uint64_t wr_next;     /* byte after the last write */
    int64_t kept_first, kept_last; /* of the chain of kept changes; 0: none */
    uint64_t base_version; /* of the last publication */
    uint32_t cont_number; /* where changes are kept */
    uint32_t ra_window;   /* bytes */
    int error;            /* of the last publication */
    uint32_t domain;      /* its slots are read by; 0: nobody */
    uint32_t record;      /* of the record table; 0: none */
    uint16_t orders;      /* slot orders that may be there */
    uint8_t retries;
    bool op_turn;         /* those in shared_waiting go before those in excl_waiting */
    bool changed;         /* since the last cut */
    bool publishing;
    bool unsynced;        /* published, perhaps not durable */
    bool used_known;
    bool gone;            /* discarded: out of the table */
};

_Static_assert(sizeof(struct cache_file) <= 352, "what a cached file costs");

#define CACHE_CVS 32u

struct cache {
    struct obj_pool *pool;
    struct buf_arena *arena;
    struct keep *keep; /* or NULL */
    pthread_mutex_t lock;
    pthread_cond_t file_cv[CACHE_CVS]; /* a file's op lock, loads, publication; by address */
    pthread_cond_t flush_cv, ra_cv;    /* threads wait for work */
    pthread_cond_t room_cv;            /* dirty bytes or memory were given back */
    struct list *files;
    uint32_t files_mask;
    struct slot **slots;
    uint32_t slots_mask, n_slots;
    struct list lru, dirty_files, ra_files;
    uint64_t slots_bytes, slots_bound;
    uint64_t dirty_blocks; /* dirty and flying */
    uint64_t dirty_bound;  /* bytes */
    uint64_t interval_ns;
    uint64_t flush_at_ns;  /* monotonic: a sleeping flush thread looks again then; 0: none does */
    uint64_t drain_bps;    /* bytes a second that publications reached lately */
    uint32_t readahead_max;
    uint32_t want_room;    /* threads waiting for memory */
    struct windows *windows; /* NULL: none */
    struct list *extents;    /* with windows: the slots of each of the arena's extents */
    bool stop, failing;    /* failing: the last publication failed */
    int64_t held, leaving; /* cache_doomed */
    uint64_t held_until_ns; /* monotonic */
    uint64_t doomed_turn;  /* grows when one of these goes on */
    uint32_t n_threads;
    pthread_t *threads;
    struct cache_info info;
};

static inline uint64_t slot_blocks(const struct slot *s)
{
    return 1ull << s->order;
}

static inline size_t slot_bytes(const struct slot *s)
{
    return (size_t)BLOCK << s->order;
}

static inline uint64_t blocks_up(uint64_t bytes)
{
    return (bytes + BLOCK - 1) / BLOCK;
}

/* Functions below are called with cache.lock held unless they say otherwise. */

/* -- file.c */
pthread_cond_t *file_cv(struct cache_file *file);
void file_wake(struct cache_file *file);
/* 0, or -EINPROGRESS with nowait. May drop the lock while it waits. */
int file_lock_shared(struct cache_file *file, bool nowait);
int file_lock_excl(struct cache_file *file, bool nowait);
void file_unlock(struct cache_file *file);
void file_reap(struct cache_file *file); /* frees it when nothing holds it */
void file_hold(struct cache_file *file); /* it stays while we work on it */
void file_release(struct cache_file *file);
void file_changed(struct cache_file *file, int64_t now_ns); /* the data did */
void file_set_mtime(struct cache_file *file, int64_t mtime_ns);
void file_drop_dirty(struct cache_file *file);
bool file_is_dirty(const struct cache_file *file);
uint64_t file_tx_cost(const struct cache_file *file);
/* Known to be zeros without asking the store (invariant 2); the block is not valid. */
bool file_known_zero(const struct cache_file *file, uint64_t block);

/* -- ranges.c */
bool ranges_has(const struct ranges *r, uint64_t block);
/* First block >= block that lies in a range; UINT64_MAX: none. */
uint64_t ranges_next(const struct ranges *r, uint64_t block);
/* First block >= block that lies in none. */
uint64_t ranges_end(const struct ranges *r, uint64_t block);
/* Adds [from, to). *r may be NULL. */
int ranges_add(struct ranges **r, uint64_t from, uint64_t to);
/* Room for more: so that a later ranges_add cannot fail. */
int ranges_room(struct ranges **r, uint32_t more);
/* Moves all of *from, or on -ENOMEM nothing. */
int ranges_merge(struct ranges **into, struct ranges **from);

/* -- slot.c */
/* Without the lock. Evicts to make room; a smaller one down to min_order; NULL: none to be had.
 * The slot has one pin and is in no index; its memory is of the file's domain. */
struct slot *slot_alloc(const struct cache_file *file, unsigned order, unsigned min_order);
/* Into the index of file, at the aligned run that holds block. */
void slot_attach(struct slot *s, struct cache_file *file, uint64_t block);
void slot_detach(struct slot *s);
void slot_pin(struct slot *s);
void slot_unpin(struct slot *s); /* may free it */
enum slot_want { SLOT_VALID, SLOT_LOADING, SLOT_WRITABLE };
struct slot *slot_find(const struct cache_file *file, uint64_t block, enum slot_want want);
/* Bits i .. i + n of the slot become dirty (and valid), or invalid (and clean). */
void slot_dirty(struct slot *s, unsigned i, unsigned n);
void slot_invalidate(struct slot *s, unsigned i, unsigned n);
/* Takes all dirty blocks of the slot under write-back; their number. */
unsigned slot_take_dirty(struct slot *s);
/* The file's blocks [from, to) are in no slot any more. */
void slot_drop_range(struct cache_file *file, uint64_t from, uint64_t to);
void slot_drop_clean(struct cache *cache, struct cache_file *file);
/* Waits for memory or dirty room, with no file locked. -ENOMEM after a while without any. */
int slot_wait_room(struct cache *cache, unsigned *tries);

/* -- load.c */
/* Loads what is missing of blocks [from, to) (a few slots of that order at most) into fresh slots;
 * drops the lock meanwhile. held (room for LOAD_SLOTS) gets them pinned, *n_held how many.
 * -ENOBUFS: no memory. */
#define LOAD_SLOTS 4u
int load_run(struct cache_file *file, uint64_t from, uint64_t to, unsigned order,
             struct slot **held, unsigned *n_held);
/* Makes one block valid or known to be zeros; *held (pinned, or NULL) keeps it so.
 * -EINPROGRESS with nowait. */
int load_block(struct cache_file *file, uint64_t block, bool nowait, struct slot **held);

/* -- read.c */
/* A valid slot for the block, with one pin; zeros get memory too. The file is locked shared. May
 * drop the lock. -EINPROGRESS with nowait; -ENOBUFS: no memory. */
int pin_slot(struct cache_file *file, uint64_t block, unsigned order, bool nowait,
             struct slot **out);

/* -- lease.c: what readers in other processes check. For a slot with a line, a file with a record;
 * others have nobody to tell. */
void lease_open_line(struct slot *s);  /* its bytes are about to change */
void lease_close_line(struct slot *s); /* they have changed */
void lease_end_line(struct slot *s);   /* blocks of it are not valid any more */
void lease_drop_line(struct slot *s);  /* it goes */
void lease_show_record(struct cache_file *file); /* the cut has changed */
void lease_drop_record(struct cache_file *file); /* it goes, or somebody may change it unseen */
uint32_t lease_domain(const struct cache *cache, const struct obj_cont *cont);
int windows_open(struct cache *cache, uint32_t length); /* 0: the default */
void windows_close(struct cache *cache);

/* -- readahead.c */
void readahead_note(struct cache_file *file, uint64_t off, size_t len);
unsigned readahead_order(const struct cache_file *file, size_t len);
void *readahead_main(void *cache);

/* -- flush.c */
void *flush_main(void *cache);
void flush_kick(struct cache *cache);
/* Publishes the file; no lock held. */
int flush_file(struct cache_file *file, bool sync);

/* -- keep_log.c: what is accepted is kept until it has been published; without cache.keep nothing
 * happens. The file is locked exclusively from begin to done. */
struct kept_change;
#define KEPT_FULL (-EXFULL) /* inside the cache only */
int kept_begin(struct kept_change *k, struct cache_file *file, uint32_t kind, uint64_t off,
               uint64_t len, int64_t mtime_ns);
/* Without the lock. */
void kept_copy(const struct kept_change *k, struct cache_file *file, const void *src, size_t len);
void kept_done(struct kept_change *k, struct cache_file *file);
void kept_cancel(struct kept_change *k, struct cache_file *file);
/* After KEPT_FULL, with no file locked: 0 when it is worth another attempt, or -EIO. */
int kept_wait(struct cache *cache, uint64_t *since_ns);
bool kept_pressed(const struct cache *cache);
/* A publication has been committed; upto: kept_last at its cut. Drops the lock for a moment. */
void kept_published(struct cache_file *file, int64_t upto);
void kept_discarded(struct cache_file *file);

/* -- throttle.c */
/* Before a write of len bytes, no lock held. */
int throttle_write(struct cache_file *file, size_t len, bool nowait);

/* -- doomed.c */
struct doomed_wait {
    uint64_t turn;     /* cache.doomed_turn before the attempt that found no space */
    uint64_t since_ns; /* monotonic: of the first wait; 0: none yet */
};
/* After an attempt that found no space, with no file locked: true when it is worth another one. */
bool doomed_wait(struct cache *cache, struct doomed_wait *w);

/* -- plan.c: a change of some bytes, prepared so that nothing can fail any more */
#define PLAN_BLOCKS 257u /* 1 MiB at any offset */

struct piece {
    struct slot *slot; /* pinned; where the blocks go */
    struct slot *old;  /* pinned; has the blocks now, but is frozen (invariant 4); or NULL */
    uint64_t first;    /* block */
    uint32_t n;        /* blocks */
    bool fresh;        /* slot is not in the index yet */
    bool has_first, has_last; /* the edge blocks hold bytes to keep */
};

struct plan {
    struct cache_file *file;
    uint64_t off;
    size_t len;
    const uint8_t *src; /* NULL: zeros */
    uint64_t reserved;  /* blocks */
    struct slot *edge[2]; /* pinned */
    unsigned n;
    struct piece piece[PLAN_BLOCKS];
};

/* The file is locked exclusively. -ENOBUFS: no memory now; -EINPROGRESS with nowait. */
int plan_make(struct plan *p, struct cache_file *file, uint64_t off, size_t len, const void *src,
              bool nowait);
void plan_open(const struct plan *p); /* copy comes next: whoever holds leases is told */
void plan_copy(const struct plan *p); /* without the lock */
void plan_finish(struct plan *p);
void plan_cancel(struct plan *p);

#endif
