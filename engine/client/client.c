/* SPDX-License-Identifier: Apache-2.0 */
/* A session with the engine: opening, calls, closing. */
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "client/client_int.h"
#include "client/sys.h"

/* Everything but the channel structs that threads still know. */
static void destroy(struct client *c)
{
    struct tables *t = c->tables;

    for (unsigned i = 0; i < CLIENT_BUCKETS; i++) {
        struct extent *x = c->extents[i];
        while (x) {
            struct extent *next = x->next;
            if (x->base)
                sys_munmap(x->base, x->len);
            sys_free(x, sizeof(*x));
            x = next;
        }
        c->extents[i] = NULL;
    }
    while (t) {
        struct tables *older = t->older;
        sys_munmap(t->lines, t->n_lines * sizeof(*t->lines));
        sys_munmap(t->records, t->n_records * sizeof(*t->records));
        sys_free(t, sizeof(*t));
        t = older;
    }
    c->tables = NULL;
    if (c->bell && atomic_fetch_sub(&c->bell->refs, 1) == 1) {
        sys_close(c->bell->fd);
        sys_free(c->bell, sizeof(*c->bell));
    }
    c->bell = NULL;
}

void client_put(struct client *c)
{
    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    pthread_mutex_destroy(&c->lock);
    sys_free(c, sizeof(*c));
}

int client_open(const struct client_opts *opts, struct client **out)
{
    struct client *c;
    struct link l;
    int rc;

    if (opts->size > sizeof(*opts) || !opts->path || opts->role > PROTO_ROLE_IL ||
        opts->push_bytes > PROTO_AREA_MAX_BYTES || opts->push_bytes % 4096)
        return -EINVAL;
    if (strlen(opts->path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
        return -ENAMETOOLONG;
    c = sys_alloc(sizeof(*c));
    if (!c)
        return -ENOMEM;
    memcpy(&c->opts, opts, opts->size);
    memcpy(c->path, opts->path, strlen(opts->path) + 1);
    c->opts.path = c->path;
    c->push_bytes = opts->push_bytes ? opts->push_bytes : PROTO_PUSH_BYTES;
    c->pid = sys_getpid();
    c->sock = -1;
    atomic_init(&c->refs, 1);
    atomic_init(&c->seq, 1);
    pthread_mutex_init(&c->lock, NULL);
    rc = link_connect(c, 0, 0, CLIENT_RESUME_MS, &l);
    if (rc == 0)
        rc = link_take(c, &l);
    if (rc < 0)
        client_put(c);
    else
        *out = c;
    return rc;
}

/* Takes everything away from the threads; they free their structs when they end. */
static void give_up(struct client *c)
{
    struct channel *ch = c->channels;

    c->channels = NULL;
    link_lose(c);
    while (ch) {
        struct channel *next = ch->next;
        channel_drop_memory(ch);
        ch->linked = false;
        channel_put(ch);
        ch = next;
    }
    destroy(c);
}

void client_close(struct client *c)
{
    uint64_t saved;

    client_lock(c, &saved);
    atomic_store(&c->state, CLIENT_DEAD);
    give_up(c);
    client_unlock(c, &saved);
    client_put(c);
}

void client_forked(struct client *c)
{
    struct thread *t = thread_get(false);

    /* One thread is left, and the lock may be held by one that is not. The structs of others than
     * this thread's have nobody to free them but us. */
    pthread_mutex_init(&c->lock, NULL);
    c->pid = sys_getpid();
    atomic_store(&c->state, CLIENT_DEAD);
    for (struct channel *ch = c->channels; ch;) {
        struct channel *next = ch->next, *mine = t ? t->channels : NULL;
        while (mine && mine != ch)
            mine = mine->thread_next;
        if (!mine)
            atomic_store(&ch->refs, 1);
        ch = next;
    }
    give_up(c);
    client_put(c);
}

void client_abandoned(struct client *c)
{
    pthread_mutex_init(&c->lock, NULL);
    c->pid = sys_getpid();
    atomic_store(&c->state, CLIENT_DEAD);
    link_lose(c);
    for (struct channel *ch = c->channels; ch; ch = ch->next)
        if (ch->life)
            channel_cut(ch);
}

uint64_t client_epoch(const struct client *c)
{
    return atomic_load(&c->epoch);
}

size_t client_push_max(const struct client *c)
{
    return c->push_bytes;
}

static int submit(struct channel *ch, struct client_call *call)
{
    struct proto_sqe *e = &ch->sq->e[ch->tail % PROTO_RING];
    size_t len = 0;

    for (unsigned i = 0; i < call->n_push; i++) {
        const struct iovec *v = &call->push[i];
        if (v->iov_len > ch->client->push_bytes - len)
            return -E2BIG;
        if (v->iov_len)
            memcpy(ch->push + len, v->iov_base, v->iov_len);
        len += v->iov_len;
    }
    if (call->reply_cap > ch->reply_bytes || call->reply_cap > PROTO_REPLY_BYTES)
        return -E2BIG;
    call->sqe.push_off = 0;
    call->sqe.push_len = (uint32_t)len;
    call->sqe.reply_off = 0;
    call->sqe.reply_cap = (uint32_t)call->reply_cap;
    *e = call->sqe;
    ch->tail++;
    __atomic_store_n(&ch->sq->cq_head, ch->head, __ATOMIC_RELAXED);
    __atomic_store_n(&ch->sq->place, spin_place(), __ATOMIC_RELAXED);
    /* Release: entry and data are there before the tail says so. */
    __atomic_store_n(&ch->sq->tail, ch->tail, __ATOMIC_RELEASE);
    await_ring(ch);
    return 0;
}

/* Submits and waits for the last completion: -EPIPE: the engine has gone. */
static int run(struct channel *ch, struct client_call *call)
{
    struct proto_cqe *cqe = &call->cqe;
    int rc = submit(ch, call);

    while (rc == 0) {
        rc = await_completion(ch, cqe);
        if (rc < 0 || cqe->seq != call->sqe.seq)
            continue;
        if (!(cqe->flags & PROTO_CQE_MORE))
            break;
        if (call->progress)
            call->progress(cqe->value, cqe->value2, call->arg);
    }
    if (rc == 0 && (cqe->reply_off > ch->reply_bytes ||
                    cqe->reply_len > ch->reply_bytes - cqe->reply_off))
        rc = -EPROTO;
    if (rc == 0)
        call->reply = ch->reply + cqe->reply_off;
    return rc;
}

int64_t client_do(struct client *c, struct client_call *call)
{
    struct thread *t = thread_get(true);
    struct channel *ch;
    int rc = 0;

    if (!t)
        return -ENOMEM;
    if (t->busy)
        return -EDEADLK;
    t->busy = 1;
    call->sqe.ctl = 0;
    for (;;) {
        ch = t->channels;
        while (ch && ch->client != c)
            ch = ch->thread_next;
        if (!ch || ch->life != atomic_load_explicit(&c->life, memory_order_relaxed))
            rc = channel_get(c, t, &ch);
        if (rc < 0)
            break;
        /* Numbers rise in a channel: a resumption in channel_get may have used some. */
        if (call->sqe.ctl == 0)
            call->sqe.seq = atomic_fetch_add_explicit(&c->seq, 1, memory_order_relaxed);
        rc = run(ch, call);
        if (rc != -EPIPE)
            break;
        rc = client_lost(c, ch->life);
        if (rc < 0)
            break;
        call->sqe.ctl = PROTO_CTL_RETRY;
    }
    t->busy = 0;
    if (rc < 0) {
        call->cqe = (struct proto_cqe){.result = rc};
        call->reply = NULL;
        return rc;
    }
    return call->cqe.result;
}

int client_prove(struct client *c, uint32_t handle, uint64_t ino, int fd, int flags)
{
    struct proto_msg m = {.type = PROTO_MSG_PROVE,
                          .stamp = (uint64_t)handle << 32 | (uint32_t)flags,
                          .ino = ino};
    struct proto_answer a;
    uint64_t saved, life;
    unsigned n;
    int rc;

    do {
        rc = client_wait_up(c);
        if (rc < 0)
            return rc;
        client_lock(c, &saved);
        life = atomic_load(&c->life);
        rc = link_ask(c, &m, fd, &a, NULL, 0, &n);
        client_unlock(c, &saved);
        if (rc == -EPIPE) {
            rc = client_lost(c, life);
            if (rc < 0)
                return rc;
            rc = -EPIPE;
        }
    } while (rc == -EPIPE);
    return rc;
}
