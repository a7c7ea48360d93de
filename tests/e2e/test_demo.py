"""scripts/demo, as a stranger runs it, on a small model of random weights."""
import os
import subprocess
import unittest

import common


@unittest.skipUnless(os.path.realpath(common.BUILD) == os.path.realpath(os.path.join(common.ROOT, "build")),
                     "the demo uses the ordinary build")
class Demo(unittest.TestCase):
    def demo(self, *args):
        return subprocess.run([os.path.join(common.ROOT, "scripts", "demo"), *args], capture_output=True, text=True,
                              timeout=300, stdin=subprocess.DEVNULL, cwd=common.WORK, check=False)

    def test_generated_model(self):
        model = common.generated(layers=4, seed=9)
        done = self.demo(os.path.basename(model), "Hello?")  # a path relative to where the user stands
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for part in ("write-package", "sound", "listening on http://", "Asking: Hello?", "tokens/s", "Done."):
            self.assertIn(part, done.stdout + done.stderr)

    def test_missing_model(self):
        done = self.demo("/nonexistent.gguf")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent.gguf", done.stderr)


if __name__ == "__main__":
    unittest.main()
