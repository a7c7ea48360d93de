"""The model card: written with a package, brought up to date by a validation, and a publisher's own left alone."""
import os
import unittest

import common
import shapes


def run(*args):
    done = common.run(*args)
    assert done.returncode == 0, done.stderr.decode()


class Card(unittest.TestCase):
    def package(self, name, *options):
        path = os.path.join(common.WORK, "card-" + name)
        run("write-package", self.source(), "--out-dir", path, "--model-id", "org/Shape-GGUF:F32", "--source-revision", "abc123",
            "--source-file", "shape.gguf", *options)
        return path, os.path.join(path, "README.md")

    def source(self):
        return shapes.model(layers=5, mtp=1, experts=4, rope=True)

    def read(self, path):
        with open(path, encoding="utf-8") as f:
            return f.read()

    def test_from_package_to_validation(self):
        for schema in ("1", "2"):
            package, card = self.package("schema-" + schema, "--schema", schema)
            before = self.read(card)
            manifest = common.sha256(os.path.join(package, "model-package.json"))
            for part in ('base_model: "org/Shape-GGUF"\n', "# Layer package of `org/Shape-GGUF:F32`\n", manifest,
                         "| Source revision | `abc123` |", f"| `shape.gguf` | {os.path.getsize(self.source()):,} | "
                         f"`{common.sha256(self.source())}` |", "| Layers | 5 |", "No result was recorded"):
                self.assertIn(part, before)
            run("preflight", package)  # the card is no stray file
            run("validate-package", self.source(), package, "--record")
            after = self.read(card)
            self.assertNotIn("No result was recorded", after)
            self.assertRegex(after, r"\nResult: valid\. Tensors compared with the source byte for byte: \d+\.")
            self.assertEqual(before.split("\n# ")[1].split("\n## Validation")[0],
                             after.split("\n# ")[1].split("\n## Validation")[0])
            run("validate-package", self.source(), package, "--record")
            self.assertEqual(manifest, common.sha256(os.path.join(package, "model-package.json")))

    def test_a_publishers_own_stays(self):
        package, card = self.package("own")
        text = self.read(card).replace("One GGUF model", "My favourite model")
        with open(card, "w", encoding="utf-8") as f:
            f.write(text)
        run("validate-package", self.source(), package, "--record")
        self.assertEqual(self.read(card), text)

    def test_none_when_none_is_wanted(self):
        package, card = self.package("none", "--no-card")
        self.assertFalse(os.path.exists(card))
        run("validate-package", self.source(), package, "--record")
        self.assertFalse(os.path.exists(card))


if __name__ == "__main__":
    unittest.main()
