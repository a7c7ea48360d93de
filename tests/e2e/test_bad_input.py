"""Bad input of any kind is one clear line on stderr and exit status 1 (2 for wrong usage): no crash, no hang."""
import json
import os
import shutil
import struct
import unittest

import common


def patched(model, edit, name):
    """A copy of a file after edit(bytearray)."""
    with open(model, "rb") as f:
        data = bytearray(f.read())
    edited = edit(data)
    data = data if edited is None else edited
    path = os.path.join(common.WORK, name)
    with open(path, "wb") as f:
        f.write(data)
    return path


def replace_once(data, old, new):
    assert len(old) == len(new) and data.count(old) >= 1
    at = data.index(old)
    data[at:at + len(old)] = new


class BadInput(unittest.TestCase):
    def fails(self, *args, says=(), status=1, **kwargs):
        done = common.run(*args, **kwargs)
        text = done.stderr.decode()
        self.assertEqual(done.returncode, status, f"{args}: {text}")
        lines = [line for line in text.splitlines() if line.startswith("strata ")]
        self.assertEqual(len(lines), 1, f"{args} must say one line:\n{text}")
        for part in says:
            self.assertIn(part, text, f"{args}")
        return text

    def readers(self, path, says):
        """Every command that opens a model gives the same kind of answer."""
        out = os.path.join(common.WORK, "out")
        self.fails("inspect", path, says=says)
        self.fails("run", path, "-p", "hello", says=says)
        self.fails("logits", path, "--out", out, "1", "2", says=says)
        self.fails("tokenize", path, says=says, stdin=b"hello\n")
        self.fails("write-package", path, "--local", "--out-dir", out + "-package", says=says)
        self.assertFalse(os.path.exists(out))

    def test_missing_file(self):
        self.readers("/nonexistent/model.gguf", ["/nonexistent/model.gguf", "No such file"])

    def test_not_a_gguf(self):
        path = os.path.join(common.WORK, "text.gguf")
        for content in (b"", b"G", b"hello, this is not a model at all\n" * 10, bytes(5000)):
            with open(path, "wb") as f:
                f.write(content)
            self.readers(path, ["text.gguf"])

    def test_folder_that_is_no_package(self):
        path = os.path.join(common.WORK, "empty-folder")
        os.makedirs(path, exist_ok=True)
        self.fails("run", path, "-p", "x", says=["model-package.json"])
        self.fails("serve", path, "--local-stages", "1", says=["model-package.json"])

    def test_truncated(self):
        model = common.generated(layers=2, seed=1)
        size = os.path.getsize(model)
        offsets = sorted({*range(0, 200, 13), *range(200, size, max(1, size // 40)), size - 1})
        for n in offsets:
            path = patched(model, lambda d, n=n: d[:n], "truncated.gguf")
            with self.subTest(bytes=n):
                self.fails("run", path, "-p", "x", says=["truncated.gguf"])
                self.fails("inspect", path, says=["truncated.gguf"])

    def test_unsupported_architecture(self):
        def edit(data):
            replace_once(data, b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lxama")
        model = common.generated(layers=2, seed=1)
        path = patched(model, edit, "arch.gguf")
        text = self.fails("run", path, "-p", "x", says=["lxama", "llama"])
        self.assertIn("support", text)

    def test_unsupported_tensor_type(self):
        model = common.generated(layers=2, seed=1)

        def with_type(number):
            def edit(data):
                # name, n_dims 2, two dimensions, then the type
                at = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
                struct.pack_into("<I", data, at, number)
            return edit
        for number in (4, 31, 77, 2**32 - 1):
            path = patched(model, with_type(number), "type.gguf")
            self.fails("run", path, "-p", "x", says=["blk.0.attn_q.weight", str(number)])

    def package_copy(self):
        path = os.path.join(common.WORK, "broken-package")
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(common.package_of(common.generated(layers=3, seed=1)), path)
        return path

    def damaged(self, part, edit):
        package = self.package_copy()
        path = os.path.join(package, part)
        if edit is None:
            os.remove(path)
        else:
            with open(path, "rb") as f:
                data = bytearray(f.read())
            with open(path, "wb") as f:
                f.write(edit(data))
        return package

    def test_package_with_a_bad_part(self):
        def altered(data):
            data[-100] ^= 1
            return data
        for part in ("layers/layer-00001.gguf", "shared/metadata.gguf", "shared/embeddings.gguf", "shared/output.gguf"):
            for kind, edit in (("missing", None), ("short", lambda d: d[:-7]), ("altered", altered)):
                with self.subTest(part=part, kind=kind):
                    package = self.damaged(part, edit)
                    done = common.run("preflight", package)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(part.encode(), done.stdout + done.stderr)
                    self.fails("serve", package, "--local-stages", "2", "--listen", "127.0.0.1:0", says=[part])
                    if kind != "altered":
                        self.fails("run", package, "-p", "x", says=[part])

    def test_package_with_a_bad_manifest(self):
        for content in (b"", b"{", b"[]", b"{}", b'{"schema_version": 7}', b"\xff" * 100):
            package = self.package_copy()
            with open(os.path.join(package, "model-package.json"), "wb") as f:
                f.write(content)
            self.fails("run", package, "-p", "x", says=["model-package.json"])
            self.assertEqual(common.run("preflight", package).returncode, 1)

    def test_cut_out_of_bounds(self):
        package = common.package_of(common.generated(layers=3, seed=1))
        out = os.path.join(common.WORK, "cut")
        for cut in ("3", "4", "4000000000"):
            self.fails("logits", package, "--out", out, "--cut", cut, "1", "2", says=["3"])
        for cut in ("0", "2,1", "1,1", "x", "1,", "-1", ""):
            done = common.run("logits", package, "--out", out, "--cut", cut, "1", "2")
            self.assertIn(done.returncode, (1, 2), cut)
        self.assertFalse(os.path.exists(out))

    def test_tokens_out_of_range(self):
        model = common.generated(layers=2, seed=1)
        out = os.path.join(common.WORK, "tokens")
        self.fails("logits", model, "--out", out, "99999999", says=["99999999"])
        for token in ("-1", "x", "1.5", "99999999999999999999"):
            done = common.run("logits", model, "--out", out, "--", token)
            self.assertIn(done.returncode, (1, 2), token)
            self.assertTrue(done.stderr)

    def test_prompt_longer_than_the_context(self):
        model = common.generated(layers=2, seed=1)
        self.fails("run", model, "-c", "64", "-p", "word " * 200, says=["64"])

    def test_end_of_the_context(self):
        """Old positions are not shifted out: the text ends, and it is said why."""
        for arch in ("llama", "gemma3", "lfm2"):
            model = common.generated(arch=arch, layers=3)
            done = common.run("run", model, "--ids", "-c", 24, "-p", "1 2 3 4", "-n", 60, "--ignore-eos", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            result = json.loads(done.stdout)
            self.assertEqual((result["finish"], len(result["tokens"])), ("context", 21))
            self.assertRegex(done.stderr.decode(), r"^strata run: stopped: all 24 positions .* start with a larger -c .*\n$")

    def test_more_stages_than_layers(self):
        package = common.package_of(common.generated(layers=3, seed=1))
        self.fails("serve", package, "--local-stages", "4", says=["3"])

    def test_serve_needs_a_package(self):
        self.fails("serve", common.generated(layers=3, seed=1), "--local-stages", "1", says=["write-package"])

    def test_write_package_refuses_a_used_folder(self):
        model = common.generated(layers=2, seed=1)
        package = self.package_copy()
        before = sorted(os.listdir(package))
        self.fails("write-package", model, "--local", "--out-dir", package, says=["empty"])
        self.assertEqual(before, sorted(os.listdir(package)))

    def test_usage(self):
        commands = ("inspect", "write-package", "preflight", "run", "logits", "tokenize", "serve", "stage", "key")
        for command in commands:
            with self.subTest(command=command):
                for args in ((command, "--no-such-option"), (command,)):
                    if args == ("stage",):
                        continue
                    done = common.run(*args)
                    self.assertEqual(done.returncode, 2, args)
                    self.assertIn(b"--help", done.stderr)
                    self.assertEqual(done.stdout, b"")
                done = common.run(command, "--help")
                self.assertEqual(done.returncode, 0)
                self.assertIn(b"usage:", done.stdout)
                self.assertEqual(done.stderr, b"")
        self.assertEqual(common.run().returncode, 2)
        self.assertEqual(common.run("nonsense").returncode, 2)
        self.assertEqual(common.run("--help").returncode, 0)
        self.assertEqual(common.run("--version").returncode, 0)

    def test_output_to_a_full_disk(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        import subprocess
        with open("/dev/full", "wb") as full:
            done = subprocess.run([common.STRATA, "--help"], stdout=full, stderr=subprocess.PIPE, timeout=20, check=False)
        self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    unittest.main()
