# SPDX-License-Identifier: Apache-2.0
# A model saved, loaded as a whole and mapped.
"$PYTHON" - <<'END'
import torch

torch.manual_seed(1)
state = {f"layer{n}": torch.rand(300, 300) for n in range(10)}
torch.save(state, "model.pt")
for mapped in (False, True):
    found = torch.load("model.pt", mmap=mapped, weights_only=True)
    print(all(torch.equal(found[name], state[name]) for name in state))
END
