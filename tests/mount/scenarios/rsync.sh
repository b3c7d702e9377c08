# SPDX-License-Identifier: Apache-2.0
# To here, from here to here, and nothing to do the second time; then deltas.
rsync -aHAX --sparse "$SOURCE/tree/" copy/
rsync -aHAX --itemize-changes "$SOURCE/tree/" copy/
rsync -aHAX --sparse copy/ second/
rsync -aHAX --itemize-changes copy/ second/
rsync -a --link-dest="$PWD/copy" copy/stdlib linked/
rsync -a --no-whole-file --inplace --checksum "$SOURCE/more/" second/stdlib/
cp "$SOURCE/more/text" second/text
echo more >>second/text
rsync -a --no-whole-file --checksum "$SOURCE/more/text" second/text
rsync -aHAX --delete --itemize-changes copy/ second/
