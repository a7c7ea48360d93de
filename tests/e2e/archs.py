"""Makes a small model of each architecture in tests/golden/archs.json.gz: names, order, kinds and shapes as recorded.

Payloads are pseudo-random, and long dimensions are shortened (each length to one of its own, so that what was equal
stays equal, what differed still differs, and the width in the metadata follows); the vocabulary keeps its length.
"""
import functools
import gzip
import json
import os
import zlib

import ggufpy

INVENTORY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "archs.json.gz")
SHORT = 8  # dimensions up to here stay


@functools.lru_cache(maxsize=1)
def load():
    with gzip.open(INVENTORY, "rb") as f:
        return json.load(f)["archs"]


def names():
    return sorted(load())


def _expand(value):
    if not isinstance(value, dict):
        return value
    if "of" in value:
        return [value["of"]] * value["n"]
    return [value["count"] + i for i in range(value["n"])]


def expand_pairs(pairs, arch):
    """Recorded pairs as (key, raw bytes)."""
    out = []
    for key, kind, value in pairs:
        full = arch + key[1:] if key.startswith("*") else key
        if isinstance(kind, list):
            out.append((full, ggufpy.encode(kind[0], _expand(value), kind[1])))
        else:
            out.append((full, ggufpy.encode(kind, value)))
    return out


def _shortener(record):
    vocab = next(t[2] for t in record["tensors"] if t[0] == "token_embd.weight")
    long = sorted({d for t in record["tensors"] for d in t[1:] if d > SHORT and d != vocab})
    short = {d: SHORT + 1 + i for i, d in enumerate(long)}
    if vocab in short.values():  # cannot be: there are not that many lengths in one model
        raise AssertionError("a shortened dimension equals the vocabulary")
    return lambda d: short.get(d, d)


def content(name):
    """(pairs, tensors) of an architecture, as ggufpy.write takes them."""
    record = load()[name]
    short = _shortener(record)
    arch = next(v for k, _, v in record["pairs"] if k == "general.architecture")
    pairs = [[k, kind, short(v)] if k == "*.embedding_length" else [k, kind, v] for k, kind, v in record["pairs"]]
    payload = ggufpy.Random(zlib.crc32(name.encode()))
    tensors = []
    for tensor, *dims in record["tensors"]:
        dims = tuple(map(short, dims))
        tensors.append((tensor, dims, 0, payload(ggufpy.tensor_bytes(0, dims))))
    return expand_pairs(pairs, arch), tensors
