# SPDX-License-Identifier: Apache-2.0
# A clone that gets commits, is packed anew and checked.
export GIT_AUTHOR_DATE='2024-01-02T03:04:05Z' GIT_COMMITTER_DATE='2024-01-02T03:04:05Z'
export GIT_CONFIG_COUNT=2
export GIT_CONFIG_KEY_0=pack.threads GIT_CONFIG_VALUE_0=1
export GIT_CONFIG_KEY_1=safe.directory GIT_CONFIG_VALUE_1='*'
git clone -q --no-hardlinks "$SOURCE/repository" clone
cd clone
for number in 1 2 3 4 5; do
    echo "$number" >>"new file"
    git add -A
    git commit -qm "commit $number"
done
git checkout -q -b other HEAD~2
git mv "new file" moved
git commit -qam moved
git merge -q --no-edit -X theirs main
git stash list
git gc -q --prune=now
git fsck --full --strict
git status --porcelain
git log --oneline --stat | tail -n 30
git ls-files -s | sha256sum
git clone -q . ../second
git -C ../second fsck --full
