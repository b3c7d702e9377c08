/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interception library's state, and the rules that its parts keep.
 *
 * I1 The kernel's descriptors and file offsets are the only ones. What is remembered here is a hint
 *    about a descriptor: losing it costs a look-up.
 * I2 Any doubt means libc's call, with the program's arguments, as if the library were not there.
 * I3 All state lies in one private mapping that a forked child finds zeroed (MADV_WIPEONFORK): a
 *    child starts afresh whichever way it was made. A child that shares our memory (vfork) is
 *    known by a count in the thread's own memory; it makes plain calls and writes nothing here.
 * I4 A thread inside a bypass is `busy`; whatever runs on it meanwhile (a signal's handler) makes
 *    plain calls. So nothing here is ever entered twice on one thread.
 * I5 Hot paths allocate nothing and take no lock but the word of the description's offset.
 * I6 errno is what the program left, unless the call failed.
 *
 * Everything here may be called by any thread at any time, signal handlers included.
 */
#ifndef DFE_IL_IL_H
#define DFE_IL_IL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/client.h"
#include "il/real.h"

/* -- limits ------------------------------------------------------------------------------------ */
#define IL_FDS 65536u       /* descriptors above are the kernel's; 8 bytes each */
#define IL_OWN_FDS 128u     /* numbers set aside for the library's own descriptors */
#define IL_FILES 8192u      /* open files of mounts at a time */
#define IL_DEVS 64u         /* file systems without a disk that are read: mounts, /proc, tmpfs */
#define IL_THREADS 256u     /* records of threads; further threads share the last */
#define IL_WORDS 1024u      /* words that order implicit offsets; more descriptions share them */
#define IL_LEASES 4096u     /* leases remembered */
#define IL_MAPPED 256u      /* inodes that were mapped shared and writable */
#define IL_ATTACH_CALLS 32u
#define IL_ATTACH_BYTES (256u << 10)
#define IL_RETRY_S 10       /* between attempts to attach */
#define IL_PUSH_BYTES (1u << 20)
#define IL_STREAM_BYTES (1u << 20) /* buffer of a stream opened for reading */
#define IL_STREAMS 256u
#define IL_MOST_BYTES 0x7ffff000u  /* the kernel moves no more in one call */

enum il_call {
#define CALL(name) IL_CALL_##name,
#include "il/calls.def"
    IL_CALLS
};

enum il_reason {
    IL_BYPASSED,
#define REASON(name, text) IL_##name,
#include "il/reasons.def"
    IL_REASONS
};

/* -- what is known of a descriptor ------------------------------------------------------------- */
struct il_file {
    uint64_t id;       /* the slot's word: the entry is whole while both agree */
    uint64_t ino;
    uint32_t dev;      /* index */
    uint32_t oflags;   /* F_GETFL */
    uint32_t serial;   /* of the description */
    uint32_t epoch;    /* of IL_EPOCH when the description was opened here; 0: not opened here */
    uint32_t idx;      /* where it is kept */
    uint32_t reason;   /* why it is left to the kernel for good, or 0 */
};

enum il_dev_state { IL_DEV_FREE, IL_DEV_NEW, IL_DEV_FILLING, IL_DEV_OTHER, IL_DEV_MOUNT };
enum il_session_state { IL_IDLE, IL_ATTACHING, IL_ATTACHED, IL_FAILED };

struct il_dev {
    _Atomic uint32_t state;
    _Atomic uint32_t session;   /* enum il_session_state */
    uint64_t dev, mnt;          /* st_dev; mount id, never used again where the kernel has such */
    _Atomic uint64_t calls, bytes;
    _Atomic int64_t retry_s;    /* CLOCK_MONOTONIC: not before */
    _Atomic uint32_t reason;    /* of a mount that is never bypassed */
    _Atomic uint32_t no_window; /* this user may not map its data */
    struct client *client;
    uint32_t handle;            /* of the file system, in the client's session */
    char socket[108];
    char label[64];
    char text[256];             /* the whole answer of the mount */
};

struct il_lease {
    _Atomic uint32_t seq;       /* odd while it is written */
    uint32_t dev;
    uint64_t key;               /* piece of the file, with its size; 0: none */
    struct proto_lease lease;
    uint8_t pad[48];
};
_Static_assert(sizeof(struct il_lease) == 128, "two cache lines");

struct il_record { /* of a thread */
    _Atomic uint32_t busy;
    uint8_t pad[60];
};

enum il_run { IL_WIPED, IL_RUNNING, IL_STARTING, IL_OFF };

struct il_state {
    _Atomic uint32_t run;       /* enum il_run; a forked child finds IL_WIPED */
    _Atomic uint32_t off_reason;
    _Atomic uint32_t epoch;     /* counts what makes descriptions shared; from 1 */
    _Atomic uint32_t serial;
    _Atomic uint32_t threads;
    _Atomic uint64_t fsize;     /* RLIMIT_FSIZE; 0: look it up */
    _Atomic uint32_t fsize_age;
    _Atomic uint64_t file_free; /* tag << 32 | index + 1 */
    _Atomic uint32_t file_used;
    _Atomic uint64_t file_gen;
    struct il_dev dev[IL_DEVS];
    struct il_record thread[IL_THREADS];
    struct { _Atomic uint32_t held; uint8_t pad[60]; } word[IL_WORDS];
    _Atomic uint64_t mapped[IL_MAPPED]; /* inode numbers */
    struct { _Atomic(FILE *) stream; void *buf; } stream[IL_STREAMS];
    struct { _Atomic uint64_t id, ino, what, epochs; _Atomic uint32_t next; } file[IL_FILES];
    struct il_lease lease[IL_LEASES];
    _Atomic uint64_t slot[IL_FDS];
};

extern struct il_state *il; /* NULL until the library has started */

struct il_thread {
    struct il_record *record; /* NULL until the first bypass */
    bool shares;              /* the record and its tallies with other threads */
    uint32_t busy;
    uint32_t poisoned;
    uint32_t index;
    int cancel;               /* the thread's cancel state before */
    char *frame;              /* of the bypass that is running */
};
extern __thread struct il_thread il_self __attribute__((tls_model("initial-exec")));
/* Depth of vfork: the child that runs on this thread's stack must not write. */
extern __thread uint32_t il_vforked __attribute__((tls_model("initial-exec")));

/* -- state.c ----------------------------------------------------------------------------------- */

/* Whether hints may be read and written now. False: plain calls only. */
bool il_ready_slow(void);
static inline bool il_ready(void)
{
    struct il_state *s = il;
    if (__builtin_expect(!s || il_vforked, 0)) {
        return false;
    }
    uint32_t run = atomic_load_explicit(&s->run, memory_order_relaxed);
    return __builtin_expect(run == IL_RUNNING, 1) ? true : il_ready_slow();
}
bool il_enter(void);         /* begins a bypass; false: this thread may not now (il_enter_reason) */
void il_leave(void);
enum il_reason il_enter_reason(void);
void il_disable(void);       /* for good: ends all sessions */
void il_disable_for_good(void); /* the same in all children, and no report */
bool il_quiet(int wait_ms);  /* whether no other thread is inside a bypass (waits) */
void il_before_clone(unsigned long flags); /* a process or thread is made with these CLONE_ flags */
void il_share_all(void);     /* open descriptions may be used by another process from now on */
/* Orders implicit offsets among this process's threads, its signals blocked: nobody leaves it by a
 * longjmp. Nothing at all while there is one thread. */
struct il_word {
    uint32_t held; /* index + 1, or 0 */
    sigset_t signals;
};
void il_word_take(struct il_word *word, uint32_t serial);
void il_word_give(struct il_word *word);
bool il_started_off(void);   /* DFUSEPY_IL=off */
const char *il_library_path(void); /* as LD_PRELOAD has it, or NULL */

/* -- table.c ----------------------------------------------------------------------------------- */
void il_fd_opened(int fd);   /* a new description of this process's own; fd < 0: nothing */
void il_fd_other(int fd);    /* a new descriptor that is no regular file */
void il_fd_clear(int fd);
void il_fd_clear_range(unsigned from, unsigned to);
void il_fd_dup(int from, int to);
void il_fd_flags(int fd);    /* its flags may have changed */
void il_fd_reason(const struct il_file *file, enum il_reason reason);
bool il_fd_is_other(int fd); /* known to be no file of a mount: the fast way out */
/* The file behind fd: 0, or -1: not a mount's (or not known to be one yet), or a reason. */
int il_fd_file(int fd, struct il_file *file);
/* Whether fd still is that file, open as it was: for descriptors that no hook saw opened, whose
 * numbers system calls past libc may close and open again. 0.6 us. */
bool il_fd_still(int fd, const struct il_file *file);
/* A shared map of the file: writable, or able to become so. */
void il_mapped_add(int fd, bool writable);
bool il_fd_ours(int fd);     /* the library's own descriptor */
void il_own_begin(uint32_t from); /* the library's descriptors will be in IL_OWN_FDS from here */
unsigned il_own_next(unsigned from, unsigned to); /* the next own descriptor, or UINT_MAX */
void il_own_forked(void);    /* closes those that a child inherited */

/* -- mounts.c ---------------------------------------------------------------------------------- */
/* Index, or -1: no mount of ours, or no room. unique: the kernel never uses the id of a mount
 * again; where it may, fd is asked whether it still is the same mount. */
int il_dev_find(uint64_t dev, uint64_t mnt, bool unique, int fd);
/* Counts a data call. 0: attached; else why not; -1: not a mount. */
int il_dev_use(enum il_call call, const struct il_file *file, int fd, uint64_t bytes);
/* client_do by the mount's session. A child of a fork in the middle of a call has none, and finds
 * what is remembered wiped: the call goes to the kernel. */
static inline int64_t il_ask(const struct il_dev *dev, struct client_call *call)
{
    struct client *client = *(struct client *const volatile *)&dev->client;

    return client ? client_do(client, call) : -EOWNERDEAD;
}
bool il_dev_is_mount(uint32_t dev, int fd); /* asks, if it is not known yet */
void il_dev_lost(struct il_dev *dev);
uint32_t il_first_own_fd(void); /* where the library's own descriptors begin */
void il_sessions_close(void);
void il_sessions_forked(bool busy); /* busy: in the middle of one of this thread's calls */

/* -- read.c ------------------------------------------------------------------------------------ */
/* Up to len bytes at off: a count; 0 at the end of the file; -ENOENT: no lease is known. */
ssize_t il_lease_read(const struct il_file *file, uint64_t off, void *dst, size_t len);
/* The same, asking the engine for a lease or for the bytes. Or a negative errno. */
ssize_t il_read_piece(const struct il_file *file, uint64_t off, void *dst, size_t len);

/* -- io.c -------------------------------------------------------------------------------------- */
enum { IL_AT_OFFSET = -1 };
/* Whether the call was done here: then *ret is its result. off: IL_AT_OFFSET for the kernel's. */
bool il_read(enum il_call call, int fd, const struct iovec *iov, int n, off64_t off, ssize_t *ret);
bool il_write(enum il_call call, int fd, const struct iovec *iov, int n, off64_t off,
              ssize_t *ret);
/* Makes the kernel ask for the size of a mount's file, if it was told that what it knows is old:
 * some calls use what it knows without asking. */
void il_refresh(int fd);
void il_left(enum il_call call, int fd, enum il_reason reason); /* counts, if a mount's file */
bool il_seek(int fd, off64_t off, int whence, off64_t *ret);

/* -- stats.c ----------------------------------------------------------------------------------- */
/* What was bypassed is counted before the guard is left: nobody else writes the tally then. */
void il_count(enum il_call call, enum il_reason reason, uint64_t calls, uint64_t bytes);
void il_count_attach(uint64_t ns);
void il_stats_start(void);
void il_stats_forked(void);
void il_report(const char *end); /* appends the line, if one is wanted */
void il_report_quick(void);
void il_report_off(void);
const char *il_report_path(void); /* or NULL */
int64_t il_now_ns(void);

#endif
