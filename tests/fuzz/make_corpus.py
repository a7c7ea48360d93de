#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: tests/fuzz/corpus/gguf, tests/fuzz/corpus/manifest and tests/fuzz/corpus/split.

The seeds are committed; run this again after changing it. Each is a small file that takes one road through a parser.
Those named after a CVE, an advisory (ghsa) or a pull request of llama.cpp, ggml, gguf-py or Ollama are the least case of
that fault.
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


def wide(value):
    return struct.pack("<Q", value)


def known_gguf_faults():
    """One or more seeds for each published fault of a GGUF reader."""
    u32 = lambda v: struct.pack("<I", v)
    pad = b"\0" * 64
    seeds = {}
    for name, n in (("31", 1 << 31), ("32", (1 << 32) - 1), ("63", 1 << 63), ("64", (1 << 64) - 1)):
        seeds["cve-2024-21825-pairs-2e" + name] = gguf(n_pairs=n) + pad
        seeds["cve-2024-21836-tensors-2e" + name] = gguf(n_tensors=n) + pad
        seeds["cve-2024-23496-string-2e" + name] = gguf([text("k") + u32(8) + wide(n)]) + pad
        seeds["cve-2024-23605-key-2e" + name] = gguf([wide(n) + b"k"]) + pad
        seeds["cve-2024-21825-strings-2e" + name] = gguf([text("k") + u32(9) + u32(8) + wide(n)]) + pad
        seeds["cve-2024-21825-numbers-2e" + name] = gguf([text("k") + u32(9) + u32(10) + wide(n)]) + pad
        seeds["pr-26318-size-2e" + name] = gguf((), [tensor("t", [n], 24, 0)], pad)
    for n in (0, 5, (1 << 32) - 1):
        seeds["cve-2024-21802-dims-%d" % n] = gguf((), [text("t") + u32(n) + wide(1) * min(n, 5) + u32(0) + wide(0)], pad)
    whole = gguf([pair("general.architecture", 8, text("llama"))], [tensor("a", [8], 0, 0)], b"x" * 32)
    for at in (3, 7, 15, 23, 31, 60, 90, len(whole) - 1):
        seeds["cve-2024-32878-cut-%d" % at] = whole[:at]
    model = [pair("general.architecture", 8, text("llama")), pair("llama.block_count", 4, u32(1)),
             pair("llama.embedding_length", 4, u32(8))]
    for i in range(len(model)):
        seeds["cve-2024-41130-without-%d" % i] = gguf(model[:i] + model[i + 1:], [tensor("blk.0.a", [8], 0, 0)], b"x" * 32)
    top = (1 << 63) - 1
    seeds["cve-2025-53630-sum"] = gguf((), [tensor("a", [top], 24, 0), tensor("b", [top], 24, 1 << 63)], pad)
    seeds["cve-2026-27940-padded"] = gguf((), [tensor("a", [top - 30], 24, 0), tensor("b", [32], 24, (1 << 63) - 32)], pad)
    seeds["cve-2026-27940-end"] = gguf((), [tensor("a", [64], 24, (1 << 64) - 64)], pad)
    seeds["cve-2026-7482-shape"] = gguf((), [tensor("t", [1 << 20, 1 << 10], 0, 0)], pad)
    for name, kind, raw in (("0", 4, u32(0)), ("3", 4, u32(3)), ("2e31", 4, u32(1 << 31)), ("2e63", 10, wide(1 << 63)),
                            ("text", 8, text("32")), ("list", 9, array(4, [u32(32)])), ("signed", 5, u32(32)), ("byte", 0, b" ")):
        seeds["ghsa-96jg-alignment-" + name] = gguf([pair("general.alignment", kind, raw)], [tensor("t", [1], 0, 0)], pad)
    gib = 1 << 30
    seeds["ggml-pr-1516-string"] = gguf([text("k") + u32(8) + wide(gib)]).ljust(160, b"x")
    seeds["ggml-pr-1516-strings"] = gguf([text("k") + u32(9) + u32(8) + wide(gib)]).ljust(160, b"\0")
    seeds["ggml-pr-1516-bytes"] = gguf([text("k") + u32(9) + u32(0) + wide(gib)]).ljust(160, b"x")
    # 43 bytes each: a list of lists or of nothing, as long as a count can be.
    seeds["gguf-py-25378-lists"] = (gguf(n_pairs=1) + text("")[:8] + u32(9) + u32(9) + wide((1 << 64) - 1))[:43]
    seeds["gguf-py-25378-unknown"] = (gguf(n_pairs=1) + text("a") + u32(9) + u32(13) + wide(1 << 62))[:43]
    seeds["gguf-py-27188-product"] = gguf((), [tensor("t", [1 << 33, 1 << 31, 4, 1], 0, 0)], pad)
    seeds["duplicate-key"] = gguf([pair("k", 4, u32(1)), pair("k", 8, text("1"))])
    seeds["duplicate-tensor"] = gguf((), [tensor("t", [8], 0, 0), tensor("t", [8], 0, 32)], pad)
    seeds["overlap-unordered"] = gguf((), [tensor("b", [16], 0, 32), tensor("a", [16], 0, 0)], b"x" * 96)
    seeds["nested-deep"] = gguf([text("k") + (u32(9) * 200 + wide(1)) * 3])
    seeds["cve-2025-49847-token"] = gguf([text("tokenizer.ggml.tokens") + u32(9) + u32(8) + wide(1) + wide(1 << 31)]) + pad
    seeds["plamo2-26511-byte-token"] = gguf([pair("tokenizer.ggml.tokens", 9, array(8, [text("<0x-1>"), text("<0x"), text("<0xZZ>")]))])
    return seeds


def split_set(members, named=0, missing=False):
    """A seed of fuzz_split: see there."""
    out = bytes([len(members) - 1 | named << 2 | (16 if missing else 0)])
    for data in members[:-1]:
        out += struct.pack("<H", len(data)) + data
    return out + members[-1]


def split_keys(no, count, total):
    return [pair("split.no", 2, struct.pack("<H", no)), pair("split.count", 2, struct.pack("<H", count)),
            pair("split.tensors.count", 5, struct.pack("<i", total))]


def split_seeds():
    arch = [pair("general.architecture", 8, text("llama")), pair("llama.embedding_length", 4, struct.pack("<I", 8))]
    one = lambda name: [tensor(name, [8], 0, 0)]
    data = bytes(range(32))
    names = ["token_embd.weight", "blk.0.attn_q.weight", "blk.1.nextn.eh_proj.weight", "output_norm.weight"]

    def members(count, total=None, first=True):
        held = names[:count] if first else [None] + names[:count - 1]
        total = count - (not first) if total is None else total
        return [gguf((arch if i == 0 else []) + split_keys(i, count, total), one(n) if n else (), data if n else b"")
                for i, n in enumerate(held)]
    good = members(2)
    return {
        "one": split_set([gguf(arch, one(names[0]), data)]),
        "one-marked": split_set([gguf(arch + split_keys(0, 1, 1), one(names[0]), data)]),
        "one-not-split": split_set([gguf(arch + split_keys(0, 0, 1), one(names[0]), data)]),
        "two": split_set(good),
        "two-second-named": split_set(good, 1),
        "three": split_set(members(3), 2),
        "four": split_set(members(4), 3),
        "no-tensors-first": split_set(members(3, first=False)),
        "missing": split_set(good, 0, True),
        "empty-member": split_set([good[0], b""]),
        "swapped": split_set(good[::-1]),
        "same-twice": split_set([good[0], good[0]]),
        "foreign": split_set([good[0], gguf(split_keys(1, 3, 2), one("x"), data)]),
        "wrong-total": split_set(members(2, total=7)),
        "negative-total": split_set(members(2, total=-1)),
        "no-keys": split_set([good[0], gguf((), one("x"), data)]),
        "duplicate": split_set([good[0], gguf(split_keys(1, 2, 2), one(names[0]), data)]),
        "wide-keys": split_set([gguf([pair("split.no", 10, wide(0)), pair("split.count", 10, wide((1 << 32) + 2)),
                                      pair("split.tensors.count", 10, wide(2))], one("a"), data), good[1]]),
        "text-keys": split_set([gguf([pair("split.no", 8, text("0")), pair("split.count", 8, text("2"))], one("a"), data), good[1]]),
        "other-alignment": split_set([good[0], gguf(split_keys(1, 2, 2) + [pair("general.alignment", 4, struct.pack("<I", 64))],
                                                    one("b"), data, align=64)]),
        "other-version": split_set([good[0], gguf(split_keys(1, 2, 2), one("b"), data, version=2)]),
        "cut-member": split_set([good[0], good[1][:-5]]),
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


def known_manifest_faults():
    """Paths from outside (CVE-2024-37032 and its kin), numbers that do not fit, texts that are none."""
    seeds = {}
    paths = {"absolute": "/etc/passwd", "parent": "..", "inside": "a/../../b", "dot": "./a", "empty": "", "twice": "a//b", "end": "a/",
             "backslash": "a\\..\\b", "colon": "c:a", "nul": "a\u0000b", "device": "NUL.gguf", "device-inside": "a/com1", "newline": "a\nb",
             "long": "x" * 300, "deep": "a/" * 2000 + "b", "case": "SHARED/Metadata.gguf", "manifest": "model-package.json",
             "split": "layers/m-00001-of-00002.gguf", "space": "a /b.", "tilde": "~/a", "unicode": "\u202e/a", "percent": "%2e%2e/a"}
    for name, path in paths.items():
        seeds["cve-2024-37032-path-" + name] = manifest(layers=[artifact(path, layer_index=0), artifact("b", layer_index=1)])
    for name, raw in (("2e31", "2147483648"), ("2e32", "4294967295"), ("2e63", "9223372036854775807"), ("2e64", "18446744073709551616"),
                      ("minus", "-1"), ("real", "2.0"), ("exponent", "1e400"), ("text", '"2"'), ("nan", "NaN"), ("null", "null"), ("deep", "[" * 600)):
        for key in ("layer_count", "schema_version", "activation_width", "created_at_unix_secs"):
            doc = manifest()
            at = doc.index(b'"%s":' % key.encode()) + len(key) + 3
            end = min(x for x in (doc.find(b",", at), doc.find(b"}", at)) if x > 0)
            seeds["number-%s-%s" % (key.split("_")[0], name)] = doc[:at] + raw.encode() + doc[end:]
        doc = manifest()
        at = doc.index(b'"artifact_bytes":') + 17
        seeds["number-bytes-" + name] = doc[:at] + raw.encode() + doc[doc.index(b",", at):]
    seeds["duplicate-key"] = manifest()[:-1] + b',"schema_version":1}'
    seeds["sha-upper"] = manifest(source_model={"path": "m", "sha256": SHA.upper()})
    seeds["sha-short"] = manifest(layers=[artifact("a", layer_index=0, sha256=SHA[:-1]), artifact("b", layer_index=1, sha256=SHA + "0")])
    seeds["no-tensors-but-bytes"] = manifest(layers=[artifact("a", layer_index=0, tensor_count=0), artifact("b", layer_index=1, tensor_bytes=0)])
    seeds["surrogate"] = manifest().replace(b"org/model:Q4", b"\\ud800")
    seeds["not-utf8"] = manifest().replace(b"org/model:Q4", b"\xff\xfe")
    seeds["bom"] = b"\xef\xbb\xbf" + manifest()
    for i, v in enumerate(("0", "0.1", "0.1.", "0.1.25.1", "1.0.0", "0.2.0", "0.1.x", "-0.1.25", "99999999999.1.1", " 0.1.25", "")):
        seeds["abi-%d" % i] = manifest(skippy_abi_version=v)
    for key in manifest_keys():
        doc = json.loads(manifest())
        del doc[key]
        seeds["without-" + key] = json.dumps(doc, separators=(",", ":")).encode()
    return seeds


def manifest_keys():
    return list(json.loads(manifest()))


def generation_seeds():
    """Roads through the generation block."""
    mtp = {"default": "m", "proposers": {"p": {"type": "native-mtp"}},
           "strategies": {"m": {"type": "native-mtp", "proposer": "p", "prediction_depth": 1, "layer_indices": [1]}}}
    ngram = {"default": "n", "proposers": {"c": {"type": "ngram-cache", "min_ngram": 2, "max_ngram": 4, "max_proposal_tokens": 8}},
             "strategies": {"n": {"type": "ngram", "proposer": "c", "window_policy": {"default": "fixed", "initial_window": 4, "min_window": 1, "max_window": 8}}}}
    out = {"generation-mtp": mtp, "generation-ngram": ngram, "generation-odd": {"default": 1, "proposers": [], "strategies": {"": None}}}
    return {k: manifest(generation={"policy": {"profile": "glm-dsa-v1", "decode": ""}, "thresholds": {"dense_mask_max_bytes": 0},
                                    "speculative_decoding": v}) for k, v in out.items()}


def main():
    sets = (("gguf", ".gguf", {**gguf_seeds(), **known_gguf_faults()}), ("split", "", split_seeds()),
            ("manifest", ".json", {**manifest_seeds(), **known_manifest_faults(), **generation_seeds()}))
    for folder, end, seeds in sets:
        path = os.path.join(HERE, "corpus", folder)
        os.makedirs(path, exist_ok=True)
        for name, data in seeds.items():
            with open(os.path.join(path, name + end), "wb") as f:
                f.write(data)


if __name__ == "__main__":
    main()
