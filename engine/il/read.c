/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading pieces of files: by leases that are remembered, by new ones, at last by asking for bytes.
 *
 * Leases are remembered by (mount, inode, piece): pieces of 64 KiB, and of 4 KiB for leases that
 * are shorter. A lease that covers many pieces is entered under each. Entries are overwritten
 * freely; a reader takes a copy under the entry's sequence number and lets the client check it.
 */
#include "il/il.h"

#include <string.h>

enum { LARGE_SHIFT = 16, SMALL_SHIFT = 12 };

#define NO_WINDOW_AFTER 8u /* refusals of an extent in a row, before no more are asked for */
#define WORDS (sizeof(struct proto_lease) / sizeof(uint64_t))

static struct il_lease *entry_of(const struct il_file *file, uint64_t off, int shift)
{
    uint64_t hash = (file->ino * 64 + file->dev) * 0x9E3779B97F4A7C15ull;

    /* Neighbouring pieces lie side by side. */
    return &il->lease[((hash >> 40) + (off >> shift)) % IL_LEASES];
}

static uint64_t key_of(uint64_t off, int shift)
{
    return (off >> shift) << 8 | (uint64_t)shift;
}

static bool entry_get(const struct il_file *file, uint64_t off, int shift, struct proto_lease *out)
{
    struct il_lease *entry = entry_of(file, off, shift);
    uint32_t seq = atomic_load_explicit(&entry->seq, memory_order_acquire);
    uint64_t words[WORDS];

    if (seq % 2 || __atomic_load_n(&entry->key, __ATOMIC_RELAXED) != key_of(off, shift) ||
        __atomic_load_n(&entry->dev, __ATOMIC_RELAXED) != file->dev) {
        return false;
    }
    for (unsigned i = 0; i < WORDS; i++) {
        words[i] = __atomic_load_n((uint64_t *)&entry->lease + i, __ATOMIC_RELAXED);
    }
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&entry->seq, memory_order_relaxed) != seq) {
        return false;
    }
    memcpy(out, words, sizeof(*out));
    return out->ino == file->ino;
}

/* key 0: forgets what is there. A writer that finds another one at it leaves it alone. */
static void entry_put(struct il_lease *entry, uint64_t key, uint32_t dev,
                      const struct proto_lease *lease)
{
    uint32_t seq = atomic_load_explicit(&entry->seq, memory_order_relaxed);
    uint64_t words[WORDS];

    if (seq % 2 || !atomic_compare_exchange_strong(&entry->seq, &seq, seq + 1)) {
        return;
    }
    atomic_thread_fence(memory_order_release);
    __atomic_store_n(&entry->key, key, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->dev, dev, __ATOMIC_RELAXED);
    memcpy(words, lease, sizeof(words));
    for (unsigned i = 0; i < WORDS; i++) {
        __atomic_store_n((uint64_t *)&entry->lease + i, words[i], __ATOMIC_RELAXED);
    }
    atomic_store_explicit(&entry->seq, seq + 2, memory_order_release);
}

static void lease_remember(const struct il_file *file, const struct proto_lease *lease)
{
    int shift = lease->len >= 1u << LARGE_SHIFT ? LARGE_SHIFT : SMALL_SHIFT;
    uint64_t end = lease->file_off + lease->len;

    for (uint64_t off = lease->file_off; off < end; off = ((off >> shift) + 1) << shift) {
        entry_put(entry_of(file, off, shift), key_of(off, shift), file->dev, lease);
    }
}

static void lease_forget(const struct il_file *file, uint64_t off, int shift)
{
    static const struct proto_lease none;

    entry_put(entry_of(file, off, shift), 0, 0, &none);
}

ssize_t il_lease_read(const struct il_file *file, uint64_t off, void *dst, size_t len)
{
    static const int shifts[] = {LARGE_SHIFT, SMALL_SHIFT};
    struct client *client = il->dev[file->dev].client;
    struct proto_lease lease;

    for (unsigned i = 0; i < 2; i++) {
        if (entry_get(file, off, shifts[i], &lease)) {
            ssize_t got = client_lease_read(client, &lease, off, dst, len);
            if (got >= 0) {
                return got;
            }
            lease_forget(file, off, shifts[i]);
        }
    }
    return -ENOENT;
}

/* Asks for a lease at off and reads by it. -ENOENT: none was to be had. -EACCES: this user may not
 * see the memory, or not read the file: reading by message tells. */
static ssize_t read_by_new_lease(const struct il_file *file, uint64_t off, void *dst, size_t len)
{
    struct il_dev *dev = &il->dev[file->dev];
    struct client_call call = {
        .sqe = {.op = PROTO_LEASE, .handle = dev->handle, .ino = file->ino, .off = off,
                .len = (uint32_t)len},
        .reply_cap = sizeof(struct proto_lease),
    };
    struct client *client = dev->client;
    struct proto_lease lease;
    int64_t ret = client ? client_do(client, &call) : -EOWNERDEAD;

    if (ret < 0) {
        return ret == -EACCES || ret == -EOWNERDEAD ? (ssize_t)ret : -ENOENT;
    }
    if (call.cqe.reply_len != sizeof(lease)) {
        return -ENOENT;
    }
    memcpy(&lease, call.reply, sizeof(lease));
    if (lease.ino != file->ino || off < lease.file_off || off - lease.file_off >= lease.len) {
        return -ENOENT;
    }
    if (!client_map_extent(client, lease.extent, lease.stamp)) {
        return -EACCES;
    }
    atomic_store_explicit(&dev->no_window, 0, memory_order_relaxed);
    ssize_t got = client_lease_read(client, &lease, off, dst, len);
    if (got < 0) {
        return -ENOENT;
    }
    lease_remember(file, &lease);
    return got;
}

static ssize_t read_by_message(const struct il_file *file, uint64_t off, void *dst, size_t len)
{
    struct il_dev *dev = &il->dev[file->dev];
    struct client_call call = {
        .sqe = {.op = PROTO_READ, .handle = dev->handle, .ino = file->ino, .off = off},
    };

    call.reply_cap = len < IL_PUSH_BYTES ? len : IL_PUSH_BYTES;
    call.sqe.len = (uint32_t)call.reply_cap;
    int64_t ret = il_ask(dev, &call);
    if (ret > 0) {
        if ((uint64_t)ret > call.reply_cap || call.cqe.reply_len < ret) {
            return -EPROTO;
        }
        memcpy(dst, call.reply, (size_t)ret);
    }
    return (ssize_t)ret;
}

ssize_t il_read_piece(const struct il_file *file, uint64_t off, void *dst, size_t len)
{
    struct il_dev *dev = &il->dev[file->dev];
    ssize_t got = il_lease_read(file, off, dst, len);

    for (int try = 0; got == -ENOENT && try < 2; try++) {
        if (atomic_load_explicit(&dev->no_window, memory_order_relaxed) >= NO_WINDOW_AFTER) {
            break;
        }
        got = read_by_new_lease(file, off, dst, len);
    }
    bool no_window = got == -EACCES;
    if (no_window || got == -ENOENT) {
        got = read_by_message(file, off, dst, len);
    }
    if (no_window && got > 0) {
        atomic_fetch_add_explicit(&dev->no_window, 1, memory_order_relaxed);
    }
    return got;
}
