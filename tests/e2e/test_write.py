"""write, write-stages and write-package as a publisher runs them, in both programs' dialects."""
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

import common

SKIPPY = os.path.join(common.BUILD, "skippy-model-package")
ARTIFACT = {"path", "tensor_count", "tensor_bytes", "artifact_bytes", "sha256"}


def skippy(*args, **kwargs):
    return subprocess.run([SKIPPY, *args], capture_output=True, timeout=120, check=False, **kwargs)


class Write(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = common.generated(layers=5, seed=3)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def ok(self, done):
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done

    def test_slice(self):
        out, manifest = self.path("a.gguf"), self.path("a.json")
        done = self.ok(common.run("write", self.model, "--layers", "0..2", "--out", out, "--manifest", manifest))
        self.assertIn(b"layers 0..2", done.stdout)
        with open(manifest, encoding="utf-8") as f:
            stage = json.load(f)["stages"][0]
        self.assertEqual((stage["layer_start"], stage["layer_end"], stage["path"]), (0, 2, "a.gguf"))
        self.assertTrue(stage["includes_embeddings"])
        self.assertEqual(stage["artifact_bytes"], os.path.getsize(out))
        self.assertEqual(stage["sha256"], common.sha256(out))
        done = self.ok(skippy("write", self.model, "--layers", "4..5", "--out", self.path("b.gguf")))
        self.assertEqual(done.stdout, b"")  # the older tool says nothing
        for bad in ("3..3", "5..4", "1..", "..2", "a..b", "1..2..3", "-1..2"):
            self.assertEqual(common.run("write", self.model, "--layers", bad, "--out", out).returncode, 2, bad)
        done = common.run("write", self.model, "--layers", "4..6", "--out", self.path("no.gguf"))
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"5 layers", done.stderr)
        self.assertFalse(os.path.exists(self.path("no.gguf")))

    def test_stages(self):
        done = self.ok(skippy("write-stages", self.model, "--stages", "2", "--out-dir", self.path("st")))
        root = json.loads(done.stdout)
        self.assertEqual(set(root), {"schema_version", "source_model", "source_sha256", "stage_count", "layer_count", "stages"})
        self.assertEqual(root["source_sha256"], common.sha256(self.model))
        self.assertEqual([(s["layer_start"], s["layer_end"]) for s in root["stages"]], [(0, 3), (3, 5)])
        self.assertEqual(set(root["stages"][0]), ARTIFACT | {"stage_index", "layer_start", "layer_end", "includes_embeddings",
                                                             "includes_output"})
        for s in root["stages"]:
            self.assertEqual(s["sha256"], common.sha256(os.path.join(self.path("st"), s["path"])))
        self.assertEqual(skippy("write-stages", self.model, "--stages", "6", "--out-dir", self.path("x")).returncode, 1)
        self.assertFalse(os.path.exists(self.path("x")))

    def test_package_dialects(self):
        env = dict(os.environ, SOURCE_DATE_EPOCH="1700000000")
        flags = ("--model-id", "org/m:Q4", "--source-revision", "abc", "--source-file", "d/m.gguf")
        done = self.ok(skippy("write-package", self.model, "--out-dir", self.path("p"), *flags, env=env))
        with open(self.path("p/model-package.json"), "rb") as f:
            text = f.read()
        self.assertEqual(done.stdout, text)  # what is printed is what is written
        root = json.loads(text)
        self.assertEqual(set(root), {"schema_version", "model_id", "source_model", "format", "layer_count", "activation_width",
                                     "shared", "layers", "skippy_abi_version", "created_at_unix_secs"})
        self.assertEqual(set(root["layers"][0]), ARTIFACT | {"layer_index"})
        self.assertEqual(root["source_model"]["path"], os.path.basename(self.model))
        self.assertEqual(root["source_model"]["files"], [{"path": "d/m.gguf", "size_bytes": os.path.getsize(self.model),
                                                          "sha256": common.sha256(self.model)}])
        self.assertEqual(root["source_model"]["canonical_ref"], "org/m@abc/d/m.gguf")
        with open(self.path("p/README.md"), encoding="utf-8") as f:
            card = f.read()
        for fact in ("org/m:Q4", "abc", common.sha256(self.model), common.sha256(self.path("p/model-package.json"))):
            self.assertIn(fact, card)
        # The same bytes with more threads, from another folder, by the other program.
        self.ok(common.run("write-package", os.path.relpath(self.model, self.folder.name), "--out-dir", "q", *flags, "--jobs", "5",
                           env=env, cwd=self.folder.name))
        for name in root["shared"].values():
            self.assertEqual(common.sha256(self.path("q/" + name["path"])), name["sha256"])
        self.assertEqual(common.sha256(self.path("p/model-package.json")), common.sha256(self.path("q/model-package.json")))
        self.assertEqual(common.sha256(self.path("p/README.md")), common.sha256(self.path("q/README.md")))

    def test_provenance_is_asked_for(self):
        for run in (common.run, skippy):
            done = run("write-package", self.model, "--out-dir", self.path("n"))
            self.assertEqual(done.returncode, 1)
            for option in (b"--model-id", b"--source-revision", b"--source-file", b"--local"):
                self.assertIn(option, done.stderr)
            self.assertFalse(os.path.exists(self.path("n")))
        done = common.run("write-package", "org/model:Q4_K_M", "--out-dir", self.path("n"))
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"fetch it", done.stderr)

    def test_usage(self):
        for args in (("--schema", "3"), ("--jobs", "0"), ("--jobs", "x"), ("--slim", "--schema", "2"),
                     ("--max-artifact-bytes", "5"), ("--max-artifact-bytes", "0", "--schema", "2"), ("--nonsense",),
                     ("extra",)):
            done = common.run("write-package", self.model, "--local", "--out-dir", self.path("u"), *args)
            self.assertEqual(done.returncode, 2, args)
            self.assertFalse(os.path.exists(self.path("u")))
        done = common.run("write-package", self.model, "--local", "--out-dir", self.path("u"), "--abi-version", "7.0.0")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"7.0.0", done.stderr)

    def test_errors_of_the_older_dialect(self):
        done = skippy("write-package", self.path("gone.gguf"), "--out-dir", self.path("g"), "--local")
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stderr.startswith(b"Error: "), done.stderr)
        self.assertEqual(done.stdout, b"")
        self.assertEqual(skippy("nonsense").returncode, 2)
        self.assertEqual(skippy().returncode, 2)
        self.assertEqual(skippy("--version").returncode, 0)
        self.assertEqual(skippy("write-package", "--nonsense").returncode, 2)
        # No engine, no network, no server in the small program.
        linked = subprocess.run(["ldd", SKIPPY], capture_output=True, check=True).stdout
        for library in (b"ggml", b"libuv", b"microhttpd", b"libssl"):
            self.assertNotIn(library, linked)

    def test_generation_file(self):
        block = {"speculative_decoding": {"default": "c", "proposers": {"c": {
            "type": "ngram-cache", "ngram_min": 2, "ngram_max": 4, "max_proposal_tokens": 8, "history_scope": "request"}},
            "strategies": {"c": {"type": "ngram-cache", "proposer": "c"}}}}
        with open(self.path("gen.json"), "w", encoding="utf-8") as f:
            json.dump(block, f)
        self.ok(common.run("write-package", self.model, "--local", "--out-dir", self.path("gp"), "--generation", self.path("gen.json")))
        with open(self.path("gp/model-package.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["generation"], block)
        block["speculative_decoding"]["proposers"]["c"]["ngram_max"] = 9
        with open(self.path("gen.json"), "w", encoding="utf-8") as f:
            json.dump(block, f)
        done = common.run("write-package", self.model, "--local", "--out-dir", self.path("gq"), "--generation", self.path("gen.json"))
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"ngram_max", done.stderr)
        self.assertFalse(os.path.exists(self.path("gq")))

    def test_interrupted_and_resumed(self):
        """Ctrl-C in the middle of the work, made long by a hook; then --resume; then as if nothing had happened."""
        hook = self.path("slow")
        with open(hook, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\nsleep 0.2\n")
        os.chmod(hook, 0o755)
        out = self.path("i")
        args = ("write-package", self.model, "--local", "--out-dir", out, "--after-artifact-command", hook)
        env = dict(os.environ, SOURCE_DATE_EPOCH="1700000000")
        process = subprocess.Popen([common.STRATA, *args], stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        deadline = time.time() + 30
        while not os.path.exists(os.path.join(out, "layers", "layer-00000.gguf")) and time.time() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        self.assertEqual(process.returncode, 1, err)
        self.assertIn(b"--resume", err)
        self.assertFalse(os.path.exists(os.path.join(out, "model-package.json")))
        for _, _, files in os.walk(out):
            self.assertFalse([f for f in files if ".tmp-" in f])
        self.assertEqual(common.run("preflight", out).returncode, 1)
        self.assertEqual(common.run(*args[:-2]).returncode, 1)  # not empty, and not told to go on
        done = self.ok(common.run(*args[:-2], "--resume", env=env))
        self.assertIn(b"kept", done.stdout)
        self.ok(common.run("write-package", self.model, "--local", "--out-dir", self.path("i2"), env=env))
        self.assertEqual(common.sha256(os.path.join(out, "model-package.json")), common.sha256(self.path("i2/model-package.json")))
        self.ok(common.run("preflight", out))

    def test_killed_and_resumed(self):
        """kill -9 leaves temporary files at worst: --resume removes them and finishes."""
        hook = self.path("slow9")
        with open(hook, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\nsleep 0.1\n")
        os.chmod(hook, 0o755)
        out = self.path("k")
        args = ("write-package", self.model, "--local", "--out-dir", out)
        process = subprocess.Popen([common.STRATA, *args, "--after-artifact-command", hook], stderr=subprocess.DEVNULL)
        deadline = time.time() + 30
        while not os.path.exists(os.path.join(out, "shared", "output.gguf")) and time.time() < deadline:
            time.sleep(0.01)
        process.kill()
        process.wait()
        with open(os.path.join(out, "layers", "layer-00004.gguf.tmp-abcdef"), "wb") as f:
            f.write(b"GGUF")
        self.ok(common.run(*args, "--resume"))
        self.assertFalse([f for _, _, files in os.walk(out) for f in files if ".tmp-" in f])
        self.ok(common.run("preflight", out))


if __name__ == "__main__":
    unittest.main()
