# SPDX-License-Identifier: Apache-2.0
# With holes, links and all attributes.
cp -a "$SOURCE/tree" copy
cp -a --sparse=always copy second
cp -a --reflink=never --sparse=never copy/odd/file third
cp -al copy/stdlib linked
cp --no-preserve=all copy/odd/file plain
cp --remove-destination "$SOURCE/more/text" third
cp --backup=numbered plain third
touch -d @1700000000.123456789 plain third third.~1~
for folder in copy second; do
    [ "$(stat -c %b $folder/odd/sparse)" -lt 20000 ] || echo "the holes are gone in $folder"
    cmp "$SOURCE/tree/odd/sparse" $folder/odd/sparse
done
diff -r --no-dereference --exclude=fifo copy/stdlib second/stdlib
mv second moved
