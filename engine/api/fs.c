/* SPDX-License-Identifier: Apache-2.0 */
/* File systems of the public API: opening and closing; every other call goes to the namespace. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

_Static_assert(sizeof(struct dfe_pin) == sizeof(struct cache_pin) &&
                   offsetof(struct dfe_pin, slot) == offsetof(struct cache_pin, slot),
               "dfe_pin is cache_pin under its public name");

/* Longest transfer of one call, as Linux has it: a count fits an int. */
#define RW_MAX_BYTES ((size_t)0x7ffff000)

static size_t clip(size_t len)
{
    return len < RW_MAX_BYTES ? len : RW_MAX_BYTES;
}

struct dfe_fs *api_fs_find(struct dfe_cont *cont)
{
    struct dfe_fs *fs;

    pthread_mutex_lock(&cont->pool->lock);
    fs = cont->state->fs;
    if (fs && fs->ns)
        atomic_fetch_add(&fs->pins, 1);
    else
        fs = NULL;
    pthread_mutex_unlock(&cont->pool->lock);
    return fs;
}

struct ns *api_fs_ns(struct dfe_fs *fs)
{
    return fs->ns;
}

/* Files of a container whose pool has windows are a read domain: its number + 1. */
static uint32_t read_domain(struct dfe_cont *cont)
{
    struct obj_cont_info info = {0};

    if (!cont->pool->hosted.windows)
        return 0;
    obj_cont_query(cont->obj, &info);
    return info.number + 1;
}

int dfe_fs_open(struct dfe_cont *cont, struct dfe_fs **out)
{
    struct ns_opts opts = {
        .size = sizeof(opts),
        .keep = cont->pool->hosted.keep,
        .orphan_grace_ms = cont->pool->hosted.orphan_grace_ms,
        .domain = read_domain(cont),
    };
    struct dfe_pool *pool = cont->pool;
    struct dfe_fs *fs;
    struct ns *ns;
    int ret = 0;

    base_clear_error();
    fs = calloc(1, sizeof(*fs));
    if (!fs)
        return -ENOMEM;
    fs->cont = cont;

    /* Its place is taken before the namespace is opened, which may take long and needs no lock. */
    pthread_mutex_lock(&pool->lock);
    if (cont->state->fs)
        ret = -EBUSY;
    else
        cont->state->fs = fs;
    pthread_mutex_unlock(&pool->lock);
    if (ret < 0) {
        free(fs);
        return base_refuse(ret, "the container's file system is open already");
    }

    ret = ns_open(pool->cache, cont->obj, &opts, &ns);
    pthread_mutex_lock(&pool->lock);
    if (ret < 0) {
        cont->state->fs = NULL;
    } else {
        fs->ns = ns;
        cont->users++;
    }
    pthread_mutex_unlock(&pool->lock);
    if (ret < 0) {
        free(fs);
        if (ret == -ENODATA)
            return base_refuse(ret, "the container holds no file system");
        return ret;
    }
    *out = fs;
    return 0;
}

int dfe_fs_close(struct dfe_fs *fs)
{
    struct dfe_pool *pool = fs->cont->pool;
    struct ns *ns = NULL;
    int ret;

    base_clear_error();
    pthread_mutex_lock(&pool->lock);
    if (atomic_load(&fs->pins) == 0) {
        /* Nobody finds it from here on, and nobody opens another before this one has published. */
        ns = fs->ns;
        fs->ns = NULL;
    }
    pthread_mutex_unlock(&pool->lock);
    if (!ns)
        return base_refuse(-EBUSY, "memory of the file system is in use");

    ret = ns_close(ns);
    pthread_mutex_lock(&pool->lock);
    fs->cont->state->fs = NULL;
    fs->cont->users--;
    pthread_mutex_unlock(&pool->lock);
    free(fs);
    return ret;
}

/* -- references and attributes ------------------------------------------------------------------
 */

int dfe_fs_ref(struct dfe_fs *fs, uint64_t ino)
{
    base_clear_error();
    return ns_ref(fs->ns, ino);
}

void dfe_fs_unref(struct dfe_fs *fs, uint64_t ino, uint64_t n)
{
    ns_unref(fs->ns, ino, n);
}

int dfe_fs_lookup(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                  unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return ns_lookup(fs->ns, dir, name, name_len, flags, out);
}

int dfe_fs_getattr(struct dfe_fs *fs, uint64_t ino, unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return ns_getattr(fs->ns, ino, flags, out);
}

int dfe_fs_setattr(struct dfe_fs *fs, uint64_t ino, const struct dfe_attr *in, unsigned set,
                   unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return ns_setattr(fs->ns, ino, in, set, flags, out);
}

int dfe_fs_statfs(struct dfe_fs *fs, struct dfe_statfs *out)
{
    base_clear_error();
    return ns_statfs(fs->ns, out);
}

int dfe_fs_query(struct dfe_fs *fs, struct dfe_fs_info *out)
{
    struct ns_info info = {0};

    ns_query(fs->ns, &info);
    *out = (struct dfe_fs_info){
        .inodes_cached = info.inodes_cached,
        .inode_bytes = info.inode_bytes,
        .dirs_complete = info.dirs_complete,
        .orphans = info.orphans,
    };
    return 0;
}

/* -- names --------------------------------------------------------------------------------------
 */

int dfe_fs_mknod(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len, uint32_t mode,
                 uint32_t rdev, const struct dfe_cred *cred, unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return ns_mknod(fs->ns, dir, name, name_len, mode, rdev, cred, flags, out);
}

int dfe_fs_mkdir(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len, uint32_t mode,
                 const struct dfe_cred *cred, unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return ns_mkdir(fs->ns, dir, name, name_len, mode, cred, flags, out);
}

int dfe_fs_symlink(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                   const char *target, size_t target_len, const struct dfe_cred *cred,
                   unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return ns_symlink(fs->ns, dir, name, name_len, target, target_len, cred, flags, out);
}

int dfe_fs_readlink(struct dfe_fs *fs, uint64_t ino, char *target, size_t cap, unsigned flags)
{
    base_clear_error();
    return ns_readlink(fs->ns, ino, target, cap, flags);
}

int dfe_fs_link(struct dfe_fs *fs, uint64_t ino, uint64_t dir, const char *name, size_t name_len,
                unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return ns_link(fs->ns, ino, dir, name, name_len, flags, out);
}

int dfe_fs_unlink(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                  unsigned flags)
{
    base_clear_error();
    return ns_unlink(fs->ns, dir, name, name_len, flags);
}

int dfe_fs_rmdir(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len, unsigned flags)
{
    base_clear_error();
    return ns_rmdir(fs->ns, dir, name, name_len, flags);
}

int dfe_fs_rename(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                  uint64_t new_dir, const char *new_name, size_t new_name_len, unsigned flags)
{
    base_clear_error();
    return ns_rename(fs->ns, dir, name, name_len, new_dir, new_name, new_name_len, flags);
}

ssize_t dfe_fs_readdir(struct dfe_fs *fs, uint64_t dir, uint64_t cookie, void *page, size_t cap,
                       unsigned flags)
{
    base_clear_error();
    return ns_readdir(fs->ns, dir, cookie, page, clip(cap), flags);
}

int dfe_fs_parent(struct dfe_fs *fs, uint64_t dir, unsigned flags, uint64_t *out)
{
    base_clear_error();
    return ns_parent(fs->ns, dir, flags, out);
}

/* -- data ---------------------------------------------------------------------------------------
 */

ssize_t dfe_fs_read(struct dfe_fs *fs, uint64_t ino, uint64_t off, void *dst, size_t len,
                    unsigned flags)
{
    base_clear_error();
    return ns_read(fs->ns, ino, off, dst, clip(len), flags);
}

ssize_t dfe_fs_write(struct dfe_fs *fs, uint64_t ino, uint64_t off, const void *src, size_t len,
                     unsigned flags, uint64_t *at)
{
    base_clear_error();
    return ns_write(fs->ns, ino, off, src, clip(len), flags, at);
}

int dfe_fs_pin(struct dfe_fs *fs, uint64_t ino, uint64_t off, size_t len, unsigned flags,
               struct dfe_pin *out)
{
    struct cache_pin pin = {0};
    int ret;

    base_clear_error();
    atomic_fetch_add(&fs->pins, 1);
    ret = ns_pin(fs->ns, ino, off, clip(len), flags, &pin);
    /* At the end of the file nothing is lent, and nothing has to come back. */
    if (ret == 0 && pin.len == 0 && pin.slot)
        ns_unpin(fs->ns, &pin);
    if (ret < 0 || pin.len == 0) {
        pin = (struct cache_pin){0};
        atomic_fetch_sub(&fs->pins, 1);
    }
    *out = (struct dfe_pin){.ptr = pin.ptr, .len = pin.len, .slot = pin.slot};
    return ret;
}

void dfe_fs_unpin(struct dfe_fs *fs, struct dfe_pin *pin)
{
    struct cache_pin given = {.ptr = pin->ptr, .len = pin->len, .slot = pin->slot};

    if (pin->len == 0)
        return;
    ns_unpin(fs->ns, &given);
    pin->len = 0;
    atomic_fetch_sub(&fs->pins, 1);
}

int dfe_fs_punch(struct dfe_fs *fs, uint64_t ino, uint64_t off, uint64_t len, unsigned flags)
{
    base_clear_error();
    return ns_punch(fs->ns, ino, off, len, flags);
}

int dfe_fs_next(struct dfe_fs *fs, uint64_t ino, uint64_t off, int what, uint64_t *out)
{
    base_clear_error();
    if (what != 0 && what != 1)
        return base_refuse(-EINVAL, "0 is data, 1 is a hole; %d is neither", what);
    return ns_next(fs->ns, ino, off, what ? OBJ_HOLE : OBJ_DATA, out);
}

int dfe_fs_fsync(struct dfe_fs *fs, uint64_t ino, unsigned flags)
{
    base_clear_error();
    return ns_fsync(fs->ns, ino, flags);
}

int dfe_fs_sync(struct dfe_fs *fs)
{
    base_clear_error();
    return ns_sync(fs->ns);
}

/* -- extended attributes ------------------------------------------------------------------------
 */

int dfe_fs_getxattr(struct dfe_fs *fs, uint64_t ino, const char *name, size_t name_len, void *value,
                    size_t cap, unsigned flags)
{
    base_clear_error();
    return ns_getxattr(fs->ns, ino, name, name_len, value, cap, flags);
}

int dfe_fs_setxattr(struct dfe_fs *fs, uint64_t ino, const char *name, size_t name_len,
                    const void *value, size_t len, unsigned flags)
{
    base_clear_error();
    return ns_setxattr(fs->ns, ino, name, name_len, value, len, flags);
}

int dfe_fs_listxattr(struct dfe_fs *fs, uint64_t ino, char *names, size_t cap, unsigned flags)
{
    base_clear_error();
    return ns_listxattr(fs->ns, ino, names, cap, flags);
}

int dfe_fs_removexattr(struct dfe_fs *fs, uint64_t ino, const char *name, size_t name_len,
                       unsigned flags)
{
    base_clear_error();
    return ns_removexattr(fs->ns, ino, name, name_len, flags);
}
