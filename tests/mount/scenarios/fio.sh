# SPDX-License-Identifier: Apache-2.0
# Each block holds its offset; random writes in all engines, verified.
words=(--size=4m --rw=randwrite --verify=pattern '--verify_pattern=%o' --verify_state_save=0)
words+=(--randseed=7 --fallocate=none --end_fsync=1 --output-format=terse --output=told)
for engine in psync sync libaio io_uring mmap; do
    fio --name="$engine" "${words[@]}" --bs=4k --iodepth=8 --ioengine="$engine" --fsync=300
done
fio --name=two "${words[@]}" --bs=16k --numjobs=2 --ioengine=psync
fio --name=vector "${words[@]}" --bs=4k --ioengine=pvsync
fio --name=direct "${words[@]}" --bs=4k --direct=1 --ioengine=libaio --iodepth=4
rm told
