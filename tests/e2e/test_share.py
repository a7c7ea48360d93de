"""A stage maps the files of its own layers only, and what is resident of them is no more than its share."""
import json
import os
import re
import unittest
import urllib.request

import common


def mapped(pid, package):
    """Bytes of address space and of resident memory of each package file that a process maps."""
    files, name = {}, None
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            head = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s+(.*)", line)
            if head:
                path = head.group(3)
                name = os.path.relpath(path, package) if path.startswith(package + "/") else None
                if name:
                    size = int(head.group(2), 16) - int(head.group(1), 16)
                    old = files.get(name, (0, 0))
                    files[name] = (old[0] + size, old[1])
            elif name and line.startswith("Rss:"):
                files[name] = (files[name][0], files[name][1] + 1024 * int(line.split()[1]))
    return files


class Share(unittest.TestCase):
    def check(self, model, n_layers, n_stages):
        package = os.path.realpath(common.package_of(model))
        with open(os.path.join(package, "model-package.json")) as f:
            manifest = json.load(f)
        layer_bytes = [layer["tensor_bytes"] for layer in manifest["layers"]]
        process, url = common.serve(package, "--local-stages", n_stages, "--ctx", 256, "--no-repack", "--json")
        with process:
            body = json.dumps({"prompt": "one two three four", "max_tokens": 8, "temperature": 0}).encode()
            with urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", body), timeout=120) as answer:
                self.assertEqual(answer.status, 200)
            rows = re.findall(r"^\d+ +127\S+ +(\d+)\.\.(\d+) +(\S+ \S+)", process.text, re.M)
            self.assertEqual(len(rows), n_stages, process.text)
            told = json.loads(process.wait_for(r'^{"url".*}$').group(0))
            self.assertEqual(told["url"], url)
            self.assertEqual([(s["first"], s["end"]) for s in told["stages"]], [(int(a), int(b)) for a, b, _ in rows])
            ranges = {}
            stages = common.children(process.pid)
            self.assertEqual(len(stages), n_stages)
            for pid in stages:
                files = mapped(pid, package)
                layers = sorted(int(re.search(r"(\d+)\.gguf", f).group(1)) for f in files if f.startswith("layers/"))
                first, end = layers[0], layers[-1] + 1
                self.assertEqual(layers, list(range(first, end)), "a stage maps layers that are not its own")
                ranges[first] = end
                share = sum(layer_bytes[first:end])
                extra = {"shared/metadata.gguf"}
                if first == 0:
                    extra.add("shared/embeddings.gguf")
                    share += manifest["shared"]["embeddings"]["tensor_bytes"]
                if end == n_layers:
                    extra.add("shared/output.gguf")
                    share += manifest["shared"]["output"]["tensor_bytes"]
                    if "shared/embeddings.gguf" in files and first != 0:  # tied: the head is the embedding matrix
                        extra.add("shared/embeddings.gguf")
                        share += manifest["shared"]["embeddings"]["tensor_bytes"]
                self.assertEqual({f for f in files if f.startswith("shared/")}, extra)
                # With --no-repack weights are not copied, so they are resident as file pages. Above the share there may be the metadata of
                # one file (the tokenizer), and the borders of the tensor data in each of the others.
                resident = sum(rss for _, rss in files.values())
                slack = manifest["shared"]["metadata"]["artifact_bytes"] + 65536 * len(files)
                self.assertLessEqual(resident, share + slack)
                stage = next(s for s in told["stages"] if s["first"] == first)
                self.assertEqual((stage["weight_bytes"], stage["copied_bytes"]), (share, 0))
            self.assertEqual(sorted(ranges.items()), [(int(a), int(b)) for a, b, _ in rows])
            self.assertEqual(process.stop(), 0)

    def test_generated(self):
        self.check(common.generated(layers=6, seed=1), 6, 3)

    def test_generated_tied(self):
        self.check(common.generated(layers=6, seed=2, tied=True), 6, 2)

    @common.needs_model
    def test_smollm2(self):
        self.check(common.MODEL, 30, 2)


if __name__ == "__main__":
    unittest.main()
