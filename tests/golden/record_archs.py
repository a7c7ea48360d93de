#!/usr/bin/env python3
"""Records what models of many architectures are made of, for tests/e2e/test_archs.py.

usage: PEER_RUN=COMMAND record_archs.py          (writes archs.json.gz beside itself)
   or: record_archs.py FOLDER                    (of GGUF files that are there already)

PEER_RUN is a command that runs a program of an installed llama.cpp; its `test-llama-archs -o FOLDER` writes a tiny model
of every architecture that it knows. No payload is recorded, only the inventory, so that the tests can make models of
the same layout anywhere:

  {"recorded": text, "archs": {"<file's stem>": {"pairs": [[key, kind, value]...], "tensors": [[name, dims...]...]}}}

In keys, '*' stands for the value of general.architecture. An array's kind is [9, kind of its elements]; an array whose
elements are all alike is {"n": count, "of": element}, one that counts up is {"n": count, "count": first}. Every tensor
is F32.
"""
import glob
import gzip
import json
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
import archs  # noqa: E402  (after the path is set)
import ggufpy  # noqa: E402

OUT = os.path.join(HERE, "archs.json.gz")


def text(raw):
    return raw.decode()  # every string of these models is plain text; anything else must stop us


def number(v):
    # JSON has no infinities; Python's reader and writer agree on their names, and on every finite f32.
    assert not isinstance(v, float) or not math.isnan(v)
    return v


def compact_array(values):
    if len(values) > 4 and all(v == values[0] for v in values):
        return {"n": len(values), "of": values[0]}
    if len(values) > 4 and all(isinstance(v, int) and v == values[0] + i for i, v in enumerate(values)):
        return {"n": len(values), "count": values[0]}
    return values


def compact_pair(key, raw, arch):
    short = "*" + key[len(arch):] if key.startswith(arch + ".") else key
    value, elem = ggufpy.decode(raw), ggufpy.elem_kind(raw)
    if elem is None:
        kind = raw[0]
        return [short, kind, text(value) if kind == ggufpy.STRING else number(value)]
    values = [text(v) for v in value] if elem == ggufpy.STRING else [number(v) for v in value]
    return [short, [ggufpy.ARRAY, elem], compact_array(values)]


def inventory(path):
    with ggufpy.File(path) as f:
        arch = text(f.value("general.architecture"))
        assert f.version == 3 and all(t.kind == 0 for t in f.tensors), path
        # The list must give back the very bytes.
        pairs = [compact_pair(k, raw, arch) for k, raw in f.pairs]
        assert archs.expand_pairs(pairs, arch) == f.pairs, path
        return {"pairs": pairs, "tensors": [[t.name, *t.dims] for t in f.tensors]}


def record(folder):
    paths = sorted(glob.glob(os.path.join(folder, "*.gguf")))
    if not paths:
        sys.exit(f"{folder} holds no GGUF file")
    found = {os.path.basename(p)[:-len(".gguf")]: inventory(p) for p in paths}
    doc = {"recorded": "llama.cpp, test-llama-archs", "archs": found}
    with open(OUT, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as f:
        f.write(json.dumps(doc, separators=(",", ":"), sort_keys=True).encode() + b"\n")
    print(f"{len(found)} architectures, {sum(len(a['tensors']) for a in found.values())} tensors, "
          f"{os.path.getsize(OUT)} bytes")


def main():
    if len(sys.argv) == 2:
        record(sys.argv[1])
        return
    peer = os.environ.get("PEER_RUN", "").split()
    if len(sys.argv) != 1 or not peer:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(dir="/tmp") as work:
        subprocess.run([*peer, "test-llama-archs", "-o", work], check=True, capture_output=True)
        record(work)


if __name__ == "__main__":
    main()
