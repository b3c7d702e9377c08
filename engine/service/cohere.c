/* SPDX-License-Identifier: Apache-2.0 */
/* Coherence with the kernels of mounts: queues of invalidations, and who waits for them. */
#include "service/cohere.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

#define SHARED_NS 5000000000ull
#define LATELY_NS 60000000000ull
/* Inodes whose last writes are known; of more the older ones count as written. */
#define WRITERS 4096u
#define WRITER_PLACES 8u /* where one may be */
/* After a restart: names that are remembered for mounts that come back. */
#define RENAMED 4096u
/* A mount that comes back answers only when its client has taken up everything again: a call that
 * its kernel makes meanwhile, dirty pages of the last invalidation among them, waits for that. */
#define RETURN_NS 60000000000ull
/* The longest that a change waits for faces that do answer, one invalidation after the other. */
#define PATIENCE 6u
/* Invalidations that nobody waits for, at most so many queued: a face that far behind is let go. */
#define TOLD_MAX 65536u

/* A change that waits for an item. */
struct ask {
    struct list link;
    struct cohere_change *change;
};

struct item {
    struct list link; /* face->queued or face->sent */
    struct list asks; /* none: nobody waits */
    bool told;        /* it was queued without anybody who waits */
    struct dfe_inval inval;
};

struct face {
    struct cohere *co;
    struct list link;
    struct refs *held;
    bool read_only, stopped;
    atomic_bool lost;
    uint64_t next_id;
    bool back;       /* its kernel knows what this object has never heard of */
    bool holds_all;  /* it has not yet said all that its kernel holds ... */
    bool untold;     /* ... and never will: something of it could not be noted */
    uint64_t alive_ns;    /* when it last said that something is done, or was about to begin */
    struct list queued, sent;
    unsigned n_told;
    struct face_waiter *parked;
};

struct writer {
    uint64_t ino, at_ns;
};

/* When inodes were changed last. */
struct writers {
    struct writer slots[WRITERS];
    uint64_t displaced_ns; /* the latest change that has lost its place */
};

struct renamed {
    uint64_t dir;
    uint32_t name_len;
    char name[256];
};

struct cohere {
    pthread_mutex_t held; /* cohere_hold */
    pthread_mutex_t names[COHERE_NAMES];
    pthread_mutex_t lock;
    pthread_cond_t cond; /* a change has nothing left */
    uint64_t inval_ns;
    atomic_uint n_faces;
    struct list faces;
    atomic_ulong changes;
    uint64_t generation;
    struct writers wrote;   /* data, by others than mounts */
    struct writers changed; /* anything, by anybody: for mounts that come back */
    uint64_t opened_ns;
    struct renamed *renamed; /* RENAMED, made when needed */
    uint64_t n_renamed;
};

struct cohere *cohere_open(uint64_t inval_ms)
{
    struct cohere *co = calloc(1, sizeof(*co));
    pthread_condattr_t attr;

    if (!co)
        return NULL;
    co->inval_ns = inval_ms * 1000000u;
    co->opened_ns = base_mono_ns();
    list_init(&co->faces);
    for (unsigned i = 0; i < COHERE_NAMES; i++)
        pthread_mutex_init(&co->names[i], NULL);
    pthread_mutex_init(&co->held, NULL);
    pthread_mutex_init(&co->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&co->cond, &attr);
    pthread_condattr_destroy(&attr);
    return co;
}

void cohere_close(struct cohere *co)
{
    DFE_ASSERT(list_empty(&co->faces));
    pthread_cond_destroy(&co->cond);
    pthread_mutex_destroy(&co->lock);
    pthread_mutex_destroy(&co->held);
    for (unsigned i = 0; i < COHERE_NAMES; i++)
        pthread_mutex_destroy(&co->names[i]);
    free(co->renamed);
    free(co);
}

/* -- queues ----------------------------------------------------------------------------------- */

static void item_done(struct face *face, struct item *item)
{
    list_del(&item->link);
    list_for_each_safe(l, tmp, &item->asks)
    {
        struct ask *ask = container_of(l, struct ask, link);

        if (--ask->change->left == 0)
            pthread_cond_broadcast(&face->co->cond);
        free(ask);
    }
    face->n_told -= item->told;
    free(item);
}

/* Takes the one who waits, if there is something to tell; run with wake_all after the unlock. */
static void face_wake(struct face *face, struct list *wake)
{
    struct face_waiter *w = face->parked;

    if (!w)
        return;
    if (face->lost || face->stopped) {
        w->err = face->lost ? -ETIMEDOUT : -ESHUTDOWN;
    } else if (!list_empty(&face->queued)) {
        struct item *item = container_of(face->queued.next, struct item, link);

        list_del(&item->link);
        list_add_tail(&face->sent, &item->link);
        w->inval = item->inval;
        w->err = 0;
    } else {
        return;
    }
    face->parked = NULL;
    list_add_tail(wake, &w->link);
}

static void wake_all(struct list *wake)
{
    list_for_each_safe(l, tmp, wake)
    {
        struct face_waiter *w = container_of(l, struct face_waiter, link);

        list_del(&w->link);
        w->fn(w);
    }
}

/* Nothing is asked of it any more: who waits for it goes on. */
static void face_drain(struct face *face, struct list *wake)
{
    list_for_each_safe(l, tmp, &face->queued)
        item_done(face, container_of(l, struct item, link));
    list_for_each_safe(l, tmp, &face->sent)
        item_done(face, container_of(l, struct item, link));
    face_wake(face, wake);
}

static void face_lose(struct face *face, const char *why, struct list *wake)
{
    if (face->lost || face->stopped)
        return;
    face->lost = true;
    base_log(BASE_LOG_ERROR, "a mount is let go: %s", why);
    face_drain(face, wake);
}

static bool item_covers(const struct item *item, const struct cohere_target *t, uint32_t what)
{
    const struct dfe_inval *inval = &item->inval;

    if (inval->ino != t->ino)
        return false;
    if (what == DFE_INVAL_ATTR) /* comes with everything */
        return true;
    return inval->what == what &&
           (what != DFE_INVAL_ENTRY || (inval->name_len == t->name_len &&
                                        memcmp(inval->name, t->name, t->name_len) == 0));
}

/* One that says it, and that the mount has not yet taken: so it will be carried out after now. */
static struct item *find_queued(struct face *face, const struct cohere_target *t, uint32_t what)
{
    list_for_each(l, &face->queued)
    {
        struct item *item = container_of(l, struct item, link);

        if (item_covers(item, t, what))
            return item;
    }
    return NULL;
}

static struct item *item_new(struct face *face, const struct cohere_target *t, uint32_t what)
{
    struct item *item = calloc(1, sizeof(*item));

    if (!item)
        return NULL;
    list_init(&item->asks);
    item->inval.id = face->next_id++;
    item->inval.ino = t->ino;
    item->inval.what = what;
    if (what == DFE_INVAL_ENTRY) {
        item->inval.name_len = t->name_len;
        memcpy(item->inval.name, t->name, t->name_len);
    }
    list_add_tail(&face->queued, &item->link);
    return item;
}

/* Nobody waits for it. */
static void face_queue(struct face *face, const struct cohere_target *t, uint32_t what,
                       struct list *wake)
{
    struct item *item = item_new(face, t, what);

    if (!item) {
        face_lose(face, "no memory for what it has to forget", wake);
        return;
    }
    item->told = true;
    face->n_told++;
    face_wake(face, wake);
}

/* The change waits. However many changes of an inode wait, a mount hears of it once more only: the
 * wait is as long as what is queued is manifold, not as it is much. */
static void face_ask(struct face *face, const struct cohere_target *t, uint32_t what,
                     struct cohere_change *change, struct list *wake)
{
    struct item *item = find_queued(face, t, what);
    struct ask *ask = malloc(sizeof(*ask));

    if (!item && ask)
        item = item_new(face, t, what);
    if (!item || !ask) {
        free(ask);
        face_lose(face, "no memory for what it has to forget", wake);
        return;
    }
    ask->change = change;
    list_add_tail(&item->asks, &ask->link);
    change->left++;
    face_wake(face, wake);
}

/* -- faces ------------------------------------------------------------------------------------ */

/* A mount that comes back is told what has changed in between. */
static void face_catch_up(struct face *face, struct list *wake)
{
    struct cohere *co = face->co;
    uint64_t now_ns = base_mono_ns();
    uint64_t n = co->n_renamed < RENAMED ? co->n_renamed : RENAMED;

    face->back = face->holds_all = true;
    face->alive_ns = now_ns + RETURN_NS - co->inval_ns;
    for (unsigned i = 0; i < WRITERS; i++) {
        const struct writer *w = &co->changed.slots[i];
        struct cohere_target t = {.ino = w->ino};

        if (w->ino && now_ns - w->at_ns < LATELY_NS)
            face_queue(face, &t, DFE_INVAL_PAGES, wake);
    }
    for (uint64_t i = 0; i < n; i++) {
        const struct renamed *r = &co->renamed[i];
        struct cohere_target t = {.ino = r->dir, .name = r->name, .name_len = r->name_len};

        face_queue(face, &t, DFE_INVAL_ENTRY, wake);
    }
}

int face_open(struct cohere *co, bool read_only, struct refs *held, uint64_t *generation,
              struct face **out)
{
    struct face *face = calloc(1, sizeof(*face));
    struct list wake; /* stays empty: nobody waits yet */
    int ret = 0;

    if (!face)
        return -ENOMEM;
    list_init(&wake);
    face->co = co;
    face->held = held;
    face->read_only = read_only;
    face->next_id = 1;
    list_init(&face->queued);
    list_init(&face->sent);
    pthread_mutex_lock(&co->lock);
    list_for_each(l, &co->faces)
    {
        struct face *other = container_of(l, struct face, link);

        if (!read_only && !other->read_only && !other->lost)
            ret = -EBUSY;
    }
    if (ret == 0) {
        uint64_t now = (uint64_t)base_real_ns();

        if (*generation) {
            face_catch_up(face, &wake);
        } else {
            co->generation = now > co->generation ? now : co->generation + 1;
            *generation = co->generation;
        }
        list_add_tail(&co->faces, &face->link);
        atomic_fetch_add(&co->n_faces, 1);
    }
    pthread_mutex_unlock(&co->lock);
    if (ret < 0) {
        free(face);
        return base_refuse(ret, "the file system is mounted for writing already");
    }
    *out = face;
    return 0;
}

void face_stop(struct face *face)
{
    struct list wake;

    list_init(&wake);
    pthread_mutex_lock(&face->co->lock);
    face->stopped = true;
    face_drain(face, &wake);
    pthread_mutex_unlock(&face->co->lock);
    wake_all(&wake);
}

void face_close(struct face *face)
{
    struct cohere *co = face->co;

    face_stop(face);
    pthread_mutex_lock(&co->lock);
    list_del(&face->link);
    atomic_fetch_sub(&co->n_faces, 1);
    pthread_mutex_unlock(&co->lock);
    free(face);
}

bool face_lost(struct face *face)
{
    return atomic_load(&face->lost);
}

static void face_done_locked(struct face *face, uint64_t done)
{
    list_for_each_safe(l, tmp, &face->sent)
    {
        struct item *item = container_of(l, struct item, link);

        if (done == 0 || item->inval.id != done)
            continue;
        face->alive_ns = base_mono_ns();
        item_done(face, item);
    }
}

void face_done(struct face *face, uint64_t done)
{
    pthread_mutex_lock(&face->co->lock);
    face_done_locked(face, done);
    pthread_mutex_unlock(&face->co->lock);
}

int face_next(struct face *face, uint64_t done, struct face_waiter *w)
{
    struct cohere *co = face->co;
    struct list wake;
    int ret = 1;

    list_init(&wake);
    pthread_mutex_lock(&co->lock);
    face_done_locked(face, done);
    if (face->alive_ns > base_mono_ns()) /* it is back ... */
        face->alive_ns = base_mono_ns();
    face->holds_all = face->untold; /* ... and has taken its references again: see face_open */
    if (face->parked) {
        ret = -EBUSY;
    } else {
        face->parked = w;
        face_wake(face, &wake);
        if (!list_empty(&wake)) {
            list_del(&w->link);
            ret = w->err;
        }
    }
    pthread_mutex_unlock(&co->lock);
    return ret;
}

void face_tell(struct face *face, uint64_t ino, uint32_t what)
{
    struct cohere_target t = {.ino = ino, .what = what};
    struct list wake;
    bool queued = false;

    list_init(&wake);
    pthread_mutex_lock(&face->co->lock);
    /* The same again, while the last one has not left, says nothing new. */
    if (!list_empty(&face->queued)) {
        struct item *last = container_of(face->queued.prev, struct item, link);

        queued = last->inval.ino == ino && last->inval.what == what;
    }
    if (face->n_told >= TOLD_MAX)
        face_lose(face, "it does not ask what it has to forget", &wake);
    else if (!queued && !face->lost && !face->stopped)
        face_queue(face, &t, what, &wake);
    pthread_mutex_unlock(&face->co->lock);
    wake_all(&wake);
}

void face_untold(struct face *face)
{
    pthread_mutex_lock(&face->co->lock);
    face->untold = face->holds_all = true;
    pthread_mutex_unlock(&face->co->lock);
}

/* -- changes ---------------------------------------------------------------------------------- */

void cohere_target(struct cohere_change *change, uint64_t ino, uint32_t what, const char *name,
                   uint32_t name_len)
{
    DFE_ASSERT(change->n < COHERE_TARGETS && name_len < sizeof(((struct dfe_inval *)0)->name));
    change->t[change->n++] =
        (struct cohere_target){.ino = ino, .what = what, .name = name, .name_len = name_len};
}

static const unsigned what_marks[] = {
    [DFE_INVAL_PAGES] = MARK_PAGES | MARK_ATTR,
    [DFE_INVAL_ATTR] = MARK_ATTR,
    [DFE_INVAL_ENTRY] = MARK_NAMES | MARK_ATTR,
};

/* Marks of the inode that an invalidation under way has taken: the kernel may still have it all. */
static unsigned marks_asked(struct list *items, uint64_t ino)
{
    unsigned marks = 0;

    list_for_each(l, items)
    {
        const struct dfe_inval *inval = &container_of(l, struct item, link)->inval;

        if (inval->ino == ino)
            marks |= what_marks[inval->what];
    }
    return marks & ~(unsigned)MARK_NAMES;
}

/* What to ask of the face about the target; 0: nothing. A name of a directory says nothing of its
 * other names: that mark stays until the directory is forgotten. */
static uint32_t face_asks(struct face *face, const struct cohere_target *t, bool clear)
{
    unsigned marks = what_marks[t->what], had = refs_marks(face->held, t->ino, marks);

    if (face->holds_all)
        had = marks;
    /* What is taken is what is asked for: a mark may have come since. */
    if (clear)
        had |= refs_unmark(face->held, t->ino, marks & ~(unsigned)MARK_NAMES);
    had |= (marks_asked(&face->queued, t->ino) | marks_asked(&face->sent, t->ino)) & marks;

    if (had & MARK_NAMES)
        return DFE_INVAL_ENTRY;
    if (had & MARK_PAGES)
        return DFE_INVAL_PAGES;
    return had & MARK_ATTR ? DFE_INVAL_ATTR : 0;
}

static bool face_concerned(const struct face *face, const struct cohere_change *change)
{
    return face != change->self && !face->lost && !face->stopped;
}

bool cohere_due(struct cohere *co, const struct cohere_change *change)
{
    bool due = false;

    if (atomic_load(&co->n_faces) == 0)
        return false;
    pthread_mutex_lock(&co->lock);
    list_for_each(l, &co->faces)
    {
        struct face *face = container_of(l, struct face, link);

        for (unsigned i = 0; !due && face_concerned(face, change) && i < change->n; i++)
            due = face_asks(face, &change->t[i], false) != 0;
    }
    pthread_mutex_unlock(&co->lock);
    return due;
}

bool cohere_others(struct cohere *co, const struct face *self)
{
    return atomic_load(&co->n_faces) > (self ? 1u : 0u);
}

void cohere_hold(struct cohere *co)
{
    pthread_mutex_lock(&co->held);
}

void cohere_release(struct cohere *co)
{
    pthread_mutex_unlock(&co->held);
}

/* -- names -------------------------------------------------------------------------------------
 */

uint64_t cohere_name(uint64_t dir, const void *name, size_t len)
{
    const unsigned char *at = name;
    uint64_t hash = dir;

    for (size_t i = 0; i < len; i++)
        hash = (hash ^ at[i]) * 0x9e3779b97f4a7c15ull;
    return 1ull << (hash >> 32) % COHERE_NAMES;
}

int cohere_names_lock(struct cohere *co, uint64_t names, bool may_wait)
{
    for (unsigned i = 0; i < COHERE_NAMES; i++) {
        if (!(names >> i & 1))
            continue;
        if (may_wait) {
            pthread_mutex_lock(&co->names[i]);
        } else if (pthread_mutex_trylock(&co->names[i])) {
            cohere_names_unlock(co, names & ((1ull << i) - 1));
            return -EINPROGRESS;
        }
    }
    return 0;
}

void cohere_names_unlock(struct cohere *co, uint64_t names)
{
    for (unsigned i = 0; i < COHERE_NAMES; i++) {
        if (names >> i & 1)
            pthread_mutex_unlock(&co->names[i]);
    }
}

void cohere_names_pass(struct cohere *co)
{
    for (unsigned i = 0; i < COHERE_NAMES; i++) {
        pthread_mutex_lock(&co->names[i]);
        pthread_mutex_unlock(&co->names[i]);
    }
}

static void send(struct cohere *co, struct cohere_change *change, bool waits)
{
    struct list wake;

    list_init(&wake);
    pthread_mutex_lock(&co->lock);
    change->deadline_ns = base_mono_ns() + co->inval_ns;
    list_for_each(l, &co->faces)
    {
        struct face *face = container_of(l, struct face, link);

        for (unsigned i = 0; face_concerned(face, change) && i < change->n; i++) {
            uint32_t what = face_asks(face, &change->t[i], true);

            if (what && waits)
                face_ask(face, &change->t[i], what, change, &wake);
            else if (what)
                face_queue(face, &change->t[i], what, &wake);
        }
    }
    pthread_mutex_unlock(&co->lock);
    wake_all(&wake);
}

void cohere_send(struct cohere *co, struct cohere_change *change)
{
    send(co, change, true);
}

void cohere_tell(struct cohere *co, struct cohere_change *change)
{
    send(co, change, false);
}

static bool list_has(struct list *items, const struct cohere_change *change)
{
    list_for_each(l, items)
    {
        list_for_each(m, &container_of(l, struct item, link)->asks)
        {
            if (container_of(m, struct ask, link)->change == change)
                return true;
        }
    }
    return false;
}

/* Too late: lets go of the faces that hold the change up and have answered nothing for inval_ns,
 * and of all of them when they have taken PATIENCE times that. Until when to wait for the others.
 */
static uint64_t cohere_give_up(struct cohere *co, struct cohere_change *change, struct list *wake)
{
    uint64_t now_ns = base_mono_ns(), until_ns = UINT64_MAX;
    bool patient = now_ns < change->deadline_ns + (PATIENCE - 1) * co->inval_ns;

    list_for_each(l, &co->faces)
    {
        struct face *face = container_of(l, struct face, link);

        if (!list_has(&face->queued, change) && !list_has(&face->sent, change))
            continue;
        if (!patient || face->alive_ns + co->inval_ns <= now_ns)
            face_lose(face, "it did not say in time that its kernel has forgotten", wake);
        else if (face->alive_ns + co->inval_ns < until_ns)
            until_ns = face->alive_ns + co->inval_ns;
    }
    return until_ns < UINT64_MAX ? until_ns : now_ns;
}

void cohere_wait(struct cohere *co, struct cohere_change *change)
{
    uint64_t until_ns = change->deadline_ns;
    struct list wake;

    list_init(&wake);
    pthread_mutex_lock(&co->lock);
    while (change->left) {
        struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                 .tv_nsec = (long)(until_ns % 1000000000u)};

        if (pthread_cond_timedwait(&co->cond, &co->lock, &until) == ETIMEDOUT && change->left)
            until_ns = cohere_give_up(co, change, &wake);
    }
    pthread_mutex_unlock(&co->lock);
    wake_all(&wake);
}

void cohere_count(struct cohere *co)
{
    atomic_fetch_add(&co->changes, 1);
}

uint64_t cohere_changes(struct cohere *co)
{
    return atomic_load(&co->changes);
}

/* -- who writes ------------------------------------------------------------------------------- */

/* The inode's place, or else one that is free, or the one that is longest ago. */
static struct writer *writer_slot(struct writers *of, uint64_t ino)
{
    uint64_t home = ino * 0x9e3779b97f4a7c15ull >> 32;
    struct writer *best = NULL;

    for (unsigned i = 0; i < WRITER_PLACES; i++) {
        struct writer *w = &of->slots[(home + i) % WRITERS];

        if (w->ino == ino)
            return w;
        if (!best || w->at_ns < best->at_ns) /* free: 0 */
            best = w;
    }
    return best;
}

static void note(struct cohere *co, struct writers *of, uint64_t ino)
{
    struct writer *w;

    pthread_mutex_lock(&co->lock);
    w = writer_slot(of, ino);
    if (w->ino != ino && w->at_ns > of->displaced_ns)
        of->displaced_ns = w->at_ns;
    *w = (struct writer){ino, base_mono_ns()};
    pthread_mutex_unlock(&co->lock);
}

/* When that was the last time, or later; 0: never. */
static uint64_t noted_at(struct cohere *co, struct writers *of, uint64_t ino)
{
    const struct writer *w;
    uint64_t at_ns;

    pthread_mutex_lock(&co->lock);
    w = writer_slot(of, ino);
    at_ns = w->ino == ino ? w->at_ns : of->displaced_ns;
    pthread_mutex_unlock(&co->lock);
    return at_ns;
}

void cohere_wrote(struct cohere *co, uint64_t ino)
{
    note(co, &co->wrote, ino);
}

bool cohere_shared(struct cohere *co, uint64_t ino)
{
    uint64_t at_ns = noted_at(co, &co->wrote, ino);

    return at_ns && base_mono_ns() - at_ns < SHARED_NS;
}

bool cohere_young(struct cohere *co)
{
    return base_mono_ns() - co->opened_ns < LATELY_NS;
}

void cohere_changed(struct cohere *co, uint64_t ino)
{
    if (cohere_young(co))
        note(co, &co->changed, ino);
}

bool cohere_changed_lately(struct cohere *co, uint64_t ino)
{
    uint64_t at_ns = noted_at(co, &co->changed, ino);

    return at_ns && base_mono_ns() - at_ns < LATELY_NS;
}

/* One that came back after a restart may know what nobody here knows of. */
bool face_alone(struct face *face, uint64_t ino)
{
    return !face->back && noted_at(face->co, &face->co->wrote, ino) == 0;
}

void cohere_renamed(struct cohere *co, uint64_t dir, const char *name, uint32_t name_len)
{
    if (!cohere_young(co))
        return;
    pthread_mutex_lock(&co->lock);
    if (!co->renamed)
        co->renamed = calloc(RENAMED, sizeof(*co->renamed));
    if (co->renamed) {
        struct renamed *r = &co->renamed[co->n_renamed++ % RENAMED];

        r->dir = dir;
        r->name_len = name_len;
        memcpy(r->name, name, name_len);
    }
    pthread_mutex_unlock(&co->lock);
}
