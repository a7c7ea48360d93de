"""Several requests at once through real stages, and prefixes that are not computed again: for every kind of state."""
import concurrent.futures
import json
import threading
import time
import unittest
import urllib.request

import common
from test_chain import Keys, Stream, post

# A full cache, a window beside a full cache, a convolution, keys and values in one row, experts with sinks.
MODELS = [
    {"arch": "llama", "layers": 4, "embd": 128},
    {"arch": "gemma3", "layers": 6, "window": 40},
    {"arch": "lfm2", "layers": 4},
    {"arch": "deepseek2", "layers": 3},
    {"arch": "gpt-oss", "layers": 4, "window": 48},
]
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards box with pale ghosts in the yard".split()


def text(n, seed):
    return " ".join(WORDS[(seed * 7 + i * (seed + 3)) % len(WORDS)] for i in range(n))


def ask(url, prompt, max_tokens=24):
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    with post(url, body) as answer:
        got = json.load(answer)
    return got["choices"][0]["text"], got["usage"]


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def health(url):
    with urllib.request.urlopen(url + "/health", timeout=10) as answer:
        return json.load(answer)


class Parallel(unittest.TestCase):
    def setUp(self):
        self.processes = []

    def tearDown(self):
        for p in reversed(self.processes):
            p.__exit__()

    def serve(self, package, *args):
        threads = [] if "--stage" in args else ["--threads", "1"]
        process, url = common.serve(package, *threads, *args)
        self.processes.append(process)
        return url

    def remote(self, package, n):
        """n stages with keys of their own, as on other machines; the arguments for `serve`."""
        keys = Keys(n)
        keys.trust_all()
        args = ["--key-dir", keys.dirs[0]]
        for i in range(1, n + 1):
            stage = common.Process("stage", "--package", package, "--listen", "127.0.0.1:0", "--key-dir", keys.dirs[i],
                                   "--threads", "1")
            self.processes.append(stage)
            args += ["--stage", "127.0.0.1:" + stage.wait_for(r"listening on \S*:(\d+)").group(1)]
        return args

    def together(self, url, prompts):
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda p: ask(url, p)[0], prompts))

    def test_same_answers_together(self):
        prompts = [text(5 + 9 * i, i) for i in range(8)]
        for options in MODELS:
            package = common.package_of(common.generated(**options))
            with self.subTest(options["arch"]):
                # Nothing is kept, so that each prompt is cut in the same places each time.
                url = self.serve(package, "--local-stages", "2", "--parallel", "8", "--kv-type", "f32", "--prefix-cache",
                                 "0", "--ctx", "1024")
                alone = [ask(url, p)[0] for p in prompts]
                self.assertEqual(self.together(url, prompts), alone)
                self.assertEqual((health(url)["running"], health(url)["prefix_cache"]["hits"]), (0, 0))

    def test_machines_of_their_own(self):
        package = common.package_of(common.generated(layers=6, embd=128))
        prompts = [text(5 + 9 * i, i) for i in range(8)]
        # When others come in between, a prompt is cut elsewhere, and with caches of f16 ggml rounds the parts' attention otherwise.
        kv = ("--kv-type", "f32")
        url = self.serve(package, "--local-stages", "1", "--ctx", "1024", "--prefix-cache", "0", *kv)
        alone = [ask(url, p)[0] for p in prompts]
        for n in (2, 3):
            with self.subTest(n):
                url = self.serve(package, *self.remote(package, n), "--parallel", "8", "--ctx", "1024",
                                 "--prefix-cache", "0", *kv)
                self.assertEqual(self.together(url, prompts), alone)

    def test_prefix_equals_computing_it(self):
        """With batches of 64 a prompt is always cut at multiples of 64, where kept blocks end: the same numbers."""
        for options in MODELS:
            package = common.package_of(common.generated(**options))
            for kv in ("f16", "q8_0") if options["arch"] == "llama" else ("f16",):
                with self.subTest(options["arch"], kv=kv):
                    kv = [] if kv == "f16" else ["--kv-type", kv]
                    args = ["--local-stages", "2", "--batch", "64", "--ctx", "2048", *kv]
                    url, plain = self.serve(package, *args), self.serve(package, *args, "--prefix-cache", "0")
                    start = text(90, 3)
                    asked = [start + " " + text(4, i) for i in range(3)]
                    answers = [ask(url, p) for p in asked + asked]
                    self.assertEqual([a for a, _ in answers], [ask(plain, p)[0] for p in asked] * 2)
                    counts = [cached(u) for _, u in answers]
                    self.assertEqual(counts[0], 0)
                    for count, (_, usage) in list(zip(counts, answers))[1:]:
                        self.assertEqual(count % 64, 0)
                        self.assertGreater(count, usage["prompt_tokens"] / 2)
                    self.assertEqual(health(url)["prefix_cache"]["reused_tokens"], sum(counts))
                    self.assertEqual(health(plain)["prefix_cache"]["max_tokens"], 0)
                    for _ in range(2):
                        self.processes.pop().__exit__()

    def test_cancel_frees_the_slot(self):
        package = common.package_of(common.generated(layers=8, embd=256, heads=8, ff=1024, ctx=32768))
        url = self.serve(package, "--local-stages", "2", "--parallel", "1", "--ctx", "16384")
        stream = Stream(url)
        self.assertIsNotNone(stream.event())
        done = []
        waiting = threading.Thread(target=lambda: done.append(ask(url, "hello", 4)))
        waiting.start()
        time.sleep(0.3)
        self.assertEqual((health(url)["running"], health(url)["queued"], done), (1, 1, []))
        stream.close()
        waiting.join(20)
        self.assertEqual(len(done), 1)
        self.assertEqual(health(url)["running"], 0)

    def test_long_prompt_lets_others_talk(self):
        package = common.package_of(common.generated(layers=8, embd=256, heads=8, ff=1024, ctx=32768))
        url = self.serve(package, "--local-stages", "2", "--parallel", "2", "--ctx", "16384", "--batch", "128")
        stream = Stream(url)
        self.assertIsNotNone(stream.event())
        reading = threading.Thread(target=ask, args=(url, text(300, 2), 2))
        reading.start()
        heard = 0
        while reading.is_alive():
            self.assertIsNotNone(stream.event())
            heard += 1
        # The prompt has some 900 tokens, and gets 32 of them into each batch; every second or third has a step as well.
        self.assertGreater(heard, 8)
        stream.close()


if __name__ == "__main__":
    unittest.main()
