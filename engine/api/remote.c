/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of the public API behind a session: requests, numbers of handles, resumption, forks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/remote.h"

/* A transaction of DFE_TX_BYTES and what names it travel in one request. */
#define PUSH_BYTES (5u << 20)
/* Room for the reason of an error, where an answer needs less. */
#define REASON_BYTES 512u

/* -- forks --------------------------------------------------------------------------------------
 *
 * A child must not speak on its parent's rings. The list of this process's sessions exists for the
 * fork handlers alone; they hold its lock across the fork, so that the child finds it whole.
 */

static pthread_mutex_t sessions_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list sessions = {&sessions, &sessions};
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    pthread_mutex_lock(&sessions_lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&sessions_lock);
}

static void after_fork_in_child(void)
{
    list_for_each_safe(l, next, &sessions)
    {
        struct remote_pool *pool = container_of(l, struct remote_pool, link);

        atomic_store(&pool->forked, true);
        if (atomic_load(&pool->loans))
            client_leave_extents(pool->client);
        client_forked(pool->client);
        pool->client = NULL;
        list_del(&pool->link);
    }
    pthread_mutex_init(&sessions_lock, NULL);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

int remote_alive(const struct remote_pool *pool)
{
    if (atomic_load_explicit(&pool->forked, memory_order_relaxed))
        return base_refuse(-ESTALE, "the session belongs to the parent process: open another one");
    return 0;
}

/* -- requests -----------------------------------------------------------------------------------
 */

static int64_t explain(const struct client_call *call, int64_t ret)
{
    if (ret >= 0 || ret == -EINPROGRESS)
        return ret;
    if (call->reply && call->cqe.reply_len > 0)
        return base_refuse((int)ret, "%.*s", (int)call->cqe.reply_len, (const char *)call->reply);
    if (ret == -EOWNERDEAD)
        return base_refuse((int)ret, "the pool's service has ended and does not come back");
    return ret;
}

int64_t remote_ask(struct remote_pool *pool, struct client_call *call)
{
    int ret = remote_alive(pool);

    return ret < 0 ? ret : explain(call, client_do(pool->client, call));
}

int remote_ask_plainly(struct remote_pool *pool, struct client_call *call)
{
    int64_t ret;

    call->reply_cap = REASON_BYTES;
    ret = remote_ask(pool, call);
    return ret < 0 ? (int)ret : 0;
}

int64_t remote_ask_for(struct remote_pool *pool, struct client_call *call, void *out,
                       size_t out_bytes)
{
    int64_t ret;

    call->reply_cap = out_bytes > REASON_BYTES ? out_bytes : REASON_BYTES;
    ret = remote_ask(pool, call);
    if (ret >= 0 && call->cqe.reply_len != out_bytes)
        return base_refuse(-EPROTO, "the service's answer has %u bytes, not %zu",
                           call->cqe.reply_len, out_bytes);
    if (ret >= 0)
        memcpy(out, call->reply, out_bytes);
    return ret;
}

size_t remote_take(const struct client_call *call, void *dst, size_t cap)
{
    size_t len = call->cqe.reply_len < cap ? call->cqe.reply_len : cap;

    if (len)
        memcpy(dst, call->reply, len);
    return len;
}

/* -- handles ------------------------------------------------------------------------------------
 */

/* Under pool->lock. */
static int take_number(struct remote_pool *pool, uint32_t *out)
{
    for (uint32_t i = 0; i < PROTO_HANDLES / 64; i++)
        if (pool->handles[i] != UINT64_MAX) {
            uint32_t bit = (uint32_t)__builtin_ctzll(~pool->handles[i]);

            pool->handles[i] |= 1ull << bit;
            *out = i * 64 + bit;
            return 0;
        }
    return base_refuse(-EMFILE, "a session has at most %u open handles", PROTO_HANDLES);
}

/* Under pool->lock. */
static void give_number(struct remote_pool *pool, uint32_t number)
{
    pool->handles[number / 64] &= ~(1ull << number % 64);
}

static int ask_to_close(struct remote_pool *pool, uint32_t handle)
{
    struct client_call call = {.sqe = {.op = PROTO_CLOSE, .handle = handle}};

    return remote_ask_plainly(pool, &call);
}

int remote_open(struct remote_pool *pool, struct client_call *call, uint32_t *handle,
                struct list *list, struct list *link)
{
    bool same = false;
    int64_t ret = remote_alive(pool);

    if (ret < 0)
        return (int)ret;
    pthread_mutex_lock(&pool->lock);
    ret = take_number(pool, handle);
    pthread_mutex_unlock(&pool->lock);
    if (ret < 0)
        return (int)ret;
    call->sqe.handle = *handle;
    while (ret >= 0 && !same) {
        uint64_t epoch = client_epoch(pool->client);

        ret = remote_ask_plainly(pool, call);
        pthread_mutex_lock(&pool->lock);
        same = client_epoch(pool->client) == epoch;
        if (ret >= 0 && same)
            list_add_tail(list, link);
        pthread_mutex_unlock(&pool->lock);
        /* The worker was replaced meanwhile: which of the two opened it, nobody knows. */
        if (ret >= 0 && !same)
            ask_to_close(pool, *handle);
    }
    if (ret < 0) {
        pthread_mutex_lock(&pool->lock);
        give_number(pool, *handle);
        pthread_mutex_unlock(&pool->lock);
    }
    return ret < 0 ? (int)ret : 0;
}

int remote_close(struct remote_pool *pool, uint32_t handle, struct list *link)
{
    int64_t ret = remote_alive(pool);
    uint64_t epoch;

    if (ret < 0)
        return 0; /* a child's copy: the parent's handle stays open */
    pthread_mutex_lock(&pool->lock);
    list_del(link);
    epoch = client_epoch(pool->client);
    pthread_mutex_unlock(&pool->lock);
    ret = ask_to_close(pool, handle);
    /* A worker that took over meanwhile was not asked to open it. */
    if (ret == -EBADF && client_epoch(pool->client) != epoch)
        ret = 0;
    pthread_mutex_lock(&pool->lock);
    give_number(pool, handle);
    pthread_mutex_unlock(&pool->lock);
    /* Who has no engine any more has nothing open in it either. */
    return ret == -EOWNERDEAD || ret >= 0 ? 0 : (int)ret;
}

/* Another worker: what we had open is opened again. What is gone meanwhile, which only happens to
 * containers that nobody had open for a moment, fails at its next use. */
static int remote_resume(struct client *client, void *arg)
{
    struct remote_pool *pool = arg;
    int ret = 0;

    pthread_mutex_lock(&pool->lock);
    list_for_each(l, &pool->conts)
    {
        if (ret == 0)
            ret = remote_cont_resume(container_of(l, struct remote_cont, link), client);
    }
    list_for_each(l, &pool->fss)
    {
        if (ret == 0)
            ret = remote_fs_resume(container_of(l, struct remote_fs, link), client);
    }
    pthread_mutex_unlock(&pool->lock);
    return ret;
}

/* -- pools --------------------------------------------------------------------------------------
 */

static int remote_pool_query(struct dfe_pool *handle, struct dfe_pool_info *out)
{
    struct client_call call = {.sqe = {.op = PROTO_POOL_QUERY, .handle = PROTO_NO_HANDLE}};
    int64_t ret = remote_ask_for(remote_pool(handle), &call, out, sizeof(*out));

    return ret < 0 ? (int)ret : 0;
}

static int remote_pool_close(struct dfe_pool *handle)
{
    struct remote_pool *pool = remote_pool(handle);
    bool busy;

    if (!atomic_load(&pool->forked)) {
        pthread_mutex_lock(&pool->lock);
        busy = !list_empty(&pool->conts);
        pthread_mutex_unlock(&pool->lock);
        if (busy)
            return base_refuse(-EBUSY, "containers of the pool are open");
        pthread_mutex_lock(&sessions_lock);
        list_del(&pool->link);
        pthread_mutex_unlock(&sessions_lock);
        client_close(pool->client);
        pthread_mutex_destroy(&pool->lock);
    }
    free(pool);
    return 0;
}

static int ask_plainly(struct dfe_pool *handle, uint32_t op)
{
    struct client_call call = {.sqe = {.op = op, .handle = PROTO_NO_HANDLE}};

    return remote_ask_plainly(remote_pool(handle), &call);
}

static int remote_pool_sync(struct dfe_pool *handle)
{
    return ask_plainly(handle, PROTO_POOL_SYNC);
}

static int remote_pool_checkpoint(struct dfe_pool *handle)
{
    return ask_plainly(handle, PROTO_POOL_CHECKPOINT);
}

static int remote_pool_drop_caches(struct dfe_pool *handle)
{
    return ask_plainly(handle, PROTO_POOL_DROP_CACHES);
}

static int remote_service_query(struct dfe_pool *handle, struct dfe_service_info *out)
{
    struct client_call call = {.sqe = {.op = PROTO_SERVICE_QUERY, .handle = PROTO_NO_HANDLE}};
    int64_t ret = remote_ask_for(remote_pool(handle), &call, out, sizeof(*out));

    return ret < 0 ? (int)ret : 0;
}

static const struct pool_ops remote_pool_ops = {
    .close = remote_pool_close,
    .query = remote_pool_query,
    .sync = remote_pool_sync,
    .checkpoint = remote_pool_checkpoint,
    .drop_caches = remote_pool_drop_caches,
    .service_query = remote_service_query,
    .cont_create = remote_cont_create,
    .cont_destroy = remote_cont_destroy,
    .cont_list = remote_cont_list,
    .cont_open = remote_cont_open,
};

int remote_pool_open(const struct dfe_pool_open_opts *o, struct dfe_pool **out)
{
    struct remote_pool *pool = calloc(1, sizeof(*pool));
    struct client_opts opts = {
        .size = sizeof(opts),
        .path = o->socket,
        .role = o->mount ? PROTO_ROLE_MOUNT : PROTO_ROLE_API,
        .push_bytes = PUSH_BYTES,
        .resumed = remote_resume,
        .arg = pool,
    };
    struct dfe_pool_info info;
    int ret;

    if (!pool)
        return -ENOMEM;
    pool->dfe.ops = &remote_pool_ops;
    pthread_mutex_init(&pool->lock, NULL);
    list_init(&pool->conts);
    list_init(&pool->fss);
    list_init(&pool->link);
    pthread_once(&fork_once, watch_forks);
    ret = client_open(&opts, &pool->client);
    if (ret < 0) {
        free(pool);
        return base_refuse(ret, "no session with the service of %s at %s: %s", o->path, o->socket,
                           strerror(-ret));
    }
    pool->push_bytes = client_push_max(pool->client);
    pthread_mutex_lock(&sessions_lock);
    list_add_tail(&sessions, &pool->link);
    pthread_mutex_unlock(&sessions_lock);
    ret = remote_pool_query(&pool->dfe, &info);
    if (ret < 0) {
        remote_pool_close(&pool->dfe);
        return ret;
    }
    pool->read_only = info.read_only != 0;
    *out = &pool->dfe;
    return 0;
}
