# SPDX-License-Identifier: Apache-2.0
# Saves in each way in which vim makes backups.
export HOME=$PWD
for copy in yes no auto yes,breakhardlink; do
    seq 1 20000 >"$copy"
    ln "$copy" "$copy.link"
    chmod 640 "$copy"
    vim -es -u NONE -i NONE -N --cmd "set directory=. backupcopy=$copy backup backupskip= fsync" \
        -c '%s/9/nine/g' -c 'normal Goend' -c w -c '1,10d' -c wq "$copy" </dev/null
    tail -n 2 "$copy"
    stat -c '%s %a %h' "$copy" "$copy.link" "$copy~"
done
vim -es -u NONE -i NONE -N --cmd "set directory=. undofile undodir=." -c 'normal ggdG' -c q! yes \
    </dev/null || echo "status $?"
