# SPDX-License-Identifier: Apache-2.0
# Maps of arrays, written and read by several means.
"$PYTHON" - <<'END'
import numpy as np

made = np.lib.format.open_memmap("made.npy", "w+", np.float64, (1000, 300))
made[:] = np.arange(300000).reshape(1000, 300)
made.flush()
del made
print(np.load("made.npy", mmap_mode="r")[17, 5:9])
raw = np.memmap("raw", np.uint32, "w+", shape=500000)
raw[::7] = 5
raw.flush()
print(np.fromfile("raw", np.uint32).sum())
again = np.memmap("raw", np.uint32, "r+", offset=4000, shape=1000)
again[:] = np.arange(1000)
again.flush()
print(np.memmap("raw", np.uint32, "r")[990:1010], np.fromfile("raw", np.uint32, 20, offset=3960))
np.arange(100000, dtype=np.int16).tofile("flat")
np.savez("many.npz", a=np.arange(5), b=np.ones((300, 300)))
with np.load("many.npz") as found:
    print(found["b"].sum(), sorted(found))
np.savetxt("text", np.eye(50), fmt="%d")
print(np.loadtxt("text").sum())
END
