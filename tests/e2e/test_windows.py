"""Layers that keep a window only, over contexts many times as long: rings that wrap.

A batch of the whole context needs no ring, small batches do: both must give the same numbers, and the same as llama.cpp
with PEER_RUN (see tests/golden/record_archs_numbers.py). Sums over a ring run in another order, so the last bits differ.
"""
import json
import os
import subprocess
import unittest

import arch_models as archs
import common

PEER = os.environ.get("PEER_RUN", "").split()
MAX_RELATIVE = 1e-3  # of the largest logit
POSITIONS = 900
BATCH = 48           # windows of 5 to 200 positions: rings of 256 rows, which 900 positions fill three times
IDS = [(i * 37 + i * i // 7 + 11) % 250 for i in range(POSITIONS)]

# Each has layers with a window and layers that see everything.
MODELS = [
    {"arch": "gemma3", "layers": 4, "window": 5, "variant": "every2,base"},
    {"arch": "gemma3", "layers": 4, "window": 100, "variant": "every2,base"},
    {"arch": "gpt-oss", "layers": 4, "window": 128, "head_dim": 32, "experts": 4, "experts_used": 4},
    {"arch": "gpt-oss", "layers": 3, "window": 200},
    {"arch": "lfm2", "layers": 4, "window": 70, "variant": "front"},
    {"arch": "lfm2moe", "layers": 4},
]


def logits(model, *options):
    out = os.path.join(common.WORK, "windows.f32")
    done = common.run("logits", model, "--out", out, "--threads", 2, *options, *IDS)
    assert done.returncode == 0, done.stderr.decode()
    return archs.floats(out)


def relative(want, got):
    assert len(want) == len(got)
    return max(abs(a - b) for a, b in zip(want, got)) / max(map(abs, want))


class Windows(unittest.TestCase):
    def test_rings(self):
        for options in MODELS:
            model = common.generated(**options)
            # Where a router chooses, the coarser type may tip the choice, and then everything differs.
            chooses = options["arch"] in ("gpt-oss", "lfm2moe") and options.get("experts") != 4
            for kv in ("f32",) if chooses else ("f32", "f16"):
                with self.subTest(kv=kv, **options):
                    whole = logits(model, "--batch", 1024, "--kv-type", kv)
                    small = logits(model, "--batch", BATCH, "--kv-type", kv)
                    worst = relative(whole, small)
                    print(f"{options}, {kv}: largest difference {worst:.1e} of the largest logit")
                    self.assertLessEqual(worst, MAX_RELATIVE if kv == "f32" else 2e-2)

    def test_rings_are_smaller(self):
        """Memory of the state: a window and a batch in place of the context."""
        def state_bytes(arch):
            model = common.generated(arch=arch, layers=6, window=100, heads=4, kv_heads=2, head_dim=16)
            done = common.run("logits", model, "--out", os.path.join(common.WORK, "w.f32"), "--json", "--batch", BATCH,
                              *IDS, *IDS)
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            return json.loads(done.stdout)["stages"][0]["kv_bytes"]
        row = 2 * 16 * 4  # an F32 row of keys, or of values
        # Of gemma3's six layers five keep 256 rows, one all of them.
        self.assertEqual(state_bytes("gemma3"), 2 * row * (5 * 256 + 2 * POSITIONS))

    def test_rings_save_memory(self):
        """The same of what the process really takes: rows of 16 KiB, 1,500 positions, five of six layers with a window."""
        def peak(window):
            model = common.generated(arch="gemma3", layers=6, window=window, heads=16, kv_heads=16, head_dim=128, ctx=4096)
            command = [common.STRATA, "logits", model, "--out", os.devnull, "--batch", "64", "--threads", "2",
                       *(str(IDS[i % POSITIONS]) for i in range(positions))]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0)
            return usage.ru_maxrss * 1024
        positions, row = 1500, 2 * 16 * 128 * 4
        saved = peak(4096) - peak(100)
        print(f"{saved / 2**20:.0f} MiB less")
        self.assertAlmostEqual(saved / (5 * (positions - 256) * row), 1, delta=0.1)

    def test_cuts(self):
        for options in MODELS:
            with self.subTest(**options):
                model = common.generated(**options)
                cut = ",".join(map(str, range(1, options["layers"])))
                self.assertTrue(logits(model, "--batch", BATCH) == logits(model, "--batch", BATCH, "--cut", cut))

    @unittest.skipUnless(PEER, "PEER_RUN names no llama.cpp")
    def test_live(self):
        for options in MODELS:
            with self.subTest(**options):
                model = common.generated(**options)
                out = os.path.join(common.WORK, "windows-peer.f32")
                subprocess.run([*PEER, "logits", model, out, *map(str, IDS)], check=True, capture_output=True,
                               timeout=300)
                worst = relative(archs.floats(out), logits(model, "--batch", BATCH))
                print(f"{options}, live: largest difference {worst:.1e} of the largest logit")
                self.assertLessEqual(worst, MAX_RELATIVE)

    def test_mxfp4(self):
        """The type of gpt-oss's experts, every one of them used: runs, and is the same at every cut."""
        model = common.generated(arch="gpt-oss", layers=3, embd=128, ff=256, experts=4, experts_used=4, type="mxfp4")
        want = logits(model)
        self.assertGreater(max(want), 0)
        self.assertTrue(logits(model, "--cut", "1,2") == want)
        if not PEER:
            return
        out = os.path.join(common.WORK, "mxfp4-peer.f32")
        subprocess.run([*PEER, "logits", model, out, *map(str, IDS)], check=True, capture_output=True, timeout=300)
        worst = relative(archs.floats(out), want)
        print(f"mxfp4, live: largest difference {worst:.1e} of the largest logit")
        # llama.cpp repacks such matrices and adds up in another order; activations are rounded to 8 bits.
        self.assertLessEqual(worst, 2e-2)


if __name__ == "__main__":
    unittest.main()
