# SPDX-License-Identifier: Apache-2.0
# Sizes of blocks, offsets, flags; its report holds times, of which the counts are kept.
count() { dd "$@" 2>&1 | grep records; }
head -c 3000000 "$SOURCE/random" >in
count if=in of=plain bs=4096
count if=in of=odd bs=1000 skip=5 seek=7 count=1001
count if=in of=odd bs=333 conv=notrunc seek=1 count=500
count if=in of=sync bs=64k oflag=sync count=10
count if=in of=fsync bs=1M conv=fsync
count if=in of=direct bs=64k count=20 iflag=direct oflag=direct
count if=in of=append bs=5000 oflag=append conv=notrunc count=10
count if=in of=append bs=5000 oflag=append conv=notrunc skip=10 count=10
count if=/dev/zero of=holes bs=64k count=32 conv=sparse
count if=in of=holes bs=4k count=1 seek=600 conv=sparse,notrunc
count if=in of=swapped bs=512 conv=swab,sync
count if=in of=bytes bs=7k iflag=skip_bytes,count_bytes skip=12345 count=1234567
count if=in of=in bs=4k conv=notrunc
count if=in of=excl bs=1M conv=excl count=1
(dd if=in of=excl bs=1M conv=excl 2>&1 || true) | sed 's/.*: //'
cat in | count of=pipe bs=10k iflag=fullblock
sha256sum -- *
truncate -s 100 in
truncate -s +5000 in
stat -c %s in
