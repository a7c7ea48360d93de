"""Signatures of packages on real processes: sign, verify, and every command that opens a package, with and without
--require-signature. No output ever has a byte of a private key."""
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import unittest

import common

SIDECAR = "model-package.sig.json"
MANIFEST = "model-package.json"
IDS = ("--ids", "-n", 2, "-p", "1 2 3")
OTHER_KEY = base64.b64encode(bytes(range(32))).decode()


class Signed(unittest.TestCase):
    """A package of its own for each test, two publishers' keys, and a look at everything that was printed."""

    def setUp(self):
        self.work = os.path.join(common.WORK, self.id().replace(".", "-"))
        os.makedirs(self.work)
        self.package = os.path.join(self.work, "package")
        shutil.copytree(common.package_of(common.generated(layers=2)), self.package)
        self.sidecar = os.path.join(self.package, SIDECAR)
        self.manifest = os.path.join(self.package, MANIFEST)
        self.keys = [os.path.join(self.work, f"key-{i}") for i in range(2)]
        self.env = {"XDG_CONFIG_HOME": os.path.join(self.work, "config")}
        self.printed = b""
        self.public = [self.ok("key", "new", "--key-dir", d).stdout.decode().strip() for d in self.keys]

    def tearDown(self):
        for folder in self.keys + [os.path.join(self.work, "config", "strata")]:
            path = os.path.join(folder, "key.pem")
            if not os.path.exists(path):
                continue
            with open(path, encoding="ascii") as f:
                lines = f.read().splitlines()
            der = base64.b64decode("".join(lines[1:-1]))
            seed = der[-32:]
            for secret in (lines[1].encode(), seed, seed.hex().encode(), base64.b64encode(seed)):
                self.assertNotIn(secret, self.printed, "a private key was printed")
            for root, _, names in os.walk(self.package):
                for name in names:
                    with open(os.path.join(root, name), "rb") as f:
                        self.assertNotIn(seed, f.read(), "a private key is in the package")

    def run_(self, *args, **kwargs):
        done = common.run(*args, env=self.env, **kwargs)
        self.printed += done.stdout + done.stderr
        return done

    def ok(self, *args, **kwargs):
        done = self.run_(*args, **kwargs)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done

    def fails(self, *args, says, status=1, **kwargs):
        done = self.run_(*args, **kwargs)
        self.assertEqual(done.returncode, status, done.stderr.decode())
        self.assertIn(says, done.stderr.decode())
        return done

    def sign(self, key=0, *args):
        return self.ok("sign", self.package, "--key", self.keys[key], *args)

    def read(self, path):
        with open(path, "rb") as f:
            return f.read()

    def change_manifest(self):
        text = self.read(self.manifest)
        changed = re.sub(rb'"model_id": *"local/', b'"model_id": "remote/', text)
        self.assertNotEqual(text, changed)
        with open(self.manifest, "wb") as f:
            f.write(changed)

    def serving(self, *args):
        """A coordinator with one local stage that must come up."""
        process, url = common.serve(self.package, "--local-stages", 1, "--ctx", 64, "--json", *args, env=self.env)
        with process:
            told = json.loads(process.wait_for(r'^{"url".*}$').group(0))
            self.assertEqual(told["url"], url)
            self.assertEqual(process.stop(), 0)
        self.printed += process.text.encode()
        return told, process.text


class Commands(Signed):
    def test_sign_and_verify(self):
        done = self.sign()
        self.assertIn(f"public key {self.public[0]}\n", done.stdout.decode())
        first = self.read(self.sidecar)
        document = json.loads(first)
        self.assertEqual(list(document), ["schema_version", "algorithm", "public_key", "signed_file",
                                          "manifest_sha256", "signature"])
        told = json.loads(self.sign(0, "--json").stdout)
        self.assertEqual((told["public_key"], told["changed"]), (self.public[0], False))
        self.assertEqual(self.read(self.sidecar), first)
        os.unlink(self.sidecar)
        self.sign()
        self.assertEqual(self.read(self.sidecar), first, "signing is not repeatable")
        self.assertEqual(os.stat(self.sidecar).st_mode & 0o777, 0o644)
        for package in (self.package, self.manifest):
            self.assertIn(f"signed by {self.public[0]}", self.ok("verify-signature", package).stdout.decode())
        held = os.path.join(self.work, "publisher.pub")
        with open(held, "w", encoding="ascii") as f:
            f.write(self.public[0] + "\n")
        for key in (self.public[0], held):
            told = json.loads(self.ok("verify-signature", self.package, "--key", key, "--json").stdout)
            self.assertEqual(told["signature"], {"state": "signed", "public_key": self.public[0]})
            self.assertTrue(told["accepted"])
            self.assertEqual(told["manifest_sha256"], document["manifest_sha256"])
        self.ok("preflight", self.package)

    def test_openssl_agrees(self):
        """The signature verifies with another program, from the description alone."""
        openssl = shutil.which("openssl")
        if not openssl:
            self.skipTest("no openssl program")
        key = os.path.join(self.work, "publisher.pem")
        subprocess.run([openssl, "genpkey", "-algorithm", "ed25519", "-out", key], check=True, capture_output=True)
        os.chmod(key, 0o600)
        self.ok("sign", self.package, "--key", key)
        document = json.loads(self.read(self.sidecar))
        paths = [os.path.join(self.work, n) for n in ("message", "signature", "public")]
        contents = (b"strata layer package manifest v1\0" + bytes.fromhex(document["manifest_sha256"]),
                    base64.b64decode(document["signature"]),
                    bytes.fromhex("302a300506032b6570032100") + base64.b64decode(document["public_key"]))
        for path, content in zip(paths, contents):
            with open(path, "wb") as f:
                f.write(content)
        verify = [openssl, "pkeyutl", "-verify", "-rawin", "-in", paths[0], "-sigfile", paths[1], "-pubin", "-inkey",
                  paths[2], "-keyform", "DER"]
        self.assertEqual(subprocess.run(verify, capture_output=True, check=False).returncode, 0)
        with open(paths[0], "ab") as f:
            f.write(b"x")
        self.assertNotEqual(subprocess.run(verify, capture_output=True, check=False).returncode, 0)
        self.printed += self.read(paths[2])

    def test_machine_key(self):
        self.fails("sign", self.package, says="make one with 'strata key new'")
        public = self.ok("key", "new").stdout.decode().strip()
        self.assertIn(public, self.ok("sign", self.package).stdout.decode())
        self.ok("verify-signature", self.package, "--key", public)

    def test_not_good(self):
        done = self.fails("verify-signature", self.package, says="is not signed")
        self.assertIn("unsigned", done.stdout.decode())
        self.fails("verify-signature", self.package, "--key", self.public[0], says="is not signed")
        self.sign()
        self.fails("verify-signature", self.package, "--key", self.public[1], says=self.public[0])
        self.change_manifest()
        done = self.fails("verify-signature", self.package, "--json", says="another manifest")
        told = json.loads(done.stdout)
        self.assertEqual((told["signature"]["state"], told["accepted"]), ("bad", False))
        self.assertNotIn("public_key", told["signature"])
        # A bad signature, and somebody else's, stay unless told otherwise.
        before = self.read(self.sidecar)
        self.fails("sign", self.package, "--key", self.keys[0], says="--force")
        self.assertEqual(self.read(self.sidecar), before)
        self.sign(0, "--force")
        self.ok("verify-signature", self.package, "--key", self.public[0])
        self.fails("sign", self.package, "--key", self.keys[1], says="another key")
        self.sign(1, "--force")
        self.ok("verify-signature", self.package, "--key", self.public[1])

    def test_usage(self):
        private = os.path.join(self.keys[0], "key.pem")
        self.sign()
        for args in (("sign",), ("verify-signature",), ("sign", self.package, "more"), ("sign", "--key"),
                     ("verify-signature", self.package, "--key", "nonsense"),
                     ("verify-signature", self.package, "--key", private),
                     ("run", self.package, *IDS, "--require-signature", private),
                     ("run", self.package, *IDS, "--require-signature", self.public[0][:-1]),
                     ("stage", "--package", self.package, "--listen", "127.0.0.1:0", "--require-signature", "x"),
                     ("serve", self.package, "--require-signature", "x"),
                     ("logits", self.package, "--out", "x", "--require-signature", "x", 1)):
            self.assertEqual(self.run_(*args).returncode, 2, args)
        self.fails("sign", os.path.join(self.work, "absent"), "--key", private, says="neither the folder")
        self.fails("sign", self.package, "--key", self.sidecar, says="chmod 600")
        shutil.copy(self.sidecar, os.path.join(self.work, "no.pem"))
        os.chmod(os.path.join(self.work, "no.pem"), 0o600)
        self.fails("sign", self.package, "--key", os.path.join(self.work, "no.pem"), says="not a private key")
        for command in ("sign", "verify-signature"):
            self.assertIn(b"Exit status", self.ok(command, "--help").stdout)
        failed = self.run_("sign", self.package, "--key", self.keys[1], "--json")
        self.assertEqual(json.loads(failed.stdout)["error"]["code"], "busy")


class Consumers(Signed):
    """run, logits, stage and serve: what they show, and what --require-signature refuses."""

    def commands(self):
        return [("run", self.package, *IDS),
                ("logits", self.package, "--out", os.path.join(self.work, "out.f32"), "--cut", 1, 1, 2, 3)]

    def refused(self, key, says):
        for command in self.commands():
            done = self.fails(*command, "--require-signature", key, says=says)
            self.assertEqual(done.stdout, b"")
        self.fails("stage", "--package", self.package, "--listen", "127.0.0.1:0", "--key-dir", self.keys[0],
                   "--require-signature", key, says=says)
        self.fails("serve", self.package, "--local-stages", 1, "--listen", "127.0.0.1:0", "--require-signature", key,
                   says=says)

    def shown(self, text, *args):
        for command in self.commands():
            done = self.ok(*command, *args)
            self.assertEqual(done.stderr.decode().count(f"package {self.package}: {text}"), 1,
                             done.stderr.decode())

    def stage(self, *args):
        process = common.Process("stage", "--package", self.package, "--listen", "127.0.0.1:0", "--key-dir",
                                 self.keys[0], "--json", *args, env=self.env)
        with process:
            told = json.loads(process.wait_for(r'^{"address".*}$').group(0))
            process.wait_for(r"listening on")
            self.assertEqual(process.stop(signal.SIGTERM), 0)
        self.printed += process.text.encode()
        return told, process.text

    def test_unsigned(self):
        self.shown("unsigned")
        told, text = self.serving()
        self.assertEqual(told["signature"], {"state": "unsigned"})
        self.assertRegex(text, r"info serve package manifest=[0-9a-f]{64} signature=unsigned\n")
        told, text = self.stage()
        self.assertEqual(told["signature"], {"state": "unsigned"})
        self.assertRegex(text, r"info stage package manifest=[0-9a-f]{64} signature=unsigned\n")
        self.refused(self.public[0], "is not signed")

    def test_signed(self):
        self.sign()
        need = ("--require-signature", self.public[0])
        for args in ((), need):
            self.shown(f"signed by {self.public[0]}\n", *args)
            for told, text in (self.serving(*args), self.stage(*args)):
                self.assertEqual(told["signature"], {"state": "signed", "public_key": self.public[0]})
                self.assertRegex(text, f"package manifest=[0-9a-f]{{64}} signature=signed "
                                       f"signer={re.escape(self.public[0])}\n")
        self.refused(self.public[1], f"not by the required key {self.public[1]}")
        self.refused(OTHER_KEY, "not by the required key")

    def test_bad(self):
        self.sign()
        self.change_manifest()
        self.shown("BAD signature: it is for another manifest")
        for told, text in (self.serving(), self.stage()):
            self.assertEqual(told["signature"]["state"], "bad")
            self.assertRegex(text, r'warn \S+ package manifest=[0-9a-f]{64} signature=bad reason="it is for')
        self.refused(self.public[0], "bad signature")

    def test_link_out_of_the_package(self):
        self.sign()
        outside = os.path.join(self.work, "elsewhere.json")
        os.rename(self.sidecar, outside)
        os.symlink("../elsewhere.json", self.sidecar)
        self.refused(self.public[0], "leads out of the package")

    def test_parts_are_compared(self):
        """Same size, one bit of a weight changed: the signature is good, the part is not the signed one."""
        self.sign()
        part = os.path.join(self.package, "layers", "layer-00001.gguf")
        data = bytearray(self.read(part))
        data[-1] ^= 1
        with open(part, "wb") as f:
            f.write(data)
        self.ok("run", self.package, *IDS)  # no digest is compared unless asked for
        for command in self.commands():
            self.fails(*command, "--require-signature", self.public[0], says="layers/layer-00001.gguf was altered")

    def test_metadata_is_compared(self):
        """A coordinator reads the metadata alone: tokenizer and chat template are the signed ones."""
        self.sign()
        part = os.path.join(self.package, "shared", "metadata.gguf")
        data = self.read(part)
        self.assertIn(b"general.architecture", data)
        with open(part, "wb") as f:
            f.write(data.replace(b"general.name", b"general.nome"))
        self.assertNotEqual(self.read(part), data)
        self.fails("serve", self.package, "--local-stages", 1, "--listen", "127.0.0.1:0", "--require-signature",
                   self.public[0], says="shared/metadata.gguf was altered")

    def test_plain_file(self):
        model = common.generated(layers=2)
        done = self.ok("run", model, *IDS)
        self.assertNotIn(b"signed", done.stderr)
        self.fails("run", model, *IDS, "--require-signature", self.public[0], says="carries no signature")

    def test_replaced_under_a_stage(self):
        """A stage told the coordinator one digest; it must not load another package under the same path."""
        stage_key, serve_key = self.keys
        for here, there in ((stage_key, 1), (serve_key, 0)):
            self.ok("key", "trust", self.public[there], "other", "--key-dir", here)
        stage = common.Process("stage", "--package", self.package, "--listen", "127.0.0.1:0", "--key-dir", stage_key,
                               env=self.env)
        with stage:
            address = stage.wait_for(r"listening on (\S+),").group(1)
            mine = os.path.join(self.work, "mine")
            shutil.copytree(self.package, mine)
            self.change_manifest()
            serve = common.Process("serve", mine, "--stage", address, "--listen", "127.0.0.1:0", "--ctx", 64,
                                   "--key-dir", serve_key, env=self.env)
            with serve:
                serve.wait_for(r"was replaced after this stage was started")
                serve.stop()
            stage.stop()
        self.printed += (stage.text + serve.text).encode()


if __name__ == "__main__":
    unittest.main()
