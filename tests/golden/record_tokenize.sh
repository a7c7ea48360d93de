#!/bin/sh
# Records the token ids that llama.cpp gives for tests/data: tests/golden/tokenize-*.
# Needs a C compiler beside llama.cpp's headers and libraries: PEER_RUN names a program that runs a command there, with
# this folder and /tmp in the same places (default: none, the command is run directly). STRATA_MODEL is the SmolLM2 file.
#   tokenize-NAME.ids        with special tokens: a line of ids per line of corpus.txt, then of text-escaped.txt
#   tokenize-NAME-plain.ids  the same without BOS and without parsing of special tokens
#   tokenize-pre-NAME.fnv    for bpe-vocab.txt under each pre-tokenizer: the FNV-1a hash of each line of ids
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
: "${STRATA_MODEL:?set STRATA_MODEL to SmolLM2-135M-Instruct.Q4_1.gguf}"
tmp=$(mktemp -d /tmp/strata-record.XXXXXX)
trap 'rm -rf "$tmp"' EXIT
${PEER_RUN:-} gcc -O2 "$root/tests/golden/peer_tokenize.c" -o "$tmp/peer_tokenize" -lllama -lggml -lggml-base

# record MODEL OUT [FLAG ...]
record() {
    model=$1 out=$root/tests/golden/$2
    shift 2
    ${PEER_RUN:-} "$tmp/peer_tokenize" "$model" "$@" <tests/data/corpus.txt >"$out"
    ${PEER_RUN:-} "$tmp/peer_tokenize" "$model" "$@" --escaped <tests/data/text-escaped.txt >>"$out"
    echo "$out: $(wc -l <"$out") lines"
}

record "$STRATA_MODEL" tokenize-smollm2.ids
record "$STRATA_MODEL" tokenize-smollm2-plain.ids --no-specials
python3 tests/tools/mkvocab.py build tests/data/spm-vocab.txt "$tmp/spm.gguf"
record "$tmp/spm.gguf" tokenize-spm.ids
record "$tmp/spm.gguf" tokenize-spm-plain.ids --no-specials
for pre in llama-bpe glm4 qwen2 qwen35 gpt-2 smollm deepseek-v3 default; do
    python3 tests/tools/mkvocab.py build tests/data/bpe-vocab.txt "$tmp/bpe.gguf" --pre $pre
    record "$tmp/bpe.gguf" "tokenize-pre-$pre.fnv" --hash
done
