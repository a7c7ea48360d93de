#!/usr/bin/env python3
"""Records what llama.cpp computes with a real model, for tests/e2e/test_real_models.py.

usage: PEER_RUN=COMMAND record_real.py BUILD NAME MODEL.gguf

PEER_RUN and BUILD as for record_logits.py. Writes beside itself:

  real-NAME.json  token ids of a text, prompts with greedy continuations
  real-NAME.top   per position the 64 likeliest tokens: 64 ids (uint32), then 64 log-probabilities (float32)
"""
import array
import json
import os
import sys
import tempfile

import record_logits as rec

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPTS = 10


def main():
    if len(sys.argv) != 4 or not rec.PEER:
        sys.exit(__doc__)
    build, name, model = sys.argv[1:4]
    index = {"backend": rec.kernels(build, model), "top": rec.TOP, "greedy": []}
    with tempfile.TemporaryDirectory(dir="/tmp") as work:
        index["tokens"] = rec.tokenize(model, rec.TEXT)[:rec.POSITIONS]
        values = rec.peer_logits(model, index["tokens"], work)
        n = index["n_vocab"] = len(values) // len(index["tokens"])
        with open(os.path.join(HERE, f"real-{name}.top"), "wb") as f:
            for p in range(len(index["tokens"])):
                ids, logs = rec.top_of(values[p * n:(p + 1) * n])
                f.write(array.array("I", ids).tobytes() + array.array("f", logs).tobytes())
        index["greedy"] = rec.greedy(model, rec.PROMPTS[:PROMPTS], work)
    with open(os.path.join(HERE, f"real-{name}.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(index, separators=(",", ":")).replace('{"text"', '\n{"text"') + "\n")


if __name__ == "__main__":
    main()
