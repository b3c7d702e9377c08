/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive circular doubly linked list. The head is a node of its own. */
#ifndef DFE_BASE_LIST_H
#define DFE_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#define list_for_each(pos, head) \
    for (struct list *pos = (head)->next; pos != (head); pos = pos->next)

/* Safe against removal of `pos`. */
#define list_for_each_safe(pos, tmp, head) \
    for (struct list *pos = (head)->next, *tmp = pos->next; pos != (head); \
         pos = tmp, tmp = pos->next)

static inline void list_init(struct list *l)
{
    l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

static inline void list_add_tail(struct list *head, struct list *l)
{
    l->prev = head->prev;
    l->next = head;
    head->prev->next = l;
    head->prev = l;
}

static inline void list_add(struct list *head, struct list *l)
{
    list_add_tail(head->next, l);
}

/* Leaves `l` as an empty list, so that a second removal is harmless. */
static inline void list_del(struct list *l)
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
    list_init(l);
}

/* Moves all of `from` to the end of `to`. */
static inline void list_splice_tail(struct list *to, struct list *from)
{
    if (list_empty(from))
        return;
    from->next->prev = to->prev;
    from->prev->next = to;
    to->prev->next = from->next;
    to->prev = from->prev;
    list_init(from);
}

#endif
