/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of each descriptor: one word a descriptor, changed by one atomic operation, so that
 * a signal handler may close or open at any time.
 *
 * T1 A word is one of: nothing known (0); opened here, not looked at yet (with the description's
 *    serial and epoch); no mount's file; a mount's file, described by an entry of the pool.
 * T2 An entry belongs to the one word that names it; who takes the word away gives the entry back.
 * T3 Ids are never used twice. A reader copies the entry and compares the id after: an entry that
 *    was given back meanwhile is known by it.
 */
#include "il/il.h"

#include <limits.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

enum { KIND_NONE = 0, KIND_OPENED = 1, KIND_OTHER = 2, KIND_FILE = 3, KIND_MASK = 3 };

#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000u
#endif
#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x4000u
#endif

#define IDX_SHIFT 2
#define GEN_SHIFT 16
_Static_assert(IL_FILES <= 1u << (GEN_SHIFT - IDX_SHIFT), "the index fits");

static uint64_t opened_word(uint32_t serial, uint32_t epoch)
{
    return (uint64_t)(epoch & 0x7fffffffu) << 33 | (uint64_t)(serial & 0x7fffffffu) << 2 |
           KIND_OPENED;
}

static void own_note(int fd, bool their);

/* -- the pool of entries: a stack of free ones, tagged against reuse between load and swap ----- */
static uint32_t file_take(void)
{
    uint64_t head = atomic_load_explicit(&il->file_free, memory_order_acquire);

    while ((uint32_t)head) {
        uint32_t idx = (uint32_t)head - 1;
        uint64_t next = atomic_load_explicit(&il->file[idx].next, memory_order_relaxed);
        uint64_t tag = (head >> 32) + 1;
        if (atomic_compare_exchange_weak_explicit(&il->file_free, &head, tag << 32 | next,
                                                  memory_order_acquire, memory_order_acquire)) {
            return idx + 1;
        }
    }
    if (atomic_load_explicit(&il->file_used, memory_order_relaxed) < IL_FILES) {
        uint32_t idx = atomic_fetch_add_explicit(&il->file_used, 1, memory_order_relaxed);
        if (idx < IL_FILES) {
            return idx + 1;
        }
        atomic_fetch_sub_explicit(&il->file_used, 1, memory_order_relaxed);
    }
    return 0;
}

static void file_give(uint32_t idx)
{
    atomic_store_explicit(&il->file[idx].id, 0, memory_order_release);
    uint64_t head = atomic_load_explicit(&il->file_free, memory_order_relaxed);
    uint64_t mine;

    do {
        atomic_store_explicit(&il->file[idx].next, (uint32_t)head, memory_order_relaxed);
        mine = ((head >> 32) + 1) << 32 | (idx + 1);
    } while (!atomic_compare_exchange_weak_explicit(&il->file_free, &head, mine,
                                                    memory_order_release, memory_order_relaxed));
}

static void word_dropped(uint64_t word)
{
    if ((word & KIND_MASK) == KIND_FILE) {
        file_give(word >> IDX_SHIFT & (IL_FILES - 1));
    }
}

static void word_set(int fd, uint64_t word)
{
    if (fd >= 0 && (unsigned)fd < IL_FDS && il_ready()) {
        own_note(fd, word != KIND_NONE);
        word_dropped(atomic_exchange_explicit(&il->slot[fd], word, memory_order_acq_rel));
    }
}

/* A word of its own for the file, or 0: no room. */
static uint64_t file_put(const struct il_file *file)
{
    uint32_t idx = file_take();
    if (!idx--) {
        return 0;
    }
    uint64_t gen = atomic_fetch_add_explicit(&il->file_gen, 1, memory_order_relaxed) + 1;
    uint64_t id = gen << GEN_SHIFT | (uint64_t)idx << IDX_SHIFT | KIND_FILE;
    atomic_store_explicit(&il->file[idx].ino, file->ino, memory_order_relaxed);
    atomic_store_explicit(&il->file[idx].what,
                          file->dev | (uint64_t)file->reason << 16 | (uint64_t)file->oflags << 32,
                          memory_order_relaxed);
    atomic_store_explicit(&il->file[idx].epochs, file->serial | (uint64_t)file->epoch << 32,
                          memory_order_relaxed);
    atomic_store_explicit(&il->file[idx].id, id, memory_order_release);
    return id;
}

static bool file_get(uint64_t word, struct il_file *file)
{
    uint32_t idx = word >> IDX_SHIFT & (IL_FILES - 1);

    file->idx = idx;
    file->id = word;
    file->ino = atomic_load_explicit(&il->file[idx].ino, memory_order_relaxed);
    uint64_t what = atomic_load_explicit(&il->file[idx].what, memory_order_relaxed);
    uint64_t epochs = atomic_load_explicit(&il->file[idx].epochs, memory_order_relaxed);
    file->dev = what & 0xffff;
    file->reason = what >> 16 & 0xffff;
    file->oflags = what >> 32;
    file->serial = (uint32_t)epochs;
    file->epoch = epochs >> 32;
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&il->file[idx].id, memory_order_relaxed) == word;
}

/* -- what hooks tell --------------------------------------------------------------------------- */
void il_fd_opened(int fd)
{
    if (fd >= 0 && il_ready()) {
        uint32_t serial = atomic_fetch_add_explicit(&il->serial, 1, memory_order_relaxed);
        uint32_t epoch = atomic_load_explicit(&il->epoch, memory_order_relaxed);
        word_set(fd, opened_word(serial, epoch));
    }
}

void il_fd_other(int fd)
{
    word_set(fd, KIND_OTHER);
}

void il_fd_clear(int fd)
{
    word_set(fd, KIND_NONE);
}

void il_fd_clear_range(unsigned from, unsigned to)
{
    for (unsigned fd = from; fd <= to && fd < IL_FDS && il_ready(); fd++) {
        if (atomic_load_explicit(&il->slot[fd], memory_order_relaxed)) {
            word_set((int)fd, KIND_NONE);
        }
    }
}

void il_fd_dup(int from, int to)
{
    uint64_t word = KIND_NONE;
    struct il_file file;

    if (to < 0 || !il_ready()) {
        return;
    }
    if (from >= 0 && (unsigned)from < IL_FDS) {
        word = atomic_load_explicit(&il->slot[from], memory_order_acquire);
        if ((word & KIND_MASK) == KIND_FILE) {
            word = file_get(word, &file) ? file_put(&file) : 0;
        }
    }
    word_set(to, word);
}

void il_fd_flags(int fd)
{
    struct il_file file;

    if (fd < 0 || (unsigned)fd >= IL_FDS || !il_ready()) {
        return;
    }
    uint64_t word = atomic_load_explicit(&il->slot[fd], memory_order_acquire);
    if ((word & KIND_MASK) == KIND_FILE) {
        word_set(fd, file_get(word, &file) ? opened_word(file.serial, file.epoch) : 0);
    }
}

void il_fd_reason(const struct il_file *file, enum il_reason reason)
{
    uint64_t what = file->dev | (uint64_t)reason << 16 | (uint64_t)file->oflags << 32;

    /* At worst the entry is another file's by now, which is then the kernel's for a while. */
    if (atomic_load_explicit(&il->file[file->idx].id, memory_order_relaxed) == file->id) {
        uint64_t was = file->dev | (uint64_t)file->reason << 16 | (uint64_t)file->oflags << 32;
        atomic_compare_exchange_strong(&il->file[file->idx].what, &was, what);
    }
}

bool il_fd_is_other(int fd)
{
    return fd < 0 || (unsigned)fd >= IL_FDS || !il_ready() ||
           atomic_load_explicit(&il->slot[fd], memory_order_relaxed) == KIND_OTHER;
}

/* -- looking at a descriptor ------------------------------------------------------------------- */
static bool mapped_has(const struct il_file *file, bool add)
{
    uint64_t ino = file->ino;
    unsigned at = (unsigned)((ino * 0x9E3779B97F4A7C15ull) >> 32) % IL_MAPPED;

    for (unsigned i = 0; i < IL_MAPPED; i++, at = (at + 1) % IL_MAPPED) {
        uint64_t seen = atomic_load_explicit(&il->mapped[at], memory_order_acquire);
        if (seen == ino) {
            return true; /* of whatever mount: the kernel serves both right */
        }
        if (!seen && !add) {
            return false;
        }
        if (!seen && atomic_compare_exchange_strong(&il->mapped[at], &seen, ino)) {
            return true;
        }
    }
    return true; /* full: all the files that are looked at from now on */
}

/* What the kernel knows of fd, without asking the mount. */
static long look_at(int fd, struct statx *st, uint64_t *mnt)
{
    unsigned mask = STATX_TYPE | STATX_INO | STATX_MNT_ID_UNIQUE | STATX_MNT_ID;
    long ret = sys_call(SYS_statx, fd, (long)"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, mask,
                        (long)st, 0);

    /* __spare2 and what follows it differ between libcs: the id is at byte 144 in every kernel. */
    __builtin_memcpy(mnt, (char *)st + 144, sizeof(*mnt));
    if (!(st->stx_mask & (STATX_MNT_ID | STATX_MNT_ID_UNIQUE))) {
        *mnt = 0;
    }
    return ret;
}

/* Returns the word that describes fd. */
static uint64_t look(int fd, uint64_t before)
{
    struct statx st = {0};
    struct il_file file = {0};
    uint64_t mnt;

    if (look_at(fd, &st, &mnt) || !S_ISREG(st.stx_mode) || st.stx_dev_major != 0) {
        return KIND_OTHER; /* FUSE has no device of its own: major number 0 */
    }
    long flags = il_sys(SYS_fcntl, fd, F_GETFL, 0, 0);
    if (flags < 0 || (flags & O_PATH)) {
        return KIND_OTHER;
    }
    int dev = il_dev_find(makedev(st.stx_dev_major, st.stx_dev_minor), mnt,
                          (st.stx_mask & STATX_MNT_ID_UNIQUE) != 0, fd);
    if (dev < 0) {
        return KIND_OTHER;
    }
    file.ino = st.stx_ino;
    file.dev = (uint32_t)dev;
    file.oflags = (uint32_t)flags;
    if ((before & KIND_MASK) == KIND_OPENED) {
        file.serial = before >> 2 & 0x7fffffffu;
        file.epoch = before >> 33;
    }
    file.reason = mapped_has(&file, false) ? IL_mapped : 0;
    return file_put(&file);
}

int il_fd_file(int fd, struct il_file *file)
{
    if (fd < 0 || (unsigned)fd >= IL_FDS) {
        return -1;
    }
    uint64_t word = atomic_load_explicit(&il->slot[fd], memory_order_acquire);
    if ((word & KIND_MASK) == KIND_NONE || (word & KIND_MASK) == KIND_OPENED) {
        uint64_t found = look(fd, word);
        if (!found) {
            return IL_full;
        }
        if (!atomic_compare_exchange_strong(&il->slot[fd], &word, found)) {
            word_dropped(found);
            return IL_unknown;
        }
        word = found;
    }
    if (word == KIND_OTHER) {
        return -1;
    }
    return file_get(word, file) ? (int)file->reason : IL_unknown;
}

bool il_fd_still(int fd, const struct il_file *file)
{
    const struct il_dev *dev = &il->dev[file->dev];
    struct statx st = {0};
    uint64_t mnt, word = file->id;

    if (!look_at(fd, &st, &mnt) && st.stx_ino == file->ino && mnt == dev->mnt &&
        makedev(st.stx_dev_major, st.stx_dev_minor) == dev->dev &&
        il_sys(SYS_fcntl, fd, F_GETFL, 0, 0) == (long)file->oflags) {
        return true;
    }
    if (atomic_compare_exchange_strong(&il->slot[fd], &word, KIND_NONE)) {
        word_dropped(file->id);
    }
    return false;
}

void il_mapped_add(int fd, bool writable)
{
    struct il_file file;

    if (il_fd_is_other(fd) || il_fd_file(fd, &file) != 0 ||
        (!writable && (file.oflags & O_ACCMODE) != O_RDWR) || /* mprotect may make it so */
        !il_dev_is_mount(file.dev, fd)) {
        return;
    }
    mapped_has(&file, true);
    uint32_t used = atomic_load_explicit(&il->file_used, memory_order_relaxed);
    for (uint32_t i = 0; i < used && i < IL_FILES; i++) {
        struct il_file other;
        uint64_t id = atomic_load_explicit(&il->file[i].id, memory_order_acquire);
        if (id && file_get(id, &other) && other.ino == file.ino) {
            il_fd_reason(&other, IL_mapped);
        }
    }
}

/* -- the library's own descriptors ----------------------------------------------------------------
 *
 * The session's descriptors lie in a range of numbers that attaching chooses. Who may be in it
 * besides is known: what was open before, and what hooks have seen open since. */
static _Atomic uint32_t own_from; /* 0: none */
static _Atomic uint64_t theirs[IL_OWN_FDS / 64];

void il_own_begin(uint32_t from)
{
    uint32_t none = 0;

    if (from + IL_OWN_FDS > IL_FDS || atomic_load(&own_from)) {
        return;
    }
    for (uint32_t i = 0; i < IL_OWN_FDS; i++) {
        bool open = il_sys(SYS_fcntl, from + i, F_GETFD, 0, 0) >= 0;
        if (open) {
            atomic_fetch_or(&theirs[i / 64], 1ull << (i % 64));
        } else {
            atomic_fetch_and(&theirs[i / 64], ~(1ull << (i % 64)));
        }
    }
    atomic_compare_exchange_strong(&own_from, &none, from);
}

static void own_note(int fd, bool their)
{
    uint32_t from = atomic_load_explicit(&own_from, memory_order_relaxed);

    if (from && (uint32_t)fd - from < IL_OWN_FDS) {
        uint32_t i = (uint32_t)fd - from;
        if (their) {
            atomic_fetch_or(&theirs[i / 64], 1ull << (i % 64));
        } else {
            atomic_fetch_and(&theirs[i / 64], ~(1ull << (i % 64)));
        }
    }
}

bool il_fd_ours(int fd)
{
    uint32_t from = atomic_load_explicit(&own_from, memory_order_relaxed);

    if (!from || (uint32_t)fd - from >= IL_OWN_FDS || il_vforked) {
        return false;
    }
    uint32_t i = (uint32_t)fd - from;
    return !(atomic_load(&theirs[i / 64]) >> (i % 64) & 1) &&
           il_sys(SYS_fcntl, fd, F_GETFD, 0, 0) >= 0;
}

unsigned il_own_next(unsigned from, unsigned to)
{
    unsigned first = atomic_load_explicit(&own_from, memory_order_relaxed);

    if (!first || il_vforked) {
        return UINT_MAX;
    }
    for (unsigned fd = from > first ? from : first; fd <= to && fd < first + IL_OWN_FDS; fd++) {
        if (il_fd_ours((int)fd)) {
            return fd;
        }
    }
    return UINT_MAX;
}

void il_own_forked(void)
{
    unsigned fd = 0;

    while ((fd = il_own_next(fd, IL_FDS)) != UINT_MAX) {
        il_sys(SYS_close, fd, 0, 0, 0);
        fd++;
    }
    atomic_store(&own_from, 0);
}
