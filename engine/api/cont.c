/* SPDX-License-Identifier: Apache-2.0 */
/* Containers and snapshots of the public API, and the check of a container. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

void api_cont_use(struct dfe_cont *cont)
{
    pthread_mutex_lock(&cont->pool->lock);
    cont->users++;
    pthread_mutex_unlock(&cont->pool->lock);
}

void api_cont_unuse(struct dfe_cont *cont)
{
    pthread_mutex_lock(&cont->pool->lock);
    cont->users--;
    pthread_mutex_unlock(&cont->pool->lock);
}

/* -- states ----------------------------------------------------------------------------------- */

/* Under pool->lock. */
static struct api_state *find_state(struct dfe_pool *pool, const char *label, const char *snapshot)
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
static int open_state(struct dfe_pool *pool, const char *label, const char *snapshot,
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
static int get_state(struct dfe_pool *pool, const char *label, const char *snapshot,
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
static int put_state(struct dfe_pool *pool, struct api_state *state)
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

static int need_label(const char *label)
{
    return label && label[0] ? 0 : base_refuse(-EINVAL, "no label was given");
}

int dfe_cont_create(struct dfe_pool *pool, const char *label, int posix,
                    const struct dfe_cred *cred, uint32_t root_mode)
{
    struct obj_cont *cont;
    int ret;

    base_clear_error();
    ret = need_label(label);
    if (ret < 0)
        return ret;
    if (posix && (!cred || (root_mode & ~07777u)))
        return base_refuse(-EINVAL, "the root directory needs an owner and permission bits");
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

int dfe_cont_destroy(struct dfe_pool *pool, const char *label)
{
    int ret;

    base_clear_error();
    ret = need_label(label);
    return ret < 0 ? ret : obj_cont_destroy(pool->obj, label);
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

ssize_t dfe_cont_list(struct dfe_pool *pool, struct dfe_cont_info *out, size_t cap)
{
    struct cont_page page = {.out = out, .cap = cap};
    int ret;

    base_clear_error();
    ret = obj_cont_list(pool->obj, list_one, &page);
    return ret < 0 ? ret : (ssize_t)page.found;
}

int dfe_cont_open(struct dfe_pool *pool, const char *label, const char *snapshot,
                  struct dfe_cont **out)
{
    struct dfe_cont *cont;
    int ret;

    base_clear_error();
    ret = need_label(label);
    if (ret < 0)
        return ret;
    if (snapshot && !snapshot[0])
        return base_refuse(-EINVAL, "the snapshot has no name");
    cont = calloc(1, sizeof(*cont));
    if (!cont)
        return -ENOMEM;
    ret = get_state(pool, label, snapshot ? snapshot : "", &cont->state);
    if (ret < 0) {
        free(cont);
        return ret;
    }
    cont->pool = pool;
    cont->obj = cont->state->obj;
    *out = cont;
    return 0;
}

int dfe_cont_close(struct dfe_cont *cont)
{
    struct dfe_pool *pool = cont->pool;
    unsigned users;
    int ret;

    base_clear_error();
    pthread_mutex_lock(&pool->lock);
    users = cont->users;
    pthread_mutex_unlock(&pool->lock);
    if (users)
        return base_refuse(-EBUSY, "a file system or a transaction is open in the container");
    ret = put_state(pool, cont->state);
    free(cont);
    return ret;
}

int dfe_cont_query(struct dfe_cont *cont, struct dfe_cont_info *out)
{
    struct obj_cont_info info = {0};

    obj_cont_query(cont->obj, &info);
    fill_info(out, &info);
    return 0;
}

int dfe_cont_prop_get(struct dfe_cont *cont, const char *name, char *value, size_t cap)
{
    base_clear_error();
    if (!name || !name[0])
        return base_refuse(-EINVAL, "no property was named");
    return obj_cont_prop_get(cont->obj, name, value, cap);
}

int dfe_cont_prop_set(struct dfe_cont *cont, const char *name, const char *value)
{
    base_clear_error();
    if (!name || !name[0] || !value)
        return base_refuse(-EINVAL, "a property needs a name and a value");
    return obj_cont_prop_set(cont->obj, name, value);
}

/* -- snapshots -------------------------------------------------------------------------------- */

int dfe_snap_create(struct dfe_cont *cont, const char *name, uint64_t *epoch)
{
    uint64_t at;
    int ret;

    base_clear_error();
    if (!name || !name[0])
        return base_refuse(-EINVAL, "a snapshot needs a name");
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

int dfe_snap_destroy(struct dfe_cont *cont, const char *name)
{
    base_clear_error();
    if (!name || !name[0])
        return base_refuse(-EINVAL, "no snapshot was named");
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

ssize_t dfe_snap_list(struct dfe_cont *cont, struct dfe_snap_info *out, size_t cap)
{
    struct snap_page page = {.out = out, .cap = cap};
    int ret;

    base_clear_error();
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
static ssize_t check_closed(struct dfe_cont *cont, bool data, struct report *r)
{
    struct dfe_fs *fs;
    char line[600];
    ssize_t faults;
    int ret;

    ret = dfe_fs_open(cont, &fs);
    if (ret == 0) {
        faults = ns_check(fs->ns, data, add_fault, pass_progress, r);
        ret = dfe_fs_close(fs);
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

ssize_t dfe_cont_check(struct dfe_cont *cont, int data, char *report, size_t cap,
                       void (*progress)(uint64_t done, uint64_t total, void *arg), void *arg)
{
    struct report r = {.text = report, .cap = cap, .progress = progress, .progress_arg = arg};
    struct dfe_fs *fs;
    ssize_t faults;

    base_clear_error();
    if (cap)
        report[0] = '\0';
    fs = api_fs_find(cont);
    if (!fs)
        return check_closed(cont, data != 0, &r);
    faults = ns_check(fs->ns, data != 0, add_fault, pass_progress, &r);
    atomic_fetch_sub(&fs->pins, 1);
    return faults;
}
