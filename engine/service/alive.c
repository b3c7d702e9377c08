/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's death, told by the kernel: the word in line 0 of the tables of leases is a robust
 * futex that the worker's main thread holds as long as it serves.
 *
 * Who reads by leases sends no message and looks at no socket; supervisor and worker killed at once
 * leave tables that nobody touches any more. The kernel goes through a dying thread's robust list
 * while it lets go of its memory, before the process's descriptors, and so the locks of the pool,
 * are free: whatever a later service changes, it changes after the word says so, and who finds the
 * word unmarked after a copy has read what was right then. A pidfd polled now and then would only
 * bound the delay, and cost a system call each time.
 *
 * The list is the thread's own, in place of libc's, which serves robust mutexes: nobody has any
 * here. Its head and entry are private memory; only the word is where clients can see it.
 */
#include "service/alive.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/window.h"

_Static_assert(WINDOW_DEAD == FUTEX_OWNER_DIED, "the kernel's bit");

static struct robust_list entry;
static struct robust_list_head head; /* one a process: of its main thread */
static void *libcs;
static size_t libcs_bytes;

static uint32_t *word_of(const struct keep_tables *tables)
{
    return &((struct proto_line *)tables->lines)[0].alive;
}

void alive_begin(const struct keep_tables *tables)
{
    if (!tables)
        return;
    head.list.next = &entry;
    head.futex_offset = (long)((uintptr_t)word_of(tables) - (uintptr_t)&entry);
    entry.next = &head.list;
    if (syscall(SYS_get_robust_list, 0, &libcs, &libcs_bytes) < 0 ||
        syscall(SYS_set_robust_list, &head, sizeof(head)) < 0) {
        base_log(BASE_LOG_WARN, "readers by leases will not learn of this process's death");
        return;
    }
    /* Release: whoever sees it finds the generations of this worker. */
    __atomic_store_n(word_of(tables), (uint32_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
}

void alive_end(const struct keep_tables *tables)
{
    if (!tables || !libcs)
        return;
    __atomic_store_n(word_of(tables), WINDOW_DEAD, __ATOMIC_RELEASE);
    syscall(SYS_set_robust_list, libcs, libcs_bytes);
}
