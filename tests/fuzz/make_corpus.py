#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: tests/fuzz/corpus/gguf and tests/fuzz/corpus/manifest.

The seeds are committed; run this again after changing it. Each is a small file that takes one road through a parser.
"""
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
SHA = "0123456789abcdef" * 4


def text(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def array(kind, items):
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def tensor(name, dims, kind, offset):
    return text(name) + struct.pack("<I", len(dims)) + struct.pack("<%dQ" % len(dims), *dims) + struct.pack("<IQ", kind, offset)


def gguf(pairs=(), tensors=(), data=b"", version=3, align=32, n_pairs=None, n_tensors=None):
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                                 len(pairs) if n_pairs is None else n_pairs)
    body = head + b"".join(pairs) + b"".join(tensors)
    if data:
        body += b"\0" * (-len(body) % align) + data
    return body


def gguf_seeds():
    u32 = lambda v: struct.pack("<I", v)
    every_kind = [
        pair("u8", 0, b"\x01"), pair("i8", 1, b"\xff"), pair("u16", 2, b"\x01\x02"), pair("i16", 3, b"\xff\xff"),
        pair("u32", 4, u32(7)), pair("i32", 5, struct.pack("<i", -7)), pair("f32", 6, struct.pack("<f", 1.5)),
        pair("bool", 7, b"\x01"), pair("str", 8, text("hello")), pair("u64", 10, struct.pack("<Q", 1 << 40)),
        pair("i64", 11, struct.pack("<q", -1)), pair("f64", 12, struct.pack("<d", 2.5)),
    ]
    arrays = [
        pair("tokenizer.ggml.tokens", 9, array(8, [text("a"), text(b"\xff\x00"), text("")])),
        pair("tokenizer.ggml.scores", 9, array(6, [struct.pack("<f", -1.0)] * 3)),
        pair("tokenizer.ggml.token_type", 9, array(5, [u32(1)] * 3)),
        pair("empty", 9, array(8, [])), pair("bools", 9, array(7, [b"\x00", b"\x01"])),
    ]
    model = [pair("general.architecture", 8, text("llama")), pair("llama.block_count", 4, u32(1))]
    tensors = [
        tensor("token_embd.weight", [4, 2], 0, 0), tensor("blk.0.attn_q.weight", [32], 8, 32),
        tensor("output_norm.weight", [4], 1, 96),
    ]
    return {
        "empty-v3": gguf(),
        "empty-v2": gguf(version=2),
        "kinds": gguf(every_kind),
        "arrays": gguf(arrays),
        "model": gguf(model, tensors, bytes(range(104))),
        "out-of-order": gguf((), [tensor("b", [8], 0, 32), tensor("a", [8], 0, 0)], b"x" * 64),
        "four-dims": gguf((), [tensor("t", [1, 2, 2, 2], 26, 0)], b"y" * 32),
        "k-quant": gguf((), [tensor("t", [256], 12, 0)], b"z" * 144),
        "alignment-64": gguf([pair("general.alignment", 4, u32(64))], [tensor("t", [1], 0, 0)], b"abcd", align=64),
        "alignment-1": gguf([pair("general.alignment", 4, u32(1))], [tensor("t", [3], 24, 0), tensor("u", [2], 24, 3)],
                            b"12345", align=1),
        "split": gguf([pair("split.no", 2, b"\0\0"), pair("split.count", 2, b"\1\0"),
                       pair("split.tensors.count", 5, u32(1))], [tensor("t", [1], 0, 0)], b"abcd"),
        "bad-alignment": gguf([pair("general.alignment", 4, u32(3))]),
        "bad-counts": gguf(n_pairs=1 << 63, n_tensors=(1 << 64) - 1),
        "bad-overlap": gguf((), [tensor("a", [16], 0, 0), tensor("b", [8], 0, 32)], b"x" * 64),
        "bad-nested": gguf([pair("n", 9, array(9, [array(4, [u32(1)])]))]),
        "bad-dims": gguf((), [tensor("t", [1, 1, 1, 1, 1], 0, 0)], b"x" * 32),
        "bad-wrap": gguf((), [tensor("t", [1 << 32, 1 << 32, 2], 0, 0)], b"x" * 32),
        "bad-version": gguf(version=0x03000000),
    }


def artifact(path, **more):
    entry = {"path": path, "tensor_count": 2, "tensor_bytes": 64, "artifact_bytes": 200, "sha256": SHA}
    entry.update(more)
    return entry


def manifest(**change):
    doc = {
        "schema_version": 1,
        "model_id": "org/model:Q4",
        "source_model": {"path": "m.gguf", "sha256": SHA, "repo": "org/model", "revision": "abc", "primary_file": "m.gguf",
                         "canonical_ref": "org/model@abc/m.gguf", "distribution_id": "m",
                         "files": [{"path": "m.gguf", "size_bytes": 9, "sha256": SHA},
                                   {"path": "n.gguf", "size_bytes": None, "sha256": None}]},
        "format": "layer-package",
        "layer_count": 2,
        "activation_width": 64,
        "shared": {"metadata": artifact("shared/metadata.gguf", tensor_count=0, tensor_bytes=0),
                   "embeddings": artifact("shared/embeddings.gguf"), "output": artifact("shared/output.gguf")},
        "layers": [artifact("layers/layer-%05d.gguf" % i, layer_index=i) for i in range(2)],
        "skippy_abi_version": "0.1.25",
        "created_at_unix_secs": 1700000000,
    }
    doc.update(change)
    return json.dumps({k: v for k, v in doc.items() if v is not None}, separators=(",", ":")).encode()


def manifest_seeds():
    return {
        "good": manifest(),
        "projector": manifest(projectors=[artifact("projectors/p.gguf", kind="mmproj")]),
        "generation": manifest(generation={"policy": {"profile": "glm-dsa-v1"}, "thresholds": {"short": 1}}),
        "no-width": manifest(activation_width=None),
        "schema-2": manifest(schema_version=2),
        "gap": manifest(layer_count=7),
        "too-many": manifest(layer_count=1),
        "unsafe": manifest(layers=[artifact("../x", layer_index=0), artifact("a/../../b", layer_index=1)]),
        "twice": manifest(layers=[artifact("a", layer_index=0), artifact("a", layer_index=0)]),
        "abi": manifest(skippy_abi_version="9.9"),
        "unknown-keys": manifest(future={"x": [1, 2.5, None, "\u00e9"]}),
        "bad-sha": manifest(source_model={"path": "m", "sha256": "12"}),
        "wrong-types": manifest(layers={}, shared=[], model_id=3, format=None),
        "array": b"[]",
        "cut": manifest()[:300],
        "numbers": b'{"schema_version":1,"layer_count":9223372036854775807,"activation_width":-1}',
    }


def main():
    for folder, seeds in (("gguf", gguf_seeds()), ("manifest", manifest_seeds())):
        path = os.path.join(HERE, "corpus", folder)
        os.makedirs(path, exist_ok=True)
        for name, data in seeds.items():
            with open(os.path.join(path, name + (".gguf" if folder == "gguf" else ".json")), "wb") as f:
                f.write(data)


if __name__ == "__main__":
    main()
