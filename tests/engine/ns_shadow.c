/* SPDX-License-Identifier: Apache-2.0 */
/* The tree that is obviously right. */
#include "ns_shadow.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static bool is_dir(const struct shadow *s, int node)
{
    return S_ISDIR(s->node[node].mode);
}

void shadow_init(struct shadow *s, uint32_t root_mode)
{
    memset(s, 0, sizeof(*s));
    s->node[1] = (struct shadow_node){.ino = 1, .mode = root_mode, .nlink = 2, .parent = 1};
}

int shadow_create(struct shadow *s, int dir, int name, uint32_t mode, int *node)
{
    if (s->node[dir].entry[name])
        return -EEXIST;
    for (int i = 2; i < SHADOW_NODES; i++) {
        if (s->node[i].nlink > 0)
            continue;
        memset(&s->node[i], 0, sizeof(s->node[i]));
        s->node[i].mode = mode;
        s->node[i].nlink = S_ISDIR(mode) ? 2 : 1;
        s->node[i].parent = (int16_t)dir;
        s->node[dir].entry[name] = (int16_t)i;
        s->node[dir].nlink += S_ISDIR(mode);
        *node = i;
        return 0;
    }
    return -ENFILE;
}

int shadow_link(struct shadow *s, int node, int dir, int name)
{
    if (is_dir(s, node))
        return -EPERM;
    if (s->node[dir].entry[name])
        return -EEXIST;
    s->node[dir].entry[name] = (int16_t)node;
    s->node[node].nlink++;
    return 0;
}

unsigned shadow_entries(const struct shadow *s, int dir)
{
    unsigned n = 0;

    for (int i = 0; i < SHADOW_NAMES; i++)
        n += s->node[dir].entry[i] != 0;
    return n;
}

static void drop(struct shadow *s, int dir, int node)
{
    if (is_dir(s, node)) {
        s->node[node].nlink = 0;
        s->node[dir].nlink--;
    } else {
        s->node[node].nlink--;
    }
}

int shadow_remove(struct shadow *s, int dir, int name, bool rmdir)
{
    int node = s->node[dir].entry[name];

    if (!node)
        return -ENOENT;
    if (is_dir(s, node) != rmdir)
        return rmdir ? -ENOTDIR : -EISDIR;
    if (rmdir && shadow_entries(s, node) > 0)
        return -ENOTEMPTY;
    s->node[dir].entry[name] = 0;
    drop(s, dir, node);
    return 0;
}

static bool below(const struct shadow *s, int dir, int top)
{
    while (dir != top && dir != 1)
        dir = s->node[dir].parent;
    return dir == top;
}

int shadow_rename(struct shadow *s, int dir, int name, int new_dir, int new_name, bool noreplace,
                  bool exchange)
{
    int from = s->node[dir].entry[name], to = s->node[new_dir].entry[new_name];

    if (noreplace && exchange)
        return -EINVAL;
    if (!from)
        return -ENOENT;
    if (noreplace && to)
        return -EEXIST;
    if (exchange && !to)
        return -ENOENT;
    if (is_dir(s, from) && below(s, new_dir, from))
        return -EINVAL;
    if (exchange && is_dir(s, to) && below(s, dir, to))
        return -EINVAL;
    if (to && to != from && !exchange) {
        if (is_dir(s, from) != is_dir(s, to))
            return is_dir(s, from) ? -ENOTDIR : -EISDIR;
        if (is_dir(s, to) && shadow_entries(s, to) > 0)
            return -ENOTEMPTY;
    }
    if (from == to)
        return 0;
    if (is_dir(s, from)) {
        s->node[dir].nlink--;
        s->node[new_dir].nlink++;
        s->node[from].parent = (int16_t)new_dir;
    }
    s->node[new_dir].entry[new_name] = (int16_t)from;
    if (exchange && is_dir(s, to)) {
        s->node[new_dir].nlink--;
        s->node[dir].nlink++;
        s->node[to].parent = (int16_t)dir;
    }
    s->node[dir].entry[name] = (int16_t)(exchange ? to : 0);
    if (to && !exchange)
        drop(s, new_dir, to);
    return 0;
}

bool shadow_where(const struct shadow *s, int node, int *dir, int *name)
{
    for (int d = 1; d < SHADOW_NODES; d++) {
        for (int i = 0; i < SHADOW_NAMES && s->node[d].nlink > 0; i++) {
            if (s->node[d].entry[i] == node) {
                *dir = d;
                *name = i;
                return true;
            }
        }
    }
    return false;
}

unsigned shadow_depth(const struct shadow *s, int dir)
{
    unsigned n = 0;

    while (dir != 1) {
        dir = s->node[dir].parent;
        n++;
    }
    return n;
}
