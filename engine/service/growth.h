/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that grow under the kernels of mounts.
 *
 * A kernel fills a page with zeros from the file's end on. One that read the last page before a
 * write beyond it, and hears of the new size while it still has that page, shows those zeros as
 * data: to whoever follows a log. It lets go of the page by the invalidation after the write. So
 * until that has been waited for, attributes that go to another mount have the size that the file
 * had before, and are not kept.
 *
 * An end that anybody has been told, or that an answered change gave the file while another was
 * under way, is no secret: whoever filled a page since has it up to there. That holds for a mount's
 * own writes, too, and for no more than these: dirty pages of its maps are written back up to the
 * end that its kernel knows, and where that is beyond what a page was filled with, as zeros.
 *
 * The lock inside is below all others.
 */
#ifndef DFE_SERVICE_GROWTH_H
#define DFE_SERVICE_GROWTH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "dfe_types.h"

struct face;

struct growth {
    pthread_mutex_t lock;
    struct list growing;
    atomic_uint n;
};

/* One change of one file's data; zeroed before its first use. */
struct growing {
    struct list link;
    const struct face *self; /* whose change it is; NULL: no mount's */
    uint64_t ino;
    uint64_t before;         /* the file's size; UINT64_MAX: not known yet */
    uint64_t told;           /* up to here it is no secret */
    uint64_t after;          /* the end of what the change itself wrote, 0: it wrote nothing */
    bool noted;
};

void growth_open(struct growth *growth);
void growth_close(struct growth *growth);
/* From before the change is applied until all mounts have let go of the file's pages. First it is
 * noted, then the size is looked at (growth_before): so what others do meanwhile is not missed. */
void growth_begin(struct growth *growth, struct growing *change, const struct face *self);
void growth_before(struct growth *growth, struct growing *change, uint64_t size);
/* The change is about to be answered, whether it was noted or not. */
void growth_end(struct growth *growth, struct growing *change);
/* What the mount may know of it; it was asked of the engine before. */
void growth_hide(struct growth *growth, const struct face *face, struct dfe_attr *attr);

#endif
