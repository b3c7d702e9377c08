/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on file systems as a whole: opening, mounts, news for mounts, references. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "ns/ns.h"
#include "service/dispatch_int.h"

static int64_t fs_install(struct call *c, struct host_cont *hc)
{
    struct handle *h = calloc(1, sizeof(*h));

    if (!h) {
        host_fs_put(hc);
        return -ENOMEM;
    }
    h->kind = HANDLE_FS;
    h->hc = hc;
    refs_open(&h->refs, REFS_BOUND);
    session_install(c->s, c->e->handle, h);
    return 0;
}

/* By label, or of a container that the session has open. */
static int fs_container(struct call *c, struct host_cont **out)
{
    char label[DFE_LABEL_BYTES + 1];
    struct handle *h;
    int ret;

    if (c->push_len) {
        memcpy(label, c->push, c->push_len);
        label[c->push_len] = '\0';
        return host_cont_get(c->s->host, label, "", out);
    }
    if (c->s->role == PROTO_ROLE_IL)
        return base_refuse(-EINVAL, "no container was named");
    ret = session_use(c->s, c->e->arg, HANDLE_CONT, &h);
    if (ret < 0)
        return base_refuse(ret, "%u is no container's handle", c->e->arg);
    ret = host_cont_get(c->s->host, h->hc->label, h->hc->snapshot, out);
    session_unuse(c->s, h);
    return ret;
}

int64_t op_fs_open(struct call *c)
{
    struct host_cont *hc;
    int64_t ret;

    ret = session_reserve(c->s, c->e->handle);
    if (ret < 0)
        return base_refuse((int)ret, "handle %u cannot be taken", c->e->handle);
    ret = fs_container(c, &hc);
    if (ret == 0) {
        ret = host_fs_get(hc);
        host_cont_put(hc); /* the file system's use keeps it */
    }
    if (ret == 0)
        ret = fs_install(c, hc);
    if (ret < 0)
        session_install(c->s, c->e->handle, NULL);
    return ret;
}

int64_t op_fs_mount(struct call *c)
{
    struct roll_mount who = {.session = c->s->id,
                             .handle = c->e->handle,
                             .cont = c->hc->number,
                             .pid = c->s->pid,
                             .flags = c->e->arg ? ROLL_READ_ONLY : 0};
    struct face *face;
    uint64_t generation;
    bool over;
    int ret;

    if (!c->mount)
        return base_refuse(-EACCES, "this session is not a mount's");
    if (c->e->arg > 1)
        return base_refuse(-EINVAL, "a mount is read-only (1) or not (0)");
    generation = c->e->off; /* of a mount that has lost an engine: it is the same mount */
    who.started = who.pid > 0 ? roll_started(who.pid) : 0;
    ret = face_open(c->hc->cohere, &who, &c->h->refs, &generation, &face);
    if (ret < 0)
        return ret;
    atomic_store(&c->h->face, face);
    atomic_fetch_add(&c->s->host->mounts, 1);
    cohere_names_pass(c->hc->cohere); /* of those who have not seen it */
    /* What the kernel of a mount that has lost an engine holds is not known: all of it. */
    ret = mark(c, NS_ROOT_INO, MARK_ALL);
    /* Whoever closes the handle has looked for a face before there was one. */
    pthread_mutex_lock(&c->s->lock);
    over = c->h->closing || c->s->ending;
    pthread_mutex_unlock(&c->s->lock);
    if (over)
        face_stop(face);
    c->out->value = generation;
    return ret;
}

/* -- news for a mount ------------------------------------------------------------------------- */

static void answer_news(struct request *req, const struct face_waiter *w, int ret,
                        struct proto_cqe *out)
{
    out->result = ret;
    if (ret == 0) {
        memcpy(req->reply, &w->inval, sizeof(w->inval));
        out->reply_len = sizeof(w->inval);
    }
}

static void news(struct face_waiter *w)
{
    struct pending *p = container_of(w, struct pending, waiter);

    answer_news(p->req, w, w->err, &p->out);
    pending_done(p);
}

/* Without somebody to call later: waits in place. */
struct sitting {
    struct face_waiter waiter;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool told;
};

static void sitting_told(struct face_waiter *w)
{
    struct sitting *s = container_of(w, struct sitting, waiter);

    pthread_mutex_lock(&s->lock);
    s->told = true;
    pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->lock);
}

static int64_t wait_for_news(struct call *c, struct face *face)
{
    struct sitting s = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    int ret;

    s.waiter.fn = sitting_told;
    ret = face_next(face, c->e->off, &s.waiter);
    pthread_mutex_lock(&s.lock);
    while (ret == 1 && !s.told)
        pthread_cond_wait(&s.cond, &s.lock);
    pthread_mutex_unlock(&s.lock);
    if (ret == 1)
        ret = s.waiter.err;
    answer_news(c->req, &s.waiter, ret, c->out);
    return ret;
}

int64_t op_inval_next(struct call *c)
{
    struct face *face = c->h->face;
    struct pending *p;
    int ret;

    if (!face)
        return base_refuse(-EINVAL, "the handle is not a mount's");
    if (!c->req->later && must_not_wait(c)) {
        face_done(face, c->e->off); /* whoever waits for it does not wait for our thread, too */
        return -EINPROGRESS;
    }
    if (!c->req->later)
        return wait_for_news(c, face);
    p = pending_new(c);
    if (!p)
        return -ENOMEM;
    p->waiter.fn = news;
    c->later = true; /* before: `news` may come at once, and then the request is gone */
    ret = face_next(face, c->e->off, &p->waiter);
    if (ret == 1)
        return 0;
    c->later = false;
    answer_news(c->req, &p->waiter, ret, c->out);
    free(p);
    return ret;
}

int64_t op_inval_stop(struct call *c)
{
    if (!c->h->face)
        return base_refuse(-EINVAL, "the handle is not a mount's");
    face_stop(c->h->face);
    return 0;
}

/* -- the rest --------------------------------------------------------------------------------- */

int64_t op_fs_query(struct call *c)
{
    struct dfe_fs_info info = {0};
    int ret = dfe_fs_query(c->fs, &info);

    if (ret == 0)
        reply_struct(c, &info, sizeof(info));
    return ret;
}

int64_t op_fs_sync(struct call *c)
{
    return dfe_fs_sync(c->fs);
}

int64_t op_statfs(struct call *c)
{
    struct dfe_statfs st = {0};
    int ret = dfe_fs_statfs(c->fs, &st);

    if (ret == 0)
        reply_struct(c, &st, sizeof(st));
    return ret;
}

/* The references that a client had with an earlier worker come one by one, with all that a mount's
 * kernel may still know; what was changed while it was away, it is told now. */
int64_t op_ref(struct call *c)
{
    struct face *face = c->h->face;
    uint64_t n = c->e->off ? c->e->off : 1;
    struct dfe_attr attr;
    int ret;

    if (n > UINT32_MAX)
        return base_refuse(-EINVAL, "%llu references are too many", (unsigned long long)n);
    ret = dfe_fs_getattr(c->fs, c->e->ino, c->flags, &attr); /* which knows how not to wait */
    if (ret == 0)
        ret = refs_reserve(&c->h->refs, 1);
    /* What is gone nobody changes any more; all else the kernel holds, noted or not. */
    if (ret < 0 && ret != -EINPROGRESS && ret != -ESTALE && ret != -ENOENT && face)
        face_untold(face);
    if (ret < 0)
        return ret;
    ret = dfe_fs_ref(c->fs, c->e->ino);
    if (ret == 0) {
        if (refs_add(&c->h->refs, c->e->ino, n, c->mount ? MARK_ALL : 0))
            dfe_fs_unref(c->fs, c->e->ino, 1);
        if (face && cohere_changed_lately(c->hc->cohere, c->e->ino))
            face_tell(face, c->e->ino, DFE_INVAL_PAGES);
    }
    refs_unreserve(&c->h->refs, 1);
    return ret;
}

int64_t op_unref(struct call *c)
{
    uint64_t n = c->e->off ? c->e->off : 1;

    if (refs_drop(&c->h->refs, c->e->ino, n))
        dfe_fs_unref(c->fs, c->e->ino, 1);
    return 0;
}
