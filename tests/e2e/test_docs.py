"""README.md's tables of architectures and types are those of the program."""
import json
import os
import shutil
import subprocess
import sys
import unittest

import arch_models
import common

DOCS = os.path.join(common.ROOT, "scripts", "docs")


def docs(*args):
    return subprocess.run([sys.executable, DOCS, "--build", common.BUILD, *args], capture_output=True, text=True, timeout=60,
                          check=False)


def architectures(*args):
    done = common.run("architectures", *args)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


class Docs(unittest.TestCase):
    def test_readme(self):
        done = docs("--check")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_old_readme_is_noticed_and_renewed(self):
        with open(os.path.join(common.ROOT, "README.md"), encoding="utf-8") as f:
            sound = f.read()
        path = os.path.join(common.WORK, "README.md")
        for old, new in (("| `llama` |", "| `lama` |"), ("| `gemma3` |", "\n"), ("Q6_K", "Q7_K"), ("<!-- end -->", "x\n<!-- end -->")):
            self.assertIn(old, sound)
            with open(path, "w", encoding="utf-8") as f:
                f.write(sound.replace(old, new, 1))
            self.assertEqual(docs("--check", path).returncode, 1, old)
            self.assertEqual(docs(path).returncode, 0)
            with open(path, encoding="utf-8") as f:
                self.assertEqual(f.read(), sound)
            self.assertEqual(docs("--check", path).returncode, 0)
        shutil.copy(os.path.join(common.ROOT, "LICENSE"), path)
        self.assertEqual(docs("--check", path).returncode, 1)  # nothing to compare is no success


class Architectures(unittest.TestCase):
    def setUp(self):
        self.told = json.loads(architectures("--json"))
        self.by_name = {a["name"]: a for a in self.told["architectures"]}

    def test_all_are_listed(self):
        """Those that an error message names, and those whose numbers are tested."""
        self.assertEqual(set(self.by_name), {row.arch for row in arch_models.ROWS})
        text, markdown = architectures(), architectures("--markdown")
        for name, a in self.by_name.items():
            self.assertRegex(text, rf"(?m)^{name} ")
            self.assertIn(f"| `{name}` | {a['models']} |", markdown)
        for kind in (*self.told["matrix_types"], *self.told["kv_types"]):
            self.assertIn(kind, text)
            self.assertIn(kind, markdown)

    def test_features_of_tested_models(self):
        for row in arch_models.ROWS:
            about = self.by_name[row.arch]
            for option, feature in (("experts", "experts"), ("window", "window"), ("kv_rank", "latent")):
                if option in row.options:
                    self.assertNotEqual(about[feature], "none", row.name)
            if row.peer == ("dense",):
                self.assertNotEqual(about["experts"], "all", row.name)
            if row.peer == ("moe",):
                self.assertNotEqual(about["experts"], "none", row.name)

    def test_types_run(self):
        """Each type that is named for the cache is taken, and of the matrices' those that mkmodel can write."""
        model = common.generated(arch="llama", layers=2, embd=128)
        for kind in self.told["kv_types"]:
            done = common.run("run", model, "--dry-run", "--kv-type", kind)
            self.assertEqual(done.returncode, 0, done.stderr.decode())
        for kind in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_K", "q6_K", "mxfp4"):
            self.assertIn(kind.upper(), self.told["matrix_types"])
            model = common.generated(layers=2, embd=256, ff=256, type=kind)
            self.assertEqual(common.run("run", model, "--dry-run").returncode, 0, kind)

    def test_usage(self):
        for args in (("x",), ("--json", "--markdown"), ("--nonsense",)):
            self.assertEqual(common.run("architectures", *args).returncode, 2)


if __name__ == "__main__":
    unittest.main()
