/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a pool: lock, record, device, superblock, index, journal.
 *
 * Damage that leaves something readable opens the pool read-only and says so (pool_damaged). Every
 * commit raised the epoch by one, so replay accepts nothing but the next epoch. Data that a record
 * refers to and that nobody attests as flushed is read and compared with its checksums; the first
 * record that does not match ends the log there: it and what follows were never acknowledged as
 * durable.
 *
 * After a killed process, what its journal lacks is in the kept log, where each commit was before
 * anybody was told of it and stays until the journal's write has completed. So the log continues
 * what the journal says, with an overlap: epochs at or below the journal's are passed over, the
 * next ones are applied as if the journal had held them, and a gap is damage. Their data is where
 * it belongs: its writes had completed before the commit. All of it becomes durable with the
 * checkpoint that settles an opening, and the log is emptied only after that; killed before, the
 * next opening finds the same again. Epochs are numbers that anybody can give: notes in kept memory
 * tell whether the pool is as its own workers left it. Where another program got at it in between
 * and changed something, what was kept continues nothing, and the opening fails rather than mix.
 */
#include "obj/obj_int.h"

#include "base/crc32c.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

/* A killed process holds its locks until its last requests have come back from the device. */
#define LOCK_WAIT_US 20000u
#define LOCK_WAITS 250u
#define DEVICE_TRIES 2u

int pool_file(const char *path, const char *name, char *out, size_t cap)
{
    int n = snprintf(out, cap, "%s/%s", path, name);

    return n < 0 || (size_t)n >= cap ? base_refuse(-ENAMETOOLONG, "path too long: %s", path) : 0;
}

int pool_lock(const char *path, int *fd)
{
    char name[4096];
    int rc = pool_file(path, "lock", name, sizeof(name));

    if (rc < 0)
        return rc;
    *fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*fd < 0 && (errno == EROFS || errno == EACCES)) /* read-only media: a shared lock will do */
        *fd = open(name, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return base_refuse(-errno, "cannot open %s: %s", name, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) < 0) {
        rc = errno == EWOULDBLOCK ? -EBUSY : -errno;
        close(*fd);
        *fd = -1;
        return base_refuse(rc, "pool %s is open elsewhere", path);
    }
    return 0;
}

int pool_device_uri(const char *path, const char *device, char *out, size_t cap)
{
    char file[4096];
    int rc, n;

    if (strcmp(device, "data") != 0) {
        n = snprintf(out, cap, "%s", device);
    } else {
        rc = pool_file(path, "data", file, sizeof(file));
        if (rc < 0)
            return rc;
        n = snprintf(out, cap, "file:%s", file);
    }
    return n < 0 || (size_t)n >= cap ? -ENAMETOOLONG : 0;
}

/* -- device and superblock ------------------------------------------------------------------- */

static int open_device(struct obj_pool *pool)
{
    struct queue_dev_opts o = {.size = sizeof(o), .read_only = pool->read_only,
                               .no_uring = pool->no_uring, .arena = pool->arena};
    char uri[4200];
    int rc = pool_device_uri(pool->path, pool->record.device, uri, sizeof(uri));

    if (rc == 0)
        rc = queue_dev_open(uri, &o, &pool->dev); /* waits a little for who is leaving */
    for (unsigned i = 0; rc == -EBUSY && pool->keep && i < DEVICE_TRIES; i++)
        rc = queue_dev_open(uri, &o, &pool->dev);
    if (rc == -EBUSY)
        return base_refuse(rc, "the device %s of pool %s is in use elsewhere", uri,
                           pool->record.label);
    if (rc < 0)
        return base_refuse(rc, "cannot open the device %s of pool %s: %s", uri, pool->record.label,
                           strerror(-rc));
    return 0;
}

/* *gone: both superblocks are damaged, the index has a copy of the geometry. */
static int open_super(struct obj_pool *pool, bool *gone)
{
    char mine[37], theirs[37];
    bool one_damaged = false;
    int rc = super_read(pool->dev, &pool->super, &one_damaged);

    *gone = rc == -EUCLEAN;
    if (*gone) {
        pool_damaged(pool, "both superblocks of %s are damaged", pool->record.device);
        return 0;
    }
    if (rc == -ENODATA)
        return base_refuse(-EMEDIUMTYPE, "the device %s holds no pool; pool %s belongs to another",
                           pool->record.device, pool->record.label);
    if (rc < 0)
        return rc;
    if (memcmp(pool->super.uuid, pool->record.uuid, 16) != 0) {
        uuid_text(pool->record.uuid, mine);
        uuid_text(pool->super.uuid, theirs);
        return base_refuse(-EMEDIUMTYPE, "the device %s belongs to pool %s, not to this one (%s)",
                           pool->record.device, theirs, mine);
    }
    if (one_damaged)
        base_log(BASE_LOG_WARN, "pool %s: one superblock was damaged%s", pool->record.label,
                 pool->read_only ? "" : "; repaired from the other");
    if (one_damaged && !pool->read_only)
        rc = super_write(pool->dev, &pool->super);
    return rc;
}

static int check_size(struct obj_pool *pool)
{
    struct queue_dev_info info;

    queue_dev_info(pool->dev, &info);
    if (info.size_bytes < pool->super.size_blk << DFE_BLOCK_SHIFT)
        return base_fail(-EUCLEAN, "the device %s of pool %s has %llu bytes; the pool needs %llu",
                         pool->record.device, pool->record.label,
                         (unsigned long long)info.size_bytes,
                         (unsigned long long)pool->super.size_blk << DFE_BLOCK_SHIFT);
    return 0;
}

/* -- index ----------------------------------------------------------------------------------- */

static void decode_checkpoint(const uint8_t *v, struct fmt_checkpoint *c)
{
    memcpy(c, v, sizeof(*c));
    c->number = le64toh(c->number);
    c->journal_pos = le64toh(c->journal_pos);
    c->journal_seq = le64toh(c->journal_seq);
    c->epoch = le64toh(c->epoch);
    c->next_cont = le32toh(c->next_cont);
    c->format = le32toh(c->format);
    c->size_blk = le64toh(c->size_blk);
    c->journal_blk = le64toh(c->journal_blk);
    c->journal_len_blk = le64toh(c->journal_len_blk);
    c->data_blk = le64toh(c->data_blk);
    c->data_len_blk = le64toh(c->data_len_blk);
}

static void super_from_index(struct obj_pool *pool)
{
    const struct fmt_checkpoint *c = &pool->ckpt;

    pool->super = (struct super){.format = c->format, .size_blk = c->size_blk,
                                 .journal_blk = c->journal_blk,
                                 .journal_len_blk = c->journal_len_blk, .data_blk = c->data_blk,
                                 .data_len_blk = c->data_len_blk, .least_checkpoint = c->number};
    memcpy(pool->super.uuid, c->uuid, sizeof(c->uuid));
}

/* The index's checkpoint record, and whether it and the device belong to one time. */
static int load_checkpoint(struct obj_pool *pool, bool super_gone)
{
    uint8_t v[sizeof(struct fmt_checkpoint) + FMT_BIRTH_BYTES];
    struct fmt_checkpoint geo = {0};
    struct key k;
    size_t len = 0;
    int rc;

    key_pool(&k, KEY_META, "checkpoint", 10);
    rc = index_get(pool->index, k.b, k.len, v, sizeof(v), &len);
    if (rc < 0 || len != sizeof(v))
        return base_fail(-EUCLEAN, "the index of pool %s has no valid checkpoint record",
                         pool->record.label);
    decode_checkpoint(v, &pool->ckpt);
    if (memcmp(pool->ckpt.uuid, pool->record.uuid, 16) != 0)
        return base_refuse(-EMEDIUMTYPE, "the index in %s belongs to another pool", pool->path);
    if (super_gone)
        super_from_index(pool);
    if (!super_geometry_ok(&pool->super))
        return base_fail(-EUCLEAN, "the index of pool %s tells an impossible geometry",
                         pool->record.label);
    pool_geometry(&pool->super, &geo);
    if (geo.size_blk != pool->ckpt.size_blk || geo.journal_blk != pool->ckpt.journal_blk ||
        geo.journal_len_blk != pool->ckpt.journal_len_blk || geo.data_blk != pool->ckpt.data_blk ||
        geo.data_len_blk != pool->ckpt.data_len_blk)
        return base_fail(-EUCLEAN, "index and superblock of pool %s disagree about the device",
                         pool->record.label);
    if (pool->ckpt.number < pool->super.least_checkpoint)
        return base_refuse(-ESTALE,
                           "the index of pool %s (checkpoint %llu) is older than its device "
                           "(%llu): put back the index that belongs to it",
                           pool->record.label, (unsigned long long)pool->ckpt.number,
                           (unsigned long long)pool->super.least_checkpoint);
    if (pool->ckpt.number > pool->super.least_checkpoint + 1)
        return base_refuse(-ESTALE,
                           "the device of pool %s (checkpoint %llu) is older than its index "
                           "(%llu): put back the device's data that belongs to it",
                           pool->record.label, (unsigned long long)pool->super.least_checkpoint,
                           (unsigned long long)pool->ckpt.number);
    pool->epoch = pool->durable_epoch = pool->ckpt.epoch;
    pool->next_cont = pool->ckpt.next_cont;
    return 0;
}

static int load_entry(const void *key, size_t klen, const void *val, size_t vlen, void *arg)
{
    struct obj_pool *pool = arg;
    const uint8_t *k = key;

    if (k[0] != KEY_SEG)
        return tables_put(pool, key, klen, val, vlen);
    if (klen != 5 || vlen < FMT_BIRTH_BYTES)
        return -EUCLEAN;
    return alloc_load(pool->alloc, get_be32(k + 1), val, vlen - FMT_BIRTH_BYTES);
}

static int load_tables(struct obj_pool *pool)
{
    const uint8_t lo = KEY_CONT, hi = KEY_WORK + 1;
    uint64_t bad = 0;
    int rc;

    rc = alloc_open(pool->super.data_blk, pool->super.data_len_blk, &pool->alloc);
    if (rc == 0)
        rc = index_scan(pool->index, &lo, 1, &hi, 1, load_entry, pool, &bad);
    if (rc == 0 && bad > 0)
        rc = -EUCLEAN;
    if (rc == -EUCLEAN) {
        pool_damaged(pool, "the index is damaged (%llu entries of the pool's own tables)",
                     (unsigned long long)bad);
        pool->salvage = true;
        rc = 0;
    }
    return rc;
}

static int open_index(struct obj_pool *pool, bool super_gone)
{
    char dir[4096];
    int rc = pool_file(pool->path, "index", dir, sizeof(dir));

    if (rc == 0)
        rc = index_open(dir, pool->read_only, &pool->index);
    if (rc < 0)
        return base_fail(rc, "cannot open the index of pool %s: %s", pool->record.label,
                         strerror(-rc));
    rc = load_checkpoint(pool, super_gone);
    if (rc == 0)
        rc = check_size(pool);
    return rc < 0 ? rc : load_tables(pool);
}

/* -- replay ---------------------------------------------------------------------------------- */

struct replay {
    struct obj_pool *pool;
    uint64_t records;
    struct bytes carried; /* blocks of the record's DATA ops, u64 each */
    uint8_t *buf;         /* one extent */
};

static bool is_carried(const struct replay *r, uint64_t blk)
{
    for (size_t i = 0; i < r->carried.len; i += sizeof(blk))
        if (memcmp(r->carried.p + i, &blk, sizeof(blk)) == 0)
            return true;
    return false;
}

/* Are the blocks of a new extent what its checksums say? 0 yes, 1 no. */
static int verify_extent(struct replay *r, const struct ext *e)
{
    uint32_t from = 0, to = e->n;
    int rc;

    while (from < to && is_carried(r, e->blk + from))
        from++;
    while (to > from && is_carried(r, e->blk + to - 1))
        to--;
    if (from == to)
        return 0;
    rc = queue_read(r->pool->dev, (e->blk + from) << DFE_BLOCK_SHIFT, r->buf,
                    (size_t)(to - from) << DFE_BLOCK_SHIFT);
    if (rc < 0)
        return rc;
    for (uint32_t i = from; i < to; i++)
        if (!is_carried(r, e->blk + i) &&
            base_crc32c(0, r->buf + ((size_t)(i - from) << DFE_BLOCK_SHIFT), DFE_BLOCK_BYTES) !=
                get_le32(e->body + 4 * i))
            return 1;
    return 0;
}

/* One op: its length, or negative. *mismatch: it refers to data that is not there. */
static int64_t check_op(struct replay *r, const uint8_t *p, size_t left, uint64_t epoch,
                        bool verify, bool *mismatch)
{
    const struct super *s = &r->pool->super;
    struct rec_kv kv;
    struct rec_blk b;
    struct ext e;
    size_t len;
    int rc = 0;

    if (left >= sizeof(kv) && (*p == REC_PUT || *p == REC_DEL)) {
        memcpy(&kv, p, sizeof(kv));
        kv.klen = le16toh(kv.klen);
        kv.vlen = le32toh(kv.vlen);
        len = sizeof(kv) + kv.klen + (size_t)kv.vlen;
        if (len > left || kv.klen == 0 || kv.klen > DFE_KEY_BYTES ||
            (kv.op == REC_DEL) != (kv.vlen == 0) || (kv.vlen > 0 && kv.vlen < FMT_BIRTH_BYTES))
            return -EUCLEAN;
        p += sizeof(kv);
        if (*p >= KEY_KV && kv.klen < KEY_OBJ_BYTES)
            return -EUCLEAN;
        if (kv.op == REC_PUT && *p == KEY_EXT) {
            rc = ext_parse(p, kv.klen, p + kv.klen, kv.vlen, &e);
            if (rc == 0 && !ext_in_device(r->pool, &e))
                rc = -EUCLEAN;
            if (rc == 0 && verify && e.type == FMT_EXTENT && e.birth == epoch)
                rc = verify_extent(r, &e);
            *mismatch = rc == 1;
        }
        return rc < 0 ? rc : (int64_t)len;
    }
    if (left < sizeof(b) || (*p != REC_ALLOC && *p != REC_FREE && *p != REC_DATA))
        return -EUCLEAN;
    memcpy(&b, p, sizeof(b));
    b.n = le32toh(b.n);
    b.blk = le64toh(b.blk);
    len = sizeof(b) + (b.op == REC_DATA ? (size_t)b.n << DFE_BLOCK_SHIFT : 0);
    if (len > left || b.n == 0 || b.n > DFE_EXTENT_BLOCKS || b.blk < s->data_blk ||
        b.blk - s->data_blk >= s->data_len_blk || b.n > s->data_len_blk - (b.blk - s->data_blk))
        return -EUCLEAN;
    for (uint64_t i = 0; rc == 0 && b.op == REC_DATA && i < b.n; i++) {
        uint64_t blk = b.blk + i;
        rc = bytes_add(&r->carried, &blk, sizeof(blk));
    }
    return rc < 0 ? rc : (int64_t)len;
}

static int replay_record(const void *rec, size_t len, uint64_t batch_pos, bool below_flushed,
                         void *arg)
{
    struct replay *r = arg;
    struct obj_pool *pool = r->pool;
    const uint8_t *p = rec;
    size_t at = sizeof(struct rec_head);
    bool mismatch = false;
    uint64_t epoch;
    int rc;

    if (len < at || get_le64(p + offsetof(struct rec_head, epoch)) != pool->epoch + 1)
        return base_fail(-EUCLEAN, "journal: the record at %llu does not follow epoch %llu",
                         (unsigned long long)batch_pos, (unsigned long long)pool->epoch);
    epoch = pool->epoch + 1;
    r->carried.len = 0;
    for (uint32_t n = get_le32(p); n > 0; n--) {
        int64_t op = check_op(r, p + at, len - at, epoch, !below_flushed, &mismatch);
        if (op < 0)
            return base_fail((int)op, "journal: the record at %llu is malformed or its data cannot "
                             "be read", (unsigned long long)batch_pos);
        if (mismatch)
            return 1;
        at += (size_t)op;
    }
    if (at != len)
        return base_fail(-EUCLEAN, "journal: the record at %llu has a tail",
                         (unsigned long long)batch_pos);
    pthread_mutex_lock(&pool->lock);
    rc = rec_apply(pool, rec, len);
    pthread_mutex_unlock(&pool->lock);
    r->records++;
    return rc;
}

static int replay(struct obj_pool *pool, uint64_t *records)
{
    struct replay r = {.pool = pool};
    bool damaged = false;
    int rc;

    r.buf = aligned_alloc(DFE_BLOCK_BYTES, DFE_EXTENT_BLOCKS * DFE_BLOCK_BYTES);
    if (!r.buf)
        return -ENOMEM;
    rc = journal_open(pool->dev, &pool->super, &pool->journal);
    if (rc == 0)
        rc = journal_replay(pool->journal, pool->ckpt.journal_pos, pool->ckpt.journal_seq,
                            replay_record, &r, &damaged);
    if (rc > 0)
        rc = 0;
    if (rc == -EUCLEAN || rc == -EIO || damaged) {
        pool_damaged(pool, "the journal is damaged after commit %llu: what followed is lost",
                     (unsigned long long)pool->epoch);
        rc = 0;
    }
    *records = r.records;
    bytes_free(&r.carried);
    free(r.buf);
    return rc;
}

/* -- what a killed process kept --------------------------------------------------------------- */

/* keep_note: the pool; numbers of the batches of the last opening, and what it found expected;
 * number and mark of the index's checkpoint, and of the one that was being written. */
enum { NOTE_UUID, NOTE_UUID2, NOTE_FIRST, NOTE_EXPECT, NOTE_DONE, NOTE_DONE_SEQ, NOTE_NEXT,
       NOTE_NEXT_SEQ };
static_assert((int)NOTE_NEXT_SEQ < (int)KEEP_NOTES, "a note each");
#define OPENING_BATCHES (UINT64_C(1) << 48) /* of one opening; they begin at random */

static bool note_is(const struct obj_pool *pool, unsigned i, uint64_t value)
{
    return keep_noted(pool->keep, i) == value;
}

/* Did a worker with this memory change the pool last? */
static bool kept_continues(const struct obj_pool *pool)
{
    const struct fmt_checkpoint *c = &pool->ckpt;
    uint64_t first, expect;

    journal_numbers(pool->journal, &first, &expect);
    if (!note_is(pool, NOTE_UUID, get_le64(pool->record.uuid)) ||
        !note_is(pool, NOTE_UUID2, get_le64(pool->record.uuid + 8)))
        return false;
    if (!note_is(pool, NOTE_EXPECT, expect) &&
        expect - keep_noted(pool->keep, NOTE_FIRST) >= OPENING_BATCHES)
        return false;
    return (note_is(pool, NOTE_DONE, c->number) && note_is(pool, NOTE_DONE_SEQ, c->journal_seq)) ||
           (note_is(pool, NOTE_NEXT, c->number) && note_is(pool, NOTE_NEXT_SEQ, c->journal_seq));
}

/* While a pair of notes changes, the other one holds. */
void keep_checkpoint(struct obj_pool *pool, bool done)
{
    const struct fmt_checkpoint *c = &pool->ckpt_next;

    if (!pool->keep)
        return;
    keep_note(pool->keep, done ? NOTE_DONE : NOTE_NEXT, c->number);
    keep_note(pool->keep, done ? NOTE_DONE_SEQ : NOTE_NEXT_SEQ, c->journal_seq);
}

static void note_opening(struct obj_pool *pool)
{
    uint64_t first, expect;

    journal_numbers(pool->journal, &first, &expect);
    keep_note(pool->keep, NOTE_EXPECT, expect); /* the last opening's, or what it found */
    keep_note(pool->keep, NOTE_FIRST, first);
    keep_note(pool->keep, NOTE_DONE, pool->ckpt.number);
    keep_note(pool->keep, NOTE_DONE_SEQ, pool->ckpt.journal_seq);
    keep_note(pool->keep, NOTE_UUID, get_le64(pool->record.uuid));
    keep_note(pool->keep, NOTE_UUID2, get_le64(pool->record.uuid + 8));
}

static int kept_record(int64_t number, const void *rec, size_t len, void *arg)
{
    struct replay *r = arg;
    uint64_t epoch;

    (void)number;
    if (len < sizeof(struct rec_head))
        return base_fail(-EUCLEAN, "kept memory: a commit of %zu bytes", len);
    epoch = get_le64((const uint8_t *)rec + offsetof(struct rec_head, epoch));
    return epoch <= r->pool->epoch ? 0 : replay_record(rec, len, 0, true, arg);
}

static int kept_retire(int64_t number, const void *rec, size_t len, void *arg)
{
    struct obj_pool *pool = arg;

    (void)rec, (void)len;
    keep_retire(pool->keep, KEEP_TX, number);
    return 0;
}

static int replay_kept(struct obj_pool *pool, uint64_t *records)
{
    struct replay r = {.pool = pool};
    int rc;

    if (!keep_empty(pool->keep) && !kept_continues(pool))
        return base_fail(-ESTALE, "pool %s was changed by another program since its service ended "
                         "early: what that had acknowledged last cannot be added any more",
                         pool->record.label);
    note_opening(pool);
    rc = keep_replay(pool->keep, KEEP_TX, kept_record, &r);
    bytes_free(&r.carried);
    if (r.records > 0)
        base_log(BASE_LOG_INFO, "pool %s: %llu commits of a process that ended early are kept",
                 pool->record.label, (unsigned long long)r.records);
    *records += r.records;
    if (rc == -EUCLEAN) {
        pool_damaged(pool, "what was kept after commit %llu cannot be read: it is lost",
                     (unsigned long long)pool->epoch);
        rc = 0;
    }
    return rc;
}

/* The checkpoint has it: from here on commits are kept. */
static int keep_on(struct obj_pool *pool)
{
    int rc = keep_replay(pool->keep, KEEP_TX, kept_retire, pool);

    journal_keep(pool->journal, pool->keep);
    return rc;
}

/* -- open ------------------------------------------------------------------------------------ */

/* What replay found goes to the index before anything is appended: commits that shared a discarded
 * batch with one whose data is missing are in memory only, and later ones must not build on them.
 */
static int settle(struct obj_pool *pool, uint64_t records)
{
    int rc = records > 0 || overlay_keys(pool->active) > 0 ? checkpoint_at_open(pool) : 0;

    if (rc == 0)
        rc = index_reserve(pool->index, OBJ_INDEX_ROOM);
    if (rc == -ENOSPC && !pool->frozen) {
        pool->index_full = true;
        rc = 0;
    }
    if (rc < 0) {
        pool_damaged(pool, "what the journal holds cannot be put into the index: %s",
                     strerror(-rc));
        rc = 0;
    }
    return rc;
}

/* A process that was killed may hold the lock until its last requests have come back. */
static int lock_after(struct obj_pool *pool)
{
    int rc = pool_lock(pool->path, &pool->lock_fd);

    for (unsigned i = 0; rc == -EBUSY && pool->keep && i < LOCK_WAITS; i++) {
        usleep(LOCK_WAIT_US);
        rc = pool_lock(pool->path, &pool->lock_fd);
    }
    return rc;
}

int recover_open(struct obj_pool *pool)
{
    bool super_gone = false;
    uint64_t records = 0;
    int rc = record_read(pool->path, &pool->record);

    if (rc == 0)
        rc = lock_after(pool);
    if (rc == 0)
        rc = open_device(pool);
    if (rc == 0)
        rc = open_super(pool, &super_gone);
    if (rc == 0)
        rc = overlay_open(&pool->active);
    if (rc == 0)
        rc = open_index(pool, super_gone);
    if (rc == 0)
        rc = replay(pool, &records);
    if (rc == 0 && pool->keep && !pool->read_only)
        rc = replay_kept(pool, &records);
    if (rc < 0)
        return rc;
    pool->jrnl_last_head = journal_head(pool->journal);
    pool->ckpt_next = pool->ckpt;
    if (!pool->read_only)
        rc = settle(pool, records);
    if (rc == 0 && pool->keep && !pool->read_only)
        rc = keep_on(pool);
    /* nothing changes any more: the overlays can be walked in order */
    if (rc == 0 && pool->read_only)
        rc = overlay_sort(pool->active);
    if (rc == 0 && pool->read_only && pool->frozen)
        rc = overlay_sort(pool->frozen);
    return rc;
}
