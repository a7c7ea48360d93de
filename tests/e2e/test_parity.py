"""A split model computes bit for bit what the unsplit model computes, whatever the cut and the kind of file."""
import os
import unittest

import common


def logits(source, tokens, *options):
    out = os.path.join(common.WORK, "logits.f32")
    done = common.run("logits", source, "--out", out, *options, *tokens, limit_s=300)
    assert done.returncode == 0, done.stderr.decode()
    with open(out, "rb") as f:
        return f.read()


class Parity(unittest.TestCase):
    def check_cuts(self, model, n_layers, tokens, cuts):
        whole = logits(model, tokens)
        self.assertGreater(len(whole), 4 * len(tokens))
        self.assertEqual(whole, logits(common.package_of(model), tokens), "package and plain file differ")
        for cut in cuts:
            with self.subTest(cut=cut, layers=n_layers):
                self.assertEqual(whole, logits(common.package_of(model), tokens, "--cut", cut))

    @staticmethod
    def cuts_of(n):
        twos = [str(a) for a in range(1, n)]
        threes = [f"{a},{b}" for a in range(1, n) for b in range(a + 1, n)]
        return twos, threes

    def test_generated(self):
        tokens = [1 + 7 * i % 250 for i in range(40)]
        for options in ({"seed": 1}, {"seed": 2, "bias": True, "rope_freqs": True, "tied": True},
                        {"seed": 3, "type": "q8_0"}, {"seed": 4, "vocab_mode": "spm", "type": "f16"}):
            model = common.generated(layers=6, **options)
            twos, threes = self.cuts_of(6)
            with self.subTest(**options):
                self.check_cuts(model, 6, tokens, twos + threes)

    def test_long_prompt_in_several_batches(self):
        model = common.generated(layers=4, seed=5)
        tokens = [1 + 11 * i % 250 for i in range(700)]
        self.check_cuts(model, 4, tokens, ["1", "2", "1,3"])

    @common.needs_model
    def test_smollm2(self):
        """Some cuts as a user would make them; tests/unit/engine proves every cut into two and three."""
        tokens = [1, 504, 3575, 282, 4649, 314, 7042, 30, 1116, 3575, 282, 5340, 314]
        self.check_cuts(common.MODEL, 30, tokens, ["1", "7", "15", "22", "29", "1,2", "10,20", "28,29"])


if __name__ == "__main__":
    unittest.main()
