#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Steps of DeepSpeed's ZeRO-3 on a CPU, one rank and two threads: a decoder with optimizer states in memory, or in files (ZeRO-Infinity).

    python zero_infinity.py [--disk DIR] [--layers 4] [--width 512] [--batch 8] [--context 64] [--steps 12]

The decoder has the shapes of `tessera train gpt`. Prints the median seconds of a step but the first two, and the most resident memory.
For docs/benchmarks/zero.sh; needs deepspeed from PyPI, a compiler and libaio-dev. The first run compiles its operators, for minutes.
"""
import argparse
import os
import resource
import statistics
import time

os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1", MASTER_ADDR="127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29517")

import deepspeed
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, o.width), nn.Embedding(o.context, o.width)
        self.blocks = nn.ModuleList(Block(o.width, 8) for _ in range(o.layers))
        self.norm = nn.LayerNorm(o.width)

    def forward(self, x, y):
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(F.linear(self.norm(h), self.tokens.weight).flatten(0, 1), y.flatten())


def settings(o):
    zero = {"stage": 3}
    if o.disk:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": o.disk, "buffer_count": 16, "pipeline_read": True, "pipeline_write": True}
        zero["sub_group_size"] = 12 * o.width * o.width  # a layer's parameters at a time, as ours
    return {
        "train_micro_batch_size_per_gpu": o.batch,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
        "aio": {"block_size": 1 << 20, "queue_depth": 16, "single_submit": False, "overlap_events": True, "intra_op_parallelism": 1},
        "zero_force_ds_cpu_optimizer": bool(o.disk),
        "zero_allow_untested_optimizer": True,
    }


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    a.add_argument("--disk")
    for name, value in ("layers", 4), ("width", 512), ("batch", 8), ("context", 64), ("steps", 12):
        a.add_argument("--" + name, type=int, default=value)
    o = a.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(1)
    model = Decoder(o)
    n = sum(p.numel() for p in model.parameters())
    deepspeed.init_distributed("gloo")
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings(o))
    times = []
    for _ in range(o.steps):
        x = torch.randint(0, 256, (o.batch, o.context + 1))
        begin = time.perf_counter()
        loss = engine(x[:, :-1], x[:, 1:])
        engine.backward(loss)
        engine.step()
        loss.item()
        times.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"step {statistics.median(times[2:]):.4f} parameters {n} resident {peak // 1024}", flush=True)
    os._exit(0)  # threads of its own that wait


main()
