# SPDX-License-Identifier: Apache-2.0
# Its tests and actions, and what else walks trees.
cp -a "$SOURCE/tree" .
find tree ! -type d -printf '%y %m %n %l %u %s %T@ %p\n' | sort
find tree -type d -printf '%y %m %u %p\n' | sort
find tree -type f -size +20k -newermt 2001-01-01 | sort
find tree -samefile tree/odd/file | sort
find tree -type f -exec sha256sum {} + | sort
find tree -name '*.py' -empty -o -perm /4000 | sort
find tree/stdlib -name '*.py' -print0 | sort -z | xargs -0 grep -l import | sort | wc -l
grep -rc def tree/stdlib | sort | sha256sum
find tree/stdlib -type f -exec ls -l --time-style=+%s {} + | sort | sha256sum
ls -U tree/stdlib | wc -l
find tree/stdlib -name 'd*' -delete
find tree/stdlib | sort
wc tree/stdlib/*.py | tail -n 1
