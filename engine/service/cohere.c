/* SPDX-License-Identifier: Apache-2.0 */
/* Coherence with the kernels of mounts: queues of invalidations, and who waits for them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "service/cohere_int.h"

/* The longest that a change waits for faces that do answer, one invalidation after the other. */
#define PATIENCE 6u
/* Invalidations that nobody waits for, at most so many queued: a face that far behind is let go. */
#define TOLD_MAX 65536u

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
    list_for_each_safe(l, tmp, &co->faces)
    {
        struct face *face = container_of(l, struct face, link);

        DFE_ASSERT(face->stand); /* a mount has been closed */
        face_drop(face);
    }
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

void face_drain(struct face *face, struct list *wake)
{
    list_for_each_safe(l, tmp, &face->queued)
        item_done(face, container_of(l, struct item, link));
    list_for_each_safe(l, tmp, &face->sent)
        item_done(face, container_of(l, struct item, link));
    face_wake(face, wake);
}

void face_lose(struct face *face, const char *why, struct list *wake)
{
    if (face->lost || face->stopped)
        return;
    face->lost = true;
    face->who.flags |= ROLL_LOST;
    if (face->co->roll) /* for the next worker, too */
        roll_lost(face->co->roll, &face->who);
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

/* The stand-in of who comes, if there is one; or who is in the way. */
static int find_place(struct cohere *co, const struct roll_mount *who, struct face **mine)
{
    int ret = 0;

    *mine = NULL;
    list_for_each(l, &co->faces)
    {
        struct face *other = container_of(l, struct face, link);

        if (roll_same(&other->who, who) && other->stand)
            *mine = other;
        else if (roll_same(&other->who, who))
            return base_refuse(-EEXIST, "this handle is a mount's already");
        else if (!((other->who.flags | who->flags) & ROLL_READ_ONLY) && !other->lost)
            ret = -EBUSY;
    }
    return ret < 0 ? base_refuse(ret, "the file system is mounted for writing already") : 0;
}

struct face *face_new(struct cohere *co, const struct roll_mount *who, struct refs *held)
{
    struct face *face = calloc(1, sizeof(*face));

    if (!face)
        return NULL;
    face->co = co;
    face->who = *who;
    face->held = held;
    face->pid_fd = -1;
    face->next_id = 1;
    list_init(&face->queued);
    list_init(&face->sent);
    list_add_tail(&co->faces, &face->link);
    atomic_fetch_add(&co->n_faces, 1);
    return face;
}

/* Under the lock. */
static int open_face(struct cohere *co, const struct roll_mount *who, struct refs *held,
                     uint64_t *generation, struct face **out)
{
    uint64_t now = (uint64_t)base_real_ns();
    struct list wake; /* stays empty: nobody waits yet */
    struct face *face;
    int ret;

    list_init(&wake);
    stands_sweep(co);
    ret = find_place(co, who, &face);
    if (ret < 0)
        return ret;
    if (face && *generation == 0) { /* it never heard that it was a mount */
        face_drop(face);
        face = NULL;
    }
    if (co->roll)
        ret = roll_enter(co->roll, who);
    if (ret < 0)
        return ret;
    if (face) {
        stand_taken(face, who, held);
    } else {
        face = face_new(co, who, held);
        if (!face) {
            if (co->roll)
                roll_leave(co->roll, who);
            return -ENOMEM;
        }
        if (*generation)
            face_catch_up(face, &wake);
    }
    if (*generation == 0) {
        co->generation = now > co->generation ? now : co->generation + 1;
        *generation = co->generation;
    }
    *out = face;
    return 0;
}

int face_open(struct cohere *co, const struct roll_mount *who, struct refs *held,
              uint64_t *generation, struct face **out)
{
    int ret;

    pthread_mutex_lock(&co->lock);
    ret = open_face(co, who, held, generation, out);
    pthread_mutex_unlock(&co->lock);
    return ret;
}

void face_drop(struct face *face)
{
    struct cohere *co = face->co;
    struct list wake; /* nobody waits for news of one that is dropped */

    list_init(&wake);
    face_drain(face, &wake);
    list_del(&face->link);
    atomic_fetch_sub(&co->n_faces, 1);
    if (face->stand)
        co->n_stands--;
    if (face->pid_fd >= 0)
        close(face->pid_fd);
    free(face);
}

void face_stop(struct face *face)
{
    struct list wake;

    list_init(&wake);
    pthread_mutex_lock(&face->co->lock);
    face->stopped = true;
    face_drain(face, &wake);
    if (face->co->roll)
        roll_leave(face->co->roll, &face->who);
    pthread_mutex_unlock(&face->co->lock);
    wake_all(&wake);
}

void face_close(struct face *face)
{
    struct cohere *co = face->co;

    face_stop(face);
    pthread_mutex_lock(&co->lock);
    face_drop(face);
    pthread_mutex_unlock(&co->lock);
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
    unsigned marks = what_marks[t->what];
    unsigned had = face->holds_all ? marks : refs_marks(face->held, t->ino, marks);

    /* What is taken is what is asked for: a mark may have come since. */
    if (clear && face->held)
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

static void send(struct cohere *co, struct cohere_change *change, bool waits)
{
    struct list wake;

    list_init(&wake);
    pthread_mutex_lock(&co->lock);
    stands_sweep(co);
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
        uint64_t at_ns = stands_due(co, until_ns);
        struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000u),
                              .tv_nsec = (long)(at_ns % 1000000000u)};

        if (pthread_cond_timedwait(&co->cond, &co->lock, &at) != ETIMEDOUT)
            continue;
        stands_sweep(co);
        if (change->left && base_mono_ns() >= until_ns)
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
