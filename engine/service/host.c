/* SPDX-License-Identifier: Apache-2.0 */
/* A host: the pool of a service, and what its sessions share of it. */
#include "service/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "base/assert.h"
#include "base/clock.h"
#include "service/cohere.h"

#define ORPHAN_GRACE_MS 30000u
#define INVAL_MS 10000u

/* -- containers ------------------------------------------------------------------------------- */

/* Under host->lock. */
static struct host_cont *find_cont(struct host *host, const char *label, const char *snapshot)
{
    list_for_each(l, &host->conts)
    {
        struct host_cont *hc = container_of(l, struct host_cont, link);

        if (strcmp(hc->label, label) == 0 && strcmp(hc->snapshot, snapshot) == 0)
            return hc;
    }
    return NULL;
}

static void free_cont(struct host_cont *hc)
{
    cohere_close(hc->cohere);
    growth_close(&hc->growth);
    pthread_mutex_destroy(&hc->opening);
    free(hc);
}

static struct host_cont *new_cont(struct host *host, const char *label, const char *snapshot)
{
    struct host_cont *hc = calloc(1, sizeof(*hc));

    if (!hc)
        return NULL;
    hc->cohere = cohere_open(host->inval_ms);
    if (!hc->cohere) {
        free(hc);
        return NULL;
    }
    growth_open(&hc->growth);
    hc->host = host;
    snprintf(hc->label, sizeof(hc->label), "%s", label);
    snprintf(hc->snapshot, sizeof(hc->snapshot), "%s", snapshot);
    pthread_mutex_init(&hc->opening, NULL);
    return hc;
}

/* Found or made, with one reference more; not open yet, perhaps. */
static int take_cont(struct host *host, const char *label, const char *snapshot,
                     struct host_cont **out)
{
    struct host_cont *mine = new_cont(host, label, snapshot), *hc;

    if (!mine)
        return -ENOMEM;
    pthread_mutex_lock(&host->lock);
    hc = find_cont(host, label, snapshot);
    if (!hc) {
        hc = mine;
        mine = NULL;
        list_add_tail(&host->conts, &hc->link);
    }
    hc->refs++;
    pthread_mutex_unlock(&host->lock);
    if (mine)
        free_cont(mine);
    *out = hc;
    return 0;
}

int host_cont_get(struct host *host, const char *label, const char *snapshot,
                  struct host_cont **out)
{
    struct dfe_cont_info info;
    struct host_cont *hc;
    int ret;

    ret = take_cont(host, label, snapshot, &hc);
    if (ret < 0)
        return ret;
    pthread_mutex_lock(&hc->opening);
    if (!hc->cont) {
        ret = dfe_cont_open(host->pool, label, snapshot[0] ? snapshot : NULL, &hc->cont);
        if (ret == 0) {
            ret = dfe_cont_query(hc->cont, &info);
            hc->number = info.number;
        }
        if (ret == 0 && !snapshot[0]) /* else nothing ever changes */
            ret = cohere_expect(hc->cohere, &host->roll, hc->number, host->opened_ns);
        if (ret < 0 && hc->cont) {
            dfe_cont_close(hc->cont);
            hc->cont = NULL;
        }
    }
    pthread_mutex_unlock(&hc->opening);
    if (ret < 0) {
        host_cont_put(hc);
        return ret;
    }
    *out = hc;
    return 0;
}

void host_cont_put(struct host_cont *hc)
{
    struct host *host = hc->host;
    bool last, unused;

    pthread_mutex_lock(&hc->opening);
    pthread_mutex_lock(&host->lock);
    last = --hc->refs == 0;
    pthread_mutex_unlock(&host->lock);
    if (last && hc->cont) {
        /* Still on the list: who comes now waits for `opening` and opens it anew. */
        dfe_cont_close(hc->cont);
        hc->cont = NULL;
    }
    pthread_mutex_lock(&host->lock);
    unused = last && hc->refs == 0;
    if (unused)
        list_del(&hc->link);
    pthread_mutex_unlock(&host->lock);
    pthread_mutex_unlock(&hc->opening);
    if (unused)
        free_cont(hc);
}

int host_fs_get(struct host_cont *hc)
{
    int ret = 0;

    pthread_mutex_lock(&hc->opening);
    if (!hc->fs)
        ret = dfe_fs_open(hc->cont, &hc->fs);
    if (ret == 0)
        host_fs_more(hc);
    else
        hc->fs = NULL;
    pthread_mutex_unlock(&hc->opening);
    return ret;
}

void host_fs_more(struct host_cont *hc)
{
    pthread_mutex_lock(&hc->host->lock);
    hc->refs++;
    hc->fs_refs++;
    pthread_mutex_unlock(&hc->host->lock);
}

bool host_fs_less(struct host_cont *hc)
{
    bool more;

    pthread_mutex_lock(&hc->host->lock);
    more = hc->fs_refs > 1;
    if (more) {
        hc->refs--;
        hc->fs_refs--;
    }
    pthread_mutex_unlock(&hc->host->lock);
    return more;
}

bool host_fs_last(struct host_cont *hc)
{
    bool last;

    pthread_mutex_lock(&hc->host->lock);
    last = hc->fs_refs == 1;
    pthread_mutex_unlock(&hc->host->lock);
    return last;
}

void host_fs_put(struct host_cont *hc)
{
    bool last;
    int ret;

    if (host_fs_less(hc))
        return;
    pthread_mutex_lock(&hc->opening);
    pthread_mutex_lock(&hc->host->lock);
    last = --hc->fs_refs == 0;
    pthread_mutex_unlock(&hc->host->lock);
    if (last) {
        ret = dfe_fs_close(hc->fs);
        /* Loans and handles are uses: nobody is left who has pinned anything. */
        DFE_ASSERT(ret != -EBUSY);
        if (ret < 0)
            base_log(BASE_LOG_ERROR, "container %s: closing its file system: %s", hc->label,
                     strerror(-ret));
        hc->fs = NULL;
    }
    pthread_mutex_unlock(&hc->opening);
    host_cont_put(hc);
}

/* -- the host --------------------------------------------------------------------------------- */

static int open_pool(struct host *host, const struct host_opts *opts)
{
    struct dfe_pool_open_opts open = {
        .size = sizeof(open),
        .path = opts->path,
        .arena_bytes = opts->arena_bytes,
        .dirty_bytes = opts->dirty_bytes,
        .no_hugepages = opts->no_hugepages,
    };
    struct api_hosted hosted = {
        .keep = opts->keep,
        .windows = true,
        .orphan_grace_ms = opts->orphan_grace_ms,
    };

    if (hosted.orphan_grace_ms == 0 && opts->keep)
        hosted.orphan_grace_ms = ORPHAN_GRACE_MS;
    return api_pool_open_hosted(&open, &hosted, &host->pool);
}

int host_open(const struct host_opts *opts, struct host **out)
{
    struct host_opts o;
    struct dfe_pool_info info;
    struct host *host;
    int ret;

    ret = api_opts(&o, sizeof(o), opts);
    if (ret < 0)
        return ret;
    host = calloc(1, sizeof(*host));
    if (!host)
        return -ENOMEM;
    host->keep = o.keep;
    host->inval_ms = o.inval_ms ? o.inval_ms : INVAL_MS;
    host->uid = geteuid();
    host->opened_ns = base_mono_ns();
    list_init(&host->conts);
    ret = open_pool(host, &o);
    if (ret < 0) {
        free(host);
        return ret;
    }
    dfe_pool_query(host->pool, &info);
    host->loan_bound_bytes = info.arena_bound_bytes / 4;
    pthread_mutex_init(&host->lock, NULL);
    roll_open(&host->roll, o.roll, o.roll ? ROLL_BYTES : 0);
    *out = host;
    return 0;
}

void host_dismiss(struct host *host)
{
    roll_dismiss(&host->roll);
}

int host_close(struct host *host)
{
    int ret;

    if (atomic_load(&host->sessions))
        return base_refuse(-EBUSY, "%lu sessions are open", atomic_load(&host->sessions));
    DFE_ASSERT(list_empty(&host->conts));
    ret = dfe_pool_close(host->pool);
    roll_close(&host->roll);
    pthread_mutex_destroy(&host->lock);
    free(host);
    return ret;
}

struct dfe_pool *host_pool(struct host *host)
{
    return host->pool;
}

void host_set_info(struct host *host, void (*fn)(struct dfe_service_info *info, void *arg),
                   void *arg)
{
    pthread_mutex_lock(&host->lock);
    host->info_fn = fn;
    host->info_arg = arg;
    pthread_mutex_unlock(&host->lock);
}

int host_tables(struct host *host, int *lines_fd, uint32_t *lines, int *records_fd,
                uint32_t *records)
{
    return cache_tables(api_pool_cache(host->pool), lines_fd, lines, records_fd, records);
}
