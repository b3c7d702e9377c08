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

static struct ns *ns_of(struct dfe_fs *handle)
{
    return local_fs(handle)->ns;
}

struct local_fs *api_fs_find(struct local_cont *cont)
{
    struct local_fs *fs;

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
    return ns_of(fs);
}

/* Files of a container whose pool has windows are a read domain: its number + 1. */
static uint32_t read_domain(struct local_cont *cont)
{
    struct obj_cont_info info = {0};

    if (!cont->pool->hosted.windows)
        return 0;
    obj_cont_query(cont->obj, &info);
    return info.number + 1;
}

int local_fs_open(struct dfe_cont *handle, struct dfe_fs **out)
{
    struct local_cont *cont = local_cont(handle);
    struct ns_opts opts = {
        .size = sizeof(opts),
        .keep = cont->pool->hosted.keep,
        .orphan_grace_ms = cont->pool->hosted.orphan_grace_ms,
        .domain = read_domain(cont),
    };
    struct local_pool *pool = cont->pool;
    struct local_fs *fs;
    struct ns *ns;
    int ret = 0;

    fs = calloc(1, sizeof(*fs));
    if (!fs)
        return -ENOMEM;
    fs->dfe.ops = &local_fs_ops;
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
    *out = &fs->dfe;
    return 0;
}

int local_fs_close(struct dfe_fs *handle)
{
    struct local_fs *fs = local_fs(handle);
    struct local_pool *pool = fs->cont->pool;
    struct ns *ns = NULL;
    int ret;

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

static int local_fs_ref(struct dfe_fs *handle, uint64_t ino)
{
    return ns_ref(ns_of(handle), ino);
}

static void local_fs_unref(struct dfe_fs *handle, uint64_t ino, uint64_t n)
{
    ns_unref(ns_of(handle), ino, n);
}

static int local_fs_lookup(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                           unsigned flags, struct dfe_attr *out)
{
    return ns_lookup(ns_of(handle), dir, name, name_len, flags, out);
}

static int local_fs_getattr(struct dfe_fs *handle, uint64_t ino, unsigned flags,
                            struct dfe_attr *out)
{
    return ns_getattr(ns_of(handle), ino, flags, out);
}

static int local_fs_setattr(struct dfe_fs *handle, uint64_t ino, const struct dfe_attr *in,
                            unsigned set, unsigned flags, struct dfe_attr *out)
{
    return ns_setattr(ns_of(handle), ino, in, set, flags, out);
}

static int local_fs_statfs(struct dfe_fs *handle, struct dfe_statfs *out)
{
    return ns_statfs(ns_of(handle), out);
}

static int local_fs_query(struct dfe_fs *handle, struct dfe_fs_info *out)
{
    struct ns_info info = {0};

    ns_query(ns_of(handle), &info);
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

static int local_fs_mknod(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                          uint32_t mode, uint32_t rdev, const struct dfe_cred *cred, unsigned flags,
                          struct dfe_attr *out)
{
    return ns_mknod(ns_of(handle), dir, name, name_len, mode, rdev, cred, flags, out);
}

static int local_fs_mkdir(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                          uint32_t mode, const struct dfe_cred *cred, unsigned flags,
                          struct dfe_attr *out)
{
    return ns_mkdir(ns_of(handle), dir, name, name_len, mode, cred, flags, out);
}

static int local_fs_symlink(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                            const char *target, size_t target_len, const struct dfe_cred *cred,
                            unsigned flags, struct dfe_attr *out)
{
    return ns_symlink(ns_of(handle), dir, name, name_len, target, target_len, cred, flags, out);
}

static int local_fs_readlink(struct dfe_fs *handle, uint64_t ino, char *target, size_t cap,
                             unsigned flags)
{
    return ns_readlink(ns_of(handle), ino, target, cap, flags);
}

static int local_fs_link(struct dfe_fs *handle, uint64_t ino, uint64_t dir, const char *name,
                         size_t name_len, unsigned flags, struct dfe_attr *out)
{
    return ns_link(ns_of(handle), ino, dir, name, name_len, flags, out);
}

static int local_fs_unlink(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                           unsigned flags)
{
    return ns_unlink(ns_of(handle), dir, name, name_len, flags);
}

static int local_fs_rmdir(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                          unsigned flags)
{
    return ns_rmdir(ns_of(handle), dir, name, name_len, flags);
}

static int local_fs_rename(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                           uint64_t new_dir, const char *new_name, size_t new_name_len,
                           unsigned flags)
{
    return ns_rename(ns_of(handle), dir, name, name_len, new_dir, new_name, new_name_len, flags);
}

static ssize_t local_fs_readdir(struct dfe_fs *handle, uint64_t dir, uint64_t cookie, void *page,
                                size_t cap, unsigned flags)
{
    return ns_readdir(ns_of(handle), dir, cookie, page, cap, flags);
}

static int local_fs_parent(struct dfe_fs *handle, uint64_t dir, unsigned flags, uint64_t *out)
{
    return ns_parent(ns_of(handle), dir, flags, out);
}

/* -- data ---------------------------------------------------------------------------------------
 */

static ssize_t local_fs_read(struct dfe_fs *handle, uint64_t ino, uint64_t off, void *dst,
                             size_t len, unsigned flags)
{
    return ns_read(ns_of(handle), ino, off, dst, len, flags);
}

static ssize_t local_fs_write(struct dfe_fs *handle, uint64_t ino, uint64_t off, const void *src,
                              size_t len, unsigned flags, uint64_t *at)
{
    return ns_write(ns_of(handle), ino, off, src, len, flags, at);
}

static int local_fs_pin(struct dfe_fs *handle, uint64_t ino, uint64_t off, size_t len,
                        unsigned flags, struct dfe_pin *out)
{
    struct local_fs *fs = local_fs(handle);
    struct cache_pin pin = {0};
    int ret;

    atomic_fetch_add(&fs->pins, 1);
    ret = ns_pin(fs->ns, ino, off, len, flags, &pin);
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

static void local_fs_unpin(struct dfe_fs *handle, struct dfe_pin *pin)
{
    struct local_fs *fs = local_fs(handle);
    struct cache_pin given = {.ptr = pin->ptr, .len = pin->len, .slot = pin->slot};

    if (pin->len == 0)
        return;
    ns_unpin(fs->ns, &given);
    pin->len = 0;
    atomic_fetch_sub(&fs->pins, 1);
}

static int local_fs_punch(struct dfe_fs *handle, uint64_t ino, uint64_t off, uint64_t len,
                          unsigned flags)
{
    return ns_punch(ns_of(handle), ino, off, len, flags);
}

static int local_fs_next(struct dfe_fs *handle, uint64_t ino, uint64_t off, int what, uint64_t *out)
{
    return ns_next(ns_of(handle), ino, off, what ? OBJ_HOLE : OBJ_DATA, out);
}

static int local_fs_fsync(struct dfe_fs *handle, uint64_t ino, unsigned flags)
{
    return ns_fsync(ns_of(handle), ino, flags);
}

static int local_fs_sync(struct dfe_fs *handle)
{
    return ns_sync(ns_of(handle));
}

/* -- extended attributes ------------------------------------------------------------------------
 */

static int local_fs_getxattr(struct dfe_fs *handle, uint64_t ino, const char *name, size_t name_len,
                             void *value, size_t cap, unsigned flags)
{
    return ns_getxattr(ns_of(handle), ino, name, name_len, value, cap, flags);
}

static int local_fs_setxattr(struct dfe_fs *handle, uint64_t ino, const char *name, size_t name_len,
                             const void *value, size_t len, unsigned flags)
{
    return ns_setxattr(ns_of(handle), ino, name, name_len, value, len, flags);
}

static int local_fs_listxattr(struct dfe_fs *handle, uint64_t ino, char *names, size_t cap,
                              unsigned flags)
{
    return ns_listxattr(ns_of(handle), ino, names, cap, flags);
}

static int local_fs_removexattr(struct dfe_fs *handle, uint64_t ino, const char *name,
                                size_t name_len, unsigned flags)
{
    return ns_removexattr(ns_of(handle), ino, name, name_len, flags);
}

/* -- several faces: in this process there is one -----------------------------------------------
 */

static int local_fs_mount(struct dfe_fs *handle, int read_only, uint64_t *generation)
{
    *generation = 0;
    return 0;
}

static int local_fs_inval_next(struct dfe_fs *handle, uint64_t done, struct dfe_inval *out)
{
    return base_refuse(-ENOTSUP, "the pool is open in this process: nobody else changes it");
}

static void local_fs_inval_stop(struct dfe_fs *handle)
{
}

const struct fs_ops local_fs_ops = {
    .close = local_fs_close,
    .query = local_fs_query,
    .statfs = local_fs_statfs,
    .mount = local_fs_mount,
    .inval_next = local_fs_inval_next,
    .inval_stop = local_fs_inval_stop,
    .ref = local_fs_ref,
    .unref = local_fs_unref,
    .lookup = local_fs_lookup,
    .getattr = local_fs_getattr,
    .setattr = local_fs_setattr,
    .mknod = local_fs_mknod,
    .mkdir = local_fs_mkdir,
    .symlink = local_fs_symlink,
    .readlink = local_fs_readlink,
    .link = local_fs_link,
    .unlink = local_fs_unlink,
    .rmdir = local_fs_rmdir,
    .rename = local_fs_rename,
    .readdir = local_fs_readdir,
    .parent = local_fs_parent,
    .read = local_fs_read,
    .write = local_fs_write,
    .pin = local_fs_pin,
    .unpin = local_fs_unpin,
    .punch = local_fs_punch,
    .next = local_fs_next,
    .fsync = local_fs_fsync,
    .sync = local_fs_sync,
    .getxattr = local_fs_getxattr,
    .setxattr = local_fs_setxattr,
    .listxattr = local_fs_listxattr,
    .removexattr = local_fs_removexattr,
};
