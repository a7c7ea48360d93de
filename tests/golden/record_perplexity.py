#!/usr/bin/env python3
"""Records perplexities that llama.cpp measures, for tests/e2e/test_real_models.py.

usage: record_perplexity.py BUILD NAME MODEL.gguf LOG

LOG is what `llama-perplexity -m MODEL.gguf -f tests/data/perplexity.txt -c 512 -b 512 --chunks 40` printed; for the types of the
cache (NAME is smollm2-TYPE) with `--chunks 2 -fa on -ctk TYPE -ctv TYPE` more, and LLAMA_ATTN_ROT_DISABLE=1 in the environment:
llama.cpp turns keys and values before it stores them in a quantized cache, which Strata does not. BUILD is Strata's build folder, whose
program tells which of ggml's CPU kernels this machine uses. Writes perplexity.json beside itself: for each NAME the
kernels, and the running result after each chunk of 512 tokens.

The text, from The Adventures of Sherlock Holmes (1892), is in the public domain.
"""
import json
import os
import re
import sys

import record_logits as rec

PATH = os.path.join(rec.HERE, "perplexity.json")


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    build, name, model, log = sys.argv[1:]
    index = {}
    if os.path.exists(PATH):
        with open(PATH, encoding="utf-8") as f:
            index = json.load(f)
    with open(log, encoding="utf-8", errors="replace") as f:
        running = [float(v) for v in re.findall(r"\[\d+\](\d+\.\d+),", f.read())]
    if not running:
        sys.exit(f"{log} holds no result")
    index[name] = {"backend": rec.kernels(build, model), "running": running}
    with open(PATH, "w", encoding="utf-8") as f:
        f.write(json.dumps(dict(sorted(index.items())), separators=(",", ":")).replace('"running"', '\n"running"') + "\n")


if __name__ == "__main__":
    main()
