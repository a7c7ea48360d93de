"""A small model in every type that llama-quantize makes, and how its logits are recorded.

The model has every role that a matrix can have: embedding, attention, convolution, feed-forward, experts, output. Its
width is the longest block of any type. Each expert is used, so that no rounding can tip a choice.
"""
import concurrent.futures
import hashlib
import json
import os
import subprocess

import common

PATH = os.path.join(common.ROOT, "tests", "golden", "types.json")
MODEL = {"arch": "lfm2moe", "layers": 2, "variant": "front", "embd": 256, "heads": 4, "kv_heads": 2, "ff": 256,
         "experts": 2, "experts_used": 2, "expert_ff": 256}
TYPES = ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq1_s",
         "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "mxfp4",
         "nvfp4", "q1_0", "q2_0"]
# As Q4_K_M, Q3_K_L and IQ2_M mix them (tests with PEER_RUN make the real ones).
MIXES = {
    "mix-4": "q4_K,token_embd=q6_K,attn_v=q6_K,ffn_down=q6_K",
    "mix-3": "q3_K,token_embd=q6_K,attn_v=q5_K,attn_output=q5_K,ffn_down=q5_K",
    "mix-2": "iq2_s,token_embd=q5_K,attn_v=iq3_s,attn_output=iq3_s,ffn_gate=iq3_xxs",
    "mix-parts": "q8_0,ffn_gate=q4_0,ffn_up=q4_1,attn_q=iq4_nl,attn_v=bf16,in_proj=f16,down_exps=mxfp4",
}
POSITIONS = 96
SAMPLED = (0, 1, 7, 31, 32, 50, 63, 64, 71, 80, 94, 95)
TOP = 6


def tokens():
    return [(1 + 7 * i + i * i // 5) % 250 for i in range(POSITIONS)]


def make(name):
    """The model in a type, or a mixture of types; seconds for those of one and two bits."""
    path = os.path.join(common.WORK, f"type-{name}.gguf")
    if not os.path.exists(path):
        args = [word for key, value in MODEL.items() for word in ("--" + key.replace("_", "-"), str(value))]
        subprocess.run([common.MKMODEL, "--out", path + ".part", *args, "--quantize", MIXES.get(name, name)], check=True,
                       capture_output=True, timeout=300)
        os.rename(path + ".part", path)
    return path


def make_all():
    """Every name with its model, the slow ones first and two at a time."""
    names = [*TYPES, *MIXES]
    slow = sorted(names, key=lambda n: -n.startswith("iq"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        made = dict(zip(slow, pool.map(make, slow)))
    return {name: made[name] for name in names}


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def compact(values):
    """Of some positions the best logits, and a few others: {position: {id: logit}}."""
    n = len(values) // POSITIONS
    out = {}
    for p in SAMPLED:
        row = values[p * n:(p + 1) * n]
        best = sorted(range(n), key=lambda i, row=row: (-row[i], i))[:TOP]
        others = [(97 * p + 53 * k) % n for k in range(TOP)]
        out[str(p)] = {str(i): float(f"{row[i]:.7g}") for i in sorted({*best, *others})}
    return out


def difference(record, values):
    """The largest difference to a compact record, relative to the largest logit recorded."""
    n = len(values) // POSITIONS
    pairs = [(want, values[int(p) * n + int(i)]) for p, row in record.items() for i, want in row.items()]
    return max(abs(a - b) for a, b in pairs) / max(abs(a) for a, _ in pairs)


def index():
    with open(PATH, encoding="utf-8") as f:
        return json.load(f)
