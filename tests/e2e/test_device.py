"""--device: what there is, a device with memory of its own computes what the CPU computes, and cuts change nothing.

"cpu-copy" is the CPU treated as such a device, so that this runs everywhere: there the numbers are the same bytes. Where
ggml offers another device the same is done on that one, within a tolerance. .deps/vulkan.env (scripts/deps --vulkan) has
the variables that make ggml offer one on any machine; STRATA_DEVICE_ENV names another file of that kind.
"""
import array
import json
import os
import subprocess
import unittest

import common
import test_chain

ENV_FILE = os.environ.get("STRATA_DEVICE_ENV", os.path.join(common.ROOT, ".deps", "vulkan.env"))
UNIT = os.path.join(common.BUILD, "unit", "engine", "test_engine_device")
TOKENS = [1 + 7 * i % 250 for i in range(14)]
# Of the largest logit; F32 matrices, F32 and F16 caches. Measured on a Vulkan device: 0.002.
TOLERANCE = 0.01


def device_env():
    """A Vulkan driver that compiles its programs on the CPU needs minutes for it; it keeps them in this folder."""
    env = {"MESA_SHADER_CACHE_DIR": os.path.join(os.path.dirname(ENV_FILE), "vulkan-cache")}
    if os.path.exists(ENV_FILE):
        with open(ENV_FILE) as f:
            env.update(line.strip().split("=", 1) for line in f if "=" in line and not line.startswith("#"))
    return env


def is_instrumented():
    with open(common.STRATA, "rb") as f:
        return b"__asan_init" in f.read()


def devices(env=None):
    done = common.run("run", "--device", "list", "--json", env=env)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)["devices"]


def logits(model, device, *options, env=None, tokens=TOKENS):
    """Rows of numbers as bytes, and the report."""
    out = os.path.join(common.WORK, "device.f32")
    done = common.run("logits", model, "--out", out, "--json", "-t", 2, "--device", device, *options, *tokens, env=env,
                      limit_s=1200)
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
    with open(out, "rb") as f:
        return f.read(), json.loads(done.stdout)


class Always(unittest.TestCase):
    def test_list(self):
        found = devices()
        self.assertEqual((found[0]["name"], found[0]["kind"]), ("CPU", "CPU"))
        self.assertLessEqual(found[0]["free_bytes"], found[0]["total_bytes"])
        for command in ("run", "logits", "perplexity", "stage", "serve"):
            done = common.run(command, "--device", "list")
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = done.stdout.decode().splitlines()
            self.assertEqual(lines[0].split(), ["DEVICE", "KIND", "FREE", "MEMORY", "DESCRIPTION"])
            self.assertEqual([line.split()[0] for line in lines[1:]], [d["name"] for d in found])

    def test_unknown(self):
        model = common.generated(layers=2)
        for args in (["run", model, "-p", "x"], ["logits", model, "--out", os.path.join(common.WORK, "none"), 1, 2],
                     ["stage", "--package", common.package_of(model), "--listen", "127.0.0.1:0", "--key-dir",
                      test_chain.Keys(0).dirs[0]]):
            done = common.run(*args, "--device", "Abacus7")
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"there is no device 'Abacus7'; ggml offers here: ", done.stderr)
            self.assertIn(b"CPU", done.stderr)

    def test_the_cpu_loads_no_other_library(self):
        """A run on the CPU must not wake a graphics card: a library that would spoil it is not even opened."""
        bad = {"GGML_BACKEND_PATH": "/nonexistent/libggml-broken.so"}
        for device, says in (("cpu", False), ("cpu-copy", False), ("auto", True)):
            done = common.run("run", common.generated(layers=2), "--ids", "-p", "1 2", "-n", 2, "--device", device, env=bad)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(b"libggml-broken" in done.stderr, says, done.stderr)


class Copied(unittest.TestCase):
    """The path of devices, on the CPU: everything is the same, byte for byte."""

    def test_logits(self):
        for options in ({"layers": 4, "seed": 1, "type": "q8_0", "tied": True, "bias": True, "scales": True},
                        {"layers": 4, "arch": "deepseek2"}, {"layers": 7, "arch": "gemma3", "kv_heads": 1, "head_dim": 32},
                        {"layers": 4, "arch": "gpt-oss", "head_dim": 32}, {"layers": 6, "arch": "lfm2"}):
            model = common.generated(**options)
            for kv in ("f32", "f16"):
                with self.subTest(kv=kv, **options):
                    want, _ = logits(model, "cpu", "--kv-type", kv)
                    got, report = logits(model, "cpu-copy", "--kv-type", kv)
                    self.assertEqual(want, got)
                    stage = report["stages"][0]
                    self.assertGreater(stage["device_bytes"], 0)
                    self.assertLessEqual(stage["device_bytes"], stage["weight_bytes"])
                    self.assertEqual(want, logits(model, "cpu-copy", "--kv-type", kv, "--cut", 2)[0])

    def test_run(self):
        model, texts = common.generated(layers=3), []
        for device in ("cpu", "cpu-copy"):
            done = common.run("run", model, "-p", "hello", "-n", 12, "--ignore-eos", "--json", "--device", device)
            self.assertEqual(done.returncode, 0, done.stderr)
            texts.append(json.loads(done.stdout))
        self.assertEqual(texts[0]["tokens"], texts[1]["tokens"])
        cpu, copy = (t["engine"] for t in texts)
        self.assertEqual((cpu["device"], copy["device"]), ("CPU", "CPU"))
        self.assertEqual(cpu["backend"], copy["backend"])
        self.assertEqual(cpu["device_bytes"], 0)
        self.assertGreater(copy["operations"], copy["host_operations"])

    def test_perplexity(self):
        text, results = os.path.join(common.WORK, "device.txt"), []
        with open(text, "w") as f:
            f.write("the quick brown fox jumps over the lazy dog. " * 12)
        for device in ("cpu", "cpu-copy"):
            done = common.run("perplexity", common.generated(layers=2), "-f", text, "-c", 64, "--json", "--device", device)
            self.assertEqual(done.returncode, 0, done.stderr)
            results.append(json.loads(done.stdout)["running"])
        self.assertEqual(*results)

    def test_chain(self):
        """A stage on a device and one on the CPU answer as one process does."""
        package, keys, processes = common.package_of(common.generated(layers=4)), test_chain.Keys(2), []
        keys.trust_all()
        try:
            for i, device in ((1, "cpu-copy"), (2, "cpu")):
                p = common.Process("stage", "--package", package, "--listen", "127.0.0.1:0", "--key-dir", keys.dirs[i],
                                   "--threads", "1", "--device", device)
                processes.append(p)
                p.wait_for(r"computing on CPU")
            addresses = [p.wait_for(r"listening on (\S+), key").group(1) for p in processes]
            chain, url = common.serve(package, "--key-dir", keys.dirs[0], "--stage", addresses[0], "--stage", addresses[1])
            processes.append(chain)
            text = test_chain.complete(url, 12)
            for device in ("cpu", "cpu-copy"):
                local, url = common.serve(package, "--local-stages", "2", "--threads", "1", "--device", device)
                processes.append(local)
                self.assertEqual(text, test_chain.complete(url, 12))
            done = common.run("serve", package, "--local-stages", "1", "--listen", "127.0.0.1:0", "--device", "Abacus7")
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"there is no device 'Abacus7'", done.stderr)
        finally:
            for p in processes:
                p.__exit__()


class Device(unittest.TestCase):
    """The first device that is not the CPU."""

    @classmethod
    def setUpClass(cls):
        cls.env, cls.device, cls.why = device_env(), None, "drivers are not run under sanitizers"
        if is_instrumented():
            return
        others = [d["name"] for d in devices(cls.env) if d["kind"] != "CPU"]
        cls.device = others[0] if others else None
        cls.why = "ggml offers no device but the CPU here; scripts/deps --vulkan adds one that runs on any machine"

    def setUp(self):
        if not self.device:
            self.skipTest(self.why)

    def assert_near(self, want, got, tolerance=TOLERANCE):
        want, got = array.array("f", want), array.array("f", got)
        top = max(map(abs, want))
        self.assertEqual(len(want), len(got))
        self.assertLessEqual(max(abs(a - b) for a, b in zip(want, got)), tolerance * top)

    def test_cuts(self):
        """Near the CPU's numbers; and the same bytes for every cut into two and some into three."""
        for kv, model in (("f32", {"layers": 5}), ("f16", {"layers": 5}),
                          ("f32", {"layers": 4, "arch": "deepseek2", "experts": 4, "experts_used": 4, "groups": 1,
                                   "groups_used": 1})):
            path, options = common.generated(seed=3, **model), ("--kv-type", kv, "--prompt", 9)
            whole, report = logits(path, self.device, *options, env=self.env)
            self.assertEqual(report["stages"][0]["device"], self.device)
            self.assert_near(logits(path, "cpu", *options)[0], whole)
            for cut in [str(i) for i in range(1, model["layers"])] + ["1,2", "2,3"]:
                with self.subTest(kv=kv, cut=cut, **model):
                    self.assertEqual(whole, logits(path, self.device, "--cut", cut, *options, env=self.env)[0])

    def test_greedy(self):
        """Every token that is chosen there is one that the CPU might choose: its logit is the largest, or near it."""
        model, prompt = common.generated(layers=5, seed=3), TOKENS[:9]
        done = common.run("run", model, "--ids", "-p", " ".join(map(str, prompt)), "-n", 24, "--ignore-eos", "--json",
                          "--device", self.device, env=self.env, limit_s=1200)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        chosen = report["tokens"]
        self.assertEqual(len(chosen), 24)
        self.assertEqual(report["engine"]["device"], self.device)
        rows = array.array("f", logits(model, "cpu", "--kv-type", "f16", tokens=prompt + chosen)[0])
        width = len(rows) // (len(prompt) + len(chosen))
        for i, token in enumerate(chosen):
            row = rows[(len(prompt) - 1 + i) * width:][:width]
            self.assertGreaterEqual(row[token], max(row) - 2 * TOLERANCE * max(map(abs, row)))

    def test_engine(self):
        """The unit tests of the engine on a device, on this one: kinds of state, cache types, many sequences, saved rows."""
        if not os.path.exists(UNIT):
            self.skipTest(f"{UNIT} is not built (make test-bins)")
        done = subprocess.run([UNIT], capture_output=True, timeout=3600, check=False,
                              env={**os.environ, **self.env, "STRATA_TEST_DEVICE": self.device})
        self.assertEqual(done.returncode, 0, done.stdout.decode() + done.stderr.decode())


if __name__ == "__main__":
    unittest.main()
