#!/usr/bin/env python3
"""Writes the seeds of schema 2: tests/fuzz/corpus/carrier, and v2-*.json in tests/fuzz/corpus/manifest.

The seeds are committed; run this again after changing it. package_id is computed here by other means than in the
program, so that a sound seed proves both.
"""
import copy
import hashlib
import json
import os
import struct

from make_corpus import HERE, SHA, array, gguf, pair, tensor, text

COMMIT = "0123456789abcdef" * 2 + "01234567"

ROOT = ["schema_version", "package_id", "model_id", "source_model", "format", "layer_count", "artifact_catalog", "sidecars",
        "publisher_metadata", "publisher_defaults", "generation", "native_abi_version", "generator_version", "created_at_unix_secs"]


def package_id(doc):
    """Keys in the order of ROOT (the documents here have inner keys in their order already), lists sorted."""
    d = copy.deepcopy(doc)
    d["package_id"], d["created_at_unix_secs"] = "", 0
    d["source_model"]["files"].sort(key=lambda f: f["path"])
    d["artifact_catalog"]["entries"].sort(key=lambda a: a["id"])
    if "sidecars" in d:
        d["sidecars"].sort(key=lambda s: (s["kind"], s.get("name", ""), s["artifact_id"]))
    d = {k: d[k] for k in ROOT if k in d}
    canonical = json.dumps(d, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def artifact(name, path, size=96):
    return {"id": name, "path": path, "byte_size": size, "sha256": SHA}


def manifest(**changes):
    doc = {
        "schema_version": 2, "package_id": "", "model_id": "org/model:Q8_0",
        "source_model": {"sha256": SHA, "metadata_artifact_id": "metadata", "primary_file": "m.gguf",
                         "files": [{"path": "m.gguf", "byte_size": 9, "sha256": SHA}]},
        "format": "gguf", "layer_count": 2,
        "artifact_catalog": {"entries": [
            artifact("metadata", "shared/metadata.gguf"), artifact("common", "shared/common.gguf"),
            artifact("layer-00000", "layers/layer-00000.gguf"), artifact("layer-00001", "layers/layer-00001.gguf")]},
        "native_abi_version": "0.1.53", "generator_version": "0.76.1", "created_at_unix_secs": 1}
    for key, value in changes.items():
        if value is None:
            del doc[key]
        else:
            doc[key] = value
    return doc


def sealed(doc):
    doc["package_id"] = package_id(doc)
    return json.dumps(doc, separators=(",", ":")).encode()


def profile(**more):
    p = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "stop": ["x"], "logit_bias": {"5": -1.5}, "seed": 7,
         "dry": {"sequence_breakers": ["\n"]}, "samplers": ["top_k"], "sampler_sequence": "kpt",
         "reasoning": {"enabled": "on", "format": "deepseek", "budget": 512},
         "provenance": {"source_repo": "org/model", "revision": COMMIT, "file": "README.md", "section": "s",
                        "url": "https://example.org/" + COMMIT + "/README.md"}}
    p.update(more)
    return {"request_defaults": {"selection": {"default": "chat"}, "profiles": {"chat": p}}}


def manifest_seeds():
    many = [artifact("metadata", "shared/metadata.gguf"), artifact("common-part01", "c1"), artifact("common-part00", "c0"),
            artifact("layer-00001", "l1"), artifact("layer-00000-part01", "l01"), artifact("layer-00000-part00", "l00"),
            artifact("p", "projectors/p.gguf")]
    mtp = {"speculative_decoding": {"default": "mtp", "strategies": {"mtp": {
        "type": "native-mtp", "prediction_depth": 1, "layer_indices": [1],
        "window_policy": {"default": "fixed", "initial_window": 1, "min_window": 1, "max_window": 1}}}}}
    broken = copy.deepcopy(mtp)
    broken["speculative_decoding"]["strategies"]["mtp"]["layer_indices"] = [9]
    good = manifest()
    other_sha = manifest()
    other_sha["source_model"]["sha256"] = SHA[::-1]
    seeds = {
        "good": sealed(good),
        "parts": sealed(manifest(artifact_catalog={"entries": many}, sidecars=[{"kind": "mmproj", "artifact_id": "p", "name": "p"}])),
        "mtp": sealed(manifest(generation=mtp)),
        "old-id": json.dumps(manifest(package_id="sha256:" + SHA)).encode(),
        "unknown-field": json.dumps(manifest(future=1)).encode(),
        "mtp-layer": json.dumps(manifest(generation=broken)).encode(),
        "policy": json.dumps(manifest(generation={"policy": {}})).encode(),
        "profile": json.dumps(manifest(generation=profile())).encode(),
        "profile-bounds": json.dumps(manifest(generation=profile(temperature=-1, top_k=-2, max_tokens=0, samplers=["?"]))).encode(),
        "source-mismatch": json.dumps(other_sha).encode(),
        "no-artifacts": json.dumps(manifest(artifact_catalog={"entries": []})).encode(),
        "twice": json.dumps(manifest(artifact_catalog={"entries": many[:3] * 2})).encode(),
        "far-layer": json.dumps(manifest(artifact_catalog={"entries": many[:2] + [artifact("layer-00007", "x")]})).encode(),
        "ids": json.dumps(manifest(artifact_catalog={"entries": [artifact(i, "f%d" % n) for n, i in enumerate(
            ("metadata", "", "a b", "layer-1", "layer-000001", "layer-00001-part", "layer-00001-part1x", "layer-00001-part123456789012"))]})).encode(),
        "publisher": json.dumps(manifest(
            artifact_catalog={"entries": many[:2] + [artifact("config", "metadata/config.json")]},
            publisher_metadata=[{"role": "model_config", "artifact_id": "config", "source_repo": "a", "source_revision": COMMIT,
                                 "source_path": "config.json"}] * 2,
            publisher_defaults={"kv_cache_dtype": {"dtype": "f16", "artifact_id": "config", "json_path": "$"}})).encode(),
        "empty": b'{"schema_version":2}',
        "wrong-types": b'{"schema_version":2,"source_model":[],"artifact_catalog":{"entries":[{},1,{"id":2,"path":[]}]},"sidecars":[{},1],'
                       b'"publisher_metadata":[{}],"publisher_defaults":{"compute_dtype":{}},"generation":{"request_defaults":{"profiles":'
                       b'{"a":{}}},"speculative_decoding":{"strategies":{"a":{"type":"native-mtp"}}}}}',
    }
    for key in good:
        seeds["without-" + key.split("_")[0]] = json.dumps(manifest(**{key: None})).encode()
    return seeds


def carrier(parts=(0, 2, 0), offsets=(64, 64, 128), sizes=(32, 32, 32), alignments=(32, 32, 32), count=4, schema=1, only=b"\1",
            names=("token_embd.weight", "blk.0.attn_norm.weight", "output_norm.weight"), layers=2, bytes_of_parts=(8, 8, 8, 8), tail=b""):
    u32, u64 = lambda v: struct.pack("<I", v), lambda v: struct.pack("<Q", v)
    pairs = [pair("general.architecture", 8, text("llama")), pair("skippy.package.metadata_only", 7, only),
             pair("skippy.package.part_count", 4, u32(count)), pair("skippy.package.locator_schema", 4, u32(schema)),
             pair("skippy.package.tensor_part", 9, array(4, [u32(v) for v in parts])),
             pair("skippy.package.tensor_offset", 9, array(10, [u64(v) for v in offsets])),
             pair("skippy.package.tensor_size", 9, array(10, [u64(v) for v in sizes])),
             pair("skippy.package.tensor_alignment", 9, array(4, [u32(v) for v in alignments]))]
    body = gguf(pairs, [tensor(n, [8], 0, 0) for n in names])
    body += b"\0" * (-len(body) % 32) + tail
    return bytes([3 | (layers - 1) << 2]) + struct.pack("<4H", *bytes_of_parts) + body


def carrier_seeds():
    mtp = ("token_embd.weight", "blk.1.nextn.eh_proj.weight", "output.weight")
    return {
        "good": carrier(), "mtp": carrier(names=mtp), "replicated": carrier(names=("rope_freqs.weight", "blk.1.a", "output.weight")),
        "payload": carrier(tail=b"x" * 32), "count": carrier(count=3), "schema": carrier(schema=2), "flag": carrier(only=b"\0"),
        "part": carrier(parts=(0, 4, 0)), "alignment": carrier(alignments=(32, 24, 32)), "zero-alignment": carrier(alignments=(32, 0, 32)),
        "misaligned": carrier(offsets=(64, 65, 128)), "outside": carrier(offsets=(64, 256, 128)),
        "wrapping": carrier(offsets=(64, (1 << 64) - 32, 128)), "overlap": carrier(offsets=(64, 64, 80), alignments=(32, 32, 16)),
        "size": carrier(sizes=(32, 31, 32)), "short": carrier(sizes=(32, 32)), "far-layer": carrier(layers=1, names=mtp),
        "no-tensors": carrier((), (), (), (), names=()), "empty-parts": carrier(bytes_of_parts=(0, 0, 0, 0)),
    }


def main():
    for folder, seeds, prefix, ending in (("manifest", manifest_seeds(), "v2-", ".json"), ("carrier", carrier_seeds(), "", ".bin")):
        out = os.path.join(HERE, "corpus", folder)
        os.makedirs(out, exist_ok=True)
        for name, data in seeds.items():
            with open(os.path.join(out, prefix + name + ending), "wb") as f:
                f.write(data)


if __name__ == "__main__":
    main()
