"""strata tokenize: the command itself. That the ids are right is shown by tests/unit/text/test_golden.c on a whole corpus."""
import json
import os
import re
import subprocess
import sys
import unittest

import common

TOOLS = os.path.join(common.ROOT, "tests", "tools")
DATA = os.path.join(common.ROOT, "tests", "data")


def vocabulary(name, *more):
    path = os.path.join(common.WORK, name + "".join(more) + ".gguf")
    if not os.path.exists(path):
        subprocess.run([sys.executable, os.path.join(TOOLS, "mkvocab.py"), "build", os.path.join(DATA, name), path, *more], check=True)
    return path


def ids(result):
    return [line.split() for line in result.stdout.decode().split("\n")[:-1]]


class Tokenize(unittest.TestCase):
    def test_real_model_against_golden(self):
        if not common.MODEL:
            self.skipTest("STRATA_MODEL names no real model")
        with open(os.path.join(DATA, "corpus.txt"), "rb") as f:
            corpus = f.read()
        for flags, name in (([], "tokenize-smollm2.ids"), (["--no-specials"], "tokenize-smollm2-plain.ids")):
            with open(os.path.join(common.ROOT, "tests", "golden", name), "rb") as f:
                want = f.read().split(b"\n")[:corpus.count(b"\n")]
            done = common.run("tokenize", common.MODEL, *flags, stdin=corpus)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.split(b"\n")[:-1], want)

    def test_lines(self):
        model = common.generated()
        done = common.run("tokenize", model, stdin=b"one two\n\n three\nlast")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        lines = ids(done)
        self.assertEqual(len(lines), 4)
        whole = common.run("tokenize", model, "--json", stdin=b"one two\n\n three\nlast")
        self.assertEqual([[str(i) for i in line] for line in json.loads(whole.stdout)], lines)
        self.assertEqual(common.run("tokenize", model, stdin=b"").stdout, b"")
        self.assertEqual(json.loads(common.run("tokenize", model, "--json", stdin=b"").stdout), [])

    def test_package_gives_the_same(self):
        model = common.generated()
        text = "Grüße, 世界!\r\n\tx 123\n".encode() + bytes([0xFF, 0x0A])
        one = common.run("tokenize", model, stdin=text)
        other = common.run("tokenize", common.package_of(model), stdin=text)
        self.assertEqual((one.returncode, one.stdout), (other.returncode, other.stdout), other.stderr)
        self.assertEqual(one.returncode, 0)

    def test_errors(self):
        model = common.generated()
        text = os.path.join(common.WORK, "not-a-model.txt")
        with open(text, "w", encoding="utf-8") as f:
            f.write("hello")
        for args, status in (((), 2), ((model, model), 2), (("--nosuch", model), 2), (("/nonexistent",), 1), ((text,), 1)):
            done = common.run("tokenize", *args, stdin=b"x")
            self.assertEqual(done.returncode, status, args)
            self.assertEqual(done.stdout, b"")
            self.assertTrue(done.stderr.startswith(b"strata tokenize: "), done.stderr)
        done = common.run("tokenize", "--json", text, stdin=b"x")
        self.assertEqual(done.returncode, 1)
        self.assertIn("error", json.loads(done.stdout))
        self.assertIn(b"usage: strata tokenize", common.run("tokenize", "--help").stdout)

    def test_unsupported_vocabulary(self):
        model = vocabulary("bpe-vocab.txt", "--pre", "no-such")
        done = common.run("tokenize", model, stdin=b"x")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count(b"\n"), 1)
        for name in (b"'no-such'", b" llama-bpe", b" tekken", b" gpt-4o", b" deepseek-v3", b" inkling", b"docs/tokenizers.md"):
            self.assertIn(name, done.stderr)

    def test_every_documented_pre_tokenizer(self):
        """The names of the table in docs/tokenizers.md are those that work."""
        with open(os.path.join(common.ROOT, "docs", "tokenizers.md"), encoding="utf-8") as f:
            table = f.read().split("| kind | other names of it |")[1].split("\n\n")[0]
        names = set()
        for row in table.split("\n")[2:]:
            kinds, others = row.split("|")[1:3]
            names.update(kinds.replace("`", "").replace(",", " ").split(), others.split("(")[0].split())
        self.assertGreater(len(names), 80)
        for name in sorted(names):
            done = common.run("tokenize", vocabulary("bpe-vocab.txt", "--pre", name), stdin=b"It's 12 <|im_start|>")
            self.assertEqual(done.returncode, 0, (name, done.stderr))
            self.assertIn("1", done.stdout.decode().split(), name)

    def test_long_line_of_one_kind(self):
        for pre, unit in (("llama-bpe", "a"), ("gpt-4o", " "), ("deepseek-llm", "7"), ("bloom", "\u4e2d"), ("exaone-moe", "a b ")):
            text = (unit * (2000000 // len(unit.encode()))).encode()
            done = common.run("tokenize", "--no-specials", vocabulary("bpe-vocab.txt", "--pre", pre), stdin=text)
            self.assertEqual((done.returncode, done.stderr), (0, b""), pre)
            self.assertEqual(done.stdout.count(b"\n"), 1)
            self.assertGreater(len(done.stdout), 100000, pre)

    def test_ten_megabytes_of_one_kind(self):
        """Every kind of engine: matchers of our own, PCRE2 with its limits, SentencePiece. Processor time a byte stays."""
        def ns_per_byte(model, data):
            done = subprocess.run([os.path.join(common.BUILD, "tools", "vocab_ids"), model, "--no-specials", "--time"], input=data,
                                  capture_output=True, timeout=300, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            found = re.search(r"bytes=(\d+) ids=(\d+) seconds=([0-9.]+)", done.stderr.decode())
            self.assertEqual(int(found[1]), len(data))
            self.assertGreater(int(found[2]), 1000)
            return float(found[3]) / len(data) * 1e9
        for pre, unit in (("llama-bpe", "a"), ("gpt-4o", " "), ("deepseek-v3", "!"), ("deepseek-llm", "7"), ("bloom", "\u4e2d"),
                          ("exaone-moe", "a b "), (None, "a"), (None, "\u4e2d")):
            model = vocabulary("bpe-vocab.txt", "--pre", pre) if pre else vocabulary("spm-vocab.txt")
            text = unit.encode() * (10_000_000 // len(unit.encode()))
            short, long = ns_per_byte(model, text[:len(text) // 8 // 12 * 12]), ns_per_byte(model, text)
            print(f"{pre or 'SentencePiece'}, {unit!r}: {short:.0f} ns a byte, {long:.0f} for 10 MB")
            self.assertLess(long, 3 * short + 20)


if __name__ == "__main__":
    unittest.main()
