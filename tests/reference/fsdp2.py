# SPDX-License-Identifier: BSD-3-Clause
"""One run of the network of `tessera train gpt`, `llama` or `mnist` under PyTorch FSDP2 over Gloo on CPUs, for
tools/benchmark and table.py:

    python -m torch.distributed.run --nproc-per-node 2 fsdp2.py --layers 6 --heads 6 --width 384 --context 256 --batch 4 --steps 30

Rank 0 prints one JSON object with the median time of a step; the first fifth of the steps is not counted. With --track
it has the peak in bytes instead, in all and by category, by FSDP2's own memory tracker, which counts tensors and no library.
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


class LlamaBlock(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads, self.kv_heads, self.size = o.heads, o.kv_heads, o.width // o.heads
        self.recompute = o.activations == "recompute"
        self.before, self.between = nn.RMSNorm(o.width, eps=1e-5), nn.RMSNorm(o.width, eps=1e-5)
        self.q, self.proj = nn.Linear(o.width, o.width, bias=False), nn.Linear(o.width, o.width, bias=False)
        self.k, self.v = (nn.Linear(o.width, o.kv_heads * self.size, bias=False) for _ in "kv")
        self.gate, self.up = (nn.Linear(o.width, o.feed, bias=False) for _ in "gu")
        self.down = nn.Linear(o.feed, o.width, bias=False)

    def split(self, x, heads):
        return x.view(*x.shape[:2], heads, self.size).transpose(1, 2)

    def turn(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def layer(self, x, cos, sin):
        normal = self.before(x)
        q, k, v = self.split(self.q(normal), self.heads), self.split(self.k(normal), self.kv_heads), self.split(self.v(normal), self.kv_heads)
        mixed = F.scaled_dot_product_attention(self.turn(q, cos, sin), self.turn(k, cos, sin), v, is_causal=True, enable_gqa=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(x.shape))
        normal = self.between(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))

    def forward(self, x, cos, sin):
        return checkpoint(self.layer, x, cos, sin, use_reentrant=False) if self.recompute else self.layer(x, cos, sin)


class Llama(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.token, self.norm = nn.Embedding(BYTES, o.width), nn.RMSNorm(o.width, eps=1e-5)
        self.blocks = nn.ModuleList(LlamaBlock(o) for _ in range(o.layers))
        self.head = nn.Linear(o.width, BYTES, bias=False)
        self.head.weight = self.token.weight
        size = o.width // o.heads
        turns = torch.outer(torch.arange(o.context), 10000.0 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.cos, self.sin = turns.cos(), turns.sin()

    def forward(self, tokens):
        x = self.token(tokens[:, :-1])
        for block in self.blocks:
            x = block(x, self.cos.to(x.dtype), self.sin.to(x.dtype))
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), tokens[:, 1:].flatten())


class Mnist(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.blocks = nn.ModuleList((nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3), nn.Linear(9216, 128), nn.Linear(128, 10)))

    def forward(self, batch):
        images, labels = batch
        x = F.relu(self.blocks[1](F.relu(self.blocks[0](images))))
        x = F.relu(self.blocks[2](torch.flatten(F.dropout(F.max_pool2d(x, 2), 0.25), 1)))
        return F.cross_entropy(self.blocks[3](F.dropout(x, 0.5)).float(), labels)


NETS = dict(gpt=Gpt, llama=Llama, mnist=Mnist)


def batch_of(o):
    if o.model == "mnist":
        return torch.randn(o.batch, 1, 28, 28), torch.randint(0, 10, (o.batch,))
    return torch.randint(0, BYTES, (o.batch, o.context + 1))


def shard(net, o):
    if o.strategy == "none":
        return nn.parallel.DistributedDataParallel(net)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if o.precision == "bf16" else MixedPrecisionPolicy()
    for module in [*net.blocks, net]:
        fully_shard(module, reshard_after_forward=o.strategy == "full", mp_policy=policy)
    return net


def track(net, optimizer, step):
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    step()
    tracker = FSDPMemTracker(net, optimizer)
    with tracker:
        step()
        tracker.reset_mod_stats()
        step()
    out = {}
    for by in tracker.get_tracker_snapshot("peak").values():
        for category, taken in by.items():
            name = getattr(category, "value", str(category)).lower().replace(" ", "_")
            out[name] = out.get(name, 0) + taken
    return dict(peak_device_bytes=out.pop("total"), categories={name: taken for name, taken in out.items() if taken})


def measure(step, steps):
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        dist.barrier()
        times.append(time.perf_counter() - begin)
    times = sorted(times[(steps + 4) // 5 :])
    return times[len(times) // 2]


def options():
    p = argparse.ArgumentParser()
    for name, value in dict(layers=4, heads=4, width=128, context=64, batch=6, steps=30, feed=344).items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--kv-heads", type=int, default=2)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--track", action="store_true")
    for name, words in dict(model="gpt llama mnist", strategy="full grad_op none", activations="keep recompute", precision="fp32 bf16").items():
        p.add_argument("--" + name, choices=words.split(), default=words.split()[0])
    return p.parse_args()


def main():
    o = options()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    net = shard(NETS[o.model](o), o)
    if o.model == "mnist":
        optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.002, betas=(0.9, 0.99), weight_decay=0.1, fused=True)

    def step():
        net(batch_of(o)).backward()
        if o.clip > 0:
            torch.nn.utils.clip_grad_norm_(net.parameters(), o.clip)
        optimizer.step()
        optimizer.zero_grad()

    out = {"event": "summary"}
    if o.track:
        out.update(track(net, optimizer, step))
    else:
        out["step_seconds"] = measure(step, o.steps)
    if dist.get_rank() == 0:
        print(json.dumps(out).replace(" ", ""))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
