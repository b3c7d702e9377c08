# SPDX-License-Identifier: Apache-2.0
# Packed, tested, updated, unpacked.
cp -a "$SOURCE/tree/stdlib" .
ln -s os.py stdlib/link
touch -h -d @1000000000 stdlib/link stdlib
find stdlib | sort | zip -q -y -X made.zip -@
unzip -tq made.zip
unzip -Z1 made.zip | wc -l
mkdir out
unzip -q made.zip -d out
diff -r --no-dereference stdlib out/stdlib
touch -d '2020-01-01 12:00:00' extra
zip -q -X made.zip extra
zip -q -d made.zip stdlib/os.py
unzip -p made.zip stdlib/abc.py | sha256sum
"$PYTHON" -m zipfile -t made.zip
