#!/usr/bin/env python3
"""Records what llama.cpp computes for each row of tests/e2e/arch_models.py, for tests/e2e/test_archs_numbers.py.

usage: PEER_RUN=COMMAND STRATA_BUILD=BUILD record_archs_numbers.py [NAME...]

PEER_RUN as for record_logits.py; BUILD is Strata's build folder, whose mkmodel makes the models. Without names all rows
are recorded. Writes archs-numbers/<name>.top (see compact() there) and, in index.json, the digest of each model file.
"""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import arch_models as archs  # noqa: E402
import common  # noqa: E402

PEER = os.environ.get("PEER_RUN", "").split()


def record(row):
    model = common.generated(**row.options)
    out = os.path.join(common.WORK, "peer.f32")
    done = subprocess.run([*PEER, "logits", model, out, *map(str, archs.tokens(250))], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{row.name}: {done.stderr[-2000:]}")
    with open(os.path.join(archs.GOLDEN, row.name + ".top"), "wb") as f:
        f.write(archs.compact(archs.floats(out)))
    return archs.digest(model)


def main():
    if not PEER:
        sys.exit(__doc__)
    wanted = sys.argv[1:] or [row.name for row in archs.ROWS]
    index = archs.index() if os.path.exists(archs.INDEX) else {}
    for row in archs.ROWS:
        if row.name in wanted:
            index[row.name] = record(row)
            print(row.name)
    with open(archs.INDEX, "w", encoding="utf-8") as f:
        json.dump(dict(sorted(index.items())), f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
