/* SPDX-License-Identifier: Apache-2.0 */
/* A POSIX tree that is obviously right: fixed arrays, copied as a whole. Tests run the same calls
 * on it and on the namespace, and compare. */
#ifndef DFE_TEST_NS_SHADOW_H
#define DFE_TEST_NS_SHADOW_H

#include <stdbool.h>
#include <stdint.h>

#define SHADOW_NAMES 12
#define SHADOW_NODES 64

struct shadow_node {
    uint64_t ino;
    uint32_t mode, nlink;
    int16_t parent;              /* of a directory */
    int16_t entry[SHADOW_NAMES]; /* node by name, 0: none */
};

/* Node 1 is the root; nlink 0 is a free place. */
struct shadow {
    struct shadow_node node[SHADOW_NODES];
};

void shadow_init(struct shadow *s, uint32_t root_mode);
/* 0 and the new node, or the errno that the call must have. -ENFILE: the shadow is full, skip it.
 */
int shadow_create(struct shadow *s, int dir, int name, uint32_t mode, int *node);
int shadow_link(struct shadow *s, int node, int dir, int name);
int shadow_remove(struct shadow *s, int dir, int name, bool rmdir);
int shadow_rename(struct shadow *s, int dir, int name, int new_dir, int new_name, bool noreplace,
                  bool exchange);
/* Some (dir, name) of a node; false: the root, or free. */
bool shadow_where(const struct shadow *s, int node, int *dir, int *name);
unsigned shadow_depth(const struct shadow *s, int dir);
unsigned shadow_entries(const struct shadow *s, int dir);

#endif
