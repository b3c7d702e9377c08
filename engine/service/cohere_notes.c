/* SPDX-License-Identifier: Apache-2.0 */
/* Coherence: names that are about to change, and what changed lately. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "service/cohere_int.h"

#define SHARED_NS 5000000000ull
#define WRITER_PLACES 8u /* where an inode's last write may be noted */

/* -- names ------------------------------------------------------------------------------------ */

uint64_t cohere_name(uint64_t dir, const void *name, size_t len)
{
    const unsigned char *at = name;
    uint64_t hash = dir;

    for (size_t i = 0; i < len; i++)
        hash = (hash ^ at[i]) * 0x9e3779b97f4a7c15ull;
    return 1ull << (hash >> 32) % COHERE_NAMES;
}

int cohere_names_lock(struct cohere *co, uint64_t names, bool may_wait)
{
    for (unsigned i = 0; i < COHERE_NAMES; i++) {
        if (!(names >> i & 1))
            continue;
        if (may_wait) {
            pthread_mutex_lock(&co->names[i]);
        } else if (pthread_mutex_trylock(&co->names[i])) {
            cohere_names_unlock(co, names & ((1ull << i) - 1));
            return -EINPROGRESS;
        }
    }
    return 0;
}

void cohere_names_unlock(struct cohere *co, uint64_t names)
{
    for (unsigned i = 0; i < COHERE_NAMES; i++) {
        if (names >> i & 1)
            pthread_mutex_unlock(&co->names[i]);
    }
}

void cohere_names_pass(struct cohere *co)
{
    for (unsigned i = 0; i < COHERE_NAMES; i++) {
        pthread_mutex_lock(&co->names[i]);
        pthread_mutex_unlock(&co->names[i]);
    }
}

/* -- who writes ------------------------------------------------------------------------------- */

/* The inode's place, or else one that is free, or the one that is longest ago. */
static struct writer *writer_slot(struct writers *of, uint64_t ino)
{
    uint64_t home = ino * 0x9e3779b97f4a7c15ull >> 32;
    struct writer *best = NULL;

    for (unsigned i = 0; i < WRITER_PLACES; i++) {
        struct writer *w = &of->slots[(home + i) % WRITERS];

        if (w->ino == ino)
            return w;
        if (!best || w->at_ns < best->at_ns) /* free: 0 */
            best = w;
    }
    return best;
}

static void note(struct cohere *co, struct writers *of, uint64_t ino)
{
    struct writer *w;

    pthread_mutex_lock(&co->lock);
    w = writer_slot(of, ino);
    if (w->ino != ino && w->at_ns > of->displaced_ns)
        of->displaced_ns = w->at_ns;
    *w = (struct writer){ino, base_mono_ns()};
    pthread_mutex_unlock(&co->lock);
}

/* When that was the last time, or later; 0: never. */
static uint64_t noted_at(struct cohere *co, struct writers *of, uint64_t ino)
{
    const struct writer *w;
    uint64_t at_ns;

    pthread_mutex_lock(&co->lock);
    w = writer_slot(of, ino);
    at_ns = w->ino == ino ? w->at_ns : of->displaced_ns;
    pthread_mutex_unlock(&co->lock);
    return at_ns;
}

void cohere_wrote(struct cohere *co, uint64_t ino)
{
    note(co, &co->wrote, ino);
}

bool cohere_shared(struct cohere *co, uint64_t ino)
{
    uint64_t at_ns = noted_at(co, &co->wrote, ino);

    return at_ns && base_mono_ns() - at_ns < SHARED_NS;
}

bool cohere_young(struct cohere *co)
{
    return base_mono_ns() - co->opened_ns < LATELY_NS;
}

void cohere_changed(struct cohere *co, uint64_t ino)
{
    if (cohere_young(co))
        note(co, &co->changed, ino);
}

bool cohere_changed_lately(struct cohere *co, uint64_t ino)
{
    uint64_t at_ns = noted_at(co, &co->changed, ino);

    return at_ns && base_mono_ns() - at_ns < LATELY_NS;
}

/* One that came back after a restart may know what nobody here knows of. */
bool face_alone(struct face *face, uint64_t ino)
{
    return !face->back && noted_at(face->co, &face->co->wrote, ino) == 0;
}

void cohere_renamed(struct cohere *co, uint64_t dir, const char *name, uint32_t name_len)
{
    if (!cohere_young(co))
        return;
    pthread_mutex_lock(&co->lock);
    if (!co->renamed)
        co->renamed = calloc(RENAMED, sizeof(*co->renamed));
    if (co->renamed) {
        struct renamed *r = &co->renamed[co->n_renamed++ % RENAMED];

        r->dir = dir;
        r->name_len = name_len;
        memcpy(r->name, name, name_len);
    }
    pthread_mutex_unlock(&co->lock);
}
