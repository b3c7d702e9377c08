/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: beginning, end, handles. */
#include "service/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "base/assert.h"

static int session_check_who(struct host *host, const struct session_who *who)
{
    if (who->role > PROTO_ROLE_IL)
        return base_refuse(-EINVAL, "there is no role %u", who->role);
    if (who->role != PROTO_ROLE_IL && who->uid != 0 && who->uid != host->uid)
        return base_refuse(-EACCES, "the pool belongs to uid %u", host->uid);
    return 0;
}

int session_new(struct host *host, const struct session_who *who, uint64_t id, struct session **out)
{
    struct session *s;
    int ret;

    ret = session_check_who(host, who);
    if (ret < 0)
        return ret;
    s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->host = host;
    s->id = id;
    s->role = who->role;
    s->uid = who->uid;
    s->gid = who->gid;
    s->pid = who->pid;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->cond, NULL);
    rights_open(&s->rights);
    loans_open(&s->loans);
    atomic_fetch_add(&host->sessions, 1);
    *out = s;
    return 0;
}

/* -- requests under way ----------------------------------------------------------------------- */

int session_enter(struct session *s)
{
    int ret = 0;

    pthread_mutex_lock(&s->lock);
    if (s->ending)
        ret = -ESHUTDOWN;
    else
        s->running++;
    pthread_mutex_unlock(&s->lock);
    return ret;
}

void session_leave(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    if (--s->running == 0)
        pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->lock);
}

/* -- handles ---------------------------------------------------------------------------------- */

/* Stands for a handle that is being opened or closed. */
static struct handle reserved_handle;

int session_use(struct session *s, uint32_t number, enum handle_kind kind, struct handle **out)
{
    struct handle *h;
    int ret = 0;

    pthread_mutex_lock(&s->lock);
    h = number < PROTO_HANDLES ? s->handles[number] : NULL;
    if (!h || h == &reserved_handle || h->closing || h->kind != kind)
        ret = -EBADF;
    else
        h->users++;
    pthread_mutex_unlock(&s->lock);
    *out = h;
    return ret;
}

void session_unuse(struct session *s, struct handle *h)
{
    pthread_mutex_lock(&s->lock);
    if (--h->users == 0)
        pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->lock);
}

int session_reserve(struct session *s, uint32_t number)
{
    int ret = 0;

    pthread_mutex_lock(&s->lock);
    if (number >= PROTO_HANDLES)
        ret = -EBADF;
    else if (s->handles[number])
        ret = -EEXIST;
    else
        s->handles[number] = &reserved_handle;
    pthread_mutex_unlock(&s->lock);
    return ret;
}

void session_install(struct session *s, uint32_t number, struct handle *h)
{
    pthread_mutex_lock(&s->lock);
    DFE_ASSERT(s->handles[number] == &reserved_handle);
    s->handles[number] = h;
    pthread_mutex_unlock(&s->lock);
}

static void give_back(uint64_t ino, void *arg)
{
    dfe_fs_unref(arg, ino, 1);
}

/* Nobody finds or uses it any more. */
static void handle_free(struct session *s, struct handle *h)
{
    if (h->kind == HANDLE_FS) {
        if (h->face) {
            face_close(h->face);
            atomic_fetch_sub(&s->host->mounts, 1);
        }
        refs_close(&h->refs, give_back, h->hc->fs);
        rights_forget(s, h->hc);
        host_fs_put(h->hc);
    } else {
        host_cont_put(h->hc);
    }
    free(h);
}

int session_close(struct session *s, uint32_t number)
{
    struct handle *h;
    int ret = 0;

    pthread_mutex_lock(&s->lock);
    h = number < PROTO_HANDLES ? s->handles[number] : NULL;
    if (!h || h == &reserved_handle || h->closing)
        ret = -EBADF;
    else
        h->closing = true;
    pthread_mutex_unlock(&s->lock);
    if (ret < 0)
        return ret;

    if (h->face)
        face_stop(h->face); /* else who waits for news would use it for ever */
    pthread_mutex_lock(&s->lock);
    while (h->users)
        pthread_cond_wait(&s->cond, &s->lock);
    s->handles[number] = &reserved_handle; /* taken, until it has been closed */
    pthread_mutex_unlock(&s->lock);
    handle_free(s, h);
    pthread_mutex_lock(&s->lock);
    s->handles[number] = NULL;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

/* -- the end ---------------------------------------------------------------------------------- */

/* Those who wait for news are sent away; whoever opens a face from here on finds `ending`. */
static void stop_faces(struct session *s)
{
    for (unsigned i = 0; i < PROTO_HANDLES; i++) {
        struct handle *h;

        pthread_mutex_lock(&s->lock);
        h = s->handles[i];
        if (h && h != &reserved_handle && !h->closing)
            h->users++;
        else
            h = NULL;
        pthread_mutex_unlock(&s->lock);
        if (h && h->face)
            face_stop(h->face);
        if (h)
            session_unuse(s, h);
    }
}

void session_end(struct session *s)
{
    struct host *host = s->host;

    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_mutex_unlock(&s->lock);
    stop_faces(s);
    pthread_mutex_lock(&s->lock);
    while (s->running)
        pthread_cond_wait(&s->cond, &s->lock);
    pthread_mutex_unlock(&s->lock);
    loans_close(&s->loans, host);
    for (uint32_t i = 0; i < PROTO_HANDLES; i++)
        session_close(s, i);
    roll_end(&host->roll, s->id); /* mounts that it had and did not come back for */
    rights_close(&s->rights);
    pthread_cond_destroy(&s->cond);
    pthread_mutex_destroy(&s->lock);
    free(s);
    atomic_fetch_sub(&host->sessions, 1);
}

/* -- what comes over the socket --------------------------------------------------------------- */

/* The use of a container of this domain that the session has open; it keeps the container. */
static struct handle *use_domain(struct session *s, uint32_t domain)
{
    struct handle *found = NULL;

    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; !found && i < PROTO_HANDLES; i++) {
        struct handle *h = s->handles[i];

        if (h && h != &reserved_handle && !h->closing && h->kind == HANDLE_FS &&
            h->hc->number + 1 == domain)
            found = h;
    }
    if (found)
        found->users++;
    pthread_mutex_unlock(&s->lock);
    return found;
}

int session_extent(struct session *s, uint32_t extent, uint64_t stamp)
{
    struct handle *h;
    uint32_t domain = 0;
    bool may;
    int fd;

    fd = buf_extent_fd(api_pool_arena(s->host->pool), extent, stamp, &domain);
    if (fd < 0)
        return fd;
    h = use_domain(s, domain);
    may = domain && (s->role != PROTO_ROLE_IL || (h && rights_window(s, h->hc)));
    if (h)
        session_unuse(s, h);
    if (may)
        return fd;
    close(fd);
    return base_refuse(-EACCES, "this memory holds what uid %u may not read", s->uid);
}
