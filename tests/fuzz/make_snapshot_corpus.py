#!/usr/bin/env python3
"""Writes the seeds of fuzz_snapshot: tests/fuzz/corpus/snapshot. The seeds are committed; run this again after changing it."""
import hashlib
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "corpus", "snapshot")
F32, F16, Q4_0, Q8_0, BF16 = 0, 1, 2, 8, 30
BLOCK = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34), BF16: (1, 2)}


def pad(data):
    return data + bytes(-len(data) % 32)


def snapshot(kind, positions, sections, tokens=True, n_layer=4, arch=b"llama", version=1):
    """sections: a list of (layer, planes), a plane being (width, type, first position)."""
    header = struct.pack("<8sII32s32sIIIIIIII", b"STRATASQ", version, 0, bytes(range(32)), arch, kind, positions, 64, n_layer,
                         0, positions if tokens else 0, len(sections), 0)
    header += struct.pack(f"<{positions}i", *range(positions)) if tokens else b""
    size = len(pad(header + bytes(48 * len(sections))))
    at, bodies = size + 32, []
    for layer, planes in sections:
        body = b""
        entry = struct.pack("<I", layer)
        for width, form, first in (*planes, *[(0, 0, 0)] * (2 - len(planes))):
            elems, size_of = BLOCK[form]
            entry += struct.pack("<III", width, form, first)
            body += bytes(i % 7 for i in range(width // elems * size_of * (positions - first)))
        header += entry + struct.pack("<IQQ", 0, at, len(body))
        bodies.append(pad(body))
        at += len(bodies[-1]) + 32
    header = pad(header)
    header = header[:12] + struct.pack("<I", len(header)) + header[16:]
    digest = hashlib.sha256(header).digest()
    out = header + digest
    for i, body in enumerate(bodies):
        out += body + hashlib.sha256(digest + struct.pack("<I", i) + body).digest()
    return out


both = [(32, F16, 0), (32, F16, 0)]
whole = snapshot(F16, 3, [(0, both), (1, both)])
seeds = {
    "plain": whole,
    "middle": snapshot(F16, 2, [(2, both), (3, both)], tokens=False),
    "window": snapshot(F16, 5, [(0, [(32, F16, 3), (32, F16, 3)]), (1, both)], arch=b"gemma3"),
    "convolution": snapshot(Q8_0, 4, [(0, [(16, F32, 2)]), (1, [(32, Q8_0, 0), (32, Q8_0, 0)])], arch=b"lfm2"),
    "latent": snapshot(Q4_0, 2, [(0, [(96, Q4_0, 0)])], arch=b"deepseek2"),
    "exact": snapshot(F32, 1, [(3, [(8, F32, 0), (8, F32, 1)])]),
    "bf16": snapshot(BF16, 2, [(0, [(8, BF16, 0)] * 2)]),
    "short": whole[:-40],
    "later": snapshot(F16, 1, [(0, both)], version=2),
    "numbers": whole[:300] + b"\xff" * 8 + whole[308:],
}
os.makedirs(OUT, exist_ok=True)
for name, data in seeds.items():
    for mode in b"\x00\x01":
        if mode and name in ("middle", "latent", "bf16", "exact"):
            continue
        with open(os.path.join(OUT, f"{name}-{mode}"), "wb") as f:
            f.write(bytes([mode]) + data)
