#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""examples/torch/decoder beside PyTorch: the same weights, batches, dropout and learning rates.

    python torch_fsdp2.py TESSERA FOLDER [--ranks 1,2,4] [--steps 50] [--layers 2] [--width 32] [--times]

FOLDER has decoder_plain and decoder_sharded, built with the LibTorch of this PyTorch, whose random numbers are then the same
(tests/e2e/test_torch_pypi_slow.sh builds them). Losses of all steps are compared: decoder_sharded beside decoder_plain on
one rank, and beside FSDP2 in Python over Gloo on each number of ranks. More than 1e-5 of a loss apart is exit code 1.

--times is for an idle machine: seconds of a step, as the difference of two runs of different length, and the most resident
memory of a rank. Rounds of both alternate.
"""
import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from load_state_dict import BATCH, VOCABULARY, Decoder, pick

RATE = 1e-3


def train(o):
    """One rank of FSDP2: the loop of examples/torch/decoder/plain.cpp."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = Decoder(o.layers, o.width)
    for block in model.h:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    text = torch.tensor(list(open("text", "rb").read()))
    rows = BATCH // ranks
    for step in range(o.steps):
        x, y = (t[rank * rows : (rank + 1) * rows] for t in pick(text, step))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).view(-1, VOCABULARY), y.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 10)
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / ranks:.9g}", flush=True)
    dist.destroy_process_group()


def losses(command):
    shutil.rmtree("decoder", ignore_errors=True)  # checkpoints of the run before: another run does not go on there
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1", TESSERA_THREADS="1"))
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return [float(line.split("loss ")[1].split()[0]) for line in done.stdout.splitlines() if "loss " in line]


def commands(o, ranks, steps):
    shape = [str(steps), str(o.layers), str(o.width)]
    sharded = [o.tessera, "run", "-n", str(ranks), "--", os.path.join(o.folder, "decoder_sharded"), "text"] + shape
    fsdp2 = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port",
             str(random.randrange(20000, 40000)), os.path.abspath(__file__), "--train", "--steps", shape[0], "--layers", shape[1], "--width", shape[2]]
    return {"plain": [os.path.join(o.folder, "decoder_plain"), "text"] + shape, "sharded": sharded, "fsdp2": fsdp2}


def apart(name, mine, theirs, steps):
    most = max((abs(a - b) / abs(b) for a, b in zip(mine, theirs)), default=1)
    good = len(mine) == len(theirs) == steps and most <= 1e-5
    print(f"{name}: {steps} losses, at most {most:.2g} apart, the last {mine[-1]:.9g} and {theirs[-1]:.9g}{'' if good else ': TOO FAR'}")
    return good


def compare(o):
    good = True
    for ranks in map(int, o.ranks.split(",")):
        c = commands(o, ranks, o.steps)
        mine = losses(c["sharded"])
        if ranks == 1:
            good &= apart("1 rank beside LibTorch alone", mine, losses(c["plain"]), o.steps)
        good &= apart(f"{ranks} ranks beside FSDP2", mine, losses(c["fsdp2"]), o.steps)
    return good


def seconds(command):
    began = time.perf_counter()
    losses(command)
    return time.perf_counter() - began


def resident(command):
    """Of the fullest process below, in MiB: measured in a child of its own, whose descendants are this command's."""
    shutil.rmtree("decoder", ignore_errors=True)
    code = "import resource,subprocess,sys; subprocess.run(sys.argv[1:],stdout=-3); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    return int(subprocess.run([sys.executable, "-c", code] + command, capture_output=True, text=True).stdout) / 1024


def times(o):
    print("| ranks | program | s per step, median | MiB resident |\n| ---: | --- | ---: | ---: |")
    for ranks in map(int, o.ranks.split(",")):
        of = {name: [] for name in (["plain"] if ranks == 1 else []) + ["sharded", "fsdp2"]}
        for _ in range(5):
            for name, all in of.items():
                short, long = (seconds(commands(o, ranks, n)[name]) for n in (o.steps, 3 * o.steps))
                all.append((long - short) / (2 * o.steps))
        for name, all in of.items():
            print(f"| {ranks} | {name} | {sorted(all)[2]:.5g} | {resident(commands(o, ranks, o.steps)[name]):.1f} |")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("tessera", nargs="?")
    p.add_argument("folder", nargs="?")
    p.add_argument("--ranks", default="1,2,4")
    for name, value in (("steps", 50), ("layers", 2), ("width", 32)):
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--times", action="store_true")
    p.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.train:
        train(o)
        return 0
    o.tessera, o.folder = os.path.abspath(o.tessera), os.path.abspath(o.folder)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        open("text", "wb").write("".join(f"{n}\n" for n in range(5000)).encode())
        good = compare(o)
        if o.times:
            times(o)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
