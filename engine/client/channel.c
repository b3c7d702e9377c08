/* SPDX-License-Identifier: Apache-2.0 */
/* A thread's channels: made at its first call, gone with it. */
#include <linux/memfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "client/client_int.h"
#include "client/sys.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define WARM_BYTES (16u << 10)

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int key_error;

void client_lock(struct client *c, uint64_t *saved)
{
    sys_signals_off(saved);
    pthread_mutex_lock(&c->lock);
}

void client_unlock(struct client *c, const uint64_t *saved)
{
    pthread_mutex_unlock(&c->lock);
    sys_signals_back(saved);
}

static void bell_put(struct bell *bell)
{
    if (bell && atomic_fetch_sub(&bell->refs, 1) == 1) {
        sys_close(bell->fd);
        sys_free(bell, sizeof(*bell));
    }
}

void channel_drop_memory(struct channel *ch)
{
    if (ch->life == 0)
        return;
    sys_munmap(ch->sq, ch->sq_bytes);
    sys_munmap(ch->cq, ch->cq_bytes);
    sys_close(ch->wake_fd);
    bell_put(ch->bell);
    ch->bell = NULL;
    ch->life = 0;
}

void channel_cut(struct channel *ch)
{
    void *copy = sys_mmap(NULL, ch->cq_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                          -1);

    sys_mmap(ch->sq, ch->sq_bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1);
    if (sys_map_error(copy) == 0) { /* the engine goes on writing the other one, for the parent */
        memcpy(copy, ch->cq, ch->cq_bytes);
        sys_call(SYS_mremap, (long)copy, (long)ch->cq_bytes, (long)ch->cq_bytes,
                 MREMAP_MAYMOVE | MREMAP_FIXED, (long)ch->cq, 0);
    }
    sys_close(ch->wake_fd);
    ch->wake_fd = -1;
    if (ch->bell && ch->bell->fd >= 0) {
        sys_close(ch->bell->fd);
        ch->bell->fd = -1;
    }
}

void channel_put(struct channel *ch)
{
    if (atomic_fetch_sub(&ch->refs, 1) != 1)
        return;
    client_put(ch->client);
    sys_free(ch, sizeof(*ch));
}

/* Takes the channel out of its client. */
static void leave_client(struct channel *ch)
{
    struct client *c = ch->client;
    uint64_t saved;
    bool linked;

    if (c->pid != sys_getpid())
        return; /* a forked child without client_forked: the lock may be anybody's */
    client_lock(c, &saved);
    linked = ch->linked;
    if (linked) {
        struct channel **at = &c->channels;
        while (*at != ch)
            at = &(*at)->next;
        *at = ch->next;
        ch->linked = false;
        if (ch->life && ch->life == atomic_load(&c->life)) {
            struct proto_msg m = {.type = PROTO_MSG_CHANNEL_CLOSE, .id = ch->id};
            link_tell(c, &m);
        }
        channel_drop_memory(ch);
    }
    client_unlock(c, &saved);
    if (linked)
        channel_put(ch);
}

static void thread_exit(void *arg)
{
    struct thread *t = arg;

    while (t->channels) {
        struct channel *ch = t->channels;
        t->channels = ch->thread_next;
        leave_client(ch);
        channel_put(ch);
    }
    sys_free(t, sizeof(*t));
}

static void make_key(void)
{
    key_error = pthread_key_create(&key, thread_exit);
}

struct thread *thread_get(bool make)
{
    struct thread *t;

    pthread_once(&once, make_key);
    if (key_error)
        return NULL;
    t = pthread_getspecific(key);
    if (t || !make)
        return t;
    t = sys_alloc(sizeof(*t));
    if (t && pthread_setspecific(key, t)) {
        sys_free(t, sizeof(*t));
        t = NULL;
    }
    return t;
}

/* Memory that this process writes and the engine reads. */
static int make_push(struct channel *ch, uint32_t push_bytes)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    int rc, fd = (int)sys_call(SYS_memfd_create, (long)"dfusepy-push",
                               MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL, 0, 0, 0, 0);

    if (fd == -EINVAL) /* before Linux 6.3 */
        fd = (int)sys_call(SYS_memfd_create, (long)"dfusepy-push", MFD_CLOEXEC | MFD_ALLOW_SEALING,
                           0, 0, 0, 0);
    if (fd < 0)
        return fd;
    ch->sq_bytes = sizeof(struct proto_sq) + push_bytes;
    rc = -EFBIG; /* the kernel would send SIGXFSZ */
    sys_call(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, (long)&limit, 0, 0);
    if (limit.rlim_cur < ch->sq_bytes)
        goto fail;
    rc = (int)sys_call(SYS_ftruncate, fd, (long)ch->sq_bytes, 0, 0, 0, 0);
    if (rc < 0)
        goto fail;
    ch->sq = sys_mmap(NULL, ch->sq_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
    rc = sys_map_error(ch->sq);
    if (rc < 0)
        goto fail;
    /* What small requests use; all of it would make up most of the time of an attachment. */
    sys_call(SYS_madvise, (long)ch->sq,
             (long)sizeof(struct proto_sq) + (push_bytes < WARM_BYTES ? push_bytes : WARM_BYTES),
             MADV_POPULATE_WRITE, 0, 0, 0);
    rc = sys_fcntl(fd, F_ADD_SEALS,
                   F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
    if (rc < 0) {
        sys_munmap(ch->sq, ch->sq_bytes);
        goto fail;
    }
    ch->push = (uint8_t *)(ch->sq + 1);
    ch->sq->push_bytes = push_bytes;
    return fd;
fail:
    sys_close(fd);
    return rc;
}

static struct bell *take_bell(struct client *c, int fd)
{
    uint64_t life = atomic_load(&c->life);
    struct bell *b = c->bell;

    if (!b || b->life != life) {
        b = sys_alloc(sizeof(*b));
        if (!b) {
            sys_close(fd);
            return NULL;
        }
        b->fd = fd;
        b->life = life;
        atomic_init(&b->refs, 1);
        bell_put(c->bell);
        c->bell = b;
    } else {
        sys_close(fd);
    }
    atomic_fetch_add(&b->refs, 1);
    return b;
}

/* Makes memory and tells the engine. Lock held. */
static int open_memory(struct client *c, struct channel *ch)
{
    struct proto_msg m = {.type = PROTO_MSG_CHANNEL, .id = ++c->next_channel};
    struct proto_answer a;
    const void *cq;
    int fds[3], fd = make_push(ch, c->push_bytes);
    unsigned n;
    int rc;

    if (fd < 0)
        return fd;
    rc = link_ask(c, &m, fd, &a, fds, 3, &n);
    sys_close(fd);
    if (rc < 0) {
        sys_munmap(ch->sq, ch->sq_bytes);
        return rc;
    }
    ch->cq_bytes = a.bytes;
    rc = n == 3 && a.bytes > sizeof(struct proto_cq) ? 0 : -EPROTO;
    if (rc < 0) {
        while (n > 0)
            sys_close(fds[--n]);
        goto out;
    }
    rc = link_map(fds[0], ch->cq_bytes, &cq);
    ch->bell = take_bell(c, fds[1]);
    if (rc == 0 && !ch->bell) {
        sys_munmap(cq, ch->cq_bytes);
        rc = -ENOMEM;
    }
    if (rc < 0) {
        bell_put(ch->bell);
        ch->bell = NULL;
        sys_close(fds[2]);
        goto out;
    }
    ch->wake_fd = fds[2];
    ch->cq = cq;
    ch->reply = (const uint8_t *)cq + sizeof(struct proto_cq);
    ch->reply_bytes = ch->cq_bytes - sizeof(struct proto_cq);
    ch->id = m.id;
    ch->tail = ch->head = 0;
    await_init(ch);
    ch->life = atomic_load(&c->life);
    return 0;
out:
    m.type = PROTO_MSG_CHANNEL_CLOSE;
    link_tell(c, &m);
    sys_munmap(ch->sq, ch->sq_bytes);
    return rc;
}

/* Structs of closed clients that this thread still knows. */
static void prune(struct thread *t)
{
    struct channel **at = &t->channels;

    while (*at) {
        struct channel *ch = *at;
        if (atomic_load(&ch->client->state) != CLIENT_DEAD || ch->life) {
            at = &ch->thread_next;
            continue;
        }
        *at = ch->thread_next;
        leave_client(ch);
        channel_put(ch);
    }
}

static struct channel *new_channel(struct client *c, struct thread *t)
{
    struct channel *ch = sys_alloc(sizeof(*ch));

    if (!ch)
        return NULL;
    ch->client = c;
    atomic_init(&ch->refs, 2);
    atomic_fetch_add(&c->refs, 1);
    ch->next = c->channels;
    ch->linked = true;
    c->channels = ch;
    ch->thread_next = t->channels;
    t->channels = ch;
    return ch;
}

int channel_get(struct client *c, struct thread *t, struct channel **out)
{
    struct channel *ch = t->channels;
    uint64_t saved, life;
    int rc;

    while (ch && ch->client != c)
        ch = ch->thread_next;
    if (!ch)
        prune(t);
again:
    rc = client_wait_up(c);
    if (rc < 0)
        return rc;
    client_lock(c, &saved);
    life = atomic_load(&c->life);
    if (!ch)
        ch = new_channel(c, t);
    if (!ch)
        rc = -ENOMEM;
    if (rc == 0 && ch->life != life) {
        channel_drop_memory(ch);
        rc = open_memory(c, ch);
    }
    client_unlock(c, &saved);
    if (rc == -EPIPE) {
        rc = client_lost(c, life);
        if (rc == 0)
            goto again;
    }
    if (rc == 0)
        *out = ch;
    return rc;
}
