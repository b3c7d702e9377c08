/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After a worker that died: what it had accepted for files is made again in every container, before
 * anybody asks. Whose session never comes back would else keep it, and its place in kept memory,
 * for ever.
 */
#include <errno.h>
#include <stdio.h>

#include "api/api.h"
#include "base/log.h"
#include "cache/keep_log.h"

#define CONTS_AT_ONCE 64u

struct wanted {
    uint32_t number;
    char label[64];
};

static int find_label(const struct obj_cont_info *info, void *arg)
{
    struct wanted *w = arg;

    if (info->number == w->number)
        snprintf(w->label, sizeof(w->label), "%s", info->label);
    return 0;
}

/* Opening the file system makes the changes again, closing it publishes them. Its orphans go on
 * waiting for whoever opens it next. */
static int restore_cont(struct local_pool *pool, const char *label)
{
    struct ns_opts opts = {
        .size = sizeof(opts),
        .keep = pool->hosted.keep,
        .orphan_grace_ms = pool->hosted.orphan_grace_ms,
    };
    struct obj_cont *cont;
    struct ns *ns;
    int ret, err;

    ret = obj_cont_open(pool->obj, label, NULL, &cont);
    if (ret < 0)
        return ret;
    ret = ns_open(pool->cache, cont, &opts, &ns);
    if (ret == 0)
        ret = ns_close(ns);
    err = cache_forget(pool->cache, cont);
    obj_cont_close(cont);
    return ret < 0 ? ret : err;
}

int api_restore(struct local_pool *pool)
{
    uint32_t numbers[CONTS_AT_ONCE];
    unsigned n;
    int ret = 0;

    do {
        n = cache_kept_conts(pool->cache, numbers, CONTS_AT_ONCE);
        for (unsigned i = 0; i < n && ret == 0; i++) {
            struct wanted w = {.number = numbers[i]};
            ret = obj_cont_list(pool->obj, find_label, &w);
            if (ret == 0 && w.label[0])
                ret = restore_cont(pool, w.label);
            else if (ret == 0) /* destroyed */
                cache_kept_forget(pool->cache, numbers[i]);
        }
    } while (n == CONTS_AT_ONCE && ret == 0);
    if (ret < 0)
        base_log(BASE_LOG_ERROR, "what was accepted before cannot be written now: %s",
                 base_last_error());
    return ret;
}
