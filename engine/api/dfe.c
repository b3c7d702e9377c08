/* SPDX-License-Identifier: Apache-2.0 */
/* The public API: thin calls through a handle's table (ops.h), and the checks that need no engine.
 */
#include <errno.h>
#include <string.h>

#include "api/ops.h"
#include "api/version.h" /* made by the build from the project's version */
#include "base/log.h"

/* Longest transfer of one call, as Linux has it: a count fits an int. */
#define RW_MAX_BYTES ((size_t)0x7ffff000)

static size_t clip(size_t len)
{
    return len < RW_MAX_BYTES ? len : RW_MAX_BYTES;
}

static int need(const char *name, const char *else_text)
{
    return name && name[0] ? 0 : base_refuse(-EINVAL, "%s", else_text);
}

const char *dfe_version(void)
{
    return DFE_VERSION;
}

const char *dfe_errmsg(void)
{
    return base_last_error();
}

void dfe_log_set(void (*fn)(int level, const char *text, void *arg), void *arg)
{
    base_log_set(fn, arg);
}

int api_opts(void *dst, size_t dst_bytes, const void *src)
{
    size_t size;

    if (!src)
        return base_refuse(-EINVAL, "no options were given");
    memcpy(&size, src, sizeof(size));
    if (size < sizeof(size))
        return base_refuse(-EINVAL, "an option struct says that it has %zu bytes", size);
    if (size > dst_bytes)
        return base_refuse(-E2BIG,
                           "the program was built for a newer engine: its options have "
                           "%zu bytes, this engine knows %zu",
                           size, dst_bytes);
    memset(dst, 0, dst_bytes);
    memcpy(dst, src, size);
    return 0;
}

int dfe_pool_open(const struct dfe_pool_open_opts *opts, struct dfe_pool **out)
{
    struct dfe_pool_open_opts o;
    int ret;

    base_clear_error();
    ret = api_opts(&o, sizeof(o), opts);
    if (ret == 0)
        ret = need(o.path, "no pool directory was given");
    if (ret < 0)
        return ret;
    return o.socket ? remote_pool_open(&o, out) : local_pool_open(&o, out);
}

int dfe_pool_close(struct dfe_pool *pool)
{
    base_clear_error();
    return pool->ops->close(pool);
}

int dfe_pool_query(struct dfe_pool *pool, struct dfe_pool_info *out)
{
    base_clear_error();
    return pool->ops->query(pool, out);
}

int dfe_pool_sync(struct dfe_pool *pool)
{
    base_clear_error();
    return pool->ops->sync(pool);
}

int dfe_pool_checkpoint(struct dfe_pool *pool)
{
    base_clear_error();
    return pool->ops->checkpoint(pool);
}

int dfe_pool_drop_caches(struct dfe_pool *pool)
{
    base_clear_error();
    return pool->ops->drop_caches(pool);
}

/* -- containers and snapshots ------------------------------------------------------------------ */

int dfe_cont_create(struct dfe_pool *pool, const char *label, int posix,
                    const struct dfe_cred *cred, uint32_t root_mode)
{
    int ret;

    base_clear_error();
    ret = need(label, "no label was given");
    if (ret < 0)
        return ret;
    if (posix && (!cred || (root_mode & ~07777u)))
        return base_refuse(-EINVAL, "the root directory needs an owner and permission bits");
    return pool->ops->cont_create(pool, label, posix, cred, root_mode);
}

int dfe_cont_destroy(struct dfe_pool *pool, const char *label)
{
    int ret;

    base_clear_error();
    ret = need(label, "no label was given");
    return ret < 0 ? ret : pool->ops->cont_destroy(pool, label);
}

ssize_t dfe_cont_list(struct dfe_pool *pool, struct dfe_cont_info *out, size_t cap)
{
    base_clear_error();
    return pool->ops->cont_list(pool, out, cap);
}

int dfe_cont_open(struct dfe_pool *pool, const char *label, const char *snapshot,
                  struct dfe_cont **out)
{
    int ret;

    base_clear_error();
    ret = need(label, "no label was given");
    if (ret == 0 && snapshot)
        ret = need(snapshot, "the snapshot has no name");
    return ret < 0 ? ret : pool->ops->cont_open(pool, label, snapshot, out);
}

int dfe_cont_close(struct dfe_cont *cont)
{
    base_clear_error();
    return cont->ops->close(cont);
}

int dfe_cont_query(struct dfe_cont *cont, struct dfe_cont_info *out)
{
    base_clear_error();
    return cont->ops->query(cont, out);
}

int dfe_cont_prop_get(struct dfe_cont *cont, const char *name, char *value, size_t cap)
{
    int ret;

    base_clear_error();
    ret = need(name, "no property was named");
    return ret < 0 ? ret : cont->ops->prop_get(cont, name, value, cap);
}

int dfe_cont_prop_set(struct dfe_cont *cont, const char *name, const char *value)
{
    int ret;

    base_clear_error();
    ret = need(name && value ? name : NULL, "a property needs a name and a value");
    return ret < 0 ? ret : cont->ops->prop_set(cont, name, value);
}

int dfe_snap_create(struct dfe_cont *cont, const char *name, uint64_t *epoch)
{
    int ret;

    base_clear_error();
    ret = need(name, "a snapshot needs a name");
    return ret < 0 ? ret : cont->ops->snap_create(cont, name, epoch);
}

int dfe_snap_destroy(struct dfe_cont *cont, const char *name)
{
    int ret;

    base_clear_error();
    ret = need(name, "no snapshot was named");
    return ret < 0 ? ret : cont->ops->snap_destroy(cont, name);
}

ssize_t dfe_snap_list(struct dfe_cont *cont, struct dfe_snap_info *out, size_t cap)
{
    base_clear_error();
    return cont->ops->snap_list(cont, out, cap);
}

ssize_t dfe_cont_check(struct dfe_cont *cont, int data, char *report, size_t cap,
                       void (*progress)(uint64_t done, uint64_t total, void *arg), void *arg)
{
    base_clear_error();
    return cont->ops->check(cont, data, report, cap, progress, arg);
}

/* -- objects ----------------------------------------------------------------------------------- */

int dfe_kv_get(struct dfe_cont *cont, const struct dfe_oid *oid, const struct dfe_key *key,
               void *value, size_t cap, size_t *len)
{
    base_clear_error();
    return cont->objects->kv_get(cont, oid, key, value, cap, len);
}

ssize_t dfe_kv_scan(struct dfe_cont *cont, const struct dfe_oid *oid, const struct dfe_key *from,
                    void *page, size_t cap)
{
    base_clear_error();
    return cont->objects->kv_scan(cont, oid, from, page, cap);
}

ssize_t dfe_array_read(struct dfe_cont *cont, const struct dfe_oid *oid, uint64_t off, void *dst,
                       size_t len)
{
    base_clear_error();
    return cont->objects->array_read(cont, oid, off, dst, len);
}

ssize_t dfe_array_write(struct dfe_cont *cont, const struct dfe_oid *oid, uint64_t off,
                        const void *src, size_t len, unsigned sync)
{
    base_clear_error();
    return cont->objects->array_write(cont, oid, off, src, len, sync);
}

int dfe_array_punch(struct dfe_cont *cont, const struct dfe_oid *oid, uint64_t off, uint64_t len)
{
    base_clear_error();
    return cont->objects->array_punch(cont, oid, off, len);
}

int dfe_array_next(struct dfe_cont *cont, const struct dfe_oid *oid, uint64_t off, int what,
                   uint64_t *out)
{
    base_clear_error();
    if (what != 0 && what != 1)
        return base_refuse(-EINVAL, "0 is data, 1 is a hole; %d is neither", what);
    return cont->objects->array_next(cont, oid, off, what, out);
}

int dfe_tx_begin(struct dfe_cont *cont, const struct dfe_oid *home, struct dfe_tx **out)
{
    base_clear_error();
    return cont->objects->tx_begin(cont, home, out);
}

/* -- transactions ------------------------------------------------------------------------------ */

void dfe_tx_abort(struct dfe_tx *tx)
{
    if (tx)
        tx->ops->abort(tx);
}

int dfe_tx_guard_absent(struct dfe_tx *tx, const struct dfe_key *key)
{
    base_clear_error();
    return tx->ops->guard_absent(tx, key);
}

int dfe_tx_guard_equal(struct dfe_tx *tx, const struct dfe_key *key, const void *value, size_t len)
{
    base_clear_error();
    return tx->ops->guard_equal(tx, key, value, len);
}

int dfe_tx_guard_exists(struct dfe_tx *tx)
{
    base_clear_error();
    return tx->ops->guard_exists(tx);
}

int dfe_tx_put(struct dfe_tx *tx, const struct dfe_oid *oid, const struct dfe_key *key,
               const void *value, size_t len)
{
    base_clear_error();
    return tx->ops->put(tx, oid, key, value, len);
}

int dfe_tx_del(struct dfe_tx *tx, const struct dfe_oid *oid, const struct dfe_key *key)
{
    base_clear_error();
    return tx->ops->del(tx, oid, key);
}

int dfe_tx_punch_dkey(struct dfe_tx *tx, const struct dfe_oid *oid, const void *dkey,
                      uint16_t dkey_len)
{
    base_clear_error();
    return tx->ops->punch_dkey(tx, oid, dkey, dkey_len);
}

int dfe_tx_punch_object(struct dfe_tx *tx, const struct dfe_oid *oid)
{
    base_clear_error();
    return tx->ops->punch_object(tx, oid);
}

int dfe_tx_add(struct dfe_tx *tx, const struct dfe_oid *oid, const struct dfe_key *key,
               int64_t delta)
{
    base_clear_error();
    return tx->ops->add(tx, oid, key, delta);
}

int dfe_tx_max(struct dfe_tx *tx, const struct dfe_oid *oid, const struct dfe_key *key,
               uint64_t value)
{
    base_clear_error();
    return tx->ops->max(tx, oid, key, value);
}

int dfe_tx_write(struct dfe_tx *tx, const struct dfe_oid *oid, uint64_t off, const void *src,
                 size_t len)
{
    base_clear_error();
    return tx->ops->write(tx, oid, off, src, len);
}

int dfe_tx_commit(struct dfe_tx *tx, int sync, uint64_t *epoch)
{
    base_clear_error();
    return tx->ops->commit(tx, sync, epoch);
}

/* -- file systems ------------------------------------------------------------------------------ */

int dfe_fs_open(struct dfe_cont *cont, struct dfe_fs **out)
{
    base_clear_error();
    return cont->ops->fs_open(cont, out);
}

int dfe_fs_close(struct dfe_fs *fs)
{
    base_clear_error();
    return fs->ops->close(fs);
}

int dfe_fs_ref(struct dfe_fs *fs, uint64_t ino)
{
    base_clear_error();
    return fs->ops->ref(fs, ino);
}

void dfe_fs_unref(struct dfe_fs *fs, uint64_t ino, uint64_t n)
{
    fs->ops->unref(fs, ino, n);
}

int dfe_fs_lookup(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                  unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return fs->ops->lookup(fs, dir, name, name_len, flags, out);
}

int dfe_fs_getattr(struct dfe_fs *fs, uint64_t ino, unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return fs->ops->getattr(fs, ino, flags, out);
}

int dfe_fs_setattr(struct dfe_fs *fs, uint64_t ino, const struct dfe_attr *in, unsigned set,
                   unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return fs->ops->setattr(fs, ino, in, set, flags, out);
}

int dfe_fs_mknod(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len, uint32_t mode,
                 uint32_t rdev, const struct dfe_cred *cred, unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return fs->ops->mknod(fs, dir, name, name_len, mode, rdev, cred, flags, out);
}

int dfe_fs_mkdir(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len, uint32_t mode,
                 const struct dfe_cred *cred, unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return fs->ops->mkdir(fs, dir, name, name_len, mode, cred, flags, out);
}

int dfe_fs_symlink(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                   const char *target, size_t target_len, const struct dfe_cred *cred,
                   unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return fs->ops->symlink(fs, dir, name, name_len, target, target_len, cred, flags, out);
}

int dfe_fs_readlink(struct dfe_fs *fs, uint64_t ino, char *target, size_t cap, unsigned flags)
{
    base_clear_error();
    return fs->ops->readlink(fs, ino, target, cap, flags);
}

int dfe_fs_link(struct dfe_fs *fs, uint64_t ino, uint64_t dir, const char *name, size_t name_len,
                unsigned flags, struct dfe_attr *out)
{
    base_clear_error();
    return fs->ops->link(fs, ino, dir, name, name_len, flags, out);
}

int dfe_fs_unlink(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                  unsigned flags)
{
    base_clear_error();
    return fs->ops->unlink(fs, dir, name, name_len, flags);
}

int dfe_fs_rmdir(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len, unsigned flags)
{
    base_clear_error();
    return fs->ops->rmdir(fs, dir, name, name_len, flags);
}

int dfe_fs_rename(struct dfe_fs *fs, uint64_t dir, const char *name, size_t name_len,
                  uint64_t new_dir, const char *new_name, size_t new_name_len, unsigned flags)
{
    base_clear_error();
    return fs->ops->rename(fs, dir, name, name_len, new_dir, new_name, new_name_len, flags);
}

ssize_t dfe_fs_readdir(struct dfe_fs *fs, uint64_t dir, uint64_t cookie, void *page, size_t cap,
                       unsigned flags)
{
    base_clear_error();
    return fs->ops->readdir(fs, dir, cookie, page, clip(cap), flags);
}

int dfe_fs_parent(struct dfe_fs *fs, uint64_t dir, unsigned flags, uint64_t *out)
{
    base_clear_error();
    return fs->ops->parent(fs, dir, flags, out);
}

ssize_t dfe_fs_read(struct dfe_fs *fs, uint64_t ino, uint64_t off, void *dst, size_t len,
                    unsigned flags)
{
    base_clear_error();
    return fs->ops->read(fs, ino, off, dst, clip(len), flags);
}

ssize_t dfe_fs_write(struct dfe_fs *fs, uint64_t ino, uint64_t off, const void *src, size_t len,
                     unsigned flags, uint64_t *at)
{
    base_clear_error();
    return fs->ops->write(fs, ino, off, src, clip(len), flags, at);
}

int dfe_fs_pin(struct dfe_fs *fs, uint64_t ino, uint64_t off, size_t len, unsigned flags,
               struct dfe_pin *out)
{
    base_clear_error();
    return fs->ops->pin(fs, ino, off, clip(len), flags, out);
}

void dfe_fs_unpin(struct dfe_fs *fs, struct dfe_pin *pin)
{
    fs->ops->unpin(fs, pin);
}

int dfe_fs_punch(struct dfe_fs *fs, uint64_t ino, uint64_t off, uint64_t len, unsigned flags)
{
    base_clear_error();
    return fs->ops->punch(fs, ino, off, len, flags);
}

int dfe_fs_next(struct dfe_fs *fs, uint64_t ino, uint64_t off, int what, uint64_t *out)
{
    base_clear_error();
    if (what != 0 && what != 1)
        return base_refuse(-EINVAL, "0 is data, 1 is a hole; %d is neither", what);
    return fs->ops->next(fs, ino, off, what, out);
}

int dfe_fs_fsync(struct dfe_fs *fs, uint64_t ino, unsigned flags)
{
    base_clear_error();
    return fs->ops->fsync(fs, ino, flags);
}

int dfe_fs_sync(struct dfe_fs *fs)
{
    base_clear_error();
    return fs->ops->sync(fs);
}

int dfe_fs_getxattr(struct dfe_fs *fs, uint64_t ino, const char *name, size_t name_len, void *value,
                    size_t cap, unsigned flags)
{
    base_clear_error();
    return fs->ops->getxattr(fs, ino, name, name_len, value, cap, flags);
}

int dfe_fs_setxattr(struct dfe_fs *fs, uint64_t ino, const char *name, size_t name_len,
                    const void *value, size_t len, unsigned flags)
{
    base_clear_error();
    return fs->ops->setxattr(fs, ino, name, name_len, value, len, flags);
}

int dfe_fs_listxattr(struct dfe_fs *fs, uint64_t ino, char *names, size_t cap, unsigned flags)
{
    base_clear_error();
    return fs->ops->listxattr(fs, ino, names, cap, flags);
}

int dfe_fs_removexattr(struct dfe_fs *fs, uint64_t ino, const char *name, size_t name_len,
                       unsigned flags)
{
    base_clear_error();
    return fs->ops->removexattr(fs, ino, name, name_len, flags);
}

int dfe_fs_statfs(struct dfe_fs *fs, struct dfe_statfs *out)
{
    base_clear_error();
    return fs->ops->statfs(fs, out);
}

int dfe_fs_mount(struct dfe_fs *fs, int read_only, uint64_t *generation)
{
    base_clear_error();
    return fs->ops->mount(fs, read_only, generation);
}

int dfe_fs_inval_next(struct dfe_fs *fs, uint64_t done, struct dfe_inval *out)
{
    base_clear_error();
    return fs->ops->inval_next(fs, done, out);
}

void dfe_fs_inval_stop(struct dfe_fs *fs)
{
    fs->ops->inval_stop(fs);
}

int dfe_service_query(struct dfe_pool *pool, struct dfe_service_info *out)
{
    base_clear_error();
    return pool->ops->service_query(pool, out);
}

int dfe_fs_query(struct dfe_fs *fs, struct dfe_fs_info *out)
{
    base_clear_error();
    return fs->ops->query(fs, out);
}
