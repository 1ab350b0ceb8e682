#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# `tessera tokenize` beside Hugging Face's tokenizers with as many threads, in turns, on mixed text that it makes: whether the
# tokens are equal, and seconds and processor seconds of both. The peer's time has no start of Python. Prints a line a round.
#   TESSERA=build/release/tessera TESSERA_PYTHON=PYTHON docs/benchmarks/tokenize.sh [FOLDER [THREADS [MEGABYTES [ROUNDS]]]]
set -eu
SOURCE=$(cd "$(dirname "$0")/../.." && pwd)
tessera=$(realpath "${TESSERA:-$SOURCE/build/release/tessera}") python=${TESSERA_PYTHON:-python3}
folder=$(realpath "${1:-$SOURCE/tests/reference/data/tokenizers/gpt2}") threads=${2:-1} megabytes=${3:-100} rounds=${4:-3}
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
cd "$room"
cat > peer.py <<'END'
import array, glob, json, random, re, resource, sys, time

def make(source, megabytes):
    """Documents of lines of the tree's pages and sources, and of phrases in every script, some cut within a letter."""
    phrases = re.search(r"PHRASES = \[(.*?)\n\]", open(source + "/tests/reference/make_tokenizers.py").read(), re.S)[1]
    phrases = eval("[" + phrases + "]")
    lines = [line for p in sorted(glob.glob(source + "/docs/**/*.md", recursive=True) + glob.glob(source + "/core/*/*.c"))
             for line in open(p, encoding="utf8").read().splitlines(True)]
    r, written = random.Random(5), 0
    with open("text.jsonl", "w") as out:
        while written < megabytes * 1000000:
            at = r.randrange(len(lines))
            text = "".join(lines[at:at + r.randint(1, 60)]) if r.random() < 0.7 else " ".join(
                r.choice(phrases)[r.randint(0, 9):] for _ in range(r.randint(1, 60)))
            written += out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")

def encode(folder):
    from tokenizers import Tokenizer
    t = Tokenizer.from_file(folder + "/tokenizer.json")
    end = t.token_to_id(json.load(open(folder + "/tokenizer_config.json"))["eos_token"])
    began, before = time.time(), resource.getrusage(resource.RUSAGE_SELF)
    texts = [json.loads(line)["text"] for line in open("text.jsonl", encoding="utf8")]
    ids = array.array("H")
    for i in range(0, len(texts), 4096):
        for e in t.encode_batch_fast(texts[i:i + 4096]):
            ids.extend(e.ids if e.ids and e.ids[-1] == end else e.ids + [end])
    with open("peer.bin", "wb") as out:
        out.write(array.array("i", [20240520, 1, len(ids)] + [0] * 253).tobytes() + ids.tobytes())
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{time.time() - began:.2f} {after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime:.2f}")

make(sys.argv[2], float(sys.argv[3])) if sys.argv[1] == "make" else encode(sys.argv[2])
END
"$python" peer.py make "$SOURCE" "$megabytes"
TIMEFORMAT='%R %U %S'
for round in $(seq "$rounds"); do
  read -r theirs their_cpu < <(RAYON_NUM_THREADS=$threads TOKENIZERS_PARALLELISM=true "$python" peer.py encode "$folder")
  rm -rf own
  read -r ours user system < <({ time "$tessera" tokenize "$folder" --out own --jobs "$threads" text.jsonl > own.log 2>&1; } 2>&1)
  equal=other
  cmp -s own/train_000000.bin peer.bin && equal=equal
  awk -v r="$round" -v a="$ours" -v u="$user" -v s="$system" -v b="$theirs" -v c="$their_cpu" -v e="$equal" -v t="$threads" -v m="$megabytes" \
    'BEGIN { printf "round %d, %d threads, %s MB: %s tokens; tessera %.2f s (cpu %.2f), tokenizers %.2f s (cpu %.2f); speed %.2f, by cpu %.2f\n",
             r, t, m, e, a, u + s, b, c, b / a, c / (u + s) }'
done
