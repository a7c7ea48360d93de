"""`strata run --session`: what a file restores is what would have been computed, and a file that cannot help says why."""
import json
import os
import shutil
import struct
import unittest

import common

KINDS = {  # one model of each kind of state
    "attention": {"arch": "llama", "layers": 4, "embd": 128},
    "window": {"arch": "gemma3", "layers": 7, "kv_heads": 1, "head_dim": 32, "window": 24},
    "convolution": {"arch": "lfm2", "layers": 6, "embd": 128, "tied": True},
    "latent": {"arch": "deepseek2", "layers": 3, "kv_rank": 64, "n_rot": 32, "experts": 4, "experts_used": 4, "groups": 1,
               "groups_used": 1},
}
IDS = [1 + (i * 37 + i * i // 5) % 200 for i in range(200)]


def ids(n, start=0):
    return " ".join(map(str, IDS[start:start + n]))


class Session(unittest.TestCase):
    def setUp(self):
        self.path = os.path.join(common.WORK, "a.session")
        if os.path.exists(self.path):
            os.remove(self.path)

    def generate(self, model, prompt, *args, session=None, status=0):
        """(report, stderr) of a run over token ids; with an F32 cache, whose numbers do not depend on the batches."""
        extra = ("--session", session) if session else ()
        done = common.run("run", model, "--ids", "-p", prompt, "-c", "600", "--kv-type", "f32", "--json", *extra, *args)
        self.assertEqual(done.returncode, status, done.stderr.decode())
        return json.loads(done.stdout), done.stderr.decode()

    def test_goes_on(self):
        """A talk in three turns: each computes its own part only, and says what one run over everything says."""
        for name, options in KINDS.items():
            model = common.generated(**options)
            self.setUp()
            with self.subTest(kind=name):
                first, note = self.generate(model, ids(60), "-n", "12", session=self.path)
                self.assertIn("is new", note)
                self.assertEqual((first["session"], first["prefill"]["tokens"]), ({"restored": 0, "saved": 71}, 60))
                prompt = ids(60) + " " + " ".join(map(str, first["tokens"])) + " " + ids(30, 60)
                want, _ = self.generate(model, prompt, "-n", "20")
                got, note = self.generate(model, prompt, "-n", "20", session=self.path)
                self.assertIn("71 of 102 positions restored", note)
                self.assertEqual(got["tokens"], want["tokens"])
                self.assertEqual((got["session"], got["prefill"]["tokens"]), ({"restored": 71, "saved": 121}, 31))
                prompt += " " + " ".join(map(str, got["tokens"])) + " 7 8 9"
                want, _ = self.generate(model, prompt, "-n", "9")
                got, _ = self.generate(model, prompt, "-n", "9", session=self.path)
                self.assertEqual(got["tokens"], want["tokens"])
                self.assertEqual(got["session"]["restored"], 121)

    def test_same_prompt_again(self):
        """What was generated is gone back over."""
        for name, options in KINDS.items():
            model = common.generated(**options)
            self.setUp()
            with self.subTest(kind=name):
                want, _ = self.generate(model, ids(50), "-n", "30", session=self.path)
                got, _ = self.generate(model, ids(50), "-n", "30", session=self.path)
                self.assertEqual(got["tokens"], want["tokens"])
                self.assertEqual((got["session"]["restored"], got["prefill"]["tokens"]), (49, 1))

    def test_common_prefix(self):
        """As far as windows let go back: by as many positions as a batch may have."""
        for name, options in KINDS.items():
            model = common.generated(**options)
            self.setUp()
            with self.subTest(kind=name):
                self.generate(model, ids(100), "-n", "1", "-b", "16", session=self.path)
                kept = os.path.join(common.WORK, "kept.session")
                shutil.copy(self.path, kept)
                for shared in (95, 84, 83, 20):
                    shutil.copy(kept, self.path)
                    prompt = ids(shared) + " 3 " + ids(20)
                    want, _ = self.generate(model, prompt, "-n", "5", "-b", "16")
                    got, note = self.generate(model, prompt, "-n", "5", "-b", "16", session=self.path)
                    self.assertEqual(got["tokens"], want["tokens"], shared)
                    if name in ("attention", "latent") or shared >= 84:
                        self.assertEqual(got["session"]["restored"], shared)
                    else:
                        self.assertEqual(got["session"]["restored"], 0)
                        self.assertIn(f"the first {shared} of {shared + 21} positions are in", note)
                        self.assertIn("cannot go back", note)
                    self.assertEqual(got["session"]["saved"], shared + 21 + 4)

    def test_nothing_in_common(self):
        model = common.generated(**KINDS["attention"])
        self.generate(model, ids(30), "-n", "2", session=self.path)
        got, note = self.generate(model, "9 8 7 6", "-n", "2", session=self.path)
        self.assertIn("nothing in common", note)
        self.assertEqual(got["session"], {"restored": 0, "saved": 5})

    def test_text(self):
        """With a tokenizer, and as people see it."""
        model = common.generated(layers=3, seed=4)
        args = ("run", model, "-p", "The quick brown fox jumps over the lazy dog.", "-n", "10", "--kv-type", "f32")
        plain = common.run(*args)
        first = common.run(*args, "--session", self.path)
        again = common.run(*args, "--session", self.path)
        self.assertEqual((plain.stdout, plain.returncode), (first.stdout, 0))
        self.assertEqual(again.stdout, plain.stdout)
        self.assertIn(b"prefill: 1 tokens", again.stderr)
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)

    def test_package(self):
        """A package's session is another package's only if both are the same, and a plain file's is its own."""
        model = common.generated(**KINDS["attention"])
        package = common.package_of(model)
        first, _ = self.generate(package, ids(40), "-n", "3", session=self.path)
        again, _ = self.generate(package, ids(40), "-n", "3", session=self.path)
        self.assertEqual((again["tokens"], again["session"]["restored"]), (first["tokens"], 39))
        self.refused(model, "of another model")

    def refused(self, model, says, *args):
        with open(self.path, "rb") as f:
            before = f.read()
        report, note = self.generate(model, ids(30), "-n", "2", *args, session=self.path, status=1)
        self.assertIn(says, report["error"]["message"])
        self.assertIn("session", note)
        with open(self.path, "rb") as f:
            self.assertEqual(f.read(), before)  # what cannot be used is not overwritten

    def test_refusals(self):
        model = common.generated(**KINDS["attention"])
        self.generate(model, ids(30), "-n", "2", session=self.path)
        with open(self.path, "rb") as f:
            sound = f.read()
        self.refused(common.generated(**KINDS["attention"], seed=5), "of another model")
        self.refused(common.generated(**KINDS["window"]), "architecture 'llama'")
        self.refused(model, "KV cache of type f32", "--kv-type", "f16")
        for data, says in ((b"", "no snapshot"), (b"hello", "no snapshot"), (sound[:100], "no snapshot"),
                           (sound[:2000], "cut short"), (sound[:-1], "cut short"), (sound + b"\0", "follows"),
                           (sound[:8] + struct.pack("<I", 9) + sound[12:], "version 9"),
                           (sound[:20] + b"\x55" + sound[21:], "header differs"),
                           (sound[:-200] + bytes([sound[-200] ^ 4]) + sound[-199:], "differs from its digest")):
            with open(self.path, "wb") as f:
                f.write(data)
            self.refused(model, says)

    def test_places(self):
        model = common.generated(**KINDS["attention"])
        for path in (common.WORK, os.path.join(common.WORK, "no", "such", "folder")):
            report, _ = self.generate(model, ids(30), "-n", "2", session=path, status=1)
            self.assertIn(path, report["error"]["message"])
        self.assertEqual([n for n in os.listdir(common.WORK) if "session" in n and "tmp" in n], [])


if __name__ == "__main__":
    unittest.main()
