/* SPDX-License-Identifier: Apache-2.0 */
/* The model store: knobs, pools, containers, snapshots. */
#include "model_int.h"

#include <time.h>

#include "base/clock.h"
#include "base/log.h"

pthread_mutex_t model_lock = PTHREAD_MUTEX_INITIALIZER;

static struct list medias = {&medias, &medias};
static uint64_t media_count;

static struct {
    uint64_t calls, fail_from, fail_to;
    int fail_err;
    unsigned delay_us;
} knob[MODEL_CALLS];
static uint64_t nowait_seed = 1;
static unsigned nowait_one_in;

char *model_strdup(const char *s)
{
    char *copy = strdup(s);

    CHECK(copy);
    return copy;
}

/* -- knobs ----------------------------------------------------------------------------------- */

static struct model_media *media_find(const char *path)
{
    list_for_each(l, &medias) {
        struct model_media *m = container_of(l, struct model_media, link);
        if (strcmp(m->path, path) == 0)
            return m;
    }
    return NULL;
}

void model_fail(enum model_call call, uint64_t nth, uint64_t count, int err)
{
    pthread_mutex_lock(&model_lock);
    knob[call].fail_from = knob[call].calls + nth;
    knob[call].fail_to = count > UINT64_MAX / 2 ? UINT64_MAX : knob[call].fail_from + count;
    knob[call].fail_err = err;
    pthread_mutex_unlock(&model_lock);
}

void model_delay(enum model_call call, unsigned delay_us)
{
    pthread_mutex_lock(&model_lock);
    knob[call].delay_us = delay_us;
    pthread_mutex_unlock(&model_lock);
}

void model_nowait(uint64_t seed, unsigned one_in)
{
    pthread_mutex_lock(&model_lock);
    nowait_seed = seed ? seed : 1;
    nowait_one_in = one_in;
    pthread_mutex_unlock(&model_lock);
}

void model_capacity(const char *path, uint64_t bytes)
{
    struct model_media *m;

    pthread_mutex_lock(&model_lock);
    m = media_find(path);
    CHECK(m);
    m->capacity_bytes = bytes;
    pthread_mutex_unlock(&model_lock);
}

uint64_t model_calls(enum model_call call)
{
    uint64_t n;

    pthread_mutex_lock(&model_lock);
    n = knob[call].calls;
    pthread_mutex_unlock(&model_lock);
    return n;
}

static void delay(unsigned delay_us)
{
    if (delay_us > 0)
        nanosleep(&(struct timespec){delay_us / 1000000, delay_us % 1000000 * 1000L}, NULL);
}

void model_linger(enum model_call call)
{
    unsigned delay_us;

    pthread_mutex_lock(&model_lock);
    delay_us = knob[call].delay_us;
    pthread_mutex_unlock(&model_lock);
    delay(delay_us);
}

int model_enter(enum model_call call)
{
    unsigned delay_us;
    uint64_t n;
    int err = 0;

    pthread_mutex_lock(&model_lock);
    n = ++knob[call].calls;
    if (n >= knob[call].fail_from && n < knob[call].fail_to)
        err = knob[call].fail_err;
    delay_us = knob[call].delay_us;
    pthread_mutex_unlock(&model_lock);
    delay(delay_us);
    return err;
}

bool model_would_wait(void)
{
    return nowait_one_in > 0 && test_rand(&nowait_seed) % nowait_one_in == 0;
}

/* -- durability ------------------------------------------------------------------------------ */

int model_alive(const struct obj_pool *pool)
{
    return pool->generation == pool->media->generation ? 0 : -EIO;
}

void model_make_durable(struct model_media *m)
{
    undo_forget(&m->undo);
    m->n_marks = 0;
    m->durable_epoch = m->epoch;
}

void model_crash(const char *path, uint64_t *seed)
{
    struct model_media *m;
    size_t keep = 0;

    pthread_mutex_lock(&model_lock);
    m = media_find(path);
    CHECK(m);
    if (seed)
        keep = test_rand(seed) % (m->n_marks + 1);
    if (keep < m->n_marks)
        undo_back_to(&m->undo, m->marks[keep]);
    model_make_durable(m);
    m->generation++;
    m->open = false;
    m->reserved_bytes = 0;
    list_for_each(l, &m->conts)
        container_of(l, struct model_cont, link)->opens = 0;
    pthread_mutex_unlock(&model_lock);
}

int obj_sync(struct obj_pool *pool)
{
    int rc = model_enter(MODEL_SYNC);

    pthread_mutex_lock(&model_lock);
    if (rc == 0)
        rc = model_alive(pool);
    if (rc == 0)
        model_make_durable(pool->media);
    pthread_mutex_unlock(&model_lock);
    return rc;
}

int obj_checkpoint(struct obj_pool *pool)
{
    return obj_sync(pool);
}

int obj_wait_room(struct obj_pool *pool)
{
    int rc;

    pthread_mutex_lock(&model_lock);
    rc = model_alive(pool);
    pthread_mutex_unlock(&model_lock);
    return rc;
}

/* -- space ----------------------------------------------------------------------------------- */

static uint64_t media_free(const struct model_media *m)
{
    uint64_t taken = m->used_blocks * DFE_BLOCK_BYTES + m->reserved_bytes;

    return taken < m->capacity_bytes ? m->capacity_bytes - taken : 0;
}

/* Room for bytes, after what is superseded was given back. */
int model_space(struct model_media *m, uint64_t bytes, bool nowait)
{
    if (bytes <= media_free(m))
        return 0;
    if (nowait && m->undo.n > 0)
        return -EINPROGRESS;
    model_make_durable(m);
    return bytes <= media_free(m) ? 0 : -ENOSPC;
}

int obj_reserve(struct obj_pool *pool, uint64_t bytes, unsigned flags)
{
    bool nowait = flags & OBJ_NOWAIT;
    int rc = model_enter(MODEL_RESERVE);

    pthread_mutex_lock(&model_lock);
    if (rc == 0)
        rc = model_alive(pool);
    if (rc == 0 && pool->read_only)
        rc = -EROFS;
    if (rc == 0 && nowait && model_would_wait())
        rc = -EINPROGRESS;
    if (rc == 0)
        rc = model_space(pool->media, bytes, nowait);
    if (rc == 0)
        pool->media->reserved_bytes += bytes;
    pthread_mutex_unlock(&model_lock);
    return rc;
}

void obj_unreserve(struct obj_pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&model_lock);
    if (model_alive(pool) == 0) {
        CHECK(bytes <= pool->media->reserved_bytes);
        pool->media->reserved_bytes -= bytes;
    }
    pthread_mutex_unlock(&model_lock);
}

/* -- pools ----------------------------------------------------------------------------------- */

static bool label_ok(const char *s)
{
    static const char legal[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t len = s ? strlen(s) : 0;

    return len > 0 && len <= DFE_LABEL_BYTES && s[0] != '.' && s[0] != '-' &&
           strspn(s, legal) == len;
}

int obj_pool_create(const struct obj_pool_create_opts *opts)
{
    struct model_media *m;
    int rc = 0;

    if (!opts->path || !label_ok(opts->label))
        return base_refuse(-EINVAL, "illegal path or label");
    pthread_mutex_lock(&model_lock);
    if (media_find(opts->path)) {
        rc = -EEXIST;
        goto out;
    }
    m = calloc(1, sizeof(*m));
    CHECK(m);
    m->path = model_strdup(opts->path);
    m->label = model_strdup(opts->label);
    m->number = ++media_count;
    m->capacity_bytes = opts->size_bytes ? opts->size_bytes : 1ull << 40;
    m->next_cont = 1;
    list_init(&m->conts);
    list_add_tail(&medias, &m->link);
out:
    pthread_mutex_unlock(&model_lock);
    return rc;
}

int obj_pool_open(const struct obj_pool_open_opts *opts, struct obj_pool **out)
{
    struct model_media *m;
    struct obj_pool *pool;
    int rc = 0;

    pthread_mutex_lock(&model_lock);
    m = media_find(opts->path);
    if (!m || m->open) {
        rc = m ? -EBUSY : -ENOENT;
        goto out;
    }
    pool = calloc(1, sizeof(*pool));
    CHECK(pool);
    pool->media = m;
    pool->generation = m->generation;
    pool->read_only = opts->read_only;
    m->open = true;
    *out = pool;
out:
    pthread_mutex_unlock(&model_lock);
    return rc;
}

int obj_pool_close(struct obj_pool *pool)
{
    pthread_mutex_lock(&model_lock);
    if (model_alive(pool) == 0) {
        model_make_durable(pool->media);
        pool->media->open = false;
        pool->media->reserved_bytes = 0;
    }
    pthread_mutex_unlock(&model_lock);
    free(pool);
    return 0;
}

static void media_info(const struct model_media *m, struct obj_pool_info *out)
{
    memset(out, 0, sizeof(*out));
    snprintf(out->label, sizeof(out->label), "%s", m->label);
    memcpy(out->uuid, &m->number, sizeof(m->number));
    out->format = 1;
    snprintf(out->device, sizeof(out->device), "model:%.240s", m->path);
    snprintf(out->backend, sizeof(out->backend), "model");
    out->size_bytes = out->data_bytes = m->capacity_bytes;
    out->free_bytes = media_free(m);
    out->reserved_bytes = m->reserved_bytes;
    out->epoch = m->epoch;
    out->durable_epoch = m->durable_epoch;
    list_for_each(l, &m->conts)
        out->containers++;
}

void obj_pool_query(struct obj_pool *pool, struct obj_pool_info *out)
{
    pthread_mutex_lock(&model_lock);
    media_info(pool->media, out);
    out->read_only = pool->read_only;
    pthread_mutex_unlock(&model_lock);
}

int obj_pool_peek(const char *path, struct obj_pool_info *out)
{
    struct model_media *m;

    pthread_mutex_lock(&model_lock);
    m = media_find(path);
    if (m)
        media_info(m, out);
    pthread_mutex_unlock(&model_lock);
    return m ? 0 : -ENOENT;
}

static void snap_free(struct model_snap *s)
{
    list_del(&s->link);
    state_clear(&s->state);
    free(s);
}

static void cont_free(struct model_cont *c)
{
    list_for_each_safe(l, tmp, &c->snaps)
        snap_free(container_of(l, struct model_snap, link));
    list_for_each_safe(l, tmp, &c->props) {
        struct model_prop *p = container_of(l, struct model_prop, link);
        free(p->name);
        free(p->value);
        free(p);
    }
    state_clear(&c->state);
    list_del(&c->link);
    free(c);
}

static void media_free_all(struct model_media *m)
{
    undo_forget(&m->undo);
    list_for_each_safe(l, tmp, &m->conts)
        cont_free(container_of(l, struct model_cont, link));
    list_del(&m->link);
    free(m->marks);
    free(m->path);
    free(m->label);
    free(m);
}

int obj_pool_destroy(const char *path, bool force)
{
    struct model_media *m;
    int rc = 0;

    (void)force;
    pthread_mutex_lock(&model_lock);
    m = media_find(path);
    if (!m)
        rc = -ENOENT;
    else if (m->open)
        rc = -EBUSY;
    else
        media_free_all(m);
    pthread_mutex_unlock(&model_lock);
    return rc;
}

void model_reset(void)
{
    pthread_mutex_lock(&model_lock);
    list_for_each_safe(l, tmp, &medias) {
        struct model_media *m = container_of(l, struct model_media, link);
        CHECK(!m->open);
        media_free_all(m);
    }
    memset(knob, 0, sizeof(knob));
    nowait_one_in = 0;
    pthread_mutex_unlock(&model_lock);
}

/* -- containers ------------------------------------------------------------------------------ */

static struct model_cont *cont_find(struct model_media *m, const char *label)
{
    list_for_each(l, &m->conts) {
        struct model_cont *c = container_of(l, struct model_cont, link);
        if (strcmp(c->info.label, label) == 0)
            return c;
    }
    return NULL;
}

static struct model_snap *snap_find(struct model_cont *c, const char *name)
{
    list_for_each(l, &c->snaps) {
        struct model_snap *s = container_of(l, struct model_snap, link);
        if (strcmp(s->info.name, name) == 0)
            return s;
    }
    return NULL;
}

static int pool_writable(const struct obj_pool *pool)
{
    int rc = model_alive(pool);

    return rc == 0 && pool->read_only ? -EROFS : rc;
}

int obj_cont_create(struct obj_pool *pool, const char *label)
{
    struct model_media *m = pool->media;
    struct model_cont *c;
    int rc;

    if (!label_ok(label))
        return base_refuse(-EINVAL, "illegal label");
    pthread_mutex_lock(&model_lock);
    rc = pool_writable(pool);
    if (rc == 0 && cont_find(m, label))
        rc = -EEXIST;
    if (rc < 0)
        goto out;
    c = calloc(1, sizeof(*c));
    CHECK(c);
    snprintf(c->info.label, sizeof(c->info.label), "%s", label);
    c->info.number = m->next_cont++;
    memcpy(c->info.uuid, &m->number, sizeof(m->number));
    memcpy(c->info.uuid + 8, &c->info.number, sizeof(c->info.number));
    c->info.created_ns = base_real_ns();
    list_init(&c->snaps);
    list_init(&c->props);
    list_add_tail(&m->conts, &c->link);
    m->epoch++;
    model_make_durable(m);
out:
    pthread_mutex_unlock(&model_lock);
    return rc;
}

int obj_cont_destroy(struct obj_pool *pool, const char *label)
{
    struct model_media *m = pool->media;
    struct model_cont *c;
    int rc;

    pthread_mutex_lock(&model_lock);
    rc = pool_writable(pool);
    c = cont_find(m, label);
    if (rc == 0 && !c)
        rc = -ENOENT;
    if (rc == 0 && c->opens > 0)
        rc = -EBUSY;
    if (rc == 0) {
        m->epoch++;
        model_make_durable(m);
        cont_free(c);
    }
    pthread_mutex_unlock(&model_lock);
    return rc;
}

int obj_cont_list(struct obj_pool *pool, int (*fn)(const struct obj_cont_info *, void *), void *arg)
{
    struct obj_cont_info *copy = NULL;
    size_t n = 0, cap = 0;
    int rc;

    pthread_mutex_lock(&model_lock);
    rc = model_alive(pool);
    list_for_each(l, &pool->media->conts) {
        copy = state_grow(copy, n, &cap, sizeof(*copy));
        copy[n++] = container_of(l, struct model_cont, link)->info;
    }
    pthread_mutex_unlock(&model_lock);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = fn(&copy[i], arg);
    free(copy);
    return rc;
}

int obj_cont_open(struct obj_pool *pool, const char *label, const char *snapshot,
                  struct obj_cont **out)
{
    struct model_cont *c;
    struct model_snap *s = NULL;
    struct obj_cont *cont;
    int rc;

    pthread_mutex_lock(&model_lock);
    rc = model_alive(pool);
    c = cont_find(pool->media, label);
    if (c && snapshot)
        s = snap_find(c, snapshot);
    if (rc == 0 && (!c || (snapshot && !s)))
        rc = -ENOENT;
    if (rc < 0)
        goto out;
    cont = calloc(1, sizeof(*cont));
    CHECK(cont);
    cont->pool = pool;
    cont->cont = c;
    cont->snap = s;
    c->opens++;
    *out = cont;
out:
    pthread_mutex_unlock(&model_lock);
    return rc;
}

void obj_cont_close(struct obj_cont *cont)
{
    pthread_mutex_lock(&model_lock);
    if (model_alive(cont->pool) == 0)
        cont->cont->opens--;
    pthread_mutex_unlock(&model_lock);
    free(cont);
}

void obj_cont_query(struct obj_cont *cont, struct obj_cont_info *out)
{
    pthread_mutex_lock(&model_lock);
    *out = cont->cont->info;
    pthread_mutex_unlock(&model_lock);
}

struct obj_pool *obj_cont_pool(struct obj_cont *cont)
{
    return cont->pool;
}

bool obj_cont_read_only(const struct obj_cont *cont)
{
    return cont->snap || cont->pool->read_only;
}

struct state *model_state(const struct obj_cont *cont)
{
    return cont->snap ? &cont->snap->state : &cont->cont->state;
}

static struct model_prop *prop_find(struct model_cont *c, const char *name)
{
    list_for_each(l, &c->props) {
        struct model_prop *p = container_of(l, struct model_prop, link);
        if (strcmp(p->name, name) == 0)
            return p;
    }
    return NULL;
}

int obj_cont_prop_get(struct obj_cont *cont, const char *name, char *value, size_t cap)
{
    struct model_prop *p;
    int rc;

    pthread_mutex_lock(&model_lock);
    rc = model_alive(cont->pool);
    p = rc == 0 ? prop_find(cont->cont, name) : NULL;
    if (rc == 0 && !p)
        rc = -ENOENT;
    if (rc == 0 && strlen(p->value) >= cap)
        rc = -ERANGE;
    if (rc == 0)
        strcpy(value, p->value);
    pthread_mutex_unlock(&model_lock);
    return rc;
}

int obj_cont_prop_set(struct obj_cont *cont, const char *name, const char *value)
{
    struct model_prop *p;
    int rc;

    pthread_mutex_lock(&model_lock);
    rc = model_alive(cont->pool);
    if (rc == 0 && obj_cont_read_only(cont))
        rc = -EROFS;
    if (rc < 0)
        goto out;
    p = prop_find(cont->cont, name);
    if (!p) {
        p = calloc(1, sizeof(*p));
        CHECK(p);
        p->name = model_strdup(name);
        list_add_tail(&cont->cont->props, &p->link);
    }
    free(p->value);
    p->value = model_strdup(value);
    model_make_durable(cont->pool->media);
out:
    pthread_mutex_unlock(&model_lock);
    return rc;
}

/* -- snapshots ------------------------------------------------------------------------------- */

int obj_snap_create(struct obj_cont *cont, const char *name, uint64_t *epoch)
{
    struct model_media *m = cont->pool->media;
    struct model_snap *s;
    int rc;

    if (!label_ok(name))
        return base_refuse(-EINVAL, "illegal name");
    pthread_mutex_lock(&model_lock);
    rc = model_alive(cont->pool);
    if (rc == 0 && obj_cont_read_only(cont))
        rc = -EROFS;
    if (rc == 0 && snap_find(cont->cont, name))
        rc = -EEXIST;
    if (rc < 0)
        goto out;
    s = calloc(1, sizeof(*s));
    CHECK(s);
    snprintf(s->info.name, sizeof(s->info.name), "%s", name);
    s->info.epoch = m->epoch++;
    s->info.created_ns = base_real_ns();
    state_copy(&s->state, &cont->cont->state);
    list_add_tail(&cont->cont->snaps, &s->link);
    cont->cont->info.snapshots++;
    model_make_durable(m);
    if (epoch)
        *epoch = s->info.epoch;
out:
    pthread_mutex_unlock(&model_lock);
    return rc;
}

int obj_snap_destroy(struct obj_cont *cont, const char *name)
{
    struct model_snap *s;
    int rc;

    pthread_mutex_lock(&model_lock);
    rc = model_alive(cont->pool);
    if (rc == 0 && obj_cont_read_only(cont))
        rc = -EROFS;
    s = snap_find(cont->cont, name);
    if (rc == 0 && !s)
        rc = -ENOENT;
    if (rc == 0) {
        snap_free(s);
        cont->cont->info.snapshots--;
        cont->pool->media->epoch++;
        model_make_durable(cont->pool->media);
    }
    pthread_mutex_unlock(&model_lock);
    return rc;
}

int obj_snap_list(struct obj_cont *cont, int (*fn)(const struct obj_snap_info *, void *), void *arg)
{
    struct obj_snap_info *copy = NULL;
    size_t n = 0, cap = 0;
    int rc;

    pthread_mutex_lock(&model_lock);
    rc = model_alive(cont->pool);
    list_for_each(l, &cont->cont->snaps) {
        copy = state_grow(copy, n, &cap, sizeof(*copy));
        copy[n++] = container_of(l, struct model_snap, link)->info;
    }
    pthread_mutex_unlock(&model_lock);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = fn(&copy[i], arg);
    free(copy);
    return rc;
}
