/* SPDX-License-Identifier: Apache-2.0 */
/* The pool's text record, labels and uuids. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "obj/super.h"

#define RECORD_TITLE "dfusepy pool"
#define RECORD_BYTES 1024

void uuid_text(const uint8_t uuid[16], char text[37])
{
    char *p = text;

    for (int i = 0; i < 16; i++)
        p += sprintf(p, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

int uuid_parse(const char *text, uint8_t uuid[16])
{
    static const char digits[] = "0123456789abcdef";

    if (strlen(text) != 36)
        return -EINVAL;
    for (int i = 0; i < 16; i++) {
        const char *hi, *lo;
        if ((i == 4 || i == 6 || i == 8 || i == 10) && *text++ != '-')
            return -EINVAL;
        hi = strchr(digits, *text++ | 0x20);
        lo = strchr(digits, *text++ | 0x20);
        if (!hi || !lo || !*hi || !*lo)
            return -EINVAL;
        uuid[i] = (uint8_t)((hi - digits) << 4 | (lo - digits));
    }
    return 0;
}

int uuid_make(uint8_t uuid[16])
{
    if (getrandom(uuid, 16, 0) != 16)
        return base_fail(-EIO, "no source of randomness");
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40);
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
    return 0;
}

bool label_ok(const char *label)
{
    static const char chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n = strlen(label);

    return n >= 1 && n <= DFE_LABEL_BYTES && label[0] != '.' && label[0] != '-' &&
           strspn(label, chars) == n;
}

static bool device_ok(const char *device, size_t cap)
{
    size_t n = strnlen(device, cap);

    return n >= 1 && n < cap && !strpbrk(device, "\n\r");
}

/* A whole small file, durable. */
static int write_file(int dir, const char *name, const char *text)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    size_t len = strlen(text);
    ssize_t n;
    int err = 0;

    if (fd < 0)
        return -errno;
    n = write(fd, text, len);
    if (n < 0)
        err = -errno;
    else if ((size_t)n != len)
        err = -ENOSPC;
    else if (fsync(fd) < 0)
        err = -errno;
    close(fd);
    return err;
}

int record_write(const char *pool_dir, const struct pool_record *r)
{
    char text[RECORD_BYTES], uuid[37];
    int err, dir;

    if (strnlen(r->label, sizeof(r->label)) == sizeof(r->label) || !label_ok(r->label))
        return base_refuse(-EINVAL, "a label has 1 to 63 of A-Z a-z 0-9 . _ - and begins with "
                                    "none of . -");
    if (!device_ok(r->device, sizeof(r->device)))
        return base_refuse(-EINVAL, "a device has 1 to 255 bytes without line ends");
    uuid_text(r->uuid, uuid);
    snprintf(text, sizeof(text), RECORD_TITLE "\nformat=%u\nuuid=%s\nlabel=%s\ndevice=%s\n",
             r->format, uuid, r->label, r->device);
    dir = open(pool_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return base_fail(-errno, "cannot open %s: %s", pool_dir, strerror(errno));
    err = write_file(dir, "pool.new", text);
    if (err == 0 && (renameat(dir, "pool.new", dir, "pool") < 0 || fsync(dir) < 0))
        err = -errno;
    close(dir);
    return err ? base_fail(err, "cannot write %s/pool: %s", pool_dir, strerror(-err)) : 0;
}

/* Cuts the next line off; NULL when no whole line is left. */
static char *next_line(char **rest)
{
    char *line = *rest, *end = strchr(line, '\n');

    if (!end)
        return NULL;
    *end = '\0';
    *rest = end + 1;
    return line;
}

/* The value of "name=value", or NULL. */
static const char *field(char **rest, const char *name)
{
    size_t n = strlen(name);
    char *line = next_line(rest);

    return line && strncmp(line, name, n) == 0 && line[n] == '=' ? line + n + 1 : NULL;
}

static int parse(char *text, struct pool_record *out)
{
    const char *title = next_line(&text), *v;
    char *end;
    unsigned long format;

    if (!title || strcmp(title, RECORD_TITLE) != 0)
        return -EUCLEAN;
    v = field(&text, "format");
    if (!v || *v < '1' || *v > '9')
        return -EUCLEAN;
    errno = 0;
    format = strtoul(v, &end, 10);
    if (*end || errno || format > UINT32_MAX)
        return -EUCLEAN;
    if (format > SUPER_FORMAT)
        return -EPROTONOSUPPORT;
    out->format = (uint32_t)format;
    v = field(&text, "uuid");
    if (!v || uuid_parse(v, out->uuid))
        return -EUCLEAN;
    v = field(&text, "label");
    if (!v || !label_ok(v))
        return -EUCLEAN;
    strcpy(out->label, v);
    v = field(&text, "device");
    if (!v || !device_ok(v, sizeof(out->device)) || *text)
        return -EUCLEAN;
    strcpy(out->device, v);
    return 0;
}

int record_read(const char *pool_dir, struct pool_record *out)
{
    char path[PATH_MAX], text[RECORD_BYTES];
    ssize_t n;
    int fd, err;

    if (snprintf(path, sizeof(path), "%s/pool", pool_dir) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return base_refuse(-errno, "no pool at %s: %s", pool_dir, strerror(errno));
    n = read(fd, text, sizeof(text) - 1);
    err = errno;
    close(fd);
    if (n < 0)
        return base_fail(-err, "cannot read %s: %s", path, strerror(err));
    text[n] = '\0';
    memset(out, 0, sizeof(*out));
    err = strlen(text) == (size_t)n ? parse(text, out) : -EUCLEAN;
    if (err == -EPROTONOSUPPORT)
        return base_fail(err, "%s: written by a newer version", path);
    return err ? base_fail(err, "%s: damaged", path) : 0;
}
