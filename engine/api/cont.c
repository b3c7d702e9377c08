/* SPDX-License-Identifier: Apache-2.0 */
/* Containers and snapshots of the public API, and the check of a container. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

void api_cont_use(struct local_cont *cont)
{
    pthread_mutex_lock(&cont->pool->lock);
    cont->users++;
    pthread_mutex_unlock(&cont->pool->lock);
}

void api_cont_unuse(struct local_cont *cont)
{
    pthread_mutex_lock(&cont->pool->lock);
    cont->users--;
    pthread_mutex_unlock(&cont->pool->lock);
}

/* -- states ----------------------------------------------------------------------------------- */

/* Under pool->lock. */
static struct api_state *find_state(struct local_pool *pool, const char *label,
                                    const char *snapshot)
{
    list_for_each(l, &pool->states)
    {
        struct api_state *state = container_of(l, struct api_state, link);

        if (strcmp(state->label, label) == 0 && strcmp(state->snapshot, snapshot) == 0)
            return state;
    }
    return NULL;
}

/* A state of its own, not in the list yet. */
static int open_state(struct local_pool *pool, const char *label, const char *snapshot,
                      struct api_state **out)
{
    struct api_state *state = calloc(1, sizeof(*state));
    int ret;

    if (!state)
        return -ENOMEM;
    list_init(&state->link);
    snprintf(state->label, sizeof(state->label), "%s", label);
    snprintf(state->snapshot, sizeof(state->snapshot), "%s", snapshot);
    ret = obj_cont_open(pool->obj, label, snapshot[0] ? snapshot : NULL, &state->obj);
    if (ret < 0) {
        free(state);
        return ret;
    }
    *out = state;
    return 0;
}

static void close_state(struct api_state *state)
{
    obj_cont_close(state->obj);
    free(state);
}

/* Takes a handle of the state, which is opened where it is not. */
static int get_state(struct local_pool *pool, const char *label, const char *snapshot,
                     struct api_state **out)
{
    struct api_state *mine = NULL, *state;
    int ret;

    pthread_mutex_lock(&pool->lock);
    state = find_state(pool, label, snapshot);
    if (!state) {
        /* Opened without the lock; who comes second uses the first one's. */
        pthread_mutex_unlock(&pool->lock);
        ret = open_state(pool, label, snapshot, &mine);
        if (ret < 0)
            return ret;
        pthread_mutex_lock(&pool->lock);
        state = find_state(pool, label, snapshot);
        if (!state) {
            list_add_tail(&pool->states, &mine->link);
            state = mine;
            mine = NULL;
        }
    }
    state->handles++;
    pool->conts++;
    pthread_mutex_unlock(&pool->lock);
    if (mine)
        close_state(mine);
    *out = state;
    return 0;
}

/* Gives a handle back; the last one closes the state. */
static int put_state(struct local_pool *pool, struct api_state *state)
{
    bool last;
    int ret = 0;

    pthread_mutex_lock(&pool->lock);
    last = --state->handles == 0;
    if (last)
        list_del(&state->link); /* who opens it from here on gets a state of its own */
    pthread_mutex_unlock(&pool->lock);
    if (last) {
        ret = cache_forget(pool->cache, state->obj);
        close_state(state);
    }
    /* After that: a pool without open containers may be closed. */
    pthread_mutex_lock(&pool->lock);
    pool->conts--;
    pthread_mutex_unlock(&pool->lock);
    return ret;
}

/* -- containers ------------------------------------------------------------------------------- */

int local_cont_create(struct dfe_pool *handle, const char *label, int posix,
                      const struct dfe_cred *cred, uint32_t root_mode)
{
    struct local_pool *pool = local_pool(handle);
    struct obj_cont *cont;
    int ret;

    ret = obj_cont_create(pool->obj, label);
    if (ret < 0 || !posix)
        return ret;

    ret = obj_cont_open(pool->obj, label, NULL, &cont);
    if (ret == 0) {
        ret = ns_format(cont, cred, root_mode);
        obj_cont_close(cont);
    }
    if (ret == 0)
        ret = obj_sync(pool->obj);
    /* Half a container is worse than none: it takes the label and cannot be mounted. */
    if (ret < 0)
        obj_cont_destroy(pool->obj, label);
    return ret;
}

int local_cont_destroy(struct dfe_pool *handle, const char *label)
{
    return obj_cont_destroy(local_pool(handle)->obj, label);
}

static void fill_info(struct dfe_cont_info *out, const struct obj_cont_info *in)
{
    memset(out, 0, sizeof(*out));
    snprintf(out->label, sizeof(out->label), "%s", in->label);
    api_uuid_text(in->uuid, out->uuid);
    out->number = in->number;
    out->created_ns = in->created_ns;
    out->snapshots = in->snapshots;
}

struct cont_page {
    struct dfe_cont_info *out;
    size_t cap, found;
};

static int list_one(const struct obj_cont_info *info, void *arg)
{
    struct cont_page *page = arg;

    if (page->found < page->cap)
        fill_info(&page->out[page->found], info);
    page->found++;
    return 0;
}

ssize_t local_cont_list(struct dfe_pool *handle, struct dfe_cont_info *out, size_t cap)
{
    struct local_pool *pool = local_pool(handle);
    struct cont_page page = {.out = out, .cap = cap};
    int ret;

    ret = obj_cont_list(pool->obj, list_one, &page);
    return ret < 0 ? ret : (ssize_t)page.found;
}

int local_cont_open(struct dfe_pool *handle, const char *label, const char *snapshot,
                    struct dfe_cont **out)
{
    struct local_pool *pool = local_pool(handle);
    struct local_cont *cont;
    int ret;

    cont = calloc(1, sizeof(*cont));
    if (!cont)
        return -ENOMEM;
    ret = get_state(pool, label, snapshot ? snapshot : "", &cont->state);
    if (ret < 0) {
        free(cont);
        return ret;
    }
    cont->dfe = (struct dfe_cont){.ops = &local_cont_ops, .objects = &local_object_ops};
    cont->pool = pool;
    cont->obj = cont->state->obj;
    *out = &cont->dfe;
    return 0;
}

static int local_cont_close(struct dfe_cont *handle)
{
    struct local_cont *cont = local_cont(handle);
    struct local_pool *pool = cont->pool;
    unsigned users;
    int ret;

    pthread_mutex_lock(&pool->lock);
    users = cont->users;
    pthread_mutex_unlock(&pool->lock);
    if (users)
        return base_refuse(-EBUSY, "a file system or a transaction is open in the container");
    ret = put_state(pool, cont->state);
    free(cont);
    return ret;
}

static int local_cont_query(struct dfe_cont *handle, struct dfe_cont_info *out)
{
    struct local_cont *cont = local_cont(handle);
    struct obj_cont_info info = {0};

    obj_cont_query(cont->obj, &info);
    fill_info(out, &info);
    return 0;
}

static int local_cont_prop_get(struct dfe_cont *handle, const char *name, char *value, size_t cap)
{
    struct local_cont *cont = local_cont(handle);

    return obj_cont_prop_get(cont->obj, name, value, cap);
}

static int local_cont_prop_set(struct dfe_cont *handle, const char *name, const char *value)
{
    struct local_cont *cont = local_cont(handle);

    return obj_cont_prop_set(cont->obj, name, value);
}

/* -- snapshots -------------------------------------------------------------------------------- */

static int local_snap_create(struct dfe_cont *handle, const char *name, uint64_t *epoch)
{
    struct local_cont *cont = local_cont(handle);
    uint64_t at;
    int ret;

    if (obj_cont_read_only(cont->obj))
        return base_refuse(-EROFS, "the container is open read-only");
    ret = cache_publish_all(cont->pool->cache, cont->obj, 0);
    if (ret < 0)
        return ret;
    ret = obj_snap_create(cont->obj, name, &at);
    if (ret == 0 && epoch)
        *epoch = at;
    return ret;
}

static int local_snap_destroy(struct dfe_cont *handle, const char *name)
{
    struct local_cont *cont = local_cont(handle);

    return obj_snap_destroy(cont->obj, name);
}

struct snap_page {
    struct dfe_snap_info *out;
    size_t cap, found;
};

static int list_snap(const struct obj_snap_info *info, void *arg)
{
    struct snap_page *page = arg;

    if (page->found < page->cap) {
        struct dfe_snap_info *out = &page->out[page->found];

        memset(out, 0, sizeof(*out));
        snprintf(out->name, sizeof(out->name), "%s", info->name);
        out->epoch = info->epoch;
        out->created_ns = info->created_ns;
    }
    page->found++;
    return 0;
}

static ssize_t local_snap_list(struct dfe_cont *handle, struct dfe_snap_info *out, size_t cap)
{
    struct local_cont *cont = local_cont(handle);
    struct snap_page page = {.out = out, .cap = cap};
    int ret;

    ret = obj_snap_list(cont->obj, list_snap, &page);
    return ret < 0 ? ret : (ssize_t)page.found;
}

/* -- check ------------------------------------------------------------------------------------ */

/* Both callbacks of a check get the same argument. */
struct report {
    char *text;
    size_t cap, used;
    void (*progress)(uint64_t done, uint64_t total, void *arg);
    void *progress_arg;
};

static void pass_progress(uint64_t done, uint64_t total, void *arg)
{
    struct report *r = arg;

    if (r->progress)
        r->progress(done, total, r->progress_arg);
}

/* Faults that find no room are counted, not told. */
static void add_fault(const char *text, void *arg)
{
    struct report *r = arg;
    size_t len = strlen(text);

    if (r->used + len + 2 > r->cap)
        return;
    memcpy(r->text + r->used, text, len);
    r->used += len;
    r->text[r->used++] = '\n';
    r->text[r->used] = '\0';
}

/* The file system is closed: it is opened for the check, which also resumes what a crash cut off.
 */
static ssize_t check_closed(struct local_cont *cont, bool data, struct report *r)
{
    struct dfe_fs *fs;
    char line[600];
    ssize_t faults;
    int ret;

    ret = local_fs_open(&cont->dfe, &fs);
    if (ret == 0) {
        faults = ns_check(api_fs_ns(fs), data, add_fault, pass_progress, r);
        ret = local_fs_close(fs);
        return ret < 0 && faults >= 0 ? ret : faults;
    }
    if (ret == -EBUSY || ret == -ENOMEM)
        return ret;
    if (ret != -ENODATA) {
        snprintf(line, sizeof(line), "the file system cannot be opened: %s",
                 base_last_error()[0] ? base_last_error() : strerror(-ret));
        add_fault(line, r);
    }
    faults = obj_check(cont->obj, data, add_fault, pass_progress, r);
    return ret != -ENODATA && faults >= 0 ? faults + 1 : faults;
}

static ssize_t local_cont_check(struct dfe_cont *handle, int data, char *report, size_t cap,
                                void (*progress)(uint64_t done, uint64_t total, void *arg),
                                void *arg)
{
    struct local_cont *cont = local_cont(handle);
    struct report r = {.text = report, .cap = cap, .progress = progress, .progress_arg = arg};
    struct local_fs *fs;
    ssize_t faults;

    if (cap)
        report[0] = '\0';
    fs = api_fs_find(cont);
    if (!fs)
        return check_closed(cont, data != 0, &r);
    faults = ns_check(fs->ns, data != 0, add_fault, pass_progress, &r);
    atomic_fetch_sub(&fs->pins, 1);
    return faults;
}

const struct cont_ops local_cont_ops = {
    .close = local_cont_close,
    .query = local_cont_query,
    .prop_get = local_cont_prop_get,
    .prop_set = local_cont_prop_set,
    .snap_create = local_snap_create,
    .snap_destroy = local_snap_destroy,
    .snap_list = local_snap_list,
    .check = local_cont_check,
    .fs_open = local_fs_open,
};
