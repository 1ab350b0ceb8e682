# SPDX-License-Identifier: BSD-3-Clause
"""The gpt and gpt2 models of tessera in PyTorch under FSDP2 (fully_shard), on one GPU: step time and peak memory, to hold tessera's
against. Same shapes, bf16 with fp32 masters and reductions, AdamW, clipping to 1; random tokens, which cost the
same. --vocabulary 50257 --layers 12 is GPT-2. --compile: each layer is compiled, as torch's own recipes do.
--device cpu: the same under gloo, so that this program can be tried where there is no GPU; its times say nothing. Prints one line: "fsdp2 offload=0 recompute=0 compile=0 params=… step_ms=… peak_allocated_mib=… peak_reserved_mib=… loss=…"."""
import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    def __init__(self, width, heads, recompute):
        super().__init__()
        self.heads, self.recompute = heads, recompute
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def inner(self, x):
        batch, time_, width = x.shape
        parts = self.c_attn(self.ln_1(x)).view(batch, time_, 3, self.heads, width // self.heads)
        q, k, v = (parts[:, :, i].transpose(1, 2) for i in range(3))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, time_, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False) if self.recompute else self.inner(x)


class Gpt(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(a.vocabulary, a.width), nn.Embedding(a.context, a.width)
        self.layers = nn.ModuleList(Layer(a.width, a.heads, a.recompute) for _ in range(a.layers))
        self.ln_f = nn.LayerNorm(a.width)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def arguments():
    p = argparse.ArgumentParser()
    for name, value in [("batch", 8), ("layers", 17), ("heads", 12), ("width", 768), ("context", 1024), ("steps", 20),
                        ("vocabulary", 256)]:
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--offload", action="store_true")
    p.add_argument("--recompute", action="store_true")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    return p.parse_args()


def start_alone(device):
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)


def make(a):
    torch.manual_seed(1)
    model = Gpt(a)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0, 0.02)
    if not a.offload:
        model.to(a.device)
    how = {"mesh": init_device_mesh(a.device, (1,)),
           "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    if a.offload:
        how["offload_policy"] = CPUOffloadPolicy(pin_memory=a.device == "cuda")
    for layer in model.layers:
        if a.compile:
            layer.compile()
        fully_shard(layer, **how)
    fully_shard(model, **how)
    return model


def peak(a, of):
    return "%.0f" % (of() / 2**20) if a.device == "cuda" else "-"


def main():
    a = arguments()
    start_alone(a.device)
    model = make(a)
    params = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    text = torch.randint(0, a.vocabulary, (a.batch, a.context + 1), device=a.device)
    times = []
    for step in range(a.steps):
        begin = time.perf_counter()
        logits = model(text[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        if a.device == "cuda":
            torch.cuda.synchronize()
        if step >= min(3, a.steps - 1):
            times.append(time.perf_counter() - begin)
    print(f"fsdp2 offload={int(a.offload)} recompute={int(a.recompute)} compile={int(a.compile)} params={params} "
          f"step_ms={statistics.median(times) * 1e3:.1f} "
          f"peak_allocated_mib={peak(a, torch.cuda.max_memory_allocated)} "
          f"peak_reserved_mib={peak(a, torch.cuda.max_memory_reserved)} loss={value:.4f} torch={torch.__version__}")
    dist.destroy_process_group()


main()
