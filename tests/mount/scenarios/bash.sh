# SPDX-License-Identifier: Apache-2.0
# Redirections, pipes, shared offsets, here documents, descriptors of all numbers.
echo one >file
echo two >>file
cat file - <<<three
{ echo a; echo b; echo c >&2; } >both 2>&1
exec 3<>file
read -r line <&3
echo "$line"
echo TWO >&3
cat file
exec 3>&-
for number in $(seq 200); do echo "line $number"; done >numbers
{ read -r line; read -r line; echo "$line"; head -c 7 >/dev/null; sed -n 1q; cat | tail -n 1; } <numbers
while read -r line; do
    [ "$line" != "line 7" ] || break
done <numbers
echo "$line"
exec 9<numbers 8>out 200>high
(read -r line <&9; echo "child $line" >&8)
read -r line <&9
echo "parent $line" >&8
echo high >&200
bash -c 'read -r line <&9; echo "grandchild $line" >&8'
exec 9<&- 8>&- 200>&-
set -o noclobber
(echo no >out || true) 2>&1 | sed 's/.*: //'
echo yes >|out
set +o noclobber
for number in 1 2 3; do (for _ in $(seq 50); do echo "$number" >>appended; done) & done
wait
sort -o appended appended
uniq -c appended
diff <(sort numbers) <(sort -r numbers | sort) && echo same
mapfile -t lines <numbers
echo "${#lines[@]} ${lines[199]}"
tee first second <numbers | md5sum
sort -R numbers | sort -k2n >sorted
cmp numbers sorted
split -l 50 numbers part.
cat part.* | cmp - numbers
cat numbers numbers numbers >>numbers2
head -c 1000000 /dev/zero | tr '\0' x | tee zeros | wc -c
tail -c +999990 zeros
paste -d, numbers sorted | awk -F, '$1 != $2 { bad++ } END { print NR, bad + 0 }'
set +o pipefail
seq 1000000 | head -n 1 >first
echo "${PIPESTATUS[*]}"
set -o pipefail
printf 'a\0b' | od -c >od
(umask 077; : >private)
(ulimit -f 4; head -c 100000 /dev/zero >limited) 2>/dev/null || echo "status $?"
(
    ulimit -f 4
    for number in $(seq 100); do echo "$number" >>few; done
    for number in $(seq 100); do echo "$number"; done >many
    cat many
) | wc
stat -c '%s %a' private
exec 5>gone
rm gone
echo unseen >&5
cat /dev/fd/5 2>/dev/null </dev/null || true
(cd /proc/self/fd && stat -Lc '%s %h' 5)
