"""Every architecture against llama.cpp, cut against uncut, and each type of the cache. The models are rows of arch_models.py.

A 64-token prompt and 64 more tokens, one by one, as decoding does. Recorded numbers always; with PEER_RUN (see
tests/golden/record_archs_numbers.py) the same live, every logit, and llama.cpp's own random test models, three seeds.
"""
import itertools
import os
import subprocess
import unittest

import arch_models as archs
import common

PEER = os.environ.get("PEER_RUN", "").split()
MAX_RELATIVE = 1e-3  # of the largest logit
PEER_VOCAB = 128     # of llama.cpp's test models
GENERATED_VOCAB = 250  # ids below this are in every built-in vocabulary


def logits(model, ids, *options):
    out = os.path.join(common.WORK, "ours.f32")
    done = common.run("logits", model, "--out", out, "--threads", 2, "--prompt", archs.PROMPT, *options, *ids)
    assert done.returncode == 0, done.stderr.decode()
    return archs.floats(out)


def peer_logits(model, ids):
    out = os.path.join(common.WORK, "peer.f32")
    subprocess.run([*PEER, "logits", model, out, *map(str, ids)], check=True, capture_output=True, timeout=120)
    return archs.floats(out)


def relative(want, got):
    assert len(want) == len(got)
    return max(abs(a - b) for a, b in zip(want, got)) / max(map(abs, want))


class Numbers(unittest.TestCase):
    def test_recorded(self):
        index = archs.index()
        self.assertEqual(sorted(index), sorted(row.name for row in archs.ROWS))
        for row in archs.ROWS:
            with self.subTest(row.name):
                model = common.generated(**row.options)
                self.assertEqual(archs.digest(model), index[row.name], "mkmodel makes another file than was recorded")
                with open(os.path.join(archs.GOLDEN, row.name + ".top"), "rb") as f:
                    worst = archs.difference(f.read(), logits(model, archs.tokens(GENERATED_VOCAB)))
                print(f"{row.name}: largest difference {worst:.1e} of the largest logit")
                self.assertLessEqual(worst, MAX_RELATIVE)

    @unittest.skipUnless(PEER, "PEER_RUN names no llama.cpp")
    def test_live(self):
        ids = archs.tokens(GENERATED_VOCAB)
        for row in archs.ROWS:
            with self.subTest(row.name):
                model = common.generated(**row.options)
                worst = relative(peer_logits(model, ids), logits(model, ids))
                print(f"{row.name}, live: largest difference {worst:.1e} of the largest logit")
                self.assertLessEqual(worst, MAX_RELATIVE)

    @unittest.skipUnless(PEER, "PEER_RUN names no llama.cpp")
    def test_models_of_the_peer(self):
        ids = archs.tokens(PEER_VOCAB)
        for row, seed in itertools.product((r for r in archs.ROWS if r.peer), (1, 2, 3)):
            subprocess.run([*PEER, "test-llama-archs", "-o", common.WORK, "-a", f"^{row.arch}$", "-s", str(seed)],
                           check=True, capture_output=True, timeout=120)
            for kind in row.peer:
                name = f"{row.arch}-{kind}"
                with self.subTest(name, seed=seed):
                    model = os.path.join(common.WORK, name + ".gguf")
                    worst = relative(peer_logits(model, ids), logits(model, ids))
                    print(f"{name}, seed {seed}: largest difference {worst:.1e} of the largest logit")
                    self.assertLessEqual(worst, MAX_RELATIVE)


class Cuts(unittest.TestCase):
    def test_every_cut(self):
        """Into two, three, and as many stages as may be: the same bytes."""
        ids = archs.tokens(GENERATED_VOCAB)
        for row in archs.ROWS:
            model = common.generated(**row.options)
            want = logits(model, ids)
            cuts = row.legal_cuts
            all_cuts = [*itertools.combinations(cuts, 1), *itertools.combinations(cuts, 2)]
            if len(cuts) > 2:
                all_cuts.append(cuts)
            for cut in all_cuts:
                with self.subTest(row.name, cut=cut):
                    self.assertTrue(logits(model, ids, "--cut", ",".join(map(str, cut))) == want)

    def test_cut_of_small_caches(self):
        ids = archs.tokens(GENERATED_VOCAB)
        for row in archs.ROWS:
            model = common.generated(**row.options)
            for kv in row.kv:
                with self.subTest(row.name, kv=kv):
                    cut = ",".join(map(str, row.legal_cuts))
                    want = logits(model, ids, "--kv-type", kv)
                    self.assertTrue(logits(model, ids, "--kv-type", kv, "--cut", cut) == want)


class CacheTypes(unittest.TestCase):
    def test_agreement(self):
        """A coarser cache gives nearly the same numbers, and not the very same: it is really used."""
        ids = archs.tokens(GENERATED_VOCAB)
        for row in archs.ROWS:
            model = common.generated(**row.options)
            want = logits(model, ids)
            for kv, bound in row.kv.items():
                with self.subTest(row.name, kv=kv):
                    worst = relative(want, logits(model, ids, "--kv-type", kv))
                    print(f"{row.name}, {kv}: largest difference {worst:.1e} of the largest logit")
                    self.assertLessEqual(worst, bound)
                    self.assertGreater(worst, 0)

    def test_narrow_heads(self):
        """Blocks of 32 numbers must not reach over the end of a head."""
        model = common.generated(arch="llama", layers=2)
        for kv in ("q8_0", "q4_0"):
            done = common.run("logits", model, "--out", os.path.join(common.WORK, "no.f32"), "--kv-type", kv, 1, 2, 3)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr.decode(), f"type {kv} holds blocks of 32 numbers.*layer 0.*16")


if __name__ == "__main__":
    unittest.main()
