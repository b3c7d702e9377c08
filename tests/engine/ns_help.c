/* SPDX-License-Identifier: Apache-2.0 */
/* The world of the namespace's tests. */
#include "ns_help.h"

const struct dfe_cred ROOT_CRED = {0, 0, 0}, USER_CRED = {1000, 1000, 022};

void world_open(struct world *w)
{
    struct obj_pool_open_opts popts = {.size = sizeof(popts), .path = w->path};
    struct cache_opts copts = {.size = sizeof(copts), .windows = w->opts.domain != 0};

    CHECK_EQ(buf_arena_open(64u << 20, BUF_PAGES, &w->arena), 0);
    popts.arena = w->arena;
    CHECK_EQ(obj_pool_open(&popts, &w->pool), 0);
    CHECK_EQ(obj_cont_open(w->pool, "c", NULL, &w->cont), 0);
    CHECK_EQ(cache_open(w->pool, w->arena, &copts, &w->cache), 0);
    CHECK_EQ(ns_open(w->cache, w->cont, &w->opts, &w->ns), 0);
}

void world_make(struct world *w, const char *path, unsigned name_hash_bits)
{
    struct obj_pool_create_opts copts = {
        .size = sizeof(copts), .path = path, .label = "p", .size_bytes = 256u << 20};
    struct obj_pool_open_opts popts = {.size = sizeof(popts), .path = path};

    memset(w, 0, sizeof(*w));
    w->path = path;
    w->opts.size = sizeof(w->opts);
    w->opts.name_hash_bits = name_hash_bits;
    CHECK_EQ(obj_pool_create(&copts), 0);
    CHECK_EQ(obj_pool_open(&popts, &w->pool), 0);
    CHECK_EQ(obj_cont_create(w->pool, "c"), 0);
    CHECK_EQ(obj_cont_open(w->pool, "c", NULL, &w->cont), 0);
    CHECK_EQ(ns_open(NULL, w->cont, &w->opts, &w->ns), -ENODATA);
    CHECK_EQ(ns_format(w->cont, &ROOT_CRED, 0755), 0);
    CHECK_EQ(ns_format(w->cont, &ROOT_CRED, 0755), -EEXIST);
    obj_cont_close(w->cont);
    CHECK_EQ(obj_pool_close(w->pool), 0);
    world_open(w);
}

int world_close(struct world *w)
{
    int err = ns_close(w->ns);

    cache_forget(w->cache, w->cont);
    cache_close(w->cache);
    obj_cont_close(w->cont);
    obj_pool_close(w->pool);
    buf_arena_close(w->arena);
    return err;
}

void world_crash(struct world *w, uint64_t *seed)
{
    model_crash(w->path, seed);
    world_close(w);
    world_open(w);
}

static void print_fault(const char *text, void *arg)
{
    (void)arg;
    fprintf(stderr, "fault: %s\n", text);
}

int world_check(struct world *w)
{
    return ns_check(w->ns, true, print_fault, NULL, NULL);
}

void world_end(struct world *w)
{
    CHECK_EQ(world_check(w), 0);
    CHECK_EQ(world_close(w), 0);
    CHECK_EQ(obj_pool_destroy(w->path, false), 0);
    model_reset();
}

uint64_t make_file(struct world *w, uint64_t dir, const char *name)
{
    struct dfe_attr attr;

    CHECK_EQ(ns_mknod(w->ns, dir, N(name), S_IFREG | 0644, 0, &ROOT_CRED, 0, &attr), 0);
    return attr.ino;
}

uint64_t make_dir(struct world *w, uint64_t dir, const char *name)
{
    struct dfe_attr attr;

    CHECK_EQ(ns_mkdir(w->ns, dir, N(name), 0755, &ROOT_CRED, 0, &attr), 0);
    return attr.ino;
}

int lookup(struct world *w, uint64_t dir, const char *name, struct dfe_attr *out)
{
    return ns_lookup(w->ns, dir, N(name), 0, out);
}

struct dfe_attr attr_of(struct world *w, uint64_t ino)
{
    struct dfe_attr attr;

    CHECK_EQ(ns_getattr(w->ns, ino, 0, &attr), 0);
    CHECK_EQ(attr.ino, ino);
    return attr;
}

void wait_reclaimed(struct world *w)
{
    struct ns_info info;

    for (unsigned i = 0; i < 5000; i++) {
        ns_query(w->ns, &info);
        if (info.orphans == 0)
            return;
        usleep(1000);
    }
    CHECK_EQ(info.orphans, 0);
}
