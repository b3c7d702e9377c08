/* SPDX-License-Identifier: Apache-2.0 */
/* Values of the extent tables: parsing, cutting. */
#include "obj/obj_int.h"

int ext_parse(const void *key, size_t klen, const void *val, size_t vlen, struct ext *e)
{
    const uint8_t *v = val;
    size_t body;

    if (vlen < sizeof(struct fmt_ext) + FMT_BIRTH_BYTES || key_parse_ext(key, klen, &e->off) < 0)
        return -EUCLEAN;
    body = vlen - sizeof(struct fmt_ext) - FMT_BIRTH_BYTES;
    e->blk = get_le64(v + offsetof(struct fmt_ext, blk));
    e->n = get_le32(v + offsetof(struct fmt_ext, n));
    e->type = v[offsetof(struct fmt_ext, type)];
    e->bytes = 0;
    e->body = v + sizeof(struct fmt_ext);
    e->birth = get_le64(v + vlen - FMT_BIRTH_BYTES);
    if (e->type == FMT_INLINE) {
        if (e->n == 0 || e->n > DFE_INLINE_BYTES || body != e->n || e->off != 0)
            return -EUCLEAN;
        e->bytes = e->n;
        e->n = 1;
        return 0;
    }
    if (e->type != FMT_EXTENT || e->n == 0 || e->n > DFE_EXTENT_BLOCKS || body != e->n * 4u)
        return -EUCLEAN;
    return 0;
}

size_t ext_encode(uint8_t *out, const struct ext *e, uint32_t from, uint32_t n)
{
    bool is_inline = e->type == FMT_INLINE;
    size_t body = is_inline ? e->bytes : n * 4u;

    DFE_ASSERT(n > 0 && from + n <= e->n);
    memset(out, 0, sizeof(struct fmt_ext));
    put_le64(out + offsetof(struct fmt_ext, blk), is_inline ? 0 : e->blk + from);
    put_le32(out + offsetof(struct fmt_ext, n), is_inline ? e->bytes : n);
    out[offsetof(struct fmt_ext, type)] = e->type;
    memcpy(out + sizeof(struct fmt_ext), e->body + (is_inline ? 0 : from * 4u), body);
    put_le64(out + sizeof(struct fmt_ext) + body, e->birth);
    return sizeof(struct fmt_ext) + body + FMT_BIRTH_BYTES;
}

bool ext_in_device(const struct obj_pool *pool, const struct ext *e)
{
    uint64_t first = pool->super.data_blk, n = pool->super.data_len_blk;

    return e->type == FMT_INLINE ||
           (e->blk >= first && e->blk - first < n && e->n <= n - (e->blk - first));
}
