/* SPDX-License-Identifier: Apache-2.0 */
/* Every limit of the engine, with its unit and its reason. Hitting one gives a defined error. */
#ifndef DFE_BASE_LIMITS_H
#define DFE_BASE_LIMITS_H

/* Data block: the unit of allocation, of copy-on-write and of one checksum. Page size of x86 and
 * arm64 hosts, logical block of most NVMe devices (or a multiple of it). */
#define DFE_BLOCK_BYTES 4096u
#define DFE_BLOCK_SHIFT 12

/* Blocks of one extent: 1 MiB, the largest FUSE request; its checksums fit one index value. */
#define DFE_EXTENT_BLOCKS 256u

/* Allocation segment: 128 MiB = 32,768 blocks, one 4 KiB bitmap. */
#define DFE_SEGMENT_BYTES (128u << 20)
#define DFE_SEGMENT_BLOCKS (DFE_SEGMENT_BYTES / DFE_BLOCK_BYTES)

/* Encoded index key: LMDB's compiled-in maximum. A longer key is -ENAMETOOLONG. */
#define DFE_KEY_BYTES 511u

/* Inline data: with its head (16), epoch (8) and checksum (4) the value fills one overflow page of
 * the index (4,096 less LMDB's header of 16). */
#define DFE_INLINE_BYTES 4052u

/* One transaction. More is -E2BIG; longer work is a continuation record. */
#define DFE_TX_BYTES (4u << 20)
#define DFE_TX_OPS 10000u

/* Data that may travel inside a journal record at fsync: above this, one more device write costs
 * less than copying the data twice. */
#define DFE_JOURNAL_DATA_BYTES (64u << 10)

/* Names and targets, as Linux has them. */
#define DFE_NAME_BYTES 255u
#define DFE_SYMLINK_BYTES 4095u
#define DFE_XATTR_NAME_BYTES 255u
#define DFE_XATTR_VALUE_BYTES 65536u /* XATTR_SIZE_MAX of Linux; larger is -E2BIG */
#define DFE_LINK_MAX 1000000u        /* hard links of one inode; more is -EMLINK */

/* File size: 16 TiB - 1, ext4's limit with 4 KiB blocks. Beyond it is -EFBIG. */
#define DFE_FILE_BYTES ((16ull << 40) - 1)

/* Labels of pools, containers and snapshots: [A-Za-z0-9._-], not starting with '.' or '-'. */
#define DFE_LABEL_BYTES 63u

/* Arena extents: made and released whole. Large enough for hugepages, small enough to give back;
 * and a new one stops its caller, since registering it with the kernel touches all of it: 64 MiB
 * took up to 260 ms on a virtual machine. */
#define DFE_ARENA_EXTENT_BYTES (8u << 20)

/* Cache slots. */
#define DFE_SLOT_MIN_BYTES 4096u
#define DFE_SLOT_MAX_BYTES (1u << 20)

/* Oldest age of dirty data while the device keeps up, milliseconds. */
#define DFE_COMMIT_INTERVAL_MS 1000u

#endif
