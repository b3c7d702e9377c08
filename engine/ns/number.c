/* SPDX-License-Identifier: Apache-2.0 */
/* Inode numbers: 64 bits, never reused. The upper bound of what may be in use is durable before a
 * number below it is handed out, so that a create touches its directory's object only. */
#include <errno.h>

#include "base/keep.h"
#include "base/words.h"
#include "ns/impl.h"

int number_take(struct ns_call *c, uint64_t *out)
{
    struct ns *ns = c->ns;

    if (ns->number_next >= ns->number_end)
        return call_need(c, NEED_NUMBERS);
    if (ns->number_end - ns->number_next == NS_NUMBER_BLOCK / 2)
        worker_kick(ns);
    /* A call that fails after this leaves a gap; nobody minds. */
    *out = ns->number_next++;
    return 0;
}

int number_extend(struct ns *ns)
{
    struct nsrec_key key;
    struct obj_tx *tx;
    uint64_t end;
    int err;

    pthread_mutex_lock(&ns->lock);
    end = ns->number_end + NS_NUMBER_BLOCK;
    pthread_mutex_unlock(&ns->lock);
    nsrec_key(&key, 'n', 0, NULL, 0);
    err = obj_tx_begin(ns->cont, nsrec_meta_id(), &tx);
    if (err)
        return err;
    err = obj_tx_max(tx, OBJ_HOME, nsrec_meta_id(), &key.key, end);
    keep_pause(ns->keep);
    if (err)
        obj_tx_abort(tx);
    else
        err = obj_tx_commit(tx, OBJ_SYNC, NULL);
    keep_resume(ns->keep);
    if (err)
        return err;
    pthread_mutex_lock(&ns->lock);
    if (ns->number_end < end)
        ns->number_end = end;
    pthread_mutex_unlock(&ns->lock);
    return 0;
}
