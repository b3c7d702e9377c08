/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that clients show: of which file system of ours, and of which inode, they are. */
#ifndef DFE_SERVICE_PROVE_H
#define DFE_SERVICE_PROVE_H

#include <stdint.h>
#include <sys/types.h>

/* Is the device a mount of POOL/CONTAINER[@SNAPSHOT] that the owner or root made? Looks in the text
 * of a mountinfo(5). Anybody may mount something that calls itself so; but whose it is, the kernel
 * says. */
int prove_mount(const char *mountinfo, dev_t dev, const char *source, uid_t owner);

/* 0 with what the descriptor allows (RIGHT_*), -EACCES: it is not what it should be. */
int prove_descriptor(int fd, uint64_t ino, const char *source, uid_t owner, unsigned *may);

#endif
