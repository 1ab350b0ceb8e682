# SPDX-License-Identifier: BSD-3-Clause
"""Steps and peaks of tessera against PyTorch FSDP2, in turns: model x ranks x precision x activations.

    TESSERA=build/release/tessera python tests/reference/table.py [--rounds 3] [--steps 12] [--ranks 1,2] [--threads 1] [--only WORDS] [--no-times] [OUT.md]
    TESSERA=build/release/tessera python tests/reference/table.py --readme       # the table of README.md, with ratios of times

`python` is one with torch. A row is measured once for memory, and for time `rounds` times by each side, one after the
other, so that a slow minute hits both. --only keeps the rows that have every one of its words. The page has medians,
ratios, the load before and after; times of a busy machine are no more than ratios.
"""
import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
DECODER = "--layers 6 --heads 6 --width 384 --context 256 --batch 8"
MODELS = {
    "gpt": (DECODER, ""),
    "gpt-small": ("--layers 4 --heads 4 --width 128 --context 64 --batch 6", ""),
    "llama": (DECODER, "--kv-heads 2 --feed 1024"),
    "mnist": ("--batch 64", ""),
}
OPTIONS = {  # of our side, where whole layers miss the goal for memory
    ("gpt", 2, "bf16", "recompute"): "--units half",
    ("gpt-small", 1, "bf16", "recompute"): "--units half",
    ("gpt-small", 2, "fp32", "recompute"): "--units half",
    ("gpt-small", 2, "bf16", "keep"): "--units half",
    ("gpt-small", 2, "bf16", "recompute"): "--units half --prefetch 0",
    ("gpt-small", 4, "bf16", "recompute"): "--units half",
}
README = [("mnist", 2, "fp32", "keep"), ("gpt", 2, "fp32", "keep"), ("gpt", 2, "fp32", "recompute"), ("llama", 2, "bf16", "keep")]
LLAMA = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=384, intermediate_size=1024, num_hidden_layers=6,
             num_attention_heads=6, num_key_value_heads=2, vocab_size=256, max_position_embeddings=256, rms_norm_eps=1e-5,
             rope_theta=10000.0, tie_word_embeddings=True, hidden_act="silu")


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--ranks", default="1,2")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--only", default="")
    p.add_argument("--no-times", action="store_true")
    p.add_argument("--readme", action="store_true")
    p.add_argument("out", nargs="?")
    return p.parse_intermixed_args()


def last_object(text):
    return json.loads([line for line in text.splitlines() if line.startswith("{")][-1])


def run(command, threads):
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS=threads, TESSERA_THREADS=threads))
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return last_object(done.stdout)


def tessera(row, steps, config, threads):
    model, ranks, precision, activations = row
    name, shape = model.split("-")[0], MODELS[model][0].split()
    if name == "llama":
        at = shape.index("--context")
        shape = ["--config", config] + shape[at:]
    clip = [] if name == "mnist" else ["--clip", "1"]
    return run([os.environ.get("TESSERA", "build/release/tessera"), "train", name, "-n", str(ranks), "--precision", precision,
                "--activations", activations, "--steps", str(steps), "--quiet", "--json", "--log", "error"] + shape + clip
               + OPTIONS.get(row, "").split(), threads)


def fsdp2(row, steps, threads, more=()):
    model, ranks, precision, activations = row
    name = model.split("-")[0]
    return run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port",
                str(random.randrange(20000, 40000)), os.path.join(HERE, "fsdp2.py"), "--model", name, "--precision", precision,
                "--activations", activations, "--steps", str(steps), "--clip", "0" if name == "mnist" else "1"]
               + " ".join(MODELS[model]).split() + list(more), threads)


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def load():
    return open("/proc/loadavg").read().split()[0]


def rows(o):
    if o.readme:
        yield from README
        return
    words = o.only.split()
    for row in itertools.product(MODELS, map(int, o.ranks.split(",")), ("fp32", "bf16"), ("keep", "recompute")):
        text = "%s W=%d %s %s" % row
        if row[0] == "mnist" and row[3] == "recompute":
            continue
        if all(word in text.replace("=", " ").split() or word in text.split() for word in words):
            yield row


def measure(row, o, config):
    times, threads = ([], []), str(o.threads)
    for _ in range(0 if o.no_times else o.rounds):
        times[0].append(tessera(row, o.steps, config, threads)["step_seconds"])
        times[1].append(fsdp2(row, o.steps, threads)["step_seconds"])
    mine = tessera(row, 2, config, threads)["peak_device_bytes"]
    theirs = fsdp2(row, 2, threads, ["--track"])["peak_device_bytes"]
    return times, mine, theirs


def line(row, times, mine, theirs):
    time_cells = "| | |"
    if times[0]:
        a, b = median(times[0]), median(times[1])
        time_cells = f"{a:.4g} | {b:.4g} | {a / b:.2f} |"
    activations = f"{row[3]}, `{OPTIONS[row]}`" if row in OPTIONS else row[3]
    return f"| {row[0]} | {row[1]} | {row[2]} | {activations} | {time_cells} {mine} | {theirs} | {mine / theirs:.2f} |"


def readme_line(row, times, mine, theirs):
    time_cell = f"{median(times[0]) / median(times[1]):.2f}" if times[0] else ""
    return f"| {row[0]}, {row[2]}, {row[3]} | {time_cell} | {mine} | {theirs} | {mine / theirs:.2f} |"


def main():
    o, config, before = arguments(), "/tmp/table-%d.json" % os.getpid(), load()
    with open(config, "w") as f:
        json.dump(LLAMA, f)
    page = ["| model | ranks | precision | activations | step, s | FSDP2, s | ratio | peak, bytes | FSDP2, bytes | ratio |",
            "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    if o.readme:
        page = ["| two ranks | time of a step, of FSDP2's | peak bytes per rank | FSDP2's | ratio |", "| --- | ---: | ---: | ---: | ---: |"]
    for row in rows(o):
        page.append((readme_line if o.readme else line)(row, *measure(row, o, config)))
        print(page[-1], file=sys.stderr, flush=True)
    os.remove(config)
    page.append("")
    page.append(f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, {os.cpu_count()} cores, load {before} before and {load()} after, "
                f"{0 if o.no_times else o.rounds} rounds of {o.steps} steps in turns, {o.threads} thread(s) per rank.")
    text = "\n".join(page) + "\n"
    if o.out:
        open(o.out, "w").write(text)
    else:
        print(text, end="")


main()
