/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making and destroying pools.
 *
 * A pool is made in PARENT/.NAME.making, which becomes PARENT/NAME when it is whole. What fails
 * before is undone; what a killed process has left there, the next creation of that name removes.
 * A directory that is there already, empty (a mount point, say), is filled in place: then its
 * record, written last, makes the pool. Destroying wipes the superblocks first and removes the
 * record with the rest.
 */
#include "obj/obj_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

struct making {
    const struct obj_pool_create_opts *opts;
    struct super super;
    struct pool_record record;
    struct queue_dev *dev;
    char uri[4200];
    char dir[4096]; /* where it is made */
    bool staged;    /* that is not its final place */
    bool made_dir, made_lock, made_device, made_index, made_record, wrote_super;
    int lock_fd;
};

static int remove_in(const char *path, const char *name)
{
    char file[4096];
    int rc = pool_file(path, name, file, sizeof(file));

    if (rc == 0 && remove(file) < 0 && errno != ENOENT)
        rc = -errno;
    return rc;
}

static int remove_index(const char *path)
{
    int rc = remove_in(path, "index/data.mdb");

    if (rc == 0)
        rc = remove_in(path, "index/lock.mdb");
    return rc < 0 ? rc : remove_in(path, "index");
}

/* Length of the path's parent with its slash, 0 for the working directory; *name: length of the
 * name that follows. */
static size_t parent_len(const char *path, size_t *name)
{
    size_t end = strlen(path), at;

    while (end > 1 && path[end - 1] == '/')
        end--;
    for (at = end; at > 0 && path[at - 1] != '/';)
        at--;
    *name = end - at;
    return at;
}

static int make_staging(struct making *m)
{
    const char *path = m->opts->path;
    size_t name, at = parent_len(path, &name);

    if (name > 200) /* names have at most 255 bytes */
        name = 200;
    snprintf(m->dir, sizeof(m->dir), "%.*s.%.*s.making", (int)at, path, (int)name, path + at);
    m->staged = true;
    m->made_dir = mkdir(m->dir, 0700) == 0;
    if (!m->made_dir && errno != EEXIST)
        return base_refuse(-errno, "cannot make the directory %s: %s", path, strerror(errno));
    return 0;
}

static int make_dir(struct making *m)
{
    const char *path = m->opts->path;
    struct dirent *e;
    struct stat st;
    DIR *d;
    int rc = 0;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? make_staging(m)
                               : base_refuse(-errno, "cannot make the directory %s: %s", path,
                                             strerror(errno));
    memcpy(m->dir, path, strlen(path) + 1);
    d = opendir(path);
    if (!d)
        return base_refuse(errno == ENOTDIR ? -EEXIST : -errno,
                           "%s exists and is no directory that "
                           "can be used: %s",
                           path, strerror(errno));
    while (rc == 0 && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            rc = base_refuse(-EEXIST, "the directory %s is not empty", path);
    closedir(d);
    return rc;
}

static int open_dev(struct making *m)
{
    struct queue_dev_opts o = {.size = sizeof(o)};
    bool own_file = !m->opts->device;
    int rc;

    snprintf(m->record.device, sizeof(m->record.device), "%s", own_file ? "data" : m->opts->device);
    rc = pool_device_uri(m->dir, m->record.device, m->uri, sizeof(m->uri));
    if (rc < 0)
        return rc;
    if (!own_file)
        rc = queue_dev_open(m->uri, &o, &m->dev);
    if (own_file || (rc == -ENOENT && m->opts->size_bytes > 0)) {
        o.create = true;
        o.create_bytes = m->opts->size_bytes & ~(uint64_t)(DFE_BLOCK_BYTES - 1);
        rc = queue_dev_open(m->uri, &o, &m->dev);
        m->made_device = rc == 0;
    }
    if (rc == -ENOSPC)
        return base_refuse(rc, "no space for %llu bytes at %s",
                           (unsigned long long)m->opts->size_bytes,
                           own_file ? m->opts->path : m->uri);
    return rc < 0 ? base_refuse(rc, "cannot open the device %s: %s", m->uri, strerror(-rc)) : 0;
}

/* A device that holds a pool is left alone. */
static int check_foreign(struct making *m)
{
    struct super other;
    char text[37];
    bool one_damaged;
    int rc;

    if (m->made_device)
        return 0;
    rc = super_read(m->dev, &other, &one_damaged);
    if (rc == -ENODATA)
        return 0;
    if (rc == 0) {
        uuid_text(other.uuid, text);
        return base_refuse(-EEXIST, "the device %s already holds pool %s", m->uri, text);
    }
    if (rc == -EUCLEAN || rc == -EPROTONOSUPPORT)
        return base_refuse(-EEXIST, "the device %s holds a pool that is %s", m->uri,
                           rc == -EUCLEAN ? "damaged" : "of a newer format");
    return rc;
}

static int lay_out(struct making *m)
{
    struct queue_dev_info info;
    uint64_t size = m->opts->size_bytes;
    int rc;

    queue_dev_info(m->dev, &info);
    if (size == 0)
        size = info.size_bytes;
    if (size > info.size_bytes)
        return base_refuse(-ENOSPC, "the device %s has %llu bytes, %llu are asked for", m->uri,
                           (unsigned long long)info.size_bytes, (unsigned long long)size);
    rc = super_layout(size, m->opts->journal_bytes, &m->super);
    if (rc < 0)
        return rc;
    memcpy(m->super.uuid, m->record.uuid, sizeof(m->super.uuid));
    m->super.format = SUPER_FORMAT;
    m->super.least_checkpoint = 1;
    return 0;
}

static int write_device(struct making *m)
{
    int rc = journal_format(m->dev, &m->super);

    if (rc == 0) {
        m->wrote_super = true;
        rc = super_write(m->dev, &m->super);
    }
    return rc < 0 ? base_fail(rc, "cannot write to the device %s: %s", m->uri, strerror(-rc)) : 0;
}

static int write_index(struct making *m)
{
    struct fmt_checkpoint c = {.number = 1, .journal_seq = 1, .next_cont = 1};
    struct index *ix = NULL;
    struct index_tx *tx;
    char dir[4096];
    int rc = pool_file(m->dir, "index", dir, sizeof(dir));

    if (rc < 0)
        return rc;
    m->made_index = true;
    pool_geometry(&m->super, &c);
    rc = index_create(dir);
    if (rc == 0)
        rc = index_open(dir, false, &ix);
    if (rc == 0)
        rc = index_reserve(ix, OBJ_INDEX_ROOM);
    if (rc == 0)
        rc = index_begin(ix, &tx);
    if (rc == 0) {
        rc = checkpoint_put(tx, &c);
        if (rc == 0)
            rc = index_commit(tx);
        else
            index_abort(tx);
    }
    if (ix)
        index_close(ix);
    return rc < 0 ? base_refuse(rc, "cannot make the index of %s: %s", m->opts->path, strerror(-rc))
                  : 0;
}

static void undo(struct making *m)
{
    const char *path = m->dir, *mem = "mem:";

    if (m->dev && m->wrote_super && !m->made_device)
        super_wipe(m->dev);
    if (m->dev)
        queue_dev_close(m->dev);
    if (m->made_device && !m->opts->device)
        remove_in(path, "data");
    else if (m->made_device && strncmp(m->uri, mem, strlen(mem)) == 0)
        queue_mem_forget(m->uri + strlen(mem));
    else if (m->made_device)
        remove(strncmp(m->uri, "file:", 5) == 0 ? m->uri + 5 : m->uri);
    if (m->made_index)
        remove_index(path);
    if (m->made_record)
        remove_in(path, "pool");
    if (m->made_lock)
        remove_in(path, "lock");
    if (m->lock_fd >= 0)
        close(m->lock_fd);
    if (m->made_dir)
        rmdir(path);
}

/* Wipes the superblocks of the record's device, which must be this pool's. */
static int wipe(const char *path, const struct pool_record *r, bool force)
{
    struct queue_dev_opts o = {.size = sizeof(o)};
    struct queue_dev *dev = NULL;
    struct super s;
    bool one_damaged;
    char uri[4200];
    int rc = pool_device_uri(path, r->device, uri, sizeof(uri));

    if (rc == 0)
        rc = queue_dev_open(uri, &o, &dev);
    if (rc == -EBUSY)
        return base_refuse(rc, "the device %s is in use elsewhere", uri);
    if (rc < 0)
        return force ? 0
                     : base_refuse(rc,
                                   "cannot open the device %s: %s (force removes the pool's "
                                   "directory alone)",
                                   uri, strerror(-rc));
    rc = super_read(dev, &s, &one_damaged);
    if (rc == 0 && memcmp(s.uuid, r->uuid, sizeof(s.uuid)) != 0)
        rc = base_refuse(-EMEDIUMTYPE, "the device %s belongs to another pool", uri);
    else if (rc == 0 || (rc == -EUCLEAN && force))
        rc = super_wipe(dev);
    else if (rc == -ENODATA && force)
        rc = 0; /* no pool there: nothing to wipe */
    else
        rc = base_refuse(rc, "the device %s cannot be read as pool %s", uri, r->label);
    queue_dev_close(dev);
    return rc;
}

/* Takes the lock, and removes what a killed creation has left. */
static int take_dir(struct making *m)
{
    static const char *const names[] = {"pool", "pool.new", "data"};
    struct pool_record r;
    int rc = pool_lock(m->dir, &m->lock_fd);

    if (rc == -EBUSY && m->staged)
        return base_refuse(rc, "pool %s is being created elsewhere", m->opts->path);
    if (rc < 0)
        return rc;
    m->made_lock = true;
    if (!m->staged || m->made_dir)
        return 0;
    m->made_dir = true;
    if (record_read(m->dir, &r) == 0)
        wipe(m->dir, &r, true); /* where it is another's now, check_foreign refuses it */
    for (size_t i = 0; rc == 0 && i < DFE_ARRAY_LEN(names); i++)
        rc = remove_in(m->dir, names[i]);
    if (rc == 0)
        rc = remove_index(m->dir);
    return rc < 0 ? base_refuse(rc, "cannot empty %s: %s", m->dir, strerror(-rc)) : 0;
}

/* To its final place. */
static int settle_dir(struct making *m)
{
    const char *path = m->opts->path;
    char parent[4096] = ".";
    size_t name, at = parent_len(path, &name);
    int fd, rc = 0;

    if (!m->staged)
        return 0;
    if (rename(m->dir, path) < 0)
        return base_refuse(errno == ENOTEMPTY || errno == ENOTDIR ? -EEXIST : -errno,
                           "cannot make the directory %s: %s", path, strerror(errno));
    memcpy(m->dir, path, strlen(path) + 1);
    if (at > 0)
        snprintf(parent, sizeof(parent), "%.*s", (int)at, path);
    fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        rc = base_refuse(-errno, "cannot make %s durable: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return rc;
}

static int write_record(struct making *m)
{
    int rc = record_write(m->dir, &m->record);

    m->made_record = rc == 0;
    return rc;
}

int obj_pool_create(const struct obj_pool_create_opts *opts)
{
    struct making m = {.opts = opts, .lock_fd = -1};
    struct super layout;
    int rc;

    if (opts->size != sizeof(*opts) || !opts->path || strlen(opts->path) >= 3500 ||
        (opts->device && strlen(opts->device) >= sizeof(m.record.device)))
        return base_refuse(-EINVAL, "no usable path of a pool given");
    if (!opts->label || !label_ok(opts->label))
        return base_refuse(-EINVAL,
                           "a label is 1 to %u of A-Z a-z 0-9 . _ - and begins with a letter, "
                           "a digit or _",
                           DFE_LABEL_BYTES);
    if (!opts->device && opts->size_bytes == 0)
        return base_refuse(-EINVAL, "the size of pool %s is missing", opts->label);
    rc = opts->size_bytes ? super_layout(opts->size_bytes, opts->journal_bytes, &layout) : 0;
    if (rc < 0)
        return rc;
    snprintf(m.record.label, sizeof(m.record.label), "%s", opts->label);
    m.record.format = SUPER_FORMAT;
    rc = uuid_make(m.record.uuid);
    if (rc == 0)
        rc = make_dir(&m);
    if (rc == 0)
        rc = take_dir(&m);
    if (rc == 0)
        rc = open_dev(&m);
    if (rc == 0)
        rc = check_foreign(&m);
    if (rc == 0)
        rc = lay_out(&m);
    if (rc == 0)
        rc = write_index(&m);
    if (rc == 0 && m.staged) /* first: it tells whose the superblocks are */
        rc = write_record(&m);
    if (rc == 0)
        rc = write_device(&m);
    if (rc == 0 && !m.staged)
        rc = write_record(&m);
    if (rc == 0)
        rc = settle_dir(&m);
    if (rc < 0) {
        undo(&m);
        return rc;
    }
    queue_dev_close(m.dev);
    close(m.lock_fd);
    return 0;
}

int obj_pool_peek(const char *path, struct obj_pool_info *out)
{
    struct pool_record r;
    int rc = record_read(path, &r);

    if (rc < 0)
        return rc;
    memset(out, 0, sizeof(*out));
    memcpy(out->label, r.label, sizeof(out->label));
    memcpy(out->uuid, r.uuid, sizeof(out->uuid));
    memcpy(out->device, r.device, sizeof(out->device));
    out->format = r.format;
    return 0;
}

int obj_pool_destroy(const char *path, bool force)
{
    struct pool_record r;
    int fd = -1, rc = record_read(path, &r);
    bool readable = rc == 0;

    if (rc == -ENOENT || (rc < 0 && !force))
        return rc;
    rc = pool_lock(path, &fd);
    if (rc == 0 && readable)
        rc = wipe(path, &r, force);
    if (rc == 0)
        rc = remove_in(path, "pool");
    if (rc == 0)
        rc = remove_index(path);
    if (rc == 0)
        rc = remove_in(path, "data");
    if (rc == 0)
        rc = remove_in(path, "lock");
    if (rc == 0 && rmdir(path) < 0)
        rc = base_refuse(-errno, "the pool is destroyed, but its directory %s stays: %s", path,
                         strerror(errno));
    if (fd >= 0)
        close(fd);
    return rc;
}
