#!/usr/bin/env python3
"""Records what llama.cpp computes with a small model in every type of weights, for tests/e2e/test_types.py.

usage: PEER_RUN=COMMAND STRATA_BUILD=BUILD record_types.py

PEER_RUN and BUILD as for record_archs_numbers.py. Writes types.json beside itself: the CPU kernels, and for each type
(tests/e2e/type_models.py) the digest of the model file and a sample of logits.
"""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
import arch_models as archs  # noqa: E402
import common  # noqa: E402
import record_logits as rec  # noqa: E402
import type_models as types  # noqa: E402


def main():
    if not rec.PEER:
        sys.exit(__doc__)
    models = types.make_all()
    out = {"backend": rec.kernels(common.BUILD, models["f32"]), "types": {}}
    path = os.path.join(common.WORK, "peer.f32")
    for name, model in models.items():
        subprocess.run([*rec.PEER, "logits", model, path, *map(str, types.tokens())], check=True, capture_output=True)
        out["types"][name] = {"sha256": types.digest(model), "logits": types.compact(archs.floats(path))}
    text = json.dumps(out, separators=(",", ":")).replace('"sha256"', '\n"sha256"')
    with open(types.PATH, "w", encoding="utf-8") as f:
        f.write(text + "\n")


if __name__ == "__main__":
    main()
