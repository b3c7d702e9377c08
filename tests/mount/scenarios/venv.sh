# SPDX-License-Identifier: Apache-2.0
# An environment; a wheel installed into it, and run. VENV=--symlinks makes one with its own pip.
"$PYTHON" -m venv "${VENV:---without-pip}" env
pip() { "$PYTHON" -m pip --python env/bin/python "$@"; }
[ -z "${VENV:-}" ] || pip() { env/bin/python -m pip "$@"; }
pip install -q --no-index --no-deps "$SOURCE"/*.whl
pip list --format=freeze --no-index | grep -v -e ^pip -e ^setuptools
env/bin/greet reader
env/bin/python -c 'import greeting; print(greeting.__name__)'
pip uninstall -q -y greeting 2>&1 | grep -v root || true
