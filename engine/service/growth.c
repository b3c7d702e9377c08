/* SPDX-License-Identifier: Apache-2.0 */
/* Files that grow under the kernels of mounts: a short list of changes under way. */
#include "service/growth.h"

#include "base/assert.h"

void growth_open(struct growth *growth)
{
    pthread_mutex_init(&growth->lock, NULL);
    list_init(&growth->growing);
    atomic_store(&growth->n, 0);
}

void growth_close(struct growth *growth)
{
    DFE_ASSERT(list_empty(&growth->growing));
    pthread_mutex_destroy(&growth->lock);
}

void growth_begin(struct growth *growth, struct growing *change, const struct face *self)
{
    change->before = UINT64_MAX;
    change->self = self;
    change->noted = true;
    pthread_mutex_lock(&growth->lock);
    list_add_tail(&growth->growing, &change->link);
    atomic_fetch_add(&growth->n, 1);
    pthread_mutex_unlock(&growth->lock);
}

void growth_before(struct growth *growth, struct growing *change, uint64_t size)
{
    pthread_mutex_lock(&growth->lock);
    change->before = size;
    pthread_mutex_unlock(&growth->lock);
}

/* Under the lock. */
static void tell(struct growth *growth, uint64_t ino, uint64_t size)
{
    list_for_each(l, &growth->growing)
    {
        struct growing *change = container_of(l, struct growing, link);

        if (change->ino == ino && change->told < size)
            change->told = size;
    }
}

void growth_end(struct growth *growth, struct growing *change)
{
    if (atomic_load(&growth->n) == 0)
        return;
    pthread_mutex_lock(&growth->lock);
    if (change->noted) {
        list_del(&change->link);
        atomic_fetch_sub(&growth->n, 1);
        change->noted = false;
    }
    tell(growth, change->ino, change->after);
    pthread_mutex_unlock(&growth->lock);
}

void growth_hide(struct growth *growth, const struct face *face, struct dfe_attr *attr)
{
    if (atomic_load(&growth->n) == 0)
        return;
    pthread_mutex_lock(&growth->lock);
    list_for_each(l, &growth->growing)
    {
        const struct growing *change = container_of(l, struct growing, link);
        uint64_t least = change->before > change->told ? change->before : change->told;

        if (change->ino != attr->ino || (face && change->self == face))
            continue;
        attr->flags |= DFE_ATTR_SHARED;
        if (attr->size > least)
            attr->size = least;
    }
    tell(growth, attr->ino, attr->size);
    pthread_mutex_unlock(&growth->lock);
}
