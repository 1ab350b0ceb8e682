#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""examples/torch/decoder beside PyTorch: the same weights, batches, dropout and learning rates.

    python torch_fsdp2.py TESSERA FOLDER [--ranks 1,2,4] [--steps 50] [--layers 2] [--width 32] [--device cuda] [--times [--rounds 5]]

FOLDER has decoder_plain and decoder_sharded, built with the LibTorch of this PyTorch, whose random numbers are then the same
(tests/e2e/test_torch_pypi_slow.sh builds them). Losses of all steps are compared: decoder_sharded beside decoder_plain on
one rank, and beside FSDP2 in Python over Gloo on each number of ranks. More than 1e-5 of a loss apart is exit code 1.

--times is for an idle machine (docs/benchmarks/torch.sh): seconds from one printed loss to the next, in rounds of all programs in
turns; the most resident memory of a rank; and the bytes of tensors on a rank at most: ours by the ledger, with what LibTorch held,
theirs by FSDP2's own memory tracker. With --times losses of long runs may drift apart, and are not judged.
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


def peak(model, optimizer, step):
    """Bytes of this rank's tensors at most, by FSDP2's tracker, in the third step."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    step(0)
    tracker = FSDPMemTracker(model, optimizer)
    with tracker:
        step(1)
        tracker.reset_mod_stats()
        step(2)
    return sum(by["Total"] for by in tracker.get_tracker_snapshot("peak").values())


def train(o):
    """One rank of FSDP2: the loop of examples/torch/decoder/plain.cpp."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo" if o.device == "cpu" else "nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = Decoder(o.layers, o.width).to(o.device)
    for block in model.h:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    text = torch.tensor(list(open("text", "rb").read()), device=o.device)
    rows = BATCH // ranks

    def step(number):
        x, y = (t[rank * rows : (rank + 1) * rows] for t in pick(text, number))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).view(-1, VOCABULARY), y.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (number + 1) / 10)
        optimizer.step()
        return loss.detach()

    if o.track:
        most = peak(model, optimizer, step)
        if rank == 0:
            print(f"peak {most}", flush=True)
    for number in range(0 if o.track else o.steps):
        mean = step(number)
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {number} loss {mean.item() / ranks:.9g}", flush=True)
    dist.barrier()
    os._exit(0)  # a thread of Gloo's that wants Python's lock while Python ends is killed, and C++ then aborts the rank


def lines_of(command, when=None):
    """Of a run with one thread. `when` gets each line as it comes. A run that fails ends this program with what it said."""
    shutil.rmtree("decoder", ignore_errors=True)  # checkpoints of the run before: another run does not go on there
    env = dict(os.environ, OMP_NUM_THREADS="1", TESSERA_THREADS="1")
    lines = []
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=env) as run:
            for line in run.stdout:
                lines.append(line)
                if when:
                    when(line)
        if run.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)}: exit code {run.returncode}, {len(lines)} lines: {said.read()[-4000:]}")
    return lines


def losses(command):
    return [float(line.split("loss ")[1].split()[0]) for line in lines_of(command) if "loss " in line]


def commands(o, ranks, steps):
    shape = [str(steps), str(o.layers), str(o.width), o.device]
    sharded = [o.tessera, "run", "-n", str(ranks), "--", os.path.join(o.folder, "decoder_sharded"), "text"] + shape
    fsdp2 = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port",
             str(random.randrange(20000, 40000)), os.path.abspath(__file__), "--train", "--steps", shape[0], "--layers", shape[1], "--width", shape[2],
             "--device", o.device]
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


def gaps(command):
    """Seconds between two losses of a run, the first fifth of them left out."""
    at = []
    lines_of(["stdbuf", "-oL"] + command, lambda line: at.append(time.perf_counter()) if "loss " in line else None)
    if len(at) < 5:
        raise SystemExit(f"{' '.join(command)}: {len(at)} losses, which is too few")
    return [b - a for a, b in zip(at, at[1:])][len(at) // 5 :]


def resident(command):
    """Of the fullest process below, in MiB: measured in a child of its own, whose descendants are this command's."""
    code = ("import resource,subprocess,sys; done=subprocess.run(sys.argv[1:],stdout=-3); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done.returncode)")
    return int(lines_of([sys.executable, "-c", code] + command)[-1]) / 1024


def tensors(o, name, ranks):
    """Bytes of a rank that are held at the same time, at most: ours as booked, by peak_at_close.c."""
    run = commands(o, ranks, o.steps)[name]
    if name == "plain":
        return None
    lines = lines_of(run + ["--track"] if name == "fsdp2" else run)
    return int(next(line for line in lines if "peak " in line).split()[-1])


def median(all):
    all = sorted(all)
    return (all[(len(all) - 1) // 2] + all[len(all) // 2]) / 2


def times(o):
    print("| ranks | program | s per step, median | lowest, highest round | beside ours | MiB resident | bytes of tensors |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for ranks in map(int, o.ranks.split(",")):
        of = {name: [] for name in ["sharded"] + (["plain"] if ranks == 1 else []) + ["fsdp2"]}
        for r in range(o.rounds):
            for name in list(of) if r % 2 else reversed(list(of)):
                of[name].append(gaps(commands(o, ranks, o.steps)[name]))
        ours = median(sum(of["sharded"], []))
        for name, rounds in of.items():
            step, each = median(sum(rounds, [])), [median(x) for x in rounds]
            held = tensors(o, name, ranks)
            print(f"| {ranks} | {name} | {step:.5g} | {min(each):.5g}, {max(each):.5g} | {ours / step:.3f} | "
                  f"{resident(commands(o, ranks, o.steps)[name]):.1f} | {held if held else ''} |", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("tessera", nargs="?")
    p.add_argument("folder", nargs="?")
    p.add_argument("--ranks", default="1,2,4")
    for name, value in (("steps", 50), ("layers", 2), ("width", 32), ("rounds", 5)):
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--device", default="cpu")
    p.add_argument("--times", action="store_true")
    for name in ("train", "track"):
        p.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.train:
        train(o)
        return 0
    o.tessera, o.folder = os.path.abspath(o.tessera), os.path.abspath(o.folder)
    os.environ["TESSERA_DEVICE"] = o.device
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        open("text", "wb").write("".join(f"{n}\n" for n in range(5000)).encode())
        if not o.times:
            return 0 if compare(o) else 1
        times(o)
    return 0


if __name__ == "__main__":
    sys.exit(main())
