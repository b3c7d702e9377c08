/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that is killed loses nothing that it acknowledged: a process opens pool, cache and
 * namespace with kept memory, checks what earlier ones acknowledged, changes names and data from
 * several threads, and is killed at any moment; then the next. What was not acknowledged has
 * happened if its tag is found, else it has not.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "keep_rig.h"

#define THREADS 4u
#define NAMES 6u
#define FILE_BYTES (96u << 10)
#define SECONDS 10u
#define FULL_SECONDS 4u
#define LEFT_BYTES (6u << 20) /* of a full pool */
#define SEGMENT (64u << 10)

/* A file as it should be. Times and version are those told last, 0: not told. */
struct image {
    uint8_t data[FILE_BYTES];
    uint64_t ino, size, version;
    uint64_t seq; /* of the change that made it the newest */
    int64_t mtime_ns, ctime_ns;
    uint32_t mode;
    bool exists, linked; /* not linked: held open, without a name */
};

/* The image as acknowledged; while a change is pending, the next one holds what it will be; the
 * third is for who finds it pending. */
struct name {
    _Atomic uint32_t which;
    struct image image[3];
};

/* What one thread does; nobody else touches its directory. */
struct actor {
    uint64_t dir;
    _Atomic uint64_t seq;
    _Atomic uint32_t pending; /* names that are changing, a bit each */
    _Atomic uint32_t parts;   /* the change is made in parts, any of which may be there */
    _Atomic uint64_t acked;
    struct name name[NAMES];
};

struct world {
    _Atomic uint32_t ready, rounds, replayed;
    struct actor actor[THREADS];
};

static struct world *world;
static struct image *image(struct name *n, uint32_t further)
{
    return &n->image[(n->which + further) % 3];
}

static void flip(const struct actor *a, struct name *n)
{
    image(n, 1)->seq = a->seq;
    n->which = (n->which + 1) % 3;
}

/* -- the stack ------------------------------------------------------------------------------- */

static void open_all(struct keep *with)
{
    rig_open(with);
    for (unsigned t = 0; t < THREADS; t++) { /* by number, where an earlier process had it */
        struct dfe_attr a;
        char name[8];

        snprintf(name, sizeof(name), "d%u", t);
        if (world->actor[t].dir && ns_ref(ns, world->actor[t].dir) < 0)
            CHECK_EQ(ns_lookup(ns, NS_ROOT_INO, name, strlen(name), DFE_REF, &a), 0);
    }
}

/* All space but a little is taken by a file that stays. */
static void make_full(void)
{
    static uint8_t block[1 << 20];
    struct dfe_attr a, in = {0};
    uint64_t at = 0;
    ssize_t n;

    CHECK_EQ(ns_mknod(ns, NS_ROOT_INO, "ballast", 7, S_IFREG | 0600, 0, &cred, 0, &a), 0);
    memset(block, 1, sizeof(block));
    while ((n = ns_write(ns, a.ino, at, block, sizeof(block), 0, NULL)) > 0)
        at += (uint64_t)n;
    CHECK_EQ(n, -ENOSPC);
    in.size = at - LEFT_BYTES;
    CHECK_EQ(ns_setattr(ns, a.ino, &in, DFE_SET_SIZE, 0, &a), 0);
    CHECK_EQ(ns_sync(ns), 0);
    CHECK_EQ(obj_checkpoint(pool), 0);
}

static void make(uint64_t bytes, bool fill)
{
    struct dfe_attr a;
    char name[8];

    rig_make(bytes);
    open_all(NULL);
    for (unsigned t = 0; t < THREADS; t++) {
        snprintf(name, sizeof(name), "d%u", t);
        CHECK_EQ(ns_mkdir(ns, NS_ROOT_INO, name, strlen(name), 0755, &cred, 0, &a), 0);
        world->actor[t].dir = a.ino;
    }
    if (fill)
        make_full();
    rig_close();
}

/* -- changes --------------------------------------------------------------------------------- */

struct act {
    struct actor *a;
    uint64_t rng;
    struct name *n;           /* what changes */
    const struct image *now;
    struct image *next;       /* as it will be */
    bool tagged;
};

static uint64_t rnd(struct act *x, uint64_t below)
{
    return test_rand(&x->rng) % below;
}

static const char *text(const struct act *x, const struct name *n)
{
    static _Thread_local char name[8];

    snprintf(name, sizeof(name), "f%u", (unsigned)(n - x->a->name));
    return name;
}

static void begin(struct act *x, uint32_t names, bool parts)
{
    uint64_t seq = ++x->a->seq;

    x->a->parts = parts;
    x->a->pending = names;
    keep_begin(keep, (uint64_t)(x->a - world->actor) + 1, seq);
}

static uint32_t bit(const struct act *x, const struct name *n)
{
    return 1u << (n - x->a->name);
}

/* What the caller was told of it. The version comes last: with it the times count. */
static void told(struct image *i, const struct dfe_attr *a)
{
    i->mtime_ns = a->mtime_ns;
    i->ctime_ns = a->ctime_ns;
    __atomic_store_n(&i->version, a->version, __ATOMIC_RELEASE);
}

static void ack(struct act *x)
{
    x->a->pending = 0;
    x->a->acked++;
    keep_end(keep);
}

/* There was no space: nothing has happened. */
static bool refused(struct act *x, int64_t rc)
{
    if (rc != -ENOSPC)
        return false;
    x->a->pending = 0;
    keep_end(keep);
    return true;
}

static void ack_one(struct act *x)
{
    struct dfe_attr a;

    CHECK_EQ(ns_getattr(ns, x->next->ino, 0, &a), 0);
    CHECK_EQ(a.size, x->next->size);
    told(x->next, &a);
    flip(x->a, x->n);
    ack(x);
}

static void do_create(struct act *x)
{
    const char *name = text(x, x->n);
    struct dfe_attr a;

    *x->next = (struct image){.exists = true, .linked = true, .mode = S_IFREG | 0644};
    begin(x, bit(x, x->n), false);
    CHECK_EQ(ns_mknod(ns, x->a->dir, name, strlen(name), S_IFREG | 0644, 0, &cred, DFE_REF, &a),
             0);
    x->next->ino = a.ino;
    ack_one(x);
}

static void do_write(struct act *x)
{
    bool append = rnd(x, 4) == 0;
    uint64_t off = append ? x->now->size : rnd(x, FILE_BYTES), at = 0;
    ssize_t n;
    size_t len = 1 + (size_t)rnd(x, rnd(x, 8) ? 9000 : SEGMENT);

    if (off + len > FILE_BYTES)
        len = (size_t)(FILE_BYTES - off);
    if (len == 0)
        return;
    *x->next = *x->now;
    x->next->version = 0;
    for (size_t i = 0; i < len; i += 61)
        x->next->data[off + i] = (uint8_t)rnd(x, 256);
    if (off + len > x->next->size)
        x->next->size = off + len;
    begin(x, bit(x, x->n), false);
    n = ns_write(ns, x->now->ino, off, x->next->data + off, len, append ? DFE_APPEND : 0, &at);
    if (refused(x, n))
        return;
    CHECK_EQ(n, len);
    CHECK_EQ(at, off);
    ack_one(x);
}

static void do_punch(struct act *x)
{
    uint64_t off, len;
    int rc;

    if (x->now->size == 0)
        return;
    off = rnd(x, x->now->size);
    len = 1 + rnd(x, x->now->size - off);
    *x->next = *x->now;
    memset(x->next->data + off, 0, len);
    x->next->version = 0;
    begin(x, bit(x, x->n), false);
    rc = ns_punch(ns, x->now->ino, off, len, 0);
    if (refused(x, rc))
        return;
    CHECK_EQ(rc, 0);
    ack_one(x);
}

/* A new size, times and modes, alone and together. */
static void do_setattr(struct act *x)
{
    unsigned set = (unsigned)(1 + rnd(x, 7));
    struct dfe_attr a = {0}, out;
    unsigned flags = 0;
    int rc;

    *x->next = *x->now;
    if (set & 1) {
        a.size = x->next->size = rnd(x, FILE_BYTES);
        if (x->next->size < x->now->size)
            memset(x->next->data + x->next->size, 0, x->now->size - x->next->size);
        flags |= DFE_SET_SIZE;
    }
    if (set & 2) {
        a.mtime_ns = (int64_t)rnd(x, 2000000000) * 1000000000;
        flags |= DFE_SET_MTIME;
    }
    if (set & 4) {
        x->next->mode = S_IFREG | (uint32_t)rnd(x, 0777);
        a.mode = x->next->mode;
        flags |= DFE_SET_MODE;
    }
    x->next->version = 0;
    begin(x, bit(x, x->n), (set & (set - 1)) || set == 2);
    rc = ns_setattr(ns, x->now->ino, &a, flags, 0, &out);
    if (refused(x, rc)) /* the size comes first */
        return;
    CHECK_EQ(rc, 0);
    if (set & 2)
        CHECK_EQ(out.mtime_ns, a.mtime_ns);
    ack_one(x);
}

/* The name goes; the file stays, sometimes, for whoever has it open. */
static void do_unlink(struct act *x)
{
    const char *name = text(x, x->n);
    bool hold = rnd(x, 3) == 0;
    uint64_t ino = x->now->ino;

    *x->next = *x->now;
    x->next->linked = false;
    x->next->version = 0;
    begin(x, bit(x, x->n), false);
    CHECK_EQ(ns_unlink(ns, x->a->dir, name, strlen(name), 0), 0);
    ack_one(x);
    if (hold)
        return;
    x->next = image(x->n, 1);
    x->next->exists = false;
    x->a->parts = 1; /* either will do */
    x->a->pending = bit(x, x->n);
    flip(x->a, x->n);
    ns_unref(ns, ino, 1);
    x->a->pending = 0;
}

static void do_close(struct act *x)
{
    uint64_t ino = x->now->ino;

    x->next->exists = false;
    x->a->parts = 1;
    x->a->pending = bit(x, x->n);
    flip(x->a, x->n);
    ns_unref(ns, ino, 1);
    x->a->pending = 0;
}

/* Over another name, or to an absent one. */
static void do_rename(struct act *x)
{
    struct name *to = &x->a->name[rnd(x, NAMES)];
    struct image *old = image(to, 0), *next = image(to, 1);
    char from_name[8];
    const char *to_name;
    uint64_t replaced = old->exists ? old->ino : 0;

    if (to == x->n || (old->exists && !old->linked))
        return;
    snprintf(from_name, sizeof(from_name), "%s", text(x, x->n));
    to_name = text(x, to);
    *next = *x->now;
    next->version = 0;
    x->next->exists = false;
    begin(x, bit(x, x->n) | bit(x, to), false);
    CHECK_EQ(ns_rename(ns, x->a->dir, from_name, strlen(from_name), x->a->dir, to_name,
                       strlen(to_name), 0),
             0);
    flip(x->a, to);
    flip(x->a, x->n);
    ack(x);
    if (replaced)
        ns_unref(ns, replaced, 1);
}

static void step(struct act *x)
{
    uint64_t what = rnd(x, 100);

    x->n = &x->a->name[rnd(x, NAMES)];
    x->now = image(x->n, 0);
    x->next = image(x->n, 1);
    if (!x->now->exists)
        do_create(x);
    else if (!x->now->linked && what < 20)
        do_close(x);
    else if (what < 45)
        do_write(x);
    else if (what < 60)
        do_setattr(x);
    else if (what < 68)
        do_punch(x);
    else if (what < 72 && x->now->linked)
        do_unlink(x);
    else if (what < 78 && x->now->linked)
        do_rename(x);
    else if (what < 80)
        CHECK_EQ(ns_fsync(ns, x->now->ino, 0), 0);
    else if (what == 80 && rnd(x, 4) == 0)
        CHECK_EQ(obj_checkpoint(pool), 0);
    else if (what == 81 && rnd(x, 4) == 0)
        CHECK_EQ(ns_sync(ns), 0);
    else
        do_write(x);
}

static void *actor_run(void *arg)
{
    for (;;)
        step(arg);
    return NULL;
}

/* -- what must be there ---------------------------------------------------------------------- */

/* Is the name as the image has it? Reads by number: whoever kept a file open goes on with it. */
static bool matches(struct actor *a, const struct name *n, const struct image *i, bool say)
{
    static uint8_t got[FILE_BYTES + 1];
    char name[8];
    struct dfe_attr at, by;
    ssize_t len;
    int rc;

    snprintf(name, sizeof(name), "f%u", (unsigned)(n - a->name));
    rc = ns_lookup(ns, a->dir, name, strlen(name), 0, &at);
    if (!i->exists || !i->linked) {
        if (rc != -ENOENT)
            return say && fprintf(stderr, "%s is there\n", name) < 0;
        if (!i->exists)
            return true;
        rc = 0;
    } else if (rc == 0 && i->ino && at.ino != i->ino) {
        return say && fprintf(stderr, "%s is another file\n", name) < 0;
    }
    if (rc == 0)
        rc = ns_getattr(ns, i->ino ? i->ino : at.ino, 0, &by);
    if (rc < 0)
        return say && fprintf(stderr, "%s: %d\n", name, rc) < 0;
    if (by.size != i->size || by.mode != i->mode)
        return say && fprintf(stderr, "%s: size %llu not %llu, mode %o not %o\n", name,
                              (unsigned long long)by.size, (unsigned long long)i->size, by.mode,
                              i->mode) < 0;
    if (i->version && (by.version != i->version || by.mtime_ns != i->mtime_ns ||
                       by.ctime_ns != i->ctime_ns))
        return say && fprintf(stderr, "%s: version %llu not %llu, mtime off %lld, ctime %lld\n",
                              name, (unsigned long long)by.version, (unsigned long long)i->version,
                              (long long)(by.mtime_ns - i->mtime_ns),
                              (long long)(by.ctime_ns - i->ctime_ns)) < 0;
    len = ns_read(ns, by.ino, 0, got, sizeof(got), 0);
    if (len != (ssize_t)i->size)
        return say && fprintf(stderr, "%s: read %zd\n", name, len) < 0;
    for (size_t k = 0; k < i->size; k++)
        if (got[k] != i->data[k])
            return say && fprintf(stderr, "%s: byte %zu of %zd differs\n", name, k, len) < 0;
    return true;
}

/* The change that nobody was told of: wholly there or not at all, as its tag says. */
static void check_pending(struct actor *a, uint32_t pending)
{
    uint64_t session = (uint64_t)(a - world->actor) + 1, value = 0;
    bool done = keep_done(keep, session, a->seq, &value);

    for (unsigned i = 0; i < NAMES; i++) {
        struct name *n = &a->name[i];
        const struct image *now = image(n, 0), *next = image(n, 1);
        bool is_now, is_next;
        if (!(pending & 1u << i))
            continue;
        if (!a->parts && now->seq == a->seq) { /* killed between its acknowledgement's two words */
            CHECK(matches(a, n, now, true));
            continue;
        }
        is_now = matches(a, n, now, false);
        is_next = matches(a, n, next, false);
        if (!is_now && !is_next && !a->parts) {
            matches(a, n, now, true);
            matches(a, n, next, true);
            fprintf(stderr, "f%u of %llu is neither (done %d)\n", i, (unsigned long long)session,
                    done);
            abort();
        }
        if (done && !is_next && !is_now)
            CHECK(!"done, and not to be seen");
        if (!a->parts && is_now != is_next)
            CHECK_EQ(is_next, done);
        if (is_next && done && next->exists && next->ino == 0)
            CHECK(value > 0);
    }
}

/* The image becomes what the system says: whoever comes later compares with that. */
static void settle(struct actor *a, struct name *n)
{
    const struct image *now = image(n, 0), *next = image(n, 1);
    uint64_t ino = now->exists ? now->ino : next->exists ? next->ino : 0;
    struct image *i = image(n, 2);
    struct dfe_attr at;
    char name[8];

    snprintf(name, sizeof(name), "f%u", (unsigned)(n - a->name));
    memset(i, 0, sizeof(*i));
    i->linked = ns_lookup(ns, a->dir, name, strlen(name), 0, &at) == 0;
    i->exists = i->linked || (ino && ns_getattr(ns, ino, 0, &at) == 0 && at.nlink == 0);
    if (i->exists) {
        i->ino = at.ino;
        i->size = at.size;
        i->mode = at.mode;
        CHECK_EQ(ns_read(ns, at.ino, 0, i->data, sizeof(i->data), 0), at.size);
        told(i, &at);
    }
    n->which = (n->which + 2) % 3;
}

static void fault(const char *line, void *arg)
{
    (void)arg;
    fprintf(stderr, "check: %s\n", line);
}

static void check_all(bool data)
{
    for (struct actor *a = world->actor; a < world->actor + THREADS; a++) {
        uint32_t pending = a->pending;
        for (unsigned i = 0; i < NAMES; i++) {
            struct name *n = &a->name[i];
            if (!(pending & 1u << i) && !matches(a, n, image(n, 0), true)) {
                fprintf(stderr, "f%u of %u was acknowledged otherwise\n", i,
                        (unsigned)(a - world->actor));
                abort();
            }
        }
        if (pending)
            check_pending(a, pending);
        a->parts = 1; /* whoever comes while this changes finds one or the other */
        for (unsigned i = 0; i < NAMES; i++)
            if (pending & 1u << i)
                settle(a, &a->name[i]);
        a->pending = 0;
        for (uint64_t q = a->seq > 4 ? a->seq - 4 : 0; q <= a->seq; q++)
            keep_answered(keep, (uint64_t)(a - world->actor) + 1, q);
    }
    CHECK_EQ(ns_check(ns, data, fault, NULL, NULL), 0);
    for (struct actor *a = world->actor; a < world->actor + THREADS; a++)
        for (unsigned i = 0; i < NAMES; i++) { /* what this process goes on with */
            struct image *m = image(&a->name[i], 0);
            if (m->exists)
                CHECK_EQ(ns_ref(ns, m->ino), 0);
        }
}

/* -- rounds ---------------------------------------------------------------------------------- */

static void child(uint64_t rng)
{
    struct act x[THREADS];
    pthread_t t;

    CHECK_EQ(keep_open(keep_mem, keep_mem_bytes, &keep), 0);
    world->replayed += !keep_empty(keep);
    seed = rng;
    open_all(keep);
    check_all(test_rand(&rng) % 8 == 0);
    for (unsigned i = 0; i < THREADS; i++) {
        x[i] = (struct act){.a = &world->actor[i], .rng = test_rand(&rng) | 1};
        CHECK_EQ(pthread_create(&t, NULL, actor_run, &x[i]), 0);
    }
    world->ready = 1;
    for (;;)
        pause();
}

static void run_round(void)
{
    uint64_t rng = test_rand(&seed), us = test_rand(&seed) % 90000;
    bool early = test_rand(&seed) % 5 == 0;
    pid_t pid;
    int status;

    world->ready = 0;
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        child(rng);
    for (unsigned i = 0; !early && !world->ready && i < 60000; i++) {
        usleep(1000);
        if (waitpid(pid, &status, WNOHANG) == pid)
            CHECK(!"the process ended by itself");
    }
    usleep((useconds_t)(early ? us / 3 : us));
    kill(pid, SIGKILL);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        CHECK(!"the process failed");
    world->rounds++;
}

/* Closed in order, nothing is kept, and the pool alone has it all. */
static void last(void)
{
    CHECK_EQ(keep_open(keep_mem, keep_mem_bytes, &keep), 0);
    open_all(keep);
    check_all(true);
    for (struct actor *a = world->actor; a < world->actor + THREADS; a++)
        for (unsigned i = 0; i < NAMES; i++) {
            struct image *m = image(&a->name[i], 0);
            m->exists = m->exists && m->linked;
        }
    rig_close();
    CHECK(keep_empty(keep));
    keep_close(keep);
    keep = NULL;
    open_all(NULL);
    for (struct actor *a = world->actor; a < world->actor + THREADS; a++)
        for (unsigned i = 0; i < NAMES; i++) {
            struct name *n = &a->name[i];
            image(n, 0)->ino = 0; /* unknown to this process until it is looked up */
            CHECK(matches(a, n, image(n, 0), true));
        }
    CHECK_EQ(ns_check(ns, true, fault, NULL, NULL), 0);
    rig_close();
}

static void kill_for(unsigned seconds)
{
    const char *s = getenv("DFE_CRASH_SECONDS");
    uint64_t until = base_mono_ns() + (s ? strtoull(s, NULL, 10) : seconds) * 1000000000ull;
    uint64_t acked = 0;

    while (base_mono_ns() < until)
        run_round();
    last();
    for (unsigned t = 0; t < THREADS; t++)
        acked += world->actor[t].acked;
    fprintf(stderr, "   %u kills, %u found something to replay, %llu changes acknowledged\n",
            world->rounds, world->replayed, (unsigned long long)acked);
    CHECK(world->replayed > 0);
}

static void make_roomy(void)
{
    make(256u << 20, false);
}

static void make_narrow(void)
{
    make(48u << 20, true);
}

static void kills(void)
{
    memset(world, 0, sizeof(*world));
    rig_start("roomy", make_roomy);
    kill_for(SECONDS);
}

static void kills_full(void)
{
    memset(world, 0, sizeof(*world));
    rig_start("narrow", make_narrow);
    kill_for(FULL_SECONDS);
}

int main(void)
{
    seed = test_seed();
    world = rig_shared(sizeof(*world));
    RUN(kills);
    RUN(kills_full);
    return 0;
}
