/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was bypassed and what was not, and why: counted in a memfd that `dfusepy il explain PID`
 * finds through /proc, and appended as one JSON line to the report when the process ends or execs.
 *
 * The memfd is made at the first data call that is known to be on a mount; it describes itself
 * (names lie behind the counters), so that a reader of another version understands it.
 */
#include "il/il.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct tally {
    _Atomic uint64_t calls, bytes;
};

struct il_stats {
    char magic[8]; /* "DFEILST1" */
    uint32_t calls, reasons, threads;
    uint32_t left_off;   /* struct tally [calls][reasons]; reason 0 is not used */
    uint32_t bypass_off; /* struct tally [threads][calls] */
    uint32_t names_off, names_len;
    uint32_t reserved;
    _Atomic uint64_t attaches, attach_ns;
    struct tally left[IL_CALLS][IL_REASONS];
    struct tally bypass[IL_THREADS][IL_CALLS];
    char names[1024];    /* names of calls, then of reasons from 1 on, a line each */
};
_Static_assert(offsetof(struct il_stats, left) == 56, "dfusepy/interception.py reads it");

static const char names[] =
#define CALL(name) #name "\n"
#include "il/calls.def"
#define REASON(code, text) #code "\n"
#include "il/reasons.def"
    ;
_Static_assert(sizeof(names) <= sizeof(((struct il_stats *)0)->names), "names fit");

static const char *const call_names[] = {
#define CALL(name) #name,
#include "il/calls.def"
};
static const char *const reason_names[] = {
    "",
#define REASON(code, text) #code,
#include "il/reasons.def"
};

static struct il_stats *_Atomic stats;
static char report_path[4096];
static _Atomic bool reported;

int64_t il_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* What would pass RLIMIT_FSIZE fails, but without the signal that ends programs. */
static long grow(long nr, long fd, long a, long b)
{
    uint64_t signal = 1ull << (SIGXFSZ - 1), before = 0;
    struct timespec at_once = {0};

    il_sys(SYS_rt_sigprocmask, SIG_BLOCK, &signal, &before, sizeof(before));
    long rc = il_sys(nr, fd, a, b, 0);
    if (rc == -EFBIG) {
        il_sys(SYS_rt_sigtimedwait, &signal, 0, &at_once, sizeof(signal));
    }
    il_sys(SYS_rt_sigprocmask, SIG_SETMASK, &before, 0, sizeof(before));
    return rc;
}

/* -- counting ---------------------------------------------------------------------------------- */
static struct il_stats *make(void)
{
    long fd = il_sys(SYS_memfd_create, "dfusepy-il", MFD_CLOEXEC, 0, 0);
    long high = fd < 0 ? fd : il_sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, il_first_own_fd(), 0);
    int how = MAP_PRIVATE | MAP_ANONYMOUS;

    il_own_begin(il_first_own_fd());
    if (fd >= 0) {
        il_sys(SYS_close, fd, 0, 0, 0);
    }
    if (high >= 0 && !grow(SYS_ftruncate, high, sizeof(struct il_stats), 0)) {
        how = MAP_SHARED;
    }
    /* Without a memfd there is still the report. */
    long at = sys_call(SYS_mmap, 0, sizeof(struct il_stats), PROT_READ | PROT_WRITE, how,
                      how == MAP_SHARED ? high : -1, 0);
    if (at < 0) {
        return NULL;
    }
    struct il_stats *s = (struct il_stats *)at;
    s->calls = IL_CALLS;
    s->reasons = IL_REASONS;
    s->threads = IL_THREADS;
    s->left_off = offsetof(struct il_stats, left);
    s->bypass_off = offsetof(struct il_stats, bypass);
    s->names_off = offsetof(struct il_stats, names);
    s->names_len = sizeof(names) - 1;
    memcpy(s->names, names, sizeof(names));
    memcpy(s->magic, "DFEILST1", 8);
    struct il_stats *none = NULL;
    if (!atomic_compare_exchange_strong(&stats, &none, s)) {
        il_sys(SYS_munmap, at, sizeof(struct il_stats), 0, 0);
        if (high >= 0) {
            il_sys(SYS_close, high, 0, 0, 0);
        }
        return none;
    }
    return s;
}

static struct il_stats *get(void)
{
    struct il_stats *s = atomic_load_explicit(&stats, memory_order_acquire);

    return __builtin_expect(s != NULL, 1) ? s : make();
}

static void add_alone(_Atomic uint64_t *sum, uint64_t n)
{
    uint64_t old = atomic_load_explicit(sum, memory_order_relaxed);

    atomic_store_explicit(sum, old + n, memory_order_relaxed);
}

void il_count(enum il_call call, enum il_reason reason, uint64_t calls, uint64_t bytes)
{
    struct il_stats *s = get();

    if (s) {
        struct tally *t =
            reason ? &s->left[call][reason] : &s->bypass[il_self.index][call];
        if (reason || il_self.shares) {
            atomic_fetch_add_explicit(&t->calls, calls, memory_order_relaxed);
            atomic_fetch_add_explicit(&t->bytes, bytes, memory_order_relaxed);
        } else { /* ours alone; a locked addition costs as much as the whole look-up of a lease */
            add_alone(&t->calls, calls);
            add_alone(&t->bytes, bytes);
        }
    }
}

void il_count_attach(uint64_t ns)
{
    struct il_stats *s = get();

    if (s) {
        atomic_fetch_add(&s->attaches, 1);
        atomic_fetch_add(&s->attach_ns, ns);
    }
}

void il_stats_start(void)
{
    const char *path = getenv("DFUSEPY_IL_REPORT");

    if (path && path[0] == '/' && strlen(path) < sizeof(report_path)) {
        strcpy(report_path, path);
        at_quick_exit(il_report_quick);
    }
}

const char *il_report_path(void)
{
    return report_path[0] ? report_path : NULL;
}

void il_stats_forked(void)
{
    struct il_stats *s = atomic_exchange(&stats, NULL);

    if (s && !il_self.busy) { /* else the call that was interrupted may be counting */
        il_sys(SYS_munmap, s, sizeof(*s), 0, 0); /* the parent's, shared */
    }
    atomic_store(&reported, false);
}

/* -- the report -------------------------------------------------------------------------------- */
struct line { /* in pages of its own: whoever ends may have a small stack */
    char text[16384];
    char exe[4096];
    size_t len;
};

static void add(struct line *line, const char *text)
{
    while (*text && line->len < sizeof(line->text) - 1) {
        line->text[line->len++] = *text++;
    }
}

static void add_number(struct line *line, uint64_t value)
{
    char digits[24];
    int at = sizeof(digits) - 1;

    digits[at] = 0;
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    add(line, digits + at);
}

/* Bytes outside printable ASCII become \u00XX: a path need not be UTF-8. */
static void add_string(struct line *line, const char *text)
{
    static const char hex[] = "0123456789abcdef";

    add(line, "\"");
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c > 0x7e || c == '"' || c == '\\') {
            char escape[] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15], 0};
            add(line, escape);
        } else {
            char plain[] = {(char)c, 0};
            add(line, plain);
        }
    }
    add(line, "\"");
}

static void add_tally(struct line *line, bool *first, const char *name, uint64_t calls,
                      uint64_t bytes)
{
    add(line, *first ? "" : ",");
    *first = false;
    add_string(line, name);
    add(line, ":{\"calls\":");
    add_number(line, calls);
    add(line, ",\"bytes\":");
    add_number(line, bytes);
    add(line, "}");
}

static bool add_bypassed(struct line *line, struct il_stats *s)
{
    bool first = true;

    for (unsigned c = 0; c < IL_CALLS; c++) {
        uint64_t calls = 0, bytes = 0;
        for (unsigned t = 0; t < IL_THREADS; t++) {
            calls += atomic_exchange(&s->bypass[t][c].calls, 0);
            bytes += atomic_exchange(&s->bypass[t][c].bytes, 0);
        }
        if (calls) {
            add_tally(line, &first, call_names[c], calls, bytes);
        }
    }
    return !first;
}

static bool add_left(struct line *line, struct il_stats *s)
{
    bool first_call = true;

    for (unsigned c = 0; c < IL_CALLS; c++) {
        bool first = true;
        for (unsigned r = 1; r < IL_REASONS; r++) {
            uint64_t calls = atomic_exchange(&s->left[c][r].calls, 0);
            uint64_t bytes = atomic_exchange(&s->left[c][r].bytes, 0);
            if (calls && first) {
                add(line, first_call ? "" : ",");
                add_string(line, call_names[c]);
                add(line, ":{");
                first_call = false;
            }
            if (calls) {
                add_tally(line, &first, reason_names[r], calls, bytes);
            }
        }
        add(line, first ? "" : "}");
    }
    return !first_call;
}

/* Data calls on file systems that were not looked at: the process ended first. */
static void add_undecided(struct line *line)
{
    uint64_t calls = 0, bytes = 0;
    bool first = true;

    for (unsigned i = 0; il && i < IL_DEVS; i++) {
        if (atomic_load(&il->dev[i].state) == IL_DEV_NEW) {
            calls += atomic_load(&il->dev[i].calls);
            bytes += atomic_load(&il->dev[i].bytes);
        }
    }
    add(line, "{");
    add_tally(line, &first, "undecided", calls, bytes);
}

/* The line; whether it tells of any call. */
static bool compose(struct line *line, const char *end)
{
    struct il_stats *s = atomic_load(&stats);
    long n = il_sys(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", line->exe, sizeof(line->exe) - 1);

    line->exe[n > 0 ? n : 0] = 0;
    add(line, "{\"pid\":");
    add_number(line, (uint64_t)il_sys(SYS_getpid, 0, 0, 0, 0));
    add(line, ",\"exe\":");
    add_string(line, line->exe);
    add(line, ",\"end\":");
    add_string(line, end);
    add(line, ",\"attached\":");
    add_number(line, s ? atomic_load(&s->attaches) : 0);
    add(line, ",\"attach_us\":");
    add_number(line, s ? atomic_load(&s->attach_ns) / 1000 : 0);
    add(line, ",\"bypassed\":{");
    bool any = s && add_bypassed(line, s);
    add(line, "},\"left\":{");
    any = (s && add_left(line, s)) || any;
    add(line, "},\"short\":");
    add_undecided(line);
    add(line, "}}\n");
    return any;
}

void il_report(const char *end)
{
    struct line *line;

    if (!report_path[0] || il_vforked) {
        return;
    }
    line = sys_alloc(sizeof(*line));
    if (!line) {
        return;
    }
    bool any = compose(line, end);
    /* An exec that says nothing, and the end of a process that has said all, are no lines. */
    if (any || (strcmp(end, "exec") && !atomic_load(&reported))) {
        atomic_store(&reported, true);
        long fd = il_sys(SYS_openat, AT_FDCWD, report_path,
                         O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        if (fd >= 0) {
            grow(SYS_write, fd, (long)line->text, (long)line->len);
            il_sys(SYS_close, fd, 0, 0, 0);
        }
    }
    sys_free(line, sizeof(*line));
}

void il_report_off(void)
{
    report_path[0] = 0;
}

void il_report_quick(void)
{
    il_report("quick_exit");
}
