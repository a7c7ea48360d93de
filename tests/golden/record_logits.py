#!/usr/bin/env python3
"""Records what llama.cpp computes, for tests/e2e/test_golden.py.

usage: PEER_RUN=COMMAND record_logits.py BUILD SMOLLM2.gguf

PEER_RUN is a command that runs a program of an installed llama.cpp (its tools, the C compiler beside its headers, and
`logits MODEL OUT.f32 TOKEN...`, which writes float32 logits of every position, with an F32 cache and without flash
attention); paths under /tmp must mean the same to it. BUILD is Strata's build folder: its mkmodel makes the small models, and its
program tells which of ggml's CPU kernels this machine uses, because others round otherwise. Writes beside itself:

  logits.json          what was recorded: options of mkmodel, token ids, prompts, greedy continuations
  logits-<name>.f32    all logits of a generated model, float32, [positions][vocabulary]
  logits-smollm2.top   per position the 64 likeliest tokens: 64 ids (uint32), then 64 log-probabilities (float32)
"""
import array
import json
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PEER = os.environ.get("PEER_RUN", "").split()
TOP = 64
POSITIONS = 64
PREDICT = 64

# Small generated models: everything that the architecture may have appears in one of them.
GENERATED = {
    "plain": {"seed": 1, "layers": 3},
    "full": {"seed": 2, "layers": 4, "bias": True, "rope_freqs": True, "heads": 8, "kv_heads": 2},
    "tied": {"seed": 3, "layers": 2, "tied": True, "embd": 96, "heads": 6, "kv_heads": 1},
}

TEXT = """The history of science is the study of how people came to understand the world. Early astronomers in Babylon \
kept careful records of the planets, and Greek philosophers asked what everything is made of. In the seventeenth \
century, Galileo turned a telescope to the sky, and Newton showed that the same law moves the moon and a falling apple. \
The next two hundred years brought chemistry, electricity and the theory of evolution. Then, within a single \
generation, relativity and quantum mechanics changed physics for good. Today, most discoveries are made by teams: \
a paper may have hundreds of authors, and the data may come from a satellite, a particle accelerator, or ten thousand \
patients. What has not changed is the method: ask a clear question, make a prediction, and let nature answer."""

PROMPTS = [
    "The capital of France is", "Once upon a time, there was a little girl who", "The three states of matter are",
    "def fibonacci(n):\n    ", "Water boils at a temperature of", "In 1969, the first humans", "My favourite food is",
    "The quick brown fox", "To make a good cup of tea, first", "Photosynthesis is the process by which",
    "A list of prime numbers: 2, 3, 5,", "The old man looked at the sea and", "SELECT name FROM users WHERE",
    "Dear Sir or Madam,", "The main difference between a virus and a bacterium is", "It was a dark and stormy night;",
    "Machine learning is a field of", "The president of the United States lives in", "How do airplanes fly?",
    "<|im_start|>user\nWhat is the largest planet?<|im_end|>\n<|im_start|>assistant\n",
]


def peer(*args, stdin=None):
    done = subprocess.run([*PEER, *args], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{args[0]} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def peer_logits(model, tokens, work):
    out = os.path.join(work, "peer.f32")
    peer("logits", model, out, *map(str, tokens))
    values = array.array("f")
    with open(out, "rb") as f:
        values.frombytes(f.read())
    return values


def tokenize(model, text):
    out = peer("llama-tokenize", "-m", model, "--ids", "--log-disable", "-p", text)
    return json.loads(out[out.rindex("["):])


def top_of(row):
    best = max(row)
    log_sum = best + math.log(sum(math.exp(v - best) for v in row))
    ids = sorted(range(len(row)), key=lambda i: (-row[i], i))[:TOP]
    return ids, [row[i] - log_sum for i in ids]


def kernels(build, model):
    """The instruction sets of the CPU kernels that run here, as `strata run --json` tells them."""
    done = subprocess.run([os.path.join(build, "strata"), "run", model, "--ids", "-p", "1", "-n", "0", "--json"],
                          capture_output=True, check=True)
    return json.loads(done.stdout)["engine"]["backend"]


def record_generated(mkmodel, work, index):
    for name, options in GENERATED.items():
        model = os.path.join(work, "generated.gguf")
        flags = []
        for key, value in options.items():
            flags += ["--" + key.replace("_", "-")] + ([] if value is True else [str(value)])
        subprocess.run([mkmodel, "--out", model, *flags], check=True)
        tokens = [1 + 7 * i % 250 for i in range(POSITIONS)]
        values = peer_logits(model, tokens, work)
        with open(os.path.join(HERE, f"logits-{name}.f32"), "wb") as f:
            f.write(values.tobytes())
        index["generated"][name] = {"options": options, "tokens": tokens, "n_vocab": len(values) // POSITIONS}


def greedy(model, texts, work):
    """Each prompt with its continuation, and the two best logits of every step."""
    program = os.path.join(work, "peer_greedy")
    source = os.path.join(work, "peer_greedy.c")
    with open(os.path.join(HERE, "peer_greedy.c"), encoding="utf-8") as f, open(source, "w", encoding="utf-8") as g:
        g.write(f.read())
    peer("gcc", "-O2", source, "-o", program, "-lllama", "-lggml", "-lggml-base")
    prompts = [tokenize(model, p) for p in texts]
    lines = "".join(" ".join(map(str, p)) + "\n" for p in prompts)
    out = []
    for text, ids, line in zip(texts, prompts, peer(program, model, str(PREDICT), "2", "f16", stdin=lines).splitlines()):
        steps = [s.split(":") for s in line.split()]
        out.append({
            "text": text, "prompt": ids, "tokens": [int(s[0]) for s in steps],
            "best": [round(float(s[1]), 4) for s in steps], "second": [round(float(s[2]), 4) for s in steps]})
    return out


def record_real(model, work, index):
    tokens = tokenize(model, TEXT)
    values = peer_logits(model, tokens, work)
    n_vocab = len(values) // len(tokens)
    with open(os.path.join(HERE, "logits-smollm2.top"), "wb") as f:
        for p in range(len(tokens)):
            ids, logs = top_of(values[p * n_vocab:(p + 1) * n_vocab])
            f.write(array.array("I", ids).tobytes() + array.array("f", logs).tobytes())
    index["smollm2"] = {"tokens": tokens, "n_vocab": n_vocab, "top": TOP, "greedy": greedy(model, PROMPTS, work)}


def main():
    if len(sys.argv) != 3 or not PEER:
        sys.exit(__doc__)
    index = {"generated": {}}
    with tempfile.TemporaryDirectory(dir="/tmp") as work:
        index["backend"] = kernels(sys.argv[1], sys.argv[2])
        record_generated(os.path.join(sys.argv[1], "tools", "mkmodel"), work, index)
        record_real(sys.argv[2], work, index)
    with open(os.path.join(HERE, "logits.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(index, separators=(",", ":")).replace('{"text"', '\n{"text"') + "\n")


if __name__ == "__main__":
    main()
