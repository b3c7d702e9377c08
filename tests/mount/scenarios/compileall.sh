# SPDX-License-Identifier: Apache-2.0
# Byte code of the standard library.
cp -a "$SOURCE/tree/stdlib" .
"$PYTHON" -m compileall -q -l -s "$PWD" --invalidation-mode checked-hash stdlib stdlib/{json,email}
"$PYTHON" -m compileall -q -s "$PWD" -o 2 --invalidation-mode unchecked-hash stdlib/asyncio
PYTHONPATH=stdlib "$PYTHON" -c '
import json
from json import decoder
print(json.loads("[1, 2]"), decoder.__cached__.split("/")[-1])'
find . -name '*.pyc' | wc -l
