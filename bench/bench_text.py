#!/usr/bin/env python3
"""Speed of Strata's tokenizers beside llama.cpp's, on the same vocabulary and the same texts, in the same run.

usage: bench/bench_text.py [--build DIR] [--vocab FILE ...] [--rounds N] [--long BYTES] [--json]
PEER_RUN names a program that runs a command where llama.cpp's headers, libraries and a C compiler are, with this folder
and /tmp in the same places; without it the peer's columns stay empty. --vocab adds GGUF files (only their metadata is
read); without it STRATA_MODEL is used, and the small vocabularies of tests/data always.

Two tables: megabytes a second for prose, code, CJK and mixed text, with the median ratio of rounds that are interleaved;
and nanoseconds a byte for long texts of one kind of character at an eighth of --long and at --long (10 MB), which must
not differ much: time is linear. Both use one thread; what is measured is its processor time.
"""
import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIGURES = re.compile(r"bytes=(\d+) ids=(\d+) seconds=([0-9.]+)")
LONG = {"letters": "etaoinshrdlucmfwypvbgkqjxz", "one letter": "a", "spaces": " ", "line breaks": "\n", "digits": "0123456789",
        "CJK": "".join(chr(c) for c in range(0x4E00, 0x9FA6)), "punctuation": "!?.,;:-_()[]{}<>/|#$%&*+=~^@", "one sign": "!"}


def read_all(patterns, limit):
    data = b"".join(p.read_bytes() for pattern in patterns for p in sorted(ROOT.glob(pattern)))
    while len(data) < limit:
        data += data
    return data[:limit].decode(errors="ignore")


def texts(limit):
    """Prose and code of this repository; CJK and mixed lines of the test corpus in random order."""
    rng = random.Random(4)
    lines = (ROOT / "tests/data/corpus.txt").read_text(encoding="utf-8").split("\n")
    cjk = [s for s in lines if len(s) > 4 and sum("\u3000" <= c <= "\ud7a3" for c in s) > 0.4 * len(s)]

    def shuffled(pool):
        out, n = [], 0
        while n < limit:
            out.append(rng.choice(pool))
            n += len(out[-1].encode()) + 1
        return "\n".join(out)
    return {"prose": read_all(["docs/*.md", "README.md", "*.md"], limit), "code": read_all(["src/*/*.[ch]", "tests/**/*.c"], limit),
            "CJK": shuffled(cjk), "mixed": shuffled(lines)}


def measure(command, text, timeout=600):
    """Processor seconds for the text, best of the program's own repetitions, and the number of ids; None when it fails."""
    done = subprocess.run([*command, "--no-specials", "--time"], input=text, capture_output=True, timeout=timeout)
    found = FIGURES.search(done.stderr.decode(errors="replace"))
    return (float(found[3]), int(found[2])) if done.returncode == 0 and found else None


def build_peer(folder):
    if not os.environ.get("PEER_RUN"):
        return None
    program = os.path.join(folder, "peer_tokenize")
    subprocess.run([os.environ["PEER_RUN"], "gcc", "-O2", str(ROOT / "tests/golden/peer_tokenize.c"), "-o", program, "-lllama", "-lggml",
                    "-lggml-base"], check=True)
    return [os.environ["PEER_RUN"], program]


def vocabularies(args, folder):
    out = [str(Path(v).resolve()) for v in args.vocab]
    if not out and os.environ.get("STRATA_MODEL"):
        out.append(os.environ["STRATA_MODEL"])
    make = [sys.executable, str(ROOT / "tests/tools/mkvocab.py"), "build"]
    for name, pre in (("bpe-vocab.txt", ["--pre", "llama-bpe"]), ("bpe-vocab.txt", ["--pre", "gpt-4o"]), ("spm-vocab.txt", [])):
        path = os.path.join(folder, "-".join([name.split("-", maxsplit=1)[0], *pre[1:]]) + ".gguf")
        subprocess.run([*make, str(ROOT / "tests/data" / name), path, *pre], check=True)
        out.append(path)
    return out


def compare(args, ours, peer, vocab, name, text):
    """The rounds of both, interleaved. Both must give the same number of ids."""
    data, mine, theirs = text.encode(), [], []
    for _ in range(args.rounds):
        got = measure([ours, vocab], data)
        want = measure([*peer, vocab], data) if peer else None
        if got is None:
            sys.exit(f"bench_text: {ours} failed on {vocab}, {name}")
        if want and want[1] != got[1]:
            sys.exit(f"bench_text: {vocab}, {name}: {got[1]} ids, the peer's {want[1]}")
        mine.append(got[0])
        if want:
            theirs.append(want[0])
    row = {"vocab": Path(vocab).stem, "text": name, "bytes": len(data), "mb_per_s": len(data) / statistics.median(mine) / 1e6}
    if theirs:
        row["peer_mb_per_s"] = len(data) / statistics.median(theirs) / 1e6
        row["ratio"] = statistics.median(t / m for t, m in zip(theirs, mine))
    return row


def long_texts(args, ours, vocab):
    rng = random.Random(5)
    for name, pool in LONG.items():
        width, row = len(pool[0].encode()), {"vocab": Path(vocab).stem, "text": name}
        for key, size in (("ns_per_byte_short", args.long // 8), ("ns_per_byte_long", args.long)):
            data = "".join(rng.choices(pool, k=size // width)).encode()
            got = measure([ours, vocab], data)
            if got is None:
                sys.exit(f"bench_text: {ours} failed on {vocab}, {size} bytes of {name}")
            row[key] = got[0] / len(data) * 1e9
        yield row


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--vocab", nargs="*", default=[])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--size", type=int, default=1000000, help="bytes of each text of the first table")
    p.add_argument("--long", type=int, default=10000000)
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    ours = str((ROOT / args.build / "tools/vocab_ids").resolve())
    if not os.path.exists(ours):
        sys.exit(f"bench_text: {ours} is missing; run `make tools`")
    say = (lambda line: None) if args.json else (lambda line: print(line, flush=True))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        peer, speed, linear = build_peer(folder), [], []
        vocabs = vocabularies(args, folder)
        say(f"{'vocabulary':32} {'text':12} {'Strata MB/s':>12} {'peer MB/s':>10} {'ratio':>7}")
        for vocab in vocabs:
            for name, text in texts(args.size).items():
                r = compare(args, ours, peer, vocab, name, text)
                speed.append(r)
                other = f"{r['peer_mb_per_s']:10.2f} {r['ratio']:7.1f}" if "ratio" in r else f"{'-':>10} {'-':>7}"
                say(f"{r['vocab']:32.32} {r['text']:12} {r['mb_per_s']:12.2f} {other}")
        say(f"\n{'vocabulary':32} {'one kind':12} {'ns/B, 1/8':>12} {'ns/B':>10} {'growth':>7}")
        for vocab in vocabs:
            for r in long_texts(args, ours, vocab):
                linear.append(r)
                a, b = r["ns_per_byte_short"], r["ns_per_byte_long"]
                say(f"{r['vocab']:32.32} {r['text']:12} {a:12.1f} {b:10.1f} {b / a:7.2f}")
    if args.json:
        print(json.dumps({"speed": speed, "linear": linear}, indent=1))


if __name__ == "__main__":
    main()
