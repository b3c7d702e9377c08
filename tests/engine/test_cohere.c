/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coherence with kernels that cache: models of two mounts' kernels keep all that replies allow, and
 * forget what they are told to, while other sessions change files and names. Nothing older than an
 * acknowledged change may ever be served.
 *
 * A model kernel locks as Linux does: a page from before its READ until the reply; a directory
 * while a name is looked up or forgotten in it; attributes are kept if none were invalidated since
 * they were asked for. An inode that it does not know is acknowledged after the requests in hand.
 *
 * The oracle: each file holds the number of its last write, its uid is that of its last chown, and
 * a name exists in its odd states. `started` is set before a change, `acked` after its answer.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "api_fixture.h"
#include "base/clock.h"
#include "dispatch_rig.h"

#define FILES 6u
#define NAMES 6u
#define KERNELS 2u
#define SECONDS 3

enum { BY_API, BY_IL, BY_MOUNT, WRITERS };

static struct host *host;
static struct session *api, *il;
static atomic_bool stop;
static uint64_t seed;

struct truth {
    atomic_ulong started, acked;
};

static struct file {
    uint64_t ino;
    struct truth data, uid;
} files[FILES]; /* written by WRITERS in turn: file i by i % WRITERS */

static struct truth names[NAMES]; /* the same */
static _Atomic uint64_t name_inos[NAMES];

/* -- a kernel --------------------------------------------------------------------------------- */

struct kfile {
    pthread_mutex_t page;  /* from before a READ until its reply */
    pthread_rwlock_t life; /* shared: used; exclusive: forgotten */
    pthread_mutex_t lock;  /* the rest */
    uint64_t nlookup, attr_version, version;
    bool attr_ok, page_ok;
    struct dfe_attr attr;
};

struct kname {
    bool ok;
    uint64_t ino; /* 0: absent */
};

struct kernel {
    struct session *s;
    bool read_only;
    struct kfile files[FILES];
    pthread_rwlock_t dir;    /* shared: look-ups; exclusive: changes, invalidations */
    pthread_mutex_t lock;    /* names */
    struct kname names[NAMES];
    pthread_rwlock_t finding; /* shared: requests that may bring an unknown inode */
    pthread_t inval;
    atomic_ulong invalidated, served;
};

static struct kernel kernels[KERNELS];

static void name_text(unsigned i, char *to)
{
    snprintf(to, 16, "name%u", i);
}

static void file_text(unsigned i, char *to)
{
    snprintf(to, 16, "file%u", i);
}

static void dawdle(uint64_t *rng)
{
    uint64_t r = test_rand(rng) % 64;

    if (r < 4)
        usleep((useconds_t)(test_rand(rng) % 200));
}

/* What comes with a reply; `version` is of when it was asked for. A new inode takes anything. */
static void keep_attr(struct kfile *f, const struct dfe_attr *attr, uint64_t version, bool is_new)
{
    if (!is_new && version != f->attr_version)
        return;
    f->attr = *attr;
    f->attr_ok = !(attr->flags & DFE_ATTR_SHARED);
}

/* Under life, shared. */
static void k_lookup(struct kernel *k, unsigned i, uint64_t *rng)
{
    struct kfile *f = &k->files[i];
    struct dfe_attr attr;
    uint64_t version;
    char name[16];

    file_text(i, name);
    pthread_rwlock_rdlock(&k->dir);
    pthread_rwlock_rdlock(&k->finding);
    pthread_mutex_lock(&f->lock);
    version = f->attr_version;
    pthread_mutex_unlock(&f->lock);
    CHECK_EQ(rig_name(k->s, PROTO_LOOKUP, 1, RIG_ROOT, name, DFE_REF, &attr), 0);
    dawdle(rng);
    pthread_mutex_lock(&f->lock);
    keep_attr(f, &attr, version, f->nlookup == 0);
    f->nlookup++;
    pthread_mutex_unlock(&f->lock);
    pthread_rwlock_unlock(&k->finding);
    pthread_rwlock_unlock(&k->dir);
}

static void k_need(struct kernel *k, unsigned i, uint64_t *rng)
{
    bool known;

    pthread_mutex_lock(&k->files[i].lock);
    known = k->files[i].nlookup > 0;
    pthread_mutex_unlock(&k->files[i].lock);
    if (!known || test_rand(rng) % 16 == 0)
        k_lookup(k, i, rng);
}

static void k_stat(struct kernel *k, unsigned i, struct dfe_attr *out, uint64_t *rng)
{
    struct kfile *f = &k->files[i];
    uint64_t version;
    bool ok;

    pthread_rwlock_rdlock(&f->life);
    k_need(k, i, rng);
    pthread_mutex_lock(&f->lock);
    version = f->attr_version;
    ok = f->attr_ok;
    *out = f->attr;
    pthread_mutex_unlock(&f->lock);
    if (ok)
        atomic_fetch_add(&k->served, 1);
    if (!ok) {
        CHECK_EQ(rig_getattr(k->s, 1, files[i].ino, out), 0);
        dawdle(rng);
        pthread_mutex_lock(&f->lock);
        keep_attr(f, out, version, false);
        pthread_mutex_unlock(&f->lock);
    }
    pthread_rwlock_unlock(&f->life);
}

static uint64_t k_read(struct kernel *k, unsigned i, uint64_t *rng)
{
    struct kfile *f = &k->files[i];
    uint64_t got;

    pthread_rwlock_rdlock(&f->life);
    k_need(k, i, rng);
    pthread_mutex_lock(&f->page);
    if (!f->page_ok) {
        CHECK_EQ(rig_read(k->s, 1, files[i].ino, 0, &f->version, 8), 8);
        dawdle(rng);
        f->page_ok = true;
    } else {
        atomic_fetch_add(&k->served, 1);
    }
    got = f->version;
    pthread_mutex_unlock(&f->page);
    pthread_rwlock_unlock(&f->life);
    return got;
}

static void k_write(struct kernel *k, unsigned i, uint64_t number, uint64_t *rng)
{
    struct kfile *f = &k->files[i];

    pthread_rwlock_rdlock(&f->life);
    k_need(k, i, rng);
    pthread_mutex_lock(&f->page);
    CHECK_EQ(rig_write(k->s, 1, files[i].ino, 0, &number, 8, 0, NULL), 8);
    f->version = number;
    f->page_ok = true;
    pthread_mutex_unlock(&f->page);
    pthread_mutex_lock(&f->lock);
    f->attr_ok = false;
    f->attr_version++;
    pthread_mutex_unlock(&f->lock);
    pthread_rwlock_unlock(&f->life);
}

static void k_forget(struct kernel *k, unsigned i)
{
    struct kfile *f = &k->files[i];
    uint64_t n;

    pthread_rwlock_wrlock(&f->life);
    pthread_mutex_lock(&f->page);
    pthread_mutex_lock(&f->lock);
    n = f->nlookup;
    f->nlookup = 0;
    f->attr_ok = f->page_ok = false;
    pthread_mutex_unlock(&f->lock);
    pthread_mutex_unlock(&f->page);
    if (n)
        CHECK_EQ(rig_simple(k->s, PROTO_UNREF, 1, files[i].ino, n, 0), 0);
    pthread_rwlock_unlock(&f->life);
}

/* The inode of a name, 0: absent. */
static uint64_t k_name(struct kernel *k, unsigned i, uint64_t *rng)
{
    struct dfe_attr attr = {0};
    struct kname kept;
    char name[16];
    int64_t ret;

    name_text(i, name);
    pthread_rwlock_rdlock(&k->dir);
    pthread_mutex_lock(&k->lock);
    kept = k->names[i];
    pthread_mutex_unlock(&k->lock);
    if (!kept.ok) {
        ret = rig_name(k->s, PROTO_LOOKUP, 1, RIG_ROOT, name, 0, &attr);
        CHECK(ret == 0 || ret == -ENOENT);
        dawdle(rng);
        kept = (struct kname){true, ret == 0 ? attr.ino : 0};
        pthread_mutex_lock(&k->lock);
        k->names[i] = kept;
        pthread_mutex_unlock(&k->lock);
    } else {
        atomic_fetch_add(&k->served, 1);
    }
    pthread_rwlock_unlock(&k->dir);
    return kept.ino;
}

static void k_forget_name(struct kernel *k, unsigned i)
{
    pthread_mutex_lock(&k->lock);
    k->names[i].ok = false;
    pthread_mutex_unlock(&k->lock);
}

/* -- invalidations ---------------------------------------------------------------------------- */

static void inval_inode(struct kernel *k, unsigned i, bool pages)
{
    struct kfile *f = &k->files[i];

    for (int again = 0; again < 2; again++) {
        bool known;

        pthread_mutex_lock(&f->lock);
        known = f->nlookup > 0;
        f->attr_version++;
        f->attr_ok = false;
        pthread_mutex_unlock(&f->lock);
        if (known)
            break;
        pthread_rwlock_wrlock(&k->finding);
        pthread_rwlock_unlock(&k->finding);
    }
    if (!pages)
        return;
    pthread_mutex_lock(&f->page);
    f->page_ok = false;
    pthread_mutex_unlock(&f->page);
}

static void invalidate(struct kernel *k, const struct dfe_inval *inval)
{
    unsigned i;

    atomic_fetch_add(&k->invalidated, 1);
    if (inval->what == DFE_INVAL_ENTRY) {
        CHECK_EQ(inval->ino, RIG_ROOT);
        CHECK_EQ(inval->name_len, 5);
        i = (unsigned)inval->name[4] - '0';
        pthread_rwlock_wrlock(&k->dir);
        if (memcmp(inval->name, "name", 4) == 0)
            k_forget_name(k, i);
        pthread_rwlock_unlock(&k->dir);
        return;
    }
    for (i = 0; i < FILES; i++) {
        if (files[i].ino == inval->ino)
            inval_inode(k, i, inval->what == DFE_INVAL_PAGES);
    }
}

/* The way of a ring: the answer comes later. */
struct news {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool told;
    struct proto_cqe cqe;
};

static void told(struct request *req, const struct proto_cqe *out)
{
    struct news *n = req->arg;

    pthread_mutex_lock(&n->lock);
    n->cqe = *out;
    n->told = true;
    pthread_cond_signal(&n->cond);
    pthread_mutex_unlock(&n->lock);
}

static int64_t next_later(struct kernel *k, uint64_t done, struct dfe_inval *inval)
{
    struct news n = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    struct request req = {.e = {.op = PROTO_INVAL_NEXT, .handle = 1, .off = done},
                          .reply = inval,
                          .later = told,
                          .arg = &n};
    int ret;

    req.e.reply_cap = sizeof(*inval);
    ret = dispatch(k->s, &req, false, &n.cqe);
    pthread_mutex_lock(&n.lock);
    while (ret == DISPATCH_LATER && !n.told)
        pthread_cond_wait(&n.cond, &n.lock);
    pthread_mutex_unlock(&n.lock);
    return n.cqe.result;
}

static int64_t next_waiting(struct kernel *k, uint64_t done, struct dfe_inval *inval)
{
    struct rig_call call = {.e = {.op = PROTO_INVAL_NEXT, .handle = 1, .off = done}};
    int64_t ret = rig_do(k->s, &call);

    memcpy(inval, call.reply, sizeof(*inval));
    return ret;
}

static void *inval_thread(void *arg)
{
    struct kernel *k = arg;
    struct dfe_inval inval;
    uint64_t done = 0;
    int64_t ret;

    for (;;) {
        ret = k->read_only ? next_waiting(k, done, &inval) : next_later(k, done, &inval);
        if (ret < 0)
            break;
        invalidate(k, &inval);
        done = inval.id;
    }
    CHECK_EQ(ret, -ESHUTDOWN);
    return NULL;
}

/* -- who writes ------------------------------------------------------------------------------- */

static void change_data(unsigned by, unsigned i, uint64_t *rng)
{
    struct truth *t = &files[i].data;
    struct dfe_attr in = {.size = 8};
    uint64_t number = atomic_load(&t->started) + 1;
    struct session *s = by == BY_API ? api : il;

    atomic_store(&t->started, number);
    if (by == BY_MOUNT) {
        k_write(&kernels[0], i, number, rng);
    } else {
        CHECK_EQ(rig_write(s, 1, files[i].ino, 0, &number, 8, 0, NULL), 8);
        if (test_rand(rng) % 4 == 0)
            CHECK_EQ(rig_setattr(s, 1, files[i].ino, &in, DFE_SET_SIZE), 0);
    }
    atomic_store(&t->acked, number);
}

static void change_uid(unsigned by, unsigned i)
{
    struct truth *t = &files[i].uid;
    uint64_t number = atomic_load(&t->started) + 1;
    struct dfe_attr in = {.uid = (uint32_t)number};
    struct kfile *f = &kernels[0].files[i];

    atomic_store(&t->started, number);
    CHECK_EQ(rig_setattr(by == BY_MOUNT ? kernels[0].s : api, 1, files[i].ino, &in, DFE_SET_UID),
             0);
    if (by == BY_MOUNT) {
        pthread_mutex_lock(&f->lock);
        f->attr_ok = false;
        f->attr_version++;
        pthread_mutex_unlock(&f->lock);
    }
    atomic_store(&t->acked, number);
}

static void change_name(unsigned by, unsigned i)
{
    uint64_t number = atomic_load(&names[i].started) + 1;
    struct session *s = by == BY_MOUNT ? kernels[0].s : api;
    struct dfe_attr attr = {0};
    char name[16];

    name_text(i, name);
    if (by == BY_MOUNT)
        pthread_rwlock_wrlock(&kernels[0].dir);
    atomic_store(&names[i].started, number);
    if (number % 2)
        CHECK_EQ(rig_make(s, 1, RIG_ROOT, name, S_IFREG | 0644, 0, &attr), 0);
    else
        CHECK_EQ(rig_name(s, PROTO_UNLINK, 1, RIG_ROOT, name, 0, NULL), 0);
    atomic_store(&name_inos[i], attr.ino);
    if (by == BY_MOUNT)
        k_forget_name(&kernels[0], i);
    atomic_store(&names[i].acked, number);
    if (by == BY_MOUNT)
        pthread_rwlock_unlock(&kernels[0].dir);
}

static void *writer(void *arg)
{
    unsigned by = (unsigned)(uintptr_t)arg;
    uint64_t rng = seed + by + 1;

    while (!atomic_load(&stop)) {
        unsigned i = (unsigned)(test_rand(&rng) % (FILES / WRITERS)) * WRITERS + by;
        uint64_t what = test_rand(&rng) % 8;

        if (what < 5)
            change_data(by, i, &rng);
        else if (what < 6 && by != BY_IL)
            change_uid(by, i);
        else if (by != BY_IL)
            change_name(by, i);
        if (test_rand(&rng) % 4 == 0)
            usleep((useconds_t)(test_rand(&rng) % 1000));
    }
    return NULL;
}

/* -- who looks -------------------------------------------------------------------------------- */

static void look_at_name(struct kernel *k, unsigned i, uint64_t *rng)
{
    uint64_t least = atomic_load(&names[i].acked), ino = atomic_load(&name_inos[i]), got, most;

    got = k_name(k, i, rng);
    most = atomic_load(&names[i].started);
    if (least != most)
        return; /* it changed meanwhile: both are right */
    CHECK_EQ(got != 0, least % 2);
    CHECK_EQ(got, ino);
}

static void *reader(void *arg)
{
    struct kernel *k = &kernels[(uintptr_t)arg % KERNELS];
    uint64_t rng = seed + 100 + (uintptr_t)arg;

    while (!atomic_load(&stop)) {
        unsigned i = (unsigned)(test_rand(&rng) % FILES);
        uint64_t data = atomic_load(&files[i].data.acked), uid = atomic_load(&files[i].uid.acked);
        uint64_t what = test_rand(&rng) % 16, got;
        struct dfe_attr attr;

        if (what < 6) {
            got = k_read(k, i, &rng);
            CHECK(got >= data);
            CHECK(got <= atomic_load(&files[i].data.started));
        } else if (what < 11) {
            k_stat(k, i, &attr, &rng);
            CHECK(attr.uid >= uid);
            CHECK(attr.uid <= atomic_load(&files[i].uid.started));
        } else if (what < 15) {
            look_at_name(k, (unsigned)(test_rand(&rng) % NAMES), &rng);
        } else {
            k_forget(k, i);
        }
    }
    return NULL;
}

/* -- the parts -------------------------------------------------------------------------------- */

static void kernel_open(struct kernel *k, bool read_only)
{
    memset(k, 0, sizeof(*k));
    k->read_only = read_only;
    k->s = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), 10 + read_only);
    CHECK_EQ(rig_fs(k->s, 1, "c"), 0);
    CHECK_EQ(rig_simple(k->s, PROTO_FS_MOUNT, 1, 0, 0, read_only), 0);
    pthread_rwlock_init(&k->dir, NULL);
    pthread_rwlock_init(&k->finding, NULL);
    pthread_mutex_init(&k->lock, NULL);
    for (unsigned i = 0; i < FILES; i++) {
        pthread_mutex_init(&k->files[i].page, NULL);
        pthread_mutex_init(&k->files[i].lock, NULL);
        pthread_rwlock_init(&k->files[i].life, NULL);
    }
    CHECK_EQ(pthread_create(&k->inval, NULL, inval_thread, k), 0);
}

static void kernel_close(struct kernel *k)
{
    CHECK_EQ(rig_simple(k->s, PROTO_INVAL_STOP, 1, 0, 0, 0), 0);
    pthread_join(k->inval, NULL);
    session_end(k->s);
    fprintf(stderr, "   kernel: %lu invalidations, %lu times served from memory\n",
            atomic_load(&k->invalidated), atomic_load(&k->served));
    CHECK(atomic_load(&k->invalidated) > 0 && atomic_load(&k->served) > 0);
}

static void random_changes(void)
{
    pthread_t writers[WRITERS], readers[2 * KERNELS];
    uint64_t zero = 0;
    struct dfe_attr attr, in = {0};
    char name[16];

    for (unsigned i = 0; i < FILES; i++) {
        file_text(i, name);
        CHECK_EQ(rig_make(api, 1, RIG_ROOT, name, S_IFREG | 0666, DFE_REF, &attr), 0);
        files[i].ino = attr.ino;
        CHECK_EQ(rig_write(api, 1, attr.ino, 0, &zero, 8, 0, NULL), 8);
        CHECK_EQ(rig_setattr(api, 1, attr.ino, &in, DFE_SET_UID), 0);
    }
    for (unsigned i = 0; i < KERNELS; i++)
        kernel_open(&kernels[i], i > 0);
    for (uintptr_t i = 0; i < WRITERS; i++)
        CHECK_EQ(pthread_create(&writers[i], NULL, writer, (void *)i), 0);
    for (uintptr_t i = 0; i < 2 * KERNELS; i++)
        CHECK_EQ(pthread_create(&readers[i], NULL, reader, (void *)i), 0);
    sleep(getenv("DFE_SECONDS") ? (unsigned)atoi(getenv("DFE_SECONDS")) : SECONDS);
    atomic_store(&stop, true);
    for (unsigned i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    for (unsigned i = 0; i < 2 * KERNELS; i++)
        pthread_join(readers[i], NULL);
    for (unsigned i = 0; i < FILES; i++)
        fprintf(stderr, "   file %u: %lu writes\n", i, atomic_load(&files[i].data.acked));
    for (unsigned i = 0; i < KERNELS; i++)
        kernel_close(&kernels[i]);
}

static void one_writes(void)
{
    struct session *a = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), 20),
                   *b = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), 21);

    CHECK_EQ(rig_fs(a, 1, "c"), 0);
    CHECK_EQ(rig_fs(b, 1, "c"), 0);
    CHECK_EQ(rig_simple(a, PROTO_FS_MOUNT, 1, 0, 0, 2), -EINVAL);
    CHECK_EQ(rig_simple(a, PROTO_FS_MOUNT, 1, 0, 0, 0), 0);
    CHECK_EQ(rig_simple(b, PROTO_FS_MOUNT, 1, 0, 0, 0), -EBUSY);
    CHECK_EQ(rig_simple(b, PROTO_FS_MOUNT, 1, 0, 0, 1), 0);
    CHECK_EQ(rig_simple(b, PROTO_FS_MOUNT, 1, 0, 0, 1), -EEXIST);
    session_end(a);
    a = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), 20);
    CHECK_EQ(rig_fs(a, 1, "c"), 0);
    CHECK_EQ(rig_simple(a, PROTO_FS_MOUNT, 1, 0, 0, 0), 0);
    CHECK_EQ(rig_simple(a, PROTO_LEASE, 1, RIG_ROOT, 0, 0), -ENOTSUP);
    session_end(a);
    session_end(b);
}

/* What is shared is not kept; an append goes to the engine's end, and the kernel is told. */
static void appends(void)
{
    struct session *m = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), 22);
    struct rig_call next = {.e = {.op = PROTO_INVAL_NEXT, .handle = 1}};
    struct dfe_inval inval;
    struct dfe_attr attr;
    uint64_t at;

    CHECK_EQ(rig_fs(m, 1, "c"), 0);
    CHECK_EQ(rig_make(m, 1, RIG_ROOT, "log", S_IFREG | 0644, DFE_REF, &attr), 0);
    CHECK_EQ(rig_simple(m, PROTO_FS_MOUNT, 1, 0, 0, 0), 0);
    CHECK(!(attr.flags & DFE_ATTR_SHARED));
    CHECK_EQ(rig_write(m, 1, attr.ino, 0, "ab", 2, DFE_APPEND, &at), 2);
    CHECK_EQ(at, 0);
    CHECK_EQ(rig_write(m, 1, attr.ino, 0, "ab", 2, DFE_APPEND, &at), 2);
    CHECK_EQ(at, 0); /* nobody else writes: the kernel knows the end */
    CHECK_EQ(rig_simple(m, PROTO_UNREF, 1, attr.ino, 1, 0), 0);
    CHECK_EQ(rig_write(il, 1, attr.ino, 2, "cd", 2, 0, NULL), 2);
    CHECK_EQ(rig_name(m, PROTO_LOOKUP, 1, RIG_ROOT, "log", DFE_REF, &attr), 0);
    CHECK(attr.flags & DFE_ATTR_SHARED);
    CHECK_EQ(rig_write(m, 1, attr.ino, 2, "ef", 2, DFE_APPEND, &at), 2);
    CHECK_EQ(at, 4);
    CHECK_EQ(rig_do(m, &next), 0);
    memcpy(&inval, next.reply, sizeof(inval));
    CHECK_EQ(inval.ino, attr.ino);
    CHECK_EQ(inval.what, DFE_INVAL_PAGES);
    session_end(m);
}

/* A mount that does not answer holds others up for so long, and then no more. */
static void let_go(void)
{
    struct session *m = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), 23);
    struct dfe_attr attr;
    uint64_t start;

    CHECK_EQ(rig_fs(m, 1, "c"), 0);
    CHECK_EQ(rig_simple(m, PROTO_FS_MOUNT, 1, 0, 0, 0), 0);
    CHECK_EQ(rig_name(m, PROTO_LOOKUP, 1, RIG_ROOT, "file0", DFE_REF, &attr), 0);
    start = base_mono_ns();
    CHECK_EQ(rig_write(il, 1, attr.ino, 0, "12345678", 8, 0, NULL), 8);
    CHECK(base_mono_ns() - start >= 2000000000u);
    CHECK_EQ(rig_getattr(m, 1, attr.ino, NULL), -EIO);
    CHECK_EQ(rig_simple(m, PROTO_INVAL_NEXT, 1, 0, 0, 0), -ETIMEDOUT);
    start = base_mono_ns();
    CHECK_EQ(rig_write(il, 1, attr.ino, 0, "12345678", 8, 0, NULL), 8);
    CHECK(base_mono_ns() - start < 1000000000u);
    session_end(m);
}

/* A mount that is slow and answers is waited for, however much there is before a change's turn. */
struct slow_write {
    uint64_t ino;
    int64_t ret;
};

static void *slow_write(void *arg)
{
    struct slow_write *w = arg;

    w->ret = rig_write(il, 1, w->ino, 0, "12345678", 8, 0, NULL);
    return NULL;
}

static void *slow_mount(void *arg)
{
    struct dfe_inval inval = {0};
    struct proto_cqe cqe;

    do {
        struct request req = {.e = {.op = PROTO_INVAL_NEXT,
                                    .handle = 1,
                                    .off = inval.id,
                                    .reply_cap = sizeof(inval)},
                              .reply = &inval};

        usleep(inval.id ? 1200000 : 0); /* of the 2 s that it has */
        CHECK_EQ(dispatch(arg, &req, true, &cqe), 0);
    } while (cqe.result >= 0);
    CHECK_EQ(cqe.result, -ESHUTDOWN);
    return NULL;
}

static void slow(void)
{
    struct session *m = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), 22);
    pthread_t mount, writers[3];
    struct slow_write w[3];

    CHECK_EQ(rig_fs(m, 1, "c"), 0);
    CHECK_EQ(rig_simple(m, PROTO_FS_MOUNT, 1, 0, 0, 0), 0);
    CHECK_EQ(pthread_create(&mount, NULL, slow_mount, m), 0);
    for (unsigned i = 0; i < 3; i++) {
        struct dfe_attr attr;
        char name[16];

        snprintf(name, sizeof(name), "file%u", i);
        CHECK_EQ(rig_name(m, PROTO_LOOKUP, 1, RIG_ROOT, name, DFE_REF, &attr), 0);
        w[i].ino = attr.ino;
        CHECK_EQ(pthread_create(&writers[i], NULL, slow_write, &w[i]), 0);
    }
    for (unsigned i = 0; i < 3; i++) {
        CHECK_EQ(pthread_join(writers[i], NULL), 0);
        CHECK_EQ(w[i].ret, 8);
        CHECK_EQ(rig_getattr(m, 1, w[i].ino, NULL), 0);
    }
    CHECK_EQ(rig_simple(m, PROTO_INVAL_STOP, 1, 0, 0, 0), 0);
    CHECK_EQ(pthread_join(mount, NULL), 0);
    session_end(m);
}

/* Who waits for news is sent away by a stop, by a close and by the session's end. */
static void *waits_for_news(void *arg)
{
    CHECK_EQ(rig_simple(arg, PROTO_INVAL_NEXT, 1, 0, 0, 0), -ESHUTDOWN);
    return NULL;
}

static void ends(void)
{
    for (unsigned i = 0; i < 60; i++) {
        struct session *m = rig_session(host, PROTO_ROLE_MOUNT, geteuid(), getegid(), 24 + i);
        struct news n = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
        struct dfe_inval inval;
        struct request req = {.e = {.op = PROTO_INVAL_NEXT, .handle = 1},
                              .reply = &inval,
                              .later = told,
                              .arg = &n};
        pthread_t thread;

        req.e.reply_cap = sizeof(inval);
        CHECK_EQ(rig_fs(m, 1, "c"), 0);
        CHECK_EQ(rig_simple(m, PROTO_FS_MOUNT, 1, 0, 0, 1), 0);
        if (i % 3 == 0) {
            CHECK_EQ(pthread_create(&thread, NULL, waits_for_news, m), 0);
            usleep(i * 20);
            CHECK_EQ(rig_simple(m, PROTO_INVAL_STOP, 1, 0, 0, 0), 0);
            pthread_join(thread, NULL);
        } else {
            CHECK_EQ(dispatch(m, &req, false, &n.cqe), DISPATCH_LATER);
            CHECK_EQ(rig_simple(m, PROTO_INVAL_NEXT, 1, 0, 0, 0), -EBUSY);
        }
        if (i % 3 == 1)
            CHECK_EQ(rig_simple(m, PROTO_CLOSE, 1, 0, 0, 0), 0);
        session_end(m);
        CHECK(i % 3 == 0 || (n.told && n.cqe.result == -ESHUTDOWN));
    }
}

int main(void)
{
    const char *path = api_path("pool");

    seed = test_seed();
    host = rig_open(path, 2000, NULL);
    api = rig_session(host, PROTO_ROLE_API, geteuid(), getegid(), 1);
    il = rig_session(host, PROTO_ROLE_IL, 0, 0, 2);
    CHECK_EQ(rig_fs(api, 1, "c"), 0);
    CHECK_EQ(rig_fs(il, 1, "c"), 0);
    RUN(one_writes);
    RUN(random_changes);
    RUN(appends);
    RUN(let_go);
    RUN(slow);
    RUN(ends);
    session_end(il);
    session_end(api);
    rig_close(host, path);
    return 0;
}
