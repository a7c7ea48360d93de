#!/usr/bin/env python3
"""Writes the seeds of fuzz_wire: tests/fuzz/corpus/wire. The seeds are committed; run this again after changing it."""
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "corpus", "wire")
DIGEST = "0123456789abcdef" * 4
KEY = "A" * 43 + "="
HELLO, WELCOME, REFUSED, ASSIGN, LOADING, LOADED, CONNECT, READY, ERROR, FORGET = range(1, 11)
BEGIN, TOKENS, HIDDEN, TOKEN, CANCEL, PING, PONG = range(32, 39)
SAMPLE, FINAL, EOG = 1, 1, 2
WIDTH = 4


def frame(kind, payload=b"", seq=0, pos=0, rows=0):
    if not isinstance(payload, bytes):
        payload = json.dumps(payload).encode()
    return b"STR1" + struct.pack("<BBHIIII", kind, 0, 0, seq, pos, rows, len(payload)) + payload


def begin(n_prompt, slot=0, history=(), restore=(), store_base=0):
    return {"slot": slot, "store_base": store_base, "restore": list(restore), "temperature": 0.7, "top_k": 40,
            "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.1, "repeat_last_n": 64, "seed": "18446744073709551615",
            "max_tokens": 5, "n_prompt": n_prompt, "stop_ids": [2], "history": list(history)}


def tokens(ids, **fields):
    return frame(TOKENS, struct.pack("<%di" % len(ids), *ids), rows=len(ids), **fields)


def table(entries):
    return b"".join(struct.pack("<4I", *e) for e in entries)


def hidden(*spans):
    """Spans of (seq, pos, rows, flags) with rows of zeros."""
    rows = sum(s[2] for s in spans)
    return frame(HIDDEN, table(spans) + bytes(4 * WIDTH * rows), pos=len(spans), rows=rows)


def sampled(*entries):
    """Tokens of (seq, pos, id, flags)."""
    return frame(TOKEN, table(entries), rows=len(entries))


def place(index, count, n_seq=8, width=WIDTH):
    return bytes([width | index << 3 | (count - 1) << 4 | (n_seq - 1) << 5])


SESSION = DIGEST[:32]
ASSIGNMENT = {"session": SESSION, "index": 1, "count": 2, "first": 2, "end": 4, "n_ctx": 200, "n_batch": 8, "n_seq": 8,
              "n_pool": 400, "cache_blocks": 100, "n_in_flight": 2, "kv_type": "q8_0", "manifest_sha256": DIGEST,
              "next_addr": "box:9400", "next_key": KEY, "prev_key": KEY}
ALONE = {**{k: v for k, v in ASSIGNMENT.items() if not k.startswith(("next", "prev"))}, "index": 0, "count": 1}
SIZES = {"weight_bytes": 1, "copied_bytes": 0, "kv_bytes": 2, "scratch_bytes": 3, "rss_bytes": 4, "cache_bytes": 5,
         "n_embd": 4, "n_vocab": 100, "n_ctx": 200, "n_batch": 8, "n_threads": 1}
seeds = {
    "hello": b"\x00" + frame(HELLO, {"protocol": 2, "version": "0.1.0", "role": "control"}),
    "forward": b"\x00" + frame(HELLO, {"protocol": 2, "version": "0.1.0", "role": "forward", "session": SESSION, "index": 1}),
    "welcome": b"\x00" + frame(WELCOME, {"protocol": 2, "version": "0.1.0", "model_id": "m", "manifest_sha256": DIGEST,
                                         "layer_count": 4}),
    "assign": b"\x00" + frame(ASSIGN, ASSIGNMENT) + frame(CONNECT, {}) + frame(PING),
    "alone": b"\x00" + frame(ASSIGN, ALONE),
    "sizes": b"\x00" + frame(LOADING, {"elapsed_ms": 5}) + frame(LOADED, SIZES) + frame(READY, {}) + frame(PONG),
    "forget": b"\x00" + frame(FORGET, {"first": 12, "count": 3}) + frame(FORGET, {"first": 2**53, "count": 2**20}),
    "fault": b"\x00" + frame(ERROR, {"code": "peer_lost", "message": "gone"}, seq=3)
             + frame(REFUSED, {"code": "busy", "message": "busy"}),
    # One request after another: pieces of a prompt, tokens that come back, the end, a cancel that overtakes.
    "first-stage": place(0, 2) + frame(BEGIN, begin(10, history=[1, 2]), seq=1) + tokens(range(8), seq=1)
                   + tokens([8, 9], seq=1, pos=8) + sampled((1, 10, 7, 0)) + sampled((1, 11, 2, FINAL | EOG))
                   + frame(CANCEL, seq=2) + frame(BEGIN, begin(1), seq=2) + tokens([1], seq=2)
                   + frame(BEGIN, begin(1), seq=3) + frame(CANCEL, seq=3) + tokens([1], seq=3),
    "later-stage": place(1, 2) + frame(BEGIN, begin(2), seq=1) + hidden((1, 0, 2, SAMPLE)) + hidden((1, 2, 1, SAMPLE))
                   + hidden((1, 9, 1, SAMPLE)),
    # Several at once, in batches that mix pieces of prompts with steps; one of them starts from two kept blocks.
    "many-first": place(0, 2, 3) + frame(BEGIN, begin(3, 0), seq=1) + frame(BEGIN, begin(130, 2, (), (5, 6), 40), seq=2)
                  + tokens([1, 2, 3], seq=1) + tokens([4, 5], seq=2, pos=128)
                  + sampled((1, 3, 9, 0), (2, 130, 9, 0)) + frame(BEGIN, begin(1, 1), seq=3) + tokens([6], seq=3)
                  + sampled((3, 1, 2, FINAL), (1, 4, 8, 0), (2, 131, 8, FINAL | EOG))
                  + frame(BEGIN, begin(5, 1), seq=4) + frame(CANCEL, seq=1) + sampled((1, 5, 8, 0)) + tokens(range(5), seq=4),
    "many-later": place(1, 2, 3) + frame(BEGIN, begin(3, 0), seq=1)
                  + frame(BEGIN, begin(130, 2, (), (5, 6), 40), seq=2) + hidden((1, 0, 3, SAMPLE), (2, 128, 1, 0))
                  + frame(BEGIN, begin(6, 1), seq=3) + hidden((1, 3, 1, SAMPLE), (2, 129, 1, SAMPLE), (3, 0, 4, 0))
                  + frame(CANCEL, seq=1) + hidden((1, 4, 1, SAMPLE), (2, 130, 1, SAMPLE), (3, 4, 2, SAMPLE)),
    # A stage alone of a model of width 1, whose slot a new request takes over.
    "slot-taken": place(0, 1, 1, 1) + frame(BEGIN, begin(2), seq=7) + tokens([1, 2], seq=7)
                  + frame(BEGIN, begin(2), seq=9) + tokens([1, 2], seq=7) + tokens([1, 2], seq=9),
    # What is out of order, too much or beyond the end, each time followed by what was due.
    "refused-first": place(0, 2, 3) + frame(BEGIN, begin(3), seq=0) + frame(BEGIN, begin(200), seq=1)
                     + frame(BEGIN, begin(3, 3), seq=1) + frame(BEGIN, begin(20), seq=1) + frame(BEGIN, begin(3), seq=1)
                     + tokens([1], seq=2) + tokens(range(9), seq=1) + tokens([1], seq=1, pos=1) + tokens([100], seq=1)
                     + tokens([-1], seq=1) + sampled((1, 0, 5, 0)) + tokens(range(8), seq=1) + tokens([1], seq=1, pos=7)
                     + tokens(range(8), seq=1, pos=8) + tokens(range(5), seq=1, pos=16) + tokens(range(4), seq=1, pos=16)
                     + tokens([1], seq=1, pos=20) + sampled((1, 21, 5, 0)) + sampled((1, 20, 100, 0)) + sampled((1, 20, 5, 0))
                     + sampled((1, 20, 5, 0)) + sampled((1, 21, 5, FINAL)) + sampled((1, 21, 5, 0))
                     + frame(BEGIN, begin(199, 1, (), (1, 2, 3)), seq=5) + tokens(range(7), seq=5, pos=192)
                     + sampled((5, 199, 5, 0)) + sampled((5, 200, 5, 0)) + sampled((5, 200, 5, FINAL)),
    "refused-later": place(1, 2, 3) + hidden((1, 0, 1, 0)) + frame(BEGIN, begin(20), seq=1) + hidden((1, 5, 1, 0))
                     + hidden((1, 0, 9, 0)) + hidden((1, 0, 4, 0)) + hidden((1, 1, 1, 0)) + frame(BEGIN, begin(2, 1), seq=2)
                     + hidden((2, 0, 3, SAMPLE)) + hidden((2, 0, 2, 0)) + hidden((2, 0, 1, SAMPLE)) + hidden((2, 0, 2, SAMPLE))
                     + hidden((2, 2, 2, SAMPLE)) + hidden((2, 2, 1, 0)) + hidden((2, 2, 1, SAMPLE))
                     + frame(BEGIN, begin(199, 2, (), (1, 2, 3)), seq=3) + hidden((3, 192, 7, SAMPLE))
                     + hidden((3, 199, 1, SAMPLE)) + hidden((3, 200, 1, SAMPLE)),
    # Tables that are refused: a request twice, rows that are not the frame's.
    "bad-tables": place(1, 2) + frame(BEGIN, begin(2), seq=1) + hidden((1, 0, 1, 0), (1, 1, 1, SAMPLE))
                  + frame(HIDDEN, table([(1, 0, 1, 0)]) + bytes(4 * WIDTH * 2), pos=1, rows=2)
                  + sampled((1, 2, 3, 0), (1, 3, 3, 0)) + sampled((1, 2, 3, EOG)),
    "json-alone": b"\x00" + json.dumps(ASSIGNMENT).encode(),
}
os.makedirs(OUT, exist_ok=True)
for name, data in seeds.items():
    with open(os.path.join(OUT, name), "wb") as f:
        f.write(data)
