#!/bin/sh
# Records the token ids that llama.cpp gives for tests/data: tests/golden/tokenize-*.
# Needs a C compiler beside llama.cpp's headers and libraries: PEER_RUN names a program that runs a command there, with
# this folder and /tmp in the same places (default: none, the command is run directly). STRATA_MODEL is the SmolLM2 file.
# STRATA_VOCABS, if set, is a folder with further vocabularies as NAME.gguf (docs/tokenizers.md says how they are had).
#   tokenize-NAME.ids        with special tokens: a line of ids per text of corpus.txt, text-escaped.txt and
#                            mixtures-escaped.txt
#   tokenize-NAME-plain.ids  the same without BOS and without parsing of special tokens
#   tokenize-NAME.fnv        of further vocabularies: the FNV-1a hash of each 16 of these lines
#   tokenize-splits.txt      for each kind of pre-tokenizer and two vocabularies of `mkvocab.py pairs`: name, seed, hashes
# Other names of a kind are not recorded, but each is compared with the name that stands for its kind.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
: "${STRATA_MODEL:?set STRATA_MODEL to SmolLM2-135M-Instruct.Q4_1.gguf}"
tmp=$(mktemp -d /tmp/strata-record.XXXXXX)
trap 'rm -rf "$tmp"' EXIT
${PEER_RUN:-} gcc -O2 "$root/tests/golden/peer_tokenize.c" -o "$tmp/peer_tokenize" -lllama -lggml -lggml-base

# ids MODEL [FLAG ...]: a line of ids per text
ids() {
    ${PEER_RUN:-} "$tmp/peer_tokenize" "$@" <tests/data/corpus.txt
    cat tests/data/text-escaped.txt tests/data/mixtures-escaped.txt | ${PEER_RUN:-} "$tmp/peer_tokenize" "$@" --escaped
}

# hashes: of each 16 lines of stdin
hashes() {
    python3 -c '
import sys
lines = sys.stdin.buffer.read().split(b"\n")[:-1]
for i in range(0, len(lines), 16):
    h = 0x811C9DC5
    for b in b"".join(line + b"\n" for line in lines[i:i + 16]):
        h = (h ^ b) * 0x01000193 & 0xFFFFFFFF
    print(f"{h:08x}")'
}

# record MODEL NAME
record() {
    for plain in "" -plain; do
        out=$root/tests/golden/tokenize-$2$plain.$3
        if [ "$3" = ids ]; then
            ids "$1" ${plain:+--no-specials} >"$out"
        else
            ids "$1" ${plain:+--no-specials} | hashes >"$out"
        fi
        echo "$out: $(wc -l <"$out") lines"
    done
}

record "$STRATA_MODEL" smollm2 ids
python3 tests/tools/mkvocab.py build tests/data/spm-vocab.txt "$tmp/spm.gguf"
record "$tmp/spm.gguf" spm ids
for name in llama3 qwen3 deepseek3 gptoss tekken gemma3 mistral1 mistral7; do
    [ -f "${STRATA_VOCABS:-/nonexistent}/$name.gguf" ] && record "$STRATA_VOCABS/$name.gguf" $name fnv
done

# The table of names, from the source. llama.cpp has no inkling: granite-embed-multi-97m cuts by the same pattern.
out=$root/tests/golden/tokenize-splits.txt
: >"$out"
python3 -c '
import re, sys
for names in re.findall(r"\.names\s*=\s*((?:\"[^\"]*\"\s*)+)", open("src/text/vocab_rules.c").read()):
    print(" ".join("".join(re.findall(r"\"([^\"]*)\"", names)).split()))' >"$tmp/kinds"
while read -r first others; do
    case $first in inkling) continue ;; esac
    for seed in 1 2; do
        python3 tests/tools/mkvocab.py pairs $seed "$tmp/p.gguf" --pre "$first"
        ids "$tmp/p.gguf" --no-specials | hashes >"$tmp/want"
        echo "$first $seed $(tr '\n' ' ' <"$tmp/want")" >>"$out"
    done
    for other in $others; do
        python3 tests/tools/mkvocab.py pairs 2 "$tmp/p.gguf" --pre "$other"
        ids "$tmp/p.gguf" --no-specials | hashes | cmp - "$tmp/want" || { echo "$other is not of the kind of $first" >&2; exit 1; }
    done
    echo "$first: $others"
done <"$tmp/kinds"
