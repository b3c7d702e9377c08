# SPDX-License-Identifier: Apache-2.0
"""Everyday tools: each script is run on the host's file system and on the mount, and must print and
leave the same; what it left on the mount is the same after the mount was made anew."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from harness import Mount
from test_programs import assert_same, fingerprint, run

# name: the programs it takes, and the script. $PYTHON is the interpreter.
SCRIPTS = {
    "redirections": (
        "bash",
        """
        exec 3>log 4>>log; echo three >&3; echo four >&4; exec 3>&- 4>&-
        for i in $(seq 200); do echo "line $i"; done | tee copy | sort -r > sorted
        cat < sorted >> copy; cat <<< here > string; : > empty; set -C; echo x > empty || true
        diff <(head -3 copy) <(sort -r sorted | head -3) > differences || true
        (echo one; echo two >&2) > out 2> errors; { cat out errors; } &> both
        exec 5<> both; read -u 5 line; echo "$line" changed >&5; exec 5>&-
        mkfifo pipe; (echo through > pipe &); cat pipe; wc -l < copy; umask 077; echo y > private
        """,
    ),
    "sed": (
        "sed",
        """
        seq 5000 > numbers; chmod 640 numbers; ln -s numbers link
        sed -i 's/7/seven/g' numbers; sed -i.bak '1,10d' numbers
        sed -i --follow-symlinks 's/5/five/' link; md5sum numbers numbers.bak; stat -c %a numbers
        """,
    ),
    "dd": (
        "dd",
        """
        seq 400000 > source
        dd if=source of=whole bs=64k status=none; dd if=source of=small bs=777 status=none
        dd if=source of=direct bs=4k count=100 oflag=direct status=none
        dd if=source of=synced bs=100k conv=fsync status=none
        dd if=source of=sparse bs=4k seek=1000 count=3 conv=sparse status=none
        dd if=source of=whole bs=1 seek=5000 count=100 conv=notrunc status=none
        dd if=source of=appended bs=1k count=5 oflag=append conv=notrunc status=none
        dd if=source of=appended bs=1k count=5 oflag=append conv=notrunc status=none
        truncate -s 3000 small; truncate -s +2000 small; fallocate -l 10000 grown 2>/dev/null ||
        truncate -s 10000 grown; split -b 300000 source part.; cat part.* | cmp - source
        md5sum whole small direct synced sparse appended; shred -u -n 1 synced
        """,
    ),
    "find": (
        "find",
        """
        mkdir -p a/b/c a/d 'with space'; touch a/1 a/b/2 a/b/c/3 'with space/4'; ln -s ../1 a/b/l
        chmod 600 a/1; ln a/1 a/hard; printf %5000s > a/large
        touch -d 2001-01-01 a/1
        find . | sort; find . -type d -links 2 | sort; find . -size +4k; find . -samefile a/1 | sort
        find . -perm 600 | sort; find -L . -type l; find . -newer a/1 -type f | sort | wc -l
        find . -name '[0-9]' -print0 | sort -z | xargs -0 ls -1; find a/b -depth -delete; ls -R a
        find . -empty | sort; du --apparent-size -b a/large; rm -rf a; ls
        """,
    ),
    "archives": (
        "zip unzip gzip tar",
        """
        mkdir -p in/sub; seq 20000 > in/numbers; head -c 100000 /dev/zero > in/sub/zeros
        printf '#!/bin/sh\\n' > in/run; chmod 755 in/run; ln -s numbers in/link
        zip -qry all.zip in; unzip -q all.zip -d out; diff -r in out/in; unzip -tq all.zip
        zip -q all.zip in/run -d; gzip -k in/numbers; gunzip -c in/numbers.gz | cmp - in/numbers
        tar czf all.tgz in; tar tzf all.tgz | sort; rm all.*; rm in/*.gz
        """,
    ),
    "make": (
        "gcc make",
        """
        printf '#include "h.h"\\nint f(void){return VALUE;}\\n' > f.c
        printf 'int f(void);int main(void){return f();}\\n' > main.c; echo '#define VALUE 7' > h.h
        printf 'prog: f.o main.o\\n\\tgcc -o $@ $^\\nf.o: h.h\\n' > Makefile
        printf 'lib.a: f.o\\n\\tar crD $@ $^\\n' >> Makefile
        make -s -j2 prog lib.a; ./prog; echo $?; make -s prog; sleep 0.02
        echo '#define VALUE 9' > h.h; make -s prog; ./prog; echo $?; make -q prog; echo $?
        ar t lib.a; strip prog; ./prog; echo $?; rm prog *.o lib.a
        """,
    ),
    "vim": (
        "vim",
        """
        seq 3000 > text; chmod 640 text; ln text hard; ln -s text link
        edit() { TERM=dumb vim -u NONE -i NONE -nes "$@" < /dev/null || echo failed; }
        edit -c 'set backup backupcopy=auto' -c '%s/1/one/g' -c wq text
        edit -c 'set backupcopy=no' -c '1,5d' -c wq link
        edit -c 'set backupcopy=yes writebackup' -c 'normal Goend' -c wq! hard
        edit -c 'set undofile undodir=. swapfile' -c '%s/2/two/' -c wq text
        md5sum text hard link; stat -c '%a %h' text hard; ls | grep -c '\\.sw'; rm -f ./*~ ./.*un~
        """,
    ),
    "compileall": (
        "sh",
        """
        mkdir -p package/sub; for n in 1 2 3 4; do echo "X = $n" > package/m$n.py; done
        echo 'from package.m1 import X' > package/sub/__init__.py; : > package/__init__.py
        "$PYTHON" -m compileall -q -j 2 package; find package -name '*.pyc' | wc -l
        "$PYTHON" -c 'import package.sub; print(package.sub.X)'; echo 'X = "new"' > package/m1.py
        "$PYTHON" -c 'import package.sub; print(package.sub.X)'
        find . -name __pycache__ | xargs rm -r
        """,
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_tool(mnt: Mount, tmp_path: Path, name: str) -> None:
    programs, script = SCRIPTS[name]
    if missing := [program for program in programs.split() if not shutil.which(program)]:
        pytest.skip(f"no {missing[0]}")
    told: list[str] = []
    left: list[dict[str, tuple[object, ...]]] = []
    for folder in (tmp_path / "host", mnt.path / "folder"):
        folder.mkdir()
        told.append(
            subprocess.run(
                ["bash", "-c", script],
                cwd=folder,
                env=os.environ | {"PYTHON": sys.executable, "LC_ALL": "C"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=120,
                check=False,
            ).stdout
        )
        left.append(fingerprint(folder, times=False))
    assert told[1] == told[0]
    assert_same(left[1], left[0])
    mnt.remount()
    assert_same(fingerprint(mnt.path / "folder", times=False), left[0])


def make_wheel(folder: Path) -> Path:
    """A package with a module and a program, as pip installs it."""
    info = "greeting-1.dist-info"
    wheel = folder / "greeting-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greeting.py", "def main():\n    print('hello from the mount')\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1\n")
        tags = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ngreet = greeting:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def test_venv_and_pip(mnt: Mount, tmp_path: Path) -> None:
    venv = mnt.path / "venv"
    run(sys.executable, "-m", "venv", venv)
    pip: list[str | Path] = [venv / "bin/python", "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "install", "-q", "--no-index", "--no-deps", make_wheel(tmp_path))
    assert run(venv / "bin/greet") == "hello from the mount\n"
    mnt.remount()
    assert run(venv / "bin/greet") == "hello from the mount\n"
    assert "greeting" in run(*pip, "list")
    run(*pip, "uninstall", "-q", "-y", "greeting")
    assert not (venv / "bin/greet").exists()
