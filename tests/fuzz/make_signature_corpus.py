#!/usr/bin/env python3
"""Writes the seeds of fuzz_signature: tests/fuzz/corpus/signature. They are committed; run this again after a change."""
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "corpus", "signature")
GOOD = {
    "schema_version": 1,
    "algorithm": "ed25519",
    "public_key": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
    "signed_file": "model-package.json",
    "manifest_sha256": "0123456789abcdef" * 4,
    "signature": "A" * 86 + "==",
}


def changed(**fields):
    return {k: v for k, v in {**GOOD, **fields}.items() if v is not None}


SEEDS = {
    "good": json.dumps(GOOD, indent=2) + "\n",
    "compact": json.dumps(GOOD, separators=(",", ":")),
    "reversed": json.dumps(dict(reversed(GOOD.items()))),
    "no-signature": json.dumps(changed(signature=None)),
    "version-2": json.dumps(changed(schema_version=2)),
    "other-algorithm": json.dumps(changed(algorithm="none")),
    "other-file": json.dumps(changed(signed_file="../model-package.json")),
    "upper-digest": json.dumps(changed(manifest_sha256="0123456789ABCDEF" * 4)),
    "stray-bits": json.dumps(changed(public_key="11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURp=")),
    "short-signature": json.dumps(changed(signature="AAAA")),
    "numbers": json.dumps(changed(public_key=7, signature=[1], manifest_sha256={})),
    "unknown-key": json.dumps(changed(signer="somebody")),
    "twice": json.dumps(GOOD)[:-1] + ', "algorithm": "ed25519"}',
    "escapes": json.dumps(GOOD).replace("ed25519", "\\u0065d25519"),
    "array": "[1, 2]",
    "cut": json.dumps(GOOD)[:100],
}


def main():
    os.makedirs(OUT, exist_ok=True)
    for name, text in SEEDS.items():
        with open(os.path.join(OUT, name + ".json"), "w", encoding="utf-8") as f:
            f.write(text)


if __name__ == "__main__":
    main()
