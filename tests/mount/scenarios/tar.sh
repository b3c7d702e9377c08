# SPDX-License-Identifier: Apache-2.0
# An archive made on the host's file system is unpacked, compared, packed again.
words=(--xattrs --acls --sparse --format=posix --sort=name)
words+=(--pax-option='exthdr.name=%d/%f,delete=atime,delete=ctime')
tar "${words[@]}" -C "$SOURCE/tree" -cf tree.tar .
mkdir copy
tar "${words[@]}" --xattrs-include='*' -C copy -xpf tree.tar
tar -C copy -df tree.tar
tar "${words[@]}" -C copy/stdlib -cf again.tar .
tar -tvf again.tar | wc -l
tar -C copy/stdlib --sort=name -cf - . | gzip -n >pipe.tar.gz
tar -tzf pipe.tar.gz | tail -n 3
tar --append -f again.tar -C "$SOURCE" --mtime=@1 more
tar --delete -f again.tar more/text
