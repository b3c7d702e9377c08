/* SPDX-License-Identifier: Apache-2.0 */
/* Containers, snapshots and checks of the public API behind a session. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/remote.h"

void remote_cont_use(struct remote_cont *cont)
{
    pthread_mutex_lock(&cont->pool->lock);
    cont->users++;
    pthread_mutex_unlock(&cont->pool->lock);
}

void remote_cont_unuse(struct remote_cont *cont)
{
    if (atomic_load(&cont->pool->forked))
        return;
    pthread_mutex_lock(&cont->pool->lock);
    cont->users--;
    pthread_mutex_unlock(&cont->pool->lock);
}

static struct iovec text(const char *s)
{
    return (struct iovec){.iov_base = (void *)(uintptr_t)s, .iov_len = strlen(s)};
}

/* -- containers of a pool -----------------------------------------------------------------------
 */

int remote_cont_create(struct dfe_pool *handle, const char *label, int posix,
                       const struct dfe_cred *cred, uint32_t root_mode)
{
    static const struct dfe_cred nobody;
    uint32_t how[2] = {posix != 0, root_mode};
    struct iovec push[] = {
        {(void *)(uintptr_t)(cred ? cred : &nobody), sizeof(nobody)},
        {how, sizeof(how)},
        text(label),
    };
    struct client_call call = {
        .sqe = {.op = PROTO_CONT_CREATE, .handle = PROTO_NO_HANDLE}, .push = push, .n_push = 3};

    return remote_ask_plainly(remote_pool(handle), &call);
}

int remote_cont_destroy(struct dfe_pool *handle, const char *label)
{
    struct iovec push = text(label);
    struct client_call call = {
        .sqe = {.op = PROTO_CONT_DESTROY, .handle = PROTO_NO_HANDLE}, .push = &push, .n_push = 1};

    return remote_ask_plainly(remote_pool(handle), &call);
}

/* A list of records into out, which holds cap: how many there are. */
static ssize_t list(struct remote_pool *pool, struct client_call *call, void *out, size_t cap,
                    size_t record_bytes)
{
    size_t room = PROTO_REPLY_BYTES / record_bytes, got;
    int64_t found;

    call->reply_cap = (cap < room ? cap : room) * record_bytes;
    found = remote_ask(pool, call);
    if (found < 0)
        return (ssize_t)found;
    got = remote_take(call, out, call->reply_cap) / record_bytes;
    if (got < cap && got < (size_t)found)
        return base_refuse(-E2BIG, "a session lists at most %zu of %lld", room, (long long)found);
    return (ssize_t)found;
}

ssize_t remote_cont_list(struct dfe_pool *handle, struct dfe_cont_info *out, size_t cap)
{
    struct client_call call = {.sqe = {.op = PROTO_CONT_LIST, .handle = PROTO_NO_HANDLE}};

    return list(remote_pool(handle), &call, out, cap, sizeof(*out));
}

/* The request that opens it, at first and again. */
static struct client_call open_call(const struct remote_cont *cont, struct iovec push[2])
{
    push[0] = text(cont->label);
    push[1] = text(cont->snapshot);
    return (struct client_call){
        .sqe = {.op = PROTO_CONT_OPEN, .handle = cont->handle, .arg = (uint32_t)push[0].iov_len},
        .push = push,
        .n_push = 2,
    };
}

int remote_cont_open(struct dfe_pool *handle, const char *label, const char *snapshot,
                     struct dfe_cont **out)
{
    struct remote_pool *pool = remote_pool(handle);
    struct remote_cont *cont;
    struct client_call call;
    struct iovec push[2];
    int ret;

    if (strlen(label) >= sizeof(cont->label) ||
        (snapshot && strlen(snapshot) >= sizeof(cont->snapshot)))
        return base_refuse(-ENOENT, "no label is that long: %s", label);
    cont = calloc(1, sizeof(*cont));
    if (!cont)
        return -ENOMEM;
    cont->dfe = (struct dfe_cont){.ops = &remote_cont_ops, .objects = &remote_object_ops};
    cont->pool = pool;
    cont->read_only = pool->read_only || snapshot;
    list_init(&cont->link);
    snprintf(cont->label, sizeof(cont->label), "%s", label);
    snprintf(cont->snapshot, sizeof(cont->snapshot), "%s", snapshot ? snapshot : "");
    call = open_call(cont, push);
    ret = remote_open(pool, &call, &cont->handle, &pool->conts, &cont->link);
    if (ret < 0) {
        free(cont);
        return ret;
    }
    *out = &cont->dfe;
    return 0;
}

int remote_cont_resume(struct remote_cont *cont, struct client *client)
{
    struct iovec push[2];
    struct client_call call = open_call(cont, push);
    int64_t ret = client_do(client, &call);

    return ret == -EOWNERDEAD ? (int)ret : 0;
}

static int remote_cont_close(struct dfe_cont *handle)
{
    struct remote_cont *cont = remote_cont(handle);
    struct remote_pool *pool = cont->pool;
    unsigned users = 0;
    int ret;

    if (!atomic_load(&pool->forked)) {
        pthread_mutex_lock(&pool->lock);
        users = cont->users;
        pthread_mutex_unlock(&pool->lock);
    }
    if (users)
        return base_refuse(-EBUSY, "a file system or a transaction is open in the container");
    ret = remote_close(pool, cont->handle, &cont->link);
    free(cont);
    return ret;
}

/* -- a container --------------------------------------------------------------------------------
 */

static int remote_cont_query(struct dfe_cont *handle, struct dfe_cont_info *out)
{
    struct remote_cont *cont = remote_cont(handle);
    struct client_call call = {.sqe = {.op = PROTO_CONT_QUERY, .handle = cont->handle}};
    int64_t ret = remote_ask_for(cont->pool, &call, out, sizeof(*out));

    return ret < 0 ? (int)ret : 0;
}

static int remote_prop_get(struct dfe_cont *handle, const char *name, char *value, size_t cap)
{
    struct remote_cont *cont = remote_cont(handle);
    struct iovec push = text(name);
    struct client_call call = {
        .sqe = {.op = PROTO_PROP_GET, .handle = cont->handle},
        .push = &push,
        .n_push = 1,
        .reply_cap = cap < PROTO_REPLY_BYTES ? cap : PROTO_REPLY_BYTES,
    };
    int64_t ret = remote_ask(cont->pool, &call);

    if (ret < 0)
        return (int)ret;
    remote_take(&call, value, cap);
    return (int)ret;
}

static int remote_prop_set(struct dfe_cont *handle, const char *name, const char *value)
{
    struct remote_cont *cont = remote_cont(handle);
    struct iovec push[] = {text(name), text(value)};
    struct client_call call = {
        .sqe = {.op = PROTO_PROP_SET, .handle = cont->handle, .arg = (uint32_t)push[0].iov_len},
        .push = push,
        .n_push = 2,
    };

    return remote_ask_plainly(cont->pool, &call);
}

/* -- snapshots ----------------------------------------------------------------------------------
 */

static int remote_snap_create(struct dfe_cont *handle, const char *name, uint64_t *epoch)
{
    struct remote_cont *cont = remote_cont(handle);
    struct iovec push = text(name);
    struct client_call call = {
        .sqe = {.op = PROTO_SNAP_CREATE, .handle = cont->handle}, .push = &push, .n_push = 1};
    int ret = remote_ask_plainly(cont->pool, &call);

    if (ret == 0 && epoch)
        *epoch = call.cqe.value;
    return ret;
}

static int remote_snap_destroy(struct dfe_cont *handle, const char *name)
{
    struct remote_cont *cont = remote_cont(handle);
    struct iovec push = text(name);
    struct client_call call = {
        .sqe = {.op = PROTO_SNAP_DESTROY, .handle = cont->handle}, .push = &push, .n_push = 1};

    return remote_ask_plainly(cont->pool, &call);
}

static ssize_t remote_snap_list(struct dfe_cont *handle, struct dfe_snap_info *out, size_t cap)
{
    struct remote_cont *cont = remote_cont(handle);
    struct client_call call = {.sqe = {.op = PROTO_SNAP_LIST, .handle = cont->handle}};

    return list(cont->pool, &call, out, cap, sizeof(*out));
}

/* -- check --------------------------------------------------------------------------------------
 */

static ssize_t remote_check(struct dfe_cont *handle, int data, char *report, size_t cap,
                            void (*progress)(uint64_t done, uint64_t total, void *arg), void *arg)
{
    struct remote_cont *cont = remote_cont(handle);
    struct client_call call = {
        .sqe = {.op = PROTO_CHECK, .handle = cont->handle, .arg = data != 0},
        .reply_cap = cap < PROTO_REPLY_BYTES ? cap : PROTO_REPLY_BYTES,
        .progress = progress,
        .arg = arg,
    };
    int64_t ret = remote_ask(cont->pool, &call);

    if (cap)
        report[0] = '\0';
    if (ret >= 0 && cap)
        report[remote_take(&call, report, cap - 1)] = '\0';
    return (ssize_t)ret;
}

const struct cont_ops remote_cont_ops = {
    .close = remote_cont_close,
    .query = remote_cont_query,
    .prop_get = remote_prop_get,
    .prop_set = remote_prop_set,
    .snap_create = remote_snap_create,
    .snap_destroy = remote_snap_destroy,
    .snap_list = remote_snap_list,
    .check = remote_check,
    .fs_open = remote_fs_open,
};
