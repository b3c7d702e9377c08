# SPDX-License-Identifier: Apache-2.0
# In place, with a backup, with modes and links.
cp -a "$SOURCE/tree/stdlib" .
setfattr -n user.kept -v yes stdlib/os.py
chmod 755 stdlib/os.py
sed -i 's/import/IMPORT/g' stdlib/*.py
sed -i.bak -e '1d' -e '$a the end' stdlib/os.py
stat -c %a stdlib/os.py
getfattr --absolute-names -d stdlib/os.py
seq 100000 >numbers
sed -i -n '/7/p' numbers
wc -l numbers
ln -s numbers link
sed -i --follow-symlinks '1,100d' link
sed -n -e '5w five' -e '6w six' numbers
perl -pi -e 's/7/seven/g' numbers
head -n 1 numbers
awk '{ print > ("by" length($0)) }' numbers
