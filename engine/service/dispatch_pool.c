/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on the pool, its containers, their properties and snapshots. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "service/dispatch_int.h"

#define PROP_NAME_BYTES 255u

/* A name or label out of the push area, with its NUL. */
static int text(const uint8_t *from, size_t len, char *to, size_t cap)
{
    if (len >= cap)
        return base_refuse(-ENAMETOOLONG, "a name of %zu bytes is too long", len);
    if (len && memchr(from, '\0', len))
        return base_refuse(-EINVAL, "a name holds a NUL");
    if (len)
        memcpy(to, from, len);
    to[len] = '\0';
    return 0;
}

/* The push area is two texts, the first arg bytes long. */
static int two_texts(struct call *c, char *first, size_t first_cap, char *second, size_t second_cap)
{
    size_t len = c->e->arg;
    int ret;

    if (len > c->push_len)
        return base_refuse(-EINVAL, "the first name is longer than both");
    ret = text(c->push, len, first, first_cap);
    return ret < 0 ? ret : text(c->push + len, c->push_len - len, second, second_cap);
}

/* -- pool ------------------------------------------------------------------------------------- */

int64_t op_nop(struct call *c)
{
    return 0;
}

int64_t op_pool_query(struct call *c)
{
    struct dfe_pool_info info;
    int ret = dfe_pool_query(c->s->host->pool, &info);

    if (ret == 0)
        reply_struct(c, &info, sizeof(info));
    return ret;
}

int64_t op_pool_sync(struct call *c)
{
    return dfe_pool_sync(c->s->host->pool);
}

int64_t op_pool_checkpoint(struct call *c)
{
    return dfe_pool_checkpoint(c->s->host->pool);
}

int64_t op_pool_drop_caches(struct call *c)
{
    return dfe_pool_drop_caches(c->s->host->pool);
}

int64_t op_service_query(struct call *c)
{
    struct host *host = c->s->host;
    struct dfe_service_info info = {0};
    void (*fn)(struct dfe_service_info *info, void *arg);
    void *arg;

    pthread_mutex_lock(&host->lock);
    fn = host->info_fn;
    arg = host->info_arg;
    pthread_mutex_unlock(&host->lock);
    info.sessions = atomic_load(&host->sessions);
    info.mounts = atomic_load(&host->mounts);
    info.loans = atomic_load(&host->loans);
    info.loan_bytes = atomic_load(&host->loan_bytes);
    if (host->keep)
        keep_usage(host->keep, &info.keep_used_bytes, &info.keep_bytes);
    info.leases = atomic_load(&host->leases);
    if (fn)
        fn(&info, arg);
    reply_struct(c, &info, sizeof(info));
    return 0;
}

/* -- containers ------------------------------------------------------------------------------- */

int64_t op_cont_create(struct call *c)
{
    char label[DFE_LABEL_BYTES + 1];
    struct dfe_cred cred;
    uint32_t posix, mode;
    const uint8_t *at = c->push;
    int ret;

    memcpy(&cred, at, sizeof(cred));
    at += sizeof(cred);
    memcpy(&posix, at, 4);
    memcpy(&mode, at + 4, 4);
    at += 8;
    ret = text(at, c->push_len - (size_t)(at - c->push), label, sizeof(label));
    if (ret == 0 && posix > 1)
        ret = base_refuse(-EINVAL, "a container has a file system (1) or not (0)");
    return ret < 0 ? ret : dfe_cont_create(c->s->host->pool, label, (int)posix, &cred, mode);
}

int64_t op_cont_destroy(struct call *c)
{
    char label[DFE_LABEL_BYTES + 1];
    int ret = text(c->push, c->push_len, label, sizeof(label));

    return ret < 0 ? ret : dfe_cont_destroy(c->s->host->pool, label);
}

int64_t op_cont_list(struct call *c)
{
    size_t cap = c->e->reply_cap / sizeof(struct dfe_cont_info);
    struct dfe_cont_info *infos = calloc(cap + 1, sizeof(*infos));
    ssize_t n;

    if (!infos)
        return -ENOMEM;
    n = dfe_cont_list(c->s->host->pool, infos, cap);
    if (n > 0)
        reply_struct(c, infos, ((size_t)n < cap ? (size_t)n : cap) * sizeof(*infos));
    free(infos);
    return n;
}

int64_t op_cont_open(struct call *c)
{
    char label[DFE_LABEL_BYTES + 1], snapshot[DFE_LABEL_BYTES + 1];
    struct handle *h;
    int ret;

    ret = two_texts(c, label, sizeof(label), snapshot, sizeof(snapshot));
    if (ret < 0)
        return ret;
    ret = session_reserve(c->s, c->e->handle);
    if (ret < 0)
        return base_refuse(ret, "handle %u cannot be taken", c->e->handle);
    h = calloc(1, sizeof(*h));
    ret = h ? host_cont_get(c->s->host, label, snapshot, &h->hc) : -ENOMEM;
    if (ret < 0) {
        free(h);
        h = NULL;
    } else {
        h->kind = HANDLE_CONT;
    }
    session_install(c->s, c->e->handle, h);
    return ret;
}

int64_t op_close(struct call *c)
{
    int ret = session_close(c->s, c->e->handle);

    return ret < 0 ? base_refuse(ret, "%u is no handle", c->e->handle) : 0;
}

int64_t op_cont_query(struct call *c)
{
    struct dfe_cont_info info;
    int ret = dfe_cont_query(c->cont, &info);

    if (ret == 0)
        reply_struct(c, &info, sizeof(info));
    return ret;
}

int64_t op_prop_get(struct call *c)
{
    char name[PROP_NAME_BYTES + 1], *value;
    size_t cap = c->e->reply_cap;
    int ret = text(c->push, c->push_len, name, sizeof(name));

    if (ret < 0)
        return ret;
    value = calloc(1, cap);
    if (!value)
        return -ENOMEM;
    ret = dfe_cont_prop_get(c->cont, name, value, cap);
    if (ret >= 0)
        reply_struct(c, value, strnlen(value, cap - 1) + 1);
    free(value);
    return ret;
}

int64_t op_prop_set(struct call *c)
{
    char name[PROP_NAME_BYTES + 1], *value = calloc(1, c->push_len + 1);
    int ret;

    if (!value)
        return -ENOMEM;
    ret = two_texts(c, name, sizeof(name), value, c->push_len + 1);
    if (ret == 0)
        ret = dfe_cont_prop_set(c->cont, name, value);
    free(value);
    return ret;
}

/* -- snapshots and checks --------------------------------------------------------------------- */

int64_t op_snap_create(struct call *c)
{
    char name[DFE_LABEL_BYTES + 1];
    int ret = text(c->push, c->push_len, name, sizeof(name));

    return ret < 0 ? ret : dfe_snap_create(c->cont, name, &c->out->value);
}

int64_t op_snap_destroy(struct call *c)
{
    char name[DFE_LABEL_BYTES + 1];
    int ret = text(c->push, c->push_len, name, sizeof(name));

    return ret < 0 ? ret : dfe_snap_destroy(c->cont, name);
}

int64_t op_snap_list(struct call *c)
{
    size_t cap = c->e->reply_cap / sizeof(struct dfe_snap_info);
    struct dfe_snap_info *infos = calloc(cap + 1, sizeof(*infos));
    ssize_t n;

    if (!infos)
        return -ENOMEM;
    n = dfe_snap_list(c->cont, infos, cap);
    if (n > 0)
        reply_struct(c, infos, ((size_t)n < cap ? (size_t)n : cap) * sizeof(*infos));
    free(infos);
    return n;
}

/* How far it is, for the last completion; each step goes to whoever asked for it. */
struct steps {
    struct request *req;
    uint64_t done, total;
};

static void step(uint64_t done, uint64_t total, void *arg)
{
    struct steps *steps = arg;

    steps->done = done;
    steps->total = total;
    if (steps->req->progress)
        steps->req->progress(done, total, steps->req->arg);
}

int64_t op_check(struct call *c)
{
    struct steps steps = {.req = c->req};
    size_t cap = c->e->reply_cap;
    char *report = cap ? calloc(1, cap) : NULL;
    ssize_t faults;
    bool has_fs;

    if (cap && !report)
        return -ENOMEM;
    /* Through the file system that others may open or have open: one of the check's own would keep
     * them out. What cannot be opened, the check says itself. */
    has_fs = host_fs_get(c->hc) == 0;
    faults = dfe_cont_check(c->cont, c->e->arg != 0, report, cap, step, &steps);
    if (faults >= 0 && cap)
        reply_struct(c, report, strnlen(report, cap - 1) + 1);
    c->out->value = steps.done;
    c->out->value2 = steps.total;
    if (has_fs)
        host_fs_put(c->hc);
    free(report);
    return faults;
}
