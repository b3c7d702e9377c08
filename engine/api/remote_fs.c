/* SPDX-License-Identifier: Apache-2.0 */
/* File systems of the public API behind a session: everything but file data. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/remote.h"
#include "base/limits.h"

static struct iovec piece(const void *base, size_t len)
{
    return (struct iovec){.iov_base = (void *)(uintptr_t)base, .iov_len = len};
}

static int64_t ask(struct remote_fs *fs, struct client_call *call)
{
    call->sqe.handle = fs->handle;
    return remote_ask(fs->cont->pool, call);
}

static int ask_plainly(struct dfe_fs *handle, struct client_call *call)
{
    struct remote_fs *fs = remote_fs(handle);

    call->sqe.handle = fs->handle;
    return remote_ask_plainly(fs->cont->pool, call);
}

static int ask_for(struct dfe_fs *handle, struct client_call *call, void *out, size_t out_bytes)
{
    struct remote_fs *fs = remote_fs(handle);
    int64_t ret;

    call->sqe.handle = fs->handle;
    ret = remote_ask_for(fs->cont->pool, call, out, out_bytes);
    return ret < 0 ? (int)ret : 0;
}

static size_t reply_cap(size_t cap)
{
    return cap < PROTO_REPLY_BYTES ? cap : PROTO_REPLY_BYTES;
}

/* The answer's bytes, as many as fit; their number, also where cap is 0. */
static int ask_bytes(struct dfe_fs *handle, struct client_call *call, void *out, size_t cap)
{
    int64_t ret;

    call->reply_cap = reply_cap(cap);
    ret = ask(remote_fs(handle), call);
    if (ret >= 0)
        remote_take(call, out, cap);
    return (int)ret;
}

/* Names that are too long are for the engine to refuse: one byte more than is allowed says it. */
static struct iovec name_piece(const char *name, size_t len)
{
    return piece(name, len <= DFE_NAME_BYTES ? len : DFE_NAME_BYTES + 1);
}

/* -- references ---------------------------------------------------------------------------------
 */

static int ask_ref(struct remote_fs *fs, uint64_t ino, uint64_t n)
{
    struct client_call call = {.sqe = {.op = PROTO_REF, .ino = ino, .off = n}};

    return ask_plainly(&fs->dfe, &call);
}

static int ask_unref(struct remote_fs *fs, uint64_t ino, uint64_t n)
{
    struct client_call call = {.sqe = {.op = PROTO_UNREF, .ino = ino, .off = n}};

    return ask_plainly(&fs->dfe, &call);
}

/* The engine has given one reference, at a time when its epoch was `epoch` or later. */
static int count(struct remote_fs *fs, uint64_t epoch, uint64_t ino)
{
    struct client *client = fs->cont->pool->client;
    bool replaced;
    int ret;

    pthread_mutex_lock(&fs->refs_lock);
    ret = refs_count(&fs->refs, ino, 1);
    replaced = client_epoch(client) != epoch;
    pthread_mutex_unlock(&fs->refs_lock);
    if (ret < 0)
        ask_unref(fs, ino, 1);
    else if (replaced) /* perhaps it was the old worker: one too many is better than none */
        ask_ref(fs, ino, 1);
    return ret;
}

/* Requests whose answer is an inode's attributes, and, as asked, a reference on it. */
static int ask_inode(struct dfe_fs *handle, struct client_call *call, struct dfe_attr *out)
{
    struct remote_fs *fs = remote_fs(handle);
    uint64_t epoch;
    int ret = remote_alive(fs->cont->pool);

    if (ret < 0)
        return ret;
    epoch = client_epoch(fs->cont->pool->client);
    ret = ask_for(handle, call, out, sizeof(*out));
    if (ret == 0 && call->sqe.flags & DFE_REF)
        ret = count(fs, epoch, out->ino);
    /* An earlier worker's word, perhaps, and the next one did not know that we would keep it. */
    if (ret == 0 && client_epoch(fs->cont->pool->client) != epoch)
        out->flags |= DFE_ATTR_SHARED;
    return ret;
}

static int remote_fs_ref(struct dfe_fs *handle, uint64_t ino)
{
    struct remote_fs *fs = remote_fs(handle);
    uint64_t epoch;
    int ret = remote_alive(fs->cont->pool);

    if (ret < 0)
        return ret;
    epoch = client_epoch(fs->cont->pool->client);
    ret = ask_ref(fs, ino, 1);
    return ret < 0 ? ret : count(fs, epoch, ino);
}

static void remote_fs_unref(struct dfe_fs *handle, uint64_t ino, uint64_t n)
{
    struct remote_fs *fs = remote_fs(handle);

    if (ask_unref(fs, ino, n) == -ESTALE && atomic_load(&fs->cont->pool->forked))
        return;
    pthread_mutex_lock(&fs->refs_lock);
    refs_discount(&fs->refs, ino, n);
    pthread_mutex_unlock(&fs->refs_lock);
}

/* -- opening and closing ------------------------------------------------------------------------
 */

static void free_fs(struct remote_fs *fs)
{
    leases_close(fs->leases);
    refs_free(&fs->refs);
    free(fs);
}

int remote_fs_open(struct dfe_cont *handle, struct dfe_fs **out)
{
    struct remote_cont *cont = remote_cont(handle);
    struct remote_fs *fs = calloc(1, sizeof(*fs));
    struct client_call call = {.sqe = {.op = PROTO_FS_OPEN, .arg = cont->handle}};
    int ret;

    if (!fs)
        return -ENOMEM;
    fs->dfe.ops = &remote_fs_ops;
    fs->cont = cont;
    pthread_mutex_init(&fs->refs_lock, NULL);
    list_init(&fs->link);
    fs->leases = leases_open();
    ret = fs->leases ? remote_open(cont->pool, &call, &fs->handle, &cont->pool->fss, &fs->link)
                     : -ENOMEM;
    if (ret < 0) {
        free_fs(fs);
        return ret;
    }
    remote_cont_use(cont);
    *out = &fs->dfe;
    return 0;
}

static int remote_fs_close(struct dfe_fs *handle)
{
    struct remote_fs *fs = remote_fs(handle);
    struct remote_cont *cont = fs->cont;
    int ret;

    if (!atomic_load(&cont->pool->forked) && atomic_load(&fs->pins))
        return base_refuse(-EBUSY, "memory of the file system is in use");
    ret = remote_close(cont->pool, fs->handle, &fs->link);
    remote_cont_unuse(cont);
    free_fs(fs);
    return ret;
}

/* The kernel of a mount still has what the last worker let it have: off says which mount it was. If
 * it cannot be that again nobody would tell it what to forget: then the session ends. */
int remote_fs_resume(struct remote_fs *fs, struct client *client)
{
    struct client_call call = {
        .sqe = {.op = PROTO_FS_OPEN, .handle = fs->handle, .arg = fs->cont->handle}};
    int64_t ret = client_do(client, &call);

    if (ret >= 0 && fs->generation) {
        call = (struct client_call){.sqe = {.op = PROTO_FS_MOUNT,
                                            .handle = fs->handle,
                                            .off = fs->generation,
                                            .arg = fs->mount_read_only}};
        ret = client_do(client, &call);
    }
    if (ret < 0 && fs->generation)
        return (int)ret;
    pthread_mutex_lock(&fs->refs_lock);
    for (size_t i = 0; i < fs->refs.cap && ret >= 0; i++) {
        if (!fs->refs.slots[i].ino)
            continue;
        call = (struct client_call){.sqe = {.op = PROTO_REF,
                                            .handle = fs->handle,
                                            .ino = fs->refs.slots[i].ino,
                                            .off = fs->refs.slots[i].count}};
        if (client_do(client, &call) == -EOWNERDEAD)
            ret = -EOWNERDEAD;
    }
    pthread_mutex_unlock(&fs->refs_lock);
    return ret == -EOWNERDEAD ? (int)ret : 0;
}

static int remote_fs_query(struct dfe_fs *handle, struct dfe_fs_info *out)
{
    struct client_call call = {.sqe = {.op = PROTO_FS_QUERY}};

    return ask_for(handle, &call, out, sizeof(*out));
}

static int remote_fs_statfs(struct dfe_fs *handle, struct dfe_statfs *out)
{
    struct client_call call = {.sqe = {.op = PROTO_STATFS}};

    return ask_for(handle, &call, out, sizeof(*out));
}

static int remote_fs_fsync(struct dfe_fs *handle, uint64_t ino, unsigned flags)
{
    struct client_call call = {.sqe = {.op = PROTO_FSYNC, .ino = ino, .flags = flags}};

    return ask_plainly(handle, &call);
}

static int remote_fs_sync(struct dfe_fs *handle)
{
    struct client_call call = {.sqe = {.op = PROTO_FS_SYNC}};

    return ask_plainly(handle, &call);
}

/* -- a mount's kernel ---------------------------------------------------------------------------
 */

static int remote_fs_mount(struct dfe_fs *handle, int read_only, uint64_t *generation)
{
    struct remote_fs *fs = remote_fs(handle);
    struct remote_pool *pool = fs->cont->pool;
    uint64_t value = 0;
    bool same = false;
    int ret = remote_alive(pool);

    /* As remote_open does: until the answer is of one worker, so that a resumption knows of it. */
    while (ret == 0 && !same) {
        struct client_call call = {.sqe = {.op = PROTO_FS_MOUNT, .arg = read_only != 0}};
        uint64_t epoch = client_epoch(pool->client);

        ret = ask_plainly(handle, &call);
        if (ret == 0)
            value = call.cqe.value;
        else if (ret == -EEXIST && value)
            ret = 0; /* the answer before was this worker's */
        pthread_mutex_lock(&pool->lock);
        same = client_epoch(pool->client) == epoch;
        if (ret == 0 && same) {
            fs->generation = *generation = value;
            fs->mount_read_only = read_only != 0;
        }
        pthread_mutex_unlock(&pool->lock);
    }
    return ret;
}

static int remote_fs_inval_next(struct dfe_fs *handle, uint64_t done, struct dfe_inval *out)
{
    struct client_call call = {.sqe = {.op = PROTO_INVAL_NEXT, .off = done}};
    int ret = ask_for(handle, &call, out, sizeof(*out));

    return ret < 0 && atomic_load(&remote_fs(handle)->mount_over) ? -ESHUTDOWN : ret;
}

static void remote_fs_inval_stop(struct dfe_fs *handle)
{
    struct remote_fs *fs = remote_fs(handle);
    struct remote_pool *pool = fs->cont->pool;
    struct client_call call = {.sqe = {.op = PROTO_INVAL_STOP}};

    ask_plainly(handle, &call);
    atomic_store(&fs->mount_over, true);
    pthread_mutex_lock(&pool->lock);
    fs->generation = 0;
    pthread_mutex_unlock(&pool->lock);
}

/* -- attributes and names -----------------------------------------------------------------------
 */

static int remote_fs_lookup(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                            unsigned flags, struct dfe_attr *out)
{
    struct iovec push = name_piece(name, name_len);
    struct client_call call = {
        .sqe = {.op = PROTO_LOOKUP, .ino = dir, .flags = flags}, .push = &push, .n_push = 1};

    return ask_inode(handle, &call, out);
}

static int remote_fs_getattr(struct dfe_fs *handle, uint64_t ino, unsigned flags,
                             struct dfe_attr *out)
{
    struct client_call call = {.sqe = {.op = PROTO_GETATTR, .ino = ino, .flags = flags}};

    return ask_for(handle, &call, out, sizeof(*out));
}

static int remote_fs_setattr(struct dfe_fs *handle, uint64_t ino, const struct dfe_attr *in,
                             unsigned set, unsigned flags, struct dfe_attr *out)
{
    struct iovec push = piece(in, sizeof(*in));
    struct client_call call = {
        .sqe = {.op = PROTO_SETATTR, .ino = ino, .flags = flags, .arg = set},
        .push = &push,
        .n_push = 1,
    };

    return ask_for(handle, &call, out, sizeof(*out));
}

static int remote_fs_mknod(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                           uint32_t mode, uint32_t rdev, const struct dfe_cred *cred,
                           unsigned flags, struct dfe_attr *out)
{
    struct iovec push[] = {piece(cred, sizeof(*cred)), name_piece(name, name_len)};
    struct client_call call = {
        .sqe = {.op = PROTO_MKNOD, .ino = dir, .off = rdev, .flags = flags, .arg = mode},
        .push = push,
        .n_push = 2,
    };

    return ask_inode(handle, &call, out);
}

static int remote_fs_mkdir(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                           uint32_t mode, const struct dfe_cred *cred, unsigned flags,
                           struct dfe_attr *out)
{
    struct iovec push[] = {piece(cred, sizeof(*cred)), name_piece(name, name_len)};
    struct client_call call = {
        .sqe = {.op = PROTO_MKDIR, .ino = dir, .flags = flags, .arg = mode},
        .push = push,
        .n_push = 2,
    };

    return ask_inode(handle, &call, out);
}

static int remote_fs_symlink(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                             const char *target, size_t target_len, const struct dfe_cred *cred,
                             unsigned flags, struct dfe_attr *out)
{
    struct iovec push[] = {
        piece(cred, sizeof(*cred)), name_piece(name, name_len),
        piece(target, target_len <= DFE_SYMLINK_BYTES ? target_len : DFE_SYMLINK_BYTES + 1)};
    struct client_call call = {
        .sqe = {.op = PROTO_SYMLINK, .ino = dir, .flags = flags, .arg = (uint32_t)push[1].iov_len},
        .push = push,
        .n_push = 3,
    };

    return ask_inode(handle, &call, out);
}

static int remote_fs_readlink(struct dfe_fs *handle, uint64_t ino, char *target, size_t cap,
                              unsigned flags)
{
    struct client_call call = {.sqe = {.op = PROTO_READLINK, .ino = ino, .flags = flags}};

    return ask_bytes(handle, &call, target, cap);
}

static int remote_fs_link(struct dfe_fs *handle, uint64_t ino, uint64_t dir, const char *name,
                          size_t name_len, unsigned flags, struct dfe_attr *out)
{
    struct iovec push = name_piece(name, name_len);
    struct client_call call = {
        .sqe = {.op = PROTO_LINK, .ino = ino, .off = dir, .flags = flags},
        .push = &push,
        .n_push = 1,
    };

    return ask_inode(handle, &call, out);
}

static int remove_name(struct dfe_fs *handle, uint32_t op, uint64_t dir, const char *name,
                       size_t name_len, unsigned flags)
{
    struct iovec push = name_piece(name, name_len);
    struct client_call call = {
        .sqe = {.op = op, .ino = dir, .flags = flags}, .push = &push, .n_push = 1};

    return ask_plainly(handle, &call);
}

static int remote_fs_unlink(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                            unsigned flags)
{
    return remove_name(handle, PROTO_UNLINK, dir, name, name_len, flags);
}

static int remote_fs_rmdir(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                           unsigned flags)
{
    return remove_name(handle, PROTO_RMDIR, dir, name, name_len, flags);
}

static int remote_fs_rename(struct dfe_fs *handle, uint64_t dir, const char *name, size_t name_len,
                            uint64_t new_dir, const char *new_name, size_t new_name_len,
                            unsigned flags)
{
    struct iovec push[] = {name_piece(name, name_len), name_piece(new_name, new_name_len)};
    struct client_call call = {
        .sqe = {.op = PROTO_RENAME,
                .ino = dir,
                .off = new_dir,
                .flags = flags,
                .arg = (uint32_t)push[0].iov_len},
        .push = push,
        .n_push = 2,
    };

    return ask_plainly(handle, &call);
}

/* Counts the references that came with a page of entries. As ask_inode does. */
static int count_page(struct remote_fs *fs, uint64_t epoch, uint8_t *page, size_t used)
{
    struct dfe_dirent entry;
    int ret = 0;

    for (size_t at = 0; at + sizeof(entry) <= used; at += entry.rec_len) {
        memcpy(&entry, page + at, sizeof(entry));
        if (entry.rec_len < sizeof(entry))
            return base_refuse(-EPROTO, "the service's page of entries makes no sense");
        if (ret == 0)
            ret = count(fs, epoch, entry.attr.ino);
        else
            ask_unref(fs, entry.attr.ino, 1);
        if (client_epoch(fs->cont->pool->client) != epoch)
            entry.attr.flags |= DFE_ATTR_SHARED;
        memcpy(page + at, &entry, sizeof(entry));
    }
    return ret;
}

static ssize_t remote_fs_readdir(struct dfe_fs *handle, uint64_t dir, uint64_t cookie, void *page,
                                 size_t cap, unsigned flags)
{
    struct remote_fs *fs = remote_fs(handle);
    struct client_call call = {
        .sqe = {.op = PROTO_READDIR, .ino = dir, .off = cookie, .flags = flags},
        .reply_cap = reply_cap(cap),
    };
    uint64_t epoch;
    int64_t ret = remote_alive(fs->cont->pool);

    if (ret < 0)
        return (ssize_t)ret;
    epoch = client_epoch(fs->cont->pool->client);
    ret = ask(fs, &call);
    if (ret < 0)
        return (ssize_t)ret;
    ret = (int64_t)remote_take(&call, page, cap);
    if (flags & DFE_REF) {
        int err = count_page(fs, epoch, page, (size_t)ret);

        if (err < 0)
            return err;
    }
    return (ssize_t)ret;
}

static int remote_fs_parent(struct dfe_fs *handle, uint64_t dir, unsigned flags, uint64_t *out)
{
    struct client_call call = {.sqe = {.op = PROTO_PARENT, .ino = dir, .flags = flags}};
    int ret = ask_plainly(handle, &call);

    if (ret == 0)
        *out = call.cqe.value;
    return ret;
}

/* -- holes --------------------------------------------------------------------------------------
 */

static int remote_fs_punch(struct dfe_fs *handle, uint64_t ino, uint64_t off, uint64_t len,
                           unsigned flags)
{
    struct iovec push = piece(&len, sizeof(len));
    struct client_call call = {
        .sqe = {.op = PROTO_PUNCH, .ino = ino, .off = off, .flags = flags},
        .push = &push,
        .n_push = 1,
    };

    return ask_plainly(handle, &call);
}

static int remote_fs_next(struct dfe_fs *handle, uint64_t ino, uint64_t off, int what,
                          uint64_t *out)
{
    struct client_call call = {
        .sqe = {.op = PROTO_NEXT, .ino = ino, .off = off, .arg = (uint32_t)what}};
    int ret = ask_plainly(handle, &call);

    if (ret == 0)
        *out = call.cqe.value;
    return ret;
}

/* -- extended attributes ------------------------------------------------------------------------
 */

static int remote_fs_getxattr(struct dfe_fs *handle, uint64_t ino, const char *name,
                              size_t name_len, void *value, size_t cap, unsigned flags)
{
    struct iovec push = name_piece(name, name_len);
    struct client_call call = {
        .sqe = {.op = PROTO_GETXATTR, .ino = ino, .flags = flags},
        .push = &push,
        .n_push = 1,
    };

    return ask_bytes(handle, &call, value, cap);
}

static int remote_fs_setxattr(struct dfe_fs *handle, uint64_t ino, const char *name,
                              size_t name_len, const void *value, size_t len, unsigned flags)
{
    struct iovec push[] = {
        name_piece(name, name_len),
        piece(value, len <= DFE_XATTR_VALUE_BYTES ? len : DFE_XATTR_VALUE_BYTES + 1)};
    struct client_call call = {
        .sqe = {.op = PROTO_SETXATTR, .ino = ino, .flags = flags, .arg = (uint32_t)push[0].iov_len},
        .push = push,
        .n_push = 2,
    };

    return ask_plainly(handle, &call);
}

static int remote_fs_listxattr(struct dfe_fs *handle, uint64_t ino, char *names, size_t cap,
                               unsigned flags)
{
    struct client_call call = {.sqe = {.op = PROTO_LISTXATTR, .ino = ino, .flags = flags}};

    return ask_bytes(handle, &call, names, cap);
}

static int remote_fs_removexattr(struct dfe_fs *handle, uint64_t ino, const char *name,
                                 size_t name_len, unsigned flags)
{
    return remove_name(handle, PROTO_REMOVEXATTR, ino, name, name_len, flags);
}

const struct fs_ops remote_fs_ops = {
    .close = remote_fs_close,
    .query = remote_fs_query,
    .statfs = remote_fs_statfs,
    .mount = remote_fs_mount,
    .inval_next = remote_fs_inval_next,
    .inval_stop = remote_fs_inval_stop,
    .ref = remote_fs_ref,
    .unref = remote_fs_unref,
    .lookup = remote_fs_lookup,
    .getattr = remote_fs_getattr,
    .setattr = remote_fs_setattr,
    .mknod = remote_fs_mknod,
    .mkdir = remote_fs_mkdir,
    .symlink = remote_fs_symlink,
    .readlink = remote_fs_readlink,
    .link = remote_fs_link,
    .unlink = remote_fs_unlink,
    .rmdir = remote_fs_rmdir,
    .rename = remote_fs_rename,
    .readdir = remote_fs_readdir,
    .parent = remote_fs_parent,
    .read = remote_fs_read,
    .write = remote_fs_write,
    .pin = remote_fs_pin,
    .unpin = remote_fs_unpin,
    .punch = remote_fs_punch,
    .next = remote_fs_next,
    .fsync = remote_fs_fsync,
    .sync = remote_fs_sync,
    .getxattr = remote_fs_getxattr,
    .setxattr = remote_fs_setxattr,
    .listxattr = remote_fs_listxattr,
    .removexattr = remote_fs_removexattr,
};
