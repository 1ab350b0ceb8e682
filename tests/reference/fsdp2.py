# SPDX-License-Identifier: BSD-3-Clause
"""One run of `tessera train gpt`'s network under PyTorch FSDP2 over Gloo on CPUs, for tools/benchmark:

    python -m torch.distributed.run --nproc-per-node 2 fsdp2.py --layers 6 --heads 6 --width 384 --context 256 --batch 4 --steps 30

Rank 0 prints one JSON object with the median time of a step; the first fifth of the steps is not counted.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

BYTES = 256  # the vocabulary


class Block(nn.Module):
    def __init__(self, width, heads, recompute):
        super().__init__()
        self.heads, self.recompute = heads, recompute
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def layer(self, x):
        batch, length, width = x.shape
        q, k, v = self.attn(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.out(F.gelu(self.fc(self.between(x)), approximate="tanh"))

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False) if self.recompute else self.layer(x)


class Gpt(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.token, self.place = nn.Embedding(BYTES, o.width), nn.Embedding(o.context, o.width)
        self.blocks = nn.ModuleList(Block(o.width, o.heads, o.activations == "recompute") for _ in range(o.layers))
        self.norm, self.head = nn.LayerNorm(o.width), nn.Linear(o.width, BYTES, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        x = self.token(tokens[:, :-1]) + self.place.weight[: tokens.shape[1] - 1]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), tokens[:, 1:].flatten())


def shard(net, o):
    if o.strategy == "none":
        return nn.parallel.DistributedDataParallel(net)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if o.precision == "bf16" else MixedPrecisionPolicy()
    for module in [*net.blocks, net]:
        fully_shard(module, reshard_after_forward=o.strategy == "full", mp_policy=policy)
    return net


def main():
    p = argparse.ArgumentParser()
    for name, value in dict(layers=4, heads=4, width=128, context=64, batch=6, steps=30).items():
        p.add_argument("--" + name, type=int, default=value)
    for name, words in dict(strategy="full grad_op none", activations="keep recompute", precision="fp32 bf16").items():
        p.add_argument("--" + name, choices=words.split(), default=words.split()[0])
    o = p.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    net = shard(Gpt(o), o)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.002, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    times = []
    for step in range(o.steps):
        begin = time.perf_counter()
        net(torch.randint(0, BYTES, (o.batch, o.context + 1))).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        times.append(time.perf_counter() - begin)
    times = sorted(times[(o.steps + 4) // 5 :])
    if dist.get_rank() == 0:
        print(json.dumps({"event": "summary", "step_seconds": times[len(times) // 2]}).replace(" ", ""))
    dist.destroy_process_group()


main()
