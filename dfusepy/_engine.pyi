# SPDX-License-Identifier: Apache-2.0
# The cffi module that the build makes out of engine/include/dfe.h; only engine_base.py imports it.
from typing import Any

ffi: Any
lib: Any
