#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A C++ model takes what PyTorch has saved: save_file(model.state_dict()).

python save_file.py TESSERA PROGRAM (needs torch, safetensors). PROGRAM is tests/torch/test_modules, whose model is here once
more: it loads the file on two ranks by tessera::Sharded::load, and its evaluation must be the one of Python. A file that
lacks a tensor, or has one more, is refused.
"""
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(16, 48), nn.Linear(48, 16), nn.LayerNorm(16)

    def forward(self, x, sum):
        x = self.norm(x + self.b(F.gelu(self.a(x))))
        return x, sum + x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.fixed, self.mix = nn.Embedding(33, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.bn = nn.BatchNorm1d(16)
        self.head = nn.ParameterDict({"scale": torch.rand(16)})

    def forward(self, ids):
        x = self.embed(ids)
        sum, x = torch.zeros_like(x), x + self.fixed(x)
        for layer in self.layers:
            x, sum = layer(x, sum)
        x = self.mix(torch.tanh(self.mix(x)) + sum)
        return (self.bn(x) * self.head["scale"]).matmul(self.embed.weight.t())


def evaluate(tessera, program, path, ranks=2):
    return subprocess.run([tessera, "run", "-n", str(ranks), "--", program, "evaluate", path],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check(tessera, program):
    torch.manual_seed(5)
    model = Net()
    for _ in range(3):
        model(torch.randint(33, (24,)))  # statistics of the norm, and a count of 3
    model.eval()
    state = model.state_dict()
    assert state["bn.num_batches_tracked"].dtype == torch.int64 and state["bn.num_batches_tracked"] == 3
    save_file(state, "model.safetensors")
    at = torch.arange(24)
    with torch.no_grad():
        ours = F.cross_entropy(model(at * 7 % 33), at * 5 % 33).item()
    run = evaluate(tessera, program, "model.safetensors")
    assert run.returncode == 0, run.stderr
    theirs = float(run.stdout.split("evaluation ")[1].split()[0])
    assert abs(ours - theirs) <= 1e-5 * ours, (ours, theirs)
    save_file({name: value for name, value in state.items() if name != "mix.bias"}, "less.safetensors")
    save_file({**state, "mix.scale": torch.ones(3)}, "more.safetensors")
    for path, why in (("less", "parameter 'mix.bias' is not in it"),
                      ("more", "tensor 'mix.scale' is no parameter and no buffer of this model")):
        run = evaluate(tessera, program, path + ".safetensors", 1)
        assert run.returncode == 6 and f"{path}.safetensors: {why}" in run.stderr, (run.returncode, run.stderr)
    print(f"{len(state)} tensors by save_file; evaluation {theirs:.9g} there, {ours:.9g} here")


def main():
    tessera, program = map(os.path.abspath, sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        check(tessera, program)


if __name__ == "__main__":
    main()
