"""The architectures whose numbers are compared with llama.cpp's: one row a model, and how results are kept small.

To add an architecture: one or more rows in ROWS, then tests/golden/record_archs_numbers.py for the recorded numbers.
"""
import array
import dataclasses
import hashlib
import json
import math
import os

import common

GOLDEN = os.path.join(common.ROOT, "tests", "golden", "archs-numbers")
INDEX = os.path.join(GOLDEN, "index.json")
PROMPT, DECODE = 64, 64
TOP = 8
RECORD = TOP * 2 + TOP * 4 + 8  # bytes a position: ids, logits, mean, root of the mean square


@dataclasses.dataclass(frozen=True)
class Row:
    name: str       # of the recorded numbers
    options: dict   # mkmodel's, arch and layers among them
    peer: tuple = ()     # files of llama.cpp's test models of this architecture: "dense", "moe"
    cuts: tuple = ()     # layers before which a cut is legal; empty: all
    # Largest difference to an F32 cache, relative to the largest logit, that each type of the cache may make. A model
    # whose router chooses has none: another type may tip the choice, and then everything differs.
    kv: dict = dataclasses.field(default_factory=dict)

    @property
    def legal_cuts(self):
        return self.cuts or tuple(range(1, self.options["layers"]))

    @property
    def arch(self):
        return self.options["arch"]


# Differences measured are about half of these.
KV = {"f16": 0.02, "bf16": 0.04, "q8_0": 0.08, "q4_0": 0.8}

ROWS = [
    Row("llama", {"arch": "llama", "layers": 5, "bias": True, "scales": True, "rope_freqs": True},
        peer=("dense", "moe"), kv={"f16": 0.02, "bf16": 0.04}),
    Row("llama-experts", {"arch": "llama", "layers": 5, "experts": 8, "scales": True}),
    Row("llama-all-experts", {"arch": "llama", "layers": 4, "experts": 4, "experts_used": 4, "embd": 128}, kv=KV),
    Row("llama-yarn", {"arch": "llama", "layers": 3, "rope": "yarn:4:64", "embd": 128}, kv=KV),
    # The run has 128 positions: long factors beyond an original context of 64, short ones within 1024.
    Row("llama-longrope-long", {"arch": "llama", "layers": 3, "rope": "longrope:1:64"}),
    Row("llama-longrope-short", {"arch": "llama", "layers": 3, "rope": "longrope:1:1024"}),
    Row("qwen2", {"arch": "qwen2", "layers": 5, "scales": True, "embd": 128}, peer=("dense",), kv=KV),
    Row("qwen2-yarn-tied", {"arch": "qwen2", "layers": 3, "tied": True, "rope": "yarn:4:64"}),
    Row("qwen3", {"arch": "qwen3", "layers": 5, "head_dim": 32, "scales": True}, peer=("dense",), kv=KV),
    Row("qwen3moe", {"arch": "qwen3moe", "layers": 5, "head_dim": 32, "experts": 16, "experts_used": 4, "scales": True},
        peer=("moe",)),
    Row("glm4moe", {"arch": "glm4moe", "layers": 5, "head_dim": 32, "experts": 16, "experts_used": 5, "shared": 2,
                    "scales": True}, peer=("moe",)),
    Row("glm4moe-all-experts", {"arch": "glm4moe", "layers": 4, "head_dim": 32, "experts": 4, "experts_used": 4}, kv=KV),
    Row("deepseek2", {"arch": "deepseek2", "layers": 5, "nextn": 1, "scales": True}, peer=("moe",)),
    Row("deepseek2-groups", {"arch": "deepseek2", "layers": 3, "experts": 32, "experts_used": 6, "groups": 8,
                             "groups_used": 3, "expert_ff": 32, "shared": 2}),
    Row("deepseek2-lite", {"arch": "deepseek2", "layers": 3, "variant": "lite,v2", "groups": 1, "groups_used": 1}),
    Row("deepseek2-yarn", {"arch": "deepseek2", "layers": 3, "rope": "yarn:8:32", "variant": "fused"}),
    Row("deepseek2-legacy", {"arch": "deepseek2", "layers": 3, "rope": "yarn:8:32", "variant": "legacy,lite"}),
    Row("deepseek2-temperature", {"arch": "deepseek2", "layers": 3, "variant": "temperature"}),
    # The widths of DeepSeek's own models; every expert is used.
    Row("deepseek2-wide", {"arch": "deepseek2", "layers": 3, "kv_rank": 512, "n_rot": 64, "heads": 2, "experts": 4,
                           "experts_used": 4, "groups": 1, "groups_used": 1},
        kv={"f16": 0.02, "bf16": 0.05, "q8_0": 0.16, "q4_0": 1.2}),
    Row("deepseek2-legacy-all-experts", {"arch": "deepseek2", "layers": 3, "variant": "legacy", "experts": 4,
                                         "experts_used": 4, "groups": 1, "groups_used": 1}, kv=KV),
    # Six layers: the sixth is the one that sees everything; one more with a window behind it.
    Row("gemma3", {"arch": "gemma3", "layers": 7, "kv_heads": 1, "head_dim": 32, "scales": True}, peer=("dense",), kv=KV),
    Row("gemma3-capped", {"arch": "gemma3", "layers": 4, "head_dim": 32, "tied": True, "window": 5,
                          "rope": "linear:8", "variant": "cap,base,every2"}),
    # What makes it the largest size, with a query scale of its own, is the number of layers.
    Row("gemma3-27b", {"arch": "gemma3", "layers": 62, "embd": 32, "ff": 64, "head_dim": 16, "variant": "base"},
        cuts=(1, 31, 61)),
    Row("gpt-oss", {"arch": "gpt-oss", "layers": 5, "head_dim": 32, "scales": True}, peer=("moe",)),
    Row("gpt-oss-yarn", {"arch": "gpt-oss", "layers": 4, "head_dim": 64, "rope": "yarn:32:64", "experts": 4,
                         "experts_used": 4}, kv=KV),
    Row("lfm2", {"arch": "lfm2", "layers": 6, "embd": 128, "tied": True, "scales": True}, peer=("dense",), kv=KV),
    Row("lfm2-window", {"arch": "lfm2", "layers": 5, "window": 9, "variant": "front,conv4"}),
    Row("lfm2moe", {"arch": "lfm2moe", "layers": 6, "scales": True}, peer=("moe",)),
]


def tokens(n_vocab):
    return [(1 + 7 * i + i * i // 5) % n_vocab for i in range(PROMPT + DECODE)]


def floats(path):
    values = array.array("f")
    with open(path, "rb") as f:
        values.frombytes(f.read())
    return values


def rows_of(values):
    n = len(values) // (PROMPT + DECODE)
    return [values[p * n:(p + 1) * n] for p in range(PROMPT + DECODE)]


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def shape(row):
    """What a row of logits looks like as a whole."""
    return math.fsum(row) / len(row), math.sqrt(math.fsum(v * v for v in row) / len(row))


def compact(values):
    """Of each position the best logits with their ids, and the shape of all."""
    out = b""
    for row in rows_of(values):
        ids = sorted(range(len(row)), key=lambda i, row=row: (-row[i], i))[:TOP]
        out += array.array("H", ids).tobytes()
        out += array.array("f", [*(row[i] for i in ids), *shape(row)]).tobytes()
    return out


def difference(record, values):
    """The largest difference of logits to a compact record, relative to the largest logit."""
    worst = top = 0.0
    for p, row in enumerate(rows_of(values)):
        at = p * RECORD
        ids = array.array("H", record[at:at + 2 * TOP])
        want = array.array("f", record[at + 2 * TOP:at + RECORD])
        top = max(top, *map(abs, want[:TOP]))
        worst = max(worst, *(abs(a - b) for a, b in zip(want, [*(row[i] for i in ids), *shape(row)])))
    return worst / top


def index():
    with open(INDEX, encoding="utf-8") as f:
        return json.load(f)
