# SPDX-License-Identifier: BSD-3-Clause
"""One run of adapters by peft beside a Llama of transformers under PyTorch FSDP2 over Gloo on CPUs:

    python -m torch.distributed.run --nproc-per-node 2 fsdp2_lora.py --config config.json --batch 8 --context 256 --base bf16 --track

Rank 0 prints one JSON object, as fsdp2.py: the median time of a step, or with --track the peak in bytes by FSDP2's own
memory tracker. The base rests in fp32 or bf16, or in bitsandbytes' nf4 blocks, whose bytes are sharded as bf16 words.
"""
import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from fsdp2 import measure, track


def blocks_of_codes(model):
    """the products of the layers in nf4, as transformers' loader makes them"""
    import bitsandbytes as bnb

    for layer in model.model.layers:
        for module in (layer.self_attn, layer.mlp):
            for name, product in list(module.named_children()):
                if isinstance(product, torch.nn.Linear):
                    packed = bnb.nn.Linear4bit(product.in_features, product.out_features, bias=False, compute_dtype=torch.bfloat16,
                                               compress_statistics=False, quant_type="nf4", quant_storage=torch.bfloat16)
                    packed.load_state_dict(product.state_dict())
                    setattr(module, name, packed.to("cpu"))
    return model


def net_of(o):
    config = LlamaConfig.from_json_file(o.config)
    config.use_cache = False
    model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa", dtype=torch.float32 if o.base == "f32" else torch.bfloat16)
    if o.base == "nf4":
        model = blocks_of_codes(model)
    how = dict(r=o.rank, lora_alpha=2 * o.rank, target_modules=o.targets.split(","), lora_dropout=0.0)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **how))
    if o.activations == "recompute":
        model.enable_input_require_grads()
        model.base_model.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if o.precision == "bf16" else MixedPrecisionPolicy()
    for module in [*model.base_model.model.model.layers, model]:
        fully_shard(module, mp_policy=policy)
    return model, config


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--config", required=True)
    for name, value in dict(batch=8, context=256, steps=10, rank=16).items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--targets", default="q_proj,v_proj")
    p.add_argument("--track", action="store_true")
    for name, words in dict(base="f32 bf16 nf4", activations="keep recompute", precision="fp32 bf16").items():
        p.add_argument("--" + name, choices=words.split(), default=words.split()[0])
    return p.parse_args()


def main():
    o = options()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    net, config = net_of(o)
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=True)

    def step():
        tokens = torch.randint(0, config.vocab_size, (o.batch, o.context + 1))
        logits = net(input_ids=tokens[:, :-1]).logits
        F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    out = {"event": "summary"}
    if o.track:
        out.update(track(net, optimizer, step))
    else:
        out["step_seconds"] = measure(step, o.steps)
    if dist.get_rank() == 0:
        print(json.dumps(out), flush=True)
    dist.destroy_process_group()


main()
