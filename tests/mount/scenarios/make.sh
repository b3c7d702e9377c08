# SPDX-License-Identifier: Apache-2.0
# A library and a program; made again after a change; then by meson, where it is.
cp -r "$SOURCE/engine" "$SOURCE/build/." .
make -s
./program
make
touch engine/base/*.c
make | grep -c cc
ar t libbase.a
make -s clean
make -s -j2
./program <program | head -n 1
if command -v meson >/dev/null; then
    meson setup build >/dev/null
    meson compile -C build >/dev/null
    meson test -C build --no-rebuild | grep -c OK
    build/program
fi
