# SPDX-License-Identifier: Apache-2.0
# The project's engine, built by meson with its tests, some of which run here.
export TMPDIR=$PWD/tmp
mkdir tmp source
for name in engine tests dfusepy cli meson.build meson.options; do
    cp -r "$PROJECT/$name" source
done
meson setup build source -Dtests=true >/dev/null
meson compile -C build >told 2>&1 || tail -n 20 told
meson test -C build --no-rebuild base key index journal buf obj_kv | grep ^Ok
rm -r build source told
