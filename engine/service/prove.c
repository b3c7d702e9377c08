/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that clients show. Whoever sends one may have made the file system behind it, so it
 * is asked for nothing that its server could delay or answer as it likes, but for the inode's
 * number, which counts only after the kernel has said whose the mount is. */
#include "service/prove.h"

#include <dfe.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/log.h"
#include "service/session.h"

#define FSTYPE "fuse.dfusepy"
#define MOUNTINFO_MAX_BYTES (16u << 20)

/* The field `n` (from 0) of a line of words. */
static bool field_is(const char *line, unsigned n, const char *want)
{
    size_t len = strlen(want);

    while (n && *line && *line != '\n') {
        if (*line++ == ' ')
            n--;
    }
    return n == 0 && strncmp(line, want, len) == 0 &&
           (line[len] == ' ' || line[len] == '\n' || line[len] == '\0');
}

/* The owner that the kernel knows: an option of its own, user_id=UID. */
static bool owned_by(const char *line, const char *end, uid_t uid)
{
    char want[32];
    int len = snprintf(want, sizeof(want), "user_id=%u", uid);

    for (const char *at = line; (at = strstr(at, want)) && at < end; at++) {
        char before = at[-1], after = at[len];

        if ((before == ',' || before == ' ') && (after == ',' || after == '\n' || after == '\0'))
            return true;
    }
    return false;
}

int prove_mount(const char *mountinfo, dev_t dev, const char *source, uid_t owner)
{
    char device[32];

    snprintf(device, sizeof(device), "%u:%u", major(dev), minor(dev));
    for (const char *line = mountinfo; line && *line;) {
        const char *end = strchr(line, '\n'), *right = strstr(line, " - ");

        if (!end)
            end = line + strlen(line);
        if (right && right < end && field_is(line, 2, device)) {
            const char *words = right + 3;

            return field_is(words, 0, FSTYPE) && field_is(words, 1, source) &&
                           (owned_by(words, end, owner) || owned_by(words, end, 0))
                       ? 0
                       : -EACCES;
        }
        line = *end ? end + 1 : NULL;
    }
    return -EACCES;
}

/* NUL at the end; the caller frees it. */
static char *read_mountinfo(void)
{
    int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    size_t len = 0, cap = 65536;
    char *text = NULL;
    ssize_t n = 1;

    while (fd >= 0 && n > 0 && cap < MOUNTINFO_MAX_BYTES) {
        char *more = realloc(text, cap);

        if (!more)
            break;
        text = more;
        n = read(fd, text + len, cap - len - 1);
        if (n > 0)
            len += (size_t)n;
        if (len + 1 == cap)
            cap *= 2;
    }
    if (fd >= 0)
        close(fd);
    if (text)
        text[len] = '\0';
    if (fd < 0 || n != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static unsigned access_of(int fl)
{
    if (fl & O_PATH)
        return 0;
    switch (fl & O_ACCMODE) {
    case O_RDONLY:
        return RIGHT_READ;
    case O_WRONLY:
        return RIGHT_WRITE;
    case O_RDWR:
        return RIGHT_READ | RIGHT_WRITE;
    default:
        return 0; /* 3: opened for ioctls alone */
    }
}

int prove_descriptor(int fd, uint64_t ino, const char *source, uid_t owner, unsigned *may)
{
    struct statx st;
    char *mounts;
    int fl, ret;

    fl = fcntl(fd, F_GETFL);
    if (fl < 0 || !(*may = access_of(fl)))
        return base_refuse(-EACCES, "the descriptor is neither for reading nor for writing");
    /* The device's number is the kernel's own and costs no question. */
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &st) < 0)
        return base_refuse(-EACCES, "the descriptor cannot be looked at");
    mounts = read_mountinfo();
    if (!mounts)
        return base_refuse(-EACCES, "the mounts cannot be read");
    ret = prove_mount(mounts, makedev(st.stx_dev_major, st.stx_dev_minor), source, owner);
    free(mounts);
    if (ret < 0)
        return base_refuse(ret, "the descriptor is not of a mount of %s", source);
    if (st.stx_ino != ino || !S_ISREG(st.stx_mode))
        return base_refuse(-EACCES, "the descriptor is of inode %llu",
                           (unsigned long long)st.stx_ino);
    return 0;
}

int session_prove(struct session *s, uint32_t handle, uint64_t ino, int fd)
{
    struct dfe_pool_info info;
    char source[sizeof(info.label) + 130];
    struct handle *h;
    unsigned may = 0;
    int ret;

    ret = session_use(s, handle, HANDLE_FS, &h);
    if (ret < 0)
        return base_refuse(ret, "%u is no file system's handle", handle);
    ret = dfe_pool_query(s->host->pool, &info);
    snprintf(source, sizeof(source), "%s/%s%s%s", info.label, h->hc->label,
             h->hc->snapshot[0] ? "@" : "", h->hc->snapshot);
    session_unuse(s, h);
    /* Without the handle: nobody has to wait for a descriptor that does not answer. */
    if (ret == 0)
        ret = prove_descriptor(fd, ino, source, s->host->uid, &may);
    if (ret == 0)
        ret = session_use(s, handle, HANDLE_FS, &h);
    if (ret < 0)
        return ret;
    rights_prove(s, h->hc, ino, may);
    session_unuse(s, h);
    return 0;
}
