"""From a GLM-DSA model to a package that declares glm-dsa-v1: writing, checking, repairing, in both programs."""
import json
import os
import subprocess
import unittest

import common
import ggufpy

SKIPPY = os.path.join(common.BUILD, "skippy-model-package")
EMBD, HEADS, ROPE, NOPE, VALUE, Q, KV, FF, EXPERTS, EXPERT_FF, INDEX_HEADS, INDEX_KEY, VOCAB = \
    16, 2, 4, 8, 6, 8, 10, 24, 4, 12, 3, 8, 32
FULL, BLOCKS = (0, 1, 4), 7  # the last block is the NextN layer

REPORT_KEYS = ["valid", "path", "artifact_kind", "gguf_files", "architecture", "tensor_count", "layer_count",
               "effective_decoder_layers", "nextn_predict_layers", "role_source", "full_layers", "shared_layers",
               "generation_policy_required", "generation_policy", "generation_thresholds", "metadata_errors",
               "tensor_errors", "generation_policy_errors", "generation_threshold_errors", "warnings"]


def block(i):
    """Names and shapes of one layer's tensors."""
    t = {"attn_norm.weight": (EMBD,), "attn_q_a.weight": (EMBD, Q), "attn_q_a_norm.weight": (Q,),
         "attn_q_b.weight": (Q, HEADS * (NOPE + ROPE)), "attn_kv_a_mqa.weight": (EMBD, KV + ROPE),
         "attn_kv_a_norm.weight": (KV,), "attn_k_b.weight": (NOPE, KV, HEADS), "attn_v_b.weight": (KV, VALUE, HEADS),
         "attn_output.weight": (HEADS * VALUE, EMBD), "ffn_norm.weight": (EMBD,)}
    if i == 0:
        t |= {"ffn_gate.weight": (EMBD, FF), "ffn_up.weight": (EMBD, FF), "ffn_down.weight": (FF, EMBD)}
    else:
        t |= {"ffn_gate_inp.weight": (EMBD, EXPERTS), "ffn_gate_exps.weight": (EMBD, EXPERT_FF, EXPERTS),
              "ffn_up_exps.weight": (EMBD, EXPERT_FF, EXPERTS), "ffn_down_exps.weight": (EXPERT_FF, EMBD, EXPERTS),
              "ffn_gate_shexp.weight": (EMBD, EXPERT_FF), "ffn_up_shexp.weight": (EMBD, EXPERT_FF),
              "ffn_down_shexp.weight": (EXPERT_FF, EMBD)}
    if i in FULL or i == BLOCKS - 1:
        t |= {"indexer.k_norm.weight": (INDEX_KEY,), "indexer.k_norm.bias": (INDEX_KEY,),
              "indexer.proj.weight": (EMBD, INDEX_HEADS), "indexer.attn_k.weight": (EMBD, INDEX_KEY),
              "indexer.attn_q_b.weight": (Q, INDEX_HEADS * INDEX_KEY)}
    if i == BLOCKS - 1:
        t |= {"nextn.eh_proj.weight": (2 * EMBD, EMBD), "nextn.enorm.weight": (EMBD,), "nextn.hnorm.weight": (EMBD,)}
    return {f"blk.{i}.{name}": shape for name, shape in t.items()}


def model(name, without=(), architecture="glm-dsa", nextn=1):
    """A tiny model that fulfils the contract, but for what is left out."""
    numbers = {"block_count": BLOCKS, "context_length": 4096, "embedding_length": EMBD, "feed_forward_length": FF,
               "attention.head_count": HEADS, "attention.head_count_kv": 1, "attention.key_length": KV + ROPE,
               "attention.value_length": KV, "attention.key_length_mla": NOPE + ROPE,
               "attention.value_length_mla": VALUE, "attention.q_lora_rank": Q, "attention.kv_lora_rank": KV,
               "rope.dimension_count": ROPE, "expert_count": EXPERTS, "expert_used_count": 2, "expert_shared_count": 1,
               "expert_feed_forward_length": EXPERT_FF, "leading_dense_block_count": 1,
               "attention.indexer.head_count": INDEX_HEADS, "attention.indexer.key_length": INDEX_KEY,
               "attention.indexer.top_k": 32, "nextn_predict_layers": nextn}
    e = ggufpy.encode
    pairs = [("general.architecture", e(ggufpy.STRING, architecture)), ("general.name", e(ggufpy.STRING, "Tiny GLM"))]
    pairs += [(f"{architecture}.{k}", e(ggufpy.U32, v)) for k, v in numbers.items()]
    pairs += [(f"{architecture}.attention.layer_norm_rms_epsilon", e(ggufpy.F32, 1e-5)),
              (f"{architecture}.expert_weights_scale", e(ggufpy.F32, 2.5)),
              (f"{architecture}.expert_weights_norm", e(ggufpy.BOOL, True)),
              (f"{architecture}.attention.indexer.types",
               e(ggufpy.ARRAY, [i in FULL for i in range(BLOCKS - 1)], ggufpy.BOOL))]
    shapes = {"token_embd.weight": (EMBD, VOCAB)}
    for i in range(BLOCKS):
        shapes |= block(i)
    shapes |= {"output_norm.weight": (EMBD,), "output.weight": (EMBD, VOCAB)}
    path = os.path.join(common.WORK, name)
    ggufpy.write(path, [p for p in pairs if p[0] not in without],
                 [(n, s, 0, None) for n, s in shapes.items() if n not in without])
    return path


def skippy(*args):
    return subprocess.run([SKIPPY, *map(str, args)], capture_output=True, timeout=60, check=False)


def manifest_of(package):
    return os.path.join(package, "model-package.json")


def read(path):
    with open(path, "rb") as f:
        return f.read()


def edit(package, change):
    """Changes a package's manifest, and gives its new bytes."""
    path = manifest_of(package)
    doc = json.loads(read(path))
    change(doc)
    with open(path, "w", encoding="utf-8") as f:
        f.write(json.dumps(doc, indent=2, ensure_ascii=False) + "\n")
    return read(path)


class GlmDsa(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.good = model("glm-good.gguf")
        cls.package = common.package_of(cls.good)

    def package_of(self, name):
        """A package of its own for a test that changes it."""
        path = os.path.join(common.WORK, name)
        done = common.run("write-package", self.good, "--local", "--out-dir", path)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return path

    def ok(self, *args):
        done = common.run(*args)
        self.assertEqual(done.returncode, 0, done.stdout.decode() + done.stderr.decode())
        return done.stdout.decode()

    def test_writer_declares_what_holds(self):
        generation = json.loads(read(manifest_of(self.package)))["generation"]
        self.assertEqual(generation["policy"]["profile"], "glm-dsa-v1")
        self.assertEqual(generation["policy"]["decode"], "compact-flash")
        self.assertEqual(generation["thresholds"], {"short_prefill_max_tokens": 2048,
                                                    "direct_sparse_decode_max_top_k": 256, "compact_flash_min_kv": 1,
                                                    "dense_mask_max_bytes": 268435456})
        speculation = generation["speculative_decoding"]
        self.assertEqual(speculation["default"], "mtp")
        self.assertEqual(speculation["proposers"]["mtp"]["layer_indices"], [6])
        self.assertEqual(speculation["strategies"]["mtp"]["layer_indices"], [6])
        self.ok("validate-glm-dsa-contract", "--require-generation-policy", self.package)

    def test_writer_declares_no_more(self):
        """A layer without its indexer, or no NextN key: the claim is left out, and the reason is told."""
        cases = {"indexer": (model("glm-bad.gguf", without={"blk.4.indexer.proj.weight"}), "policy", b"blk.4"),
                 "nextn": (model("glm-no-key.gguf", without={"glm-dsa.nextn_predict_layers"}), "speculative_decoding",
                           b"native MTP is not declared")}
        for name, (source, key, reason) in cases.items():
            with self.subTest(name):
                out = os.path.join(common.WORK, "declares-" + name)
                done = common.run("write-package", source, "--local", "--out-dir", out)
                self.assertEqual(done.returncode, 0, done.stderr.decode())
                self.assertNotIn(key, json.loads(read(manifest_of(out))).get("generation", {}))
                self.assertIn(reason, done.stderr)

    def test_report(self):
        for path, kind in ((self.good, "gguf_file"), (self.package, "model_package")):
            report = json.loads(self.ok("validate-glm-dsa-contract", "--json", path))
            self.assertEqual(list(report), REPORT_KEYS)
            self.assertTrue(report["valid"])
            self.assertEqual(report["artifact_kind"], kind)
            self.assertEqual((report["full_layers"], report["shared_layers"]), ([0, 1, 4], [2, 3, 5]))
            self.assertEqual(report["role_source"], "metadata_types")
            done = skippy("validate-glm-dsa-contract", path)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            self.assertEqual(json.loads(done.stdout), report)

    def test_breach(self):
        bad = model("glm-breach.gguf", without={"blk.2.ffn_norm.weight", "glm-dsa.expert_count"})
        done = common.run("validate-glm-dsa-contract", bad)
        self.assertEqual(done.returncode, 1)
        self.assertIn("missing tensor blk.2.ffn_norm.weight", done.stdout.decode())
        self.assertIn("missing glm-dsa.expert_count", done.stdout.decode())
        done = skippy("validate-glm-dsa-contract", bad)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.decode(), f"Error: GLM-DSA contract validation failed for {bad}\n")
        report = json.loads(done.stdout)
        self.assertEqual(report["tensor_errors"], ["missing tensor blk.2.ffn_norm.weight"])
        self.assertEqual(report["metadata_errors"], ["missing glm-dsa.expert_count"])
        done = skippy("validate-glm-dsa-contract", os.path.join(common.WORK, "nothing.gguf"))
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertTrue(done.stderr.startswith(b"Error: "))

    def test_other_architecture(self):
        done = common.run("validate-glm-dsa-contract", model("deepseek.gguf", architecture="deepseek2"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("it is deepseek2", done.stdout.decode())
        self.assertNotIn("missing", done.stdout.decode())

    def test_repair(self):
        package = self.package_of("glm-repair")
        before = edit(package, lambda doc: [doc["generation"].pop("policy"), doc["generation"].pop("thresholds")])
        self.assertEqual(common.run("validate-glm-dsa-contract", package).returncode, 0)
        done = common.run("validate-glm-dsa-contract", "--require-generation-policy", package)
        self.assertEqual(done.returncode, 1)
        self.assertIn("generation.policy is required", done.stdout.decode())
        # A dry run shows the lines, and changes nothing.
        text = self.ok("repair-glm-dsa-generation-policy", "--dry-run", package)
        self.assertIn('\n+      "profile": "glm-dsa-v1",\n', text)
        self.assertNotIn('\n-      "default"', text)
        self.assertEqual(read(manifest_of(package)), before)
        # The change itself, in the older dialect.
        done = skippy("repair-glm-dsa-generation-policy", "--in-place", package)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        result = json.loads(done.stdout)
        self.assertEqual(list(result), ["repaired", "package", "manifest_path", "preserved_speculative_decoding",
                                        "validation"])
        self.assertEqual((result["repaired"], result["preserved_speculative_decoding"]), (True, True))
        self.assertTrue(result["validation"]["valid"])
        after = json.loads(read(manifest_of(package)))
        old = json.loads(before)
        self.assertEqual(list(after), list(old))
        self.assertEqual(after["generation"].pop("policy")["verify"], "auto")
        after["generation"].pop("thresholds")
        self.assertEqual(after, old)
        self.ok("validate-glm-dsa-contract", "--require-generation-policy", package)
        # Nothing more to do.
        result = json.loads(self.ok("repair-glm-dsa-generation-policy", "--in-place", "--json", package))
        self.assertEqual((result["repaired"], result["change_needed"], result["diff"]), (False, False, ""))
        self.assertEqual([n for n in os.listdir(package) if "tmp" in n or n.startswith(".")], [])

    def test_repair_refusals(self):
        package = self.package_of("glm-refuse")
        for args, status, says in ((["--in-place"], 2, "name one package"), ([package], 2, "requires --in-place"),
                                   (["--in-place", "--dry-run", package], 2, "exclude"),
                                   (["--in-place", self.good], 1, "is not a layer package"),
                                   (["--in-place", "--nonsense", package], 2, "--nonsense")):
            done = common.run("repair-glm-dsa-generation-policy", *args)
            self.assertEqual(done.returncode, status, args)
            self.assertIn(says, done.stderr.decode())
            self.assertEqual(done.stdout, b"")
        llama = common.package_of(common.generated(layers=2))
        before = read(manifest_of(llama))
        done = common.run("repair-glm-dsa-generation-policy", "--in-place", llama)
        self.assertEqual(done.returncode, 1)
        self.assertIn("nothing was changed", done.stderr.decode())
        self.assertEqual(read(manifest_of(llama)), before)

    def test_help(self):
        for name in ("validate-glm-dsa-contract", "repair-glm-dsa-generation-policy"):
            self.assertIn(f"usage: strata {name}", self.ok(name, "--help"))
            self.assertIn(f"usage: skippy-model-package {name}".encode(), skippy(name, "--help").stdout)


if __name__ == "__main__":
    unittest.main()
