#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Small Hugging Face folders with random weights, and what transformers computes from them.

Run once: python make_hf_reference.py OUT_DIR [NAME…] (needs torch, transformers, safetensors; without names all).
The first three are made by hand. Of the other families two configurations each are drawn at random. OUT_DIR/NAME is the folder as
transformers saves it; OUT_DIR/NAME.safetensors holds the tokens of 20 batches, the logits of the first one, the
gradients of its loss by the names of the folder's tensors, and the losses before each of 20 steps of AdamW and after
the last. Everything is computed in fp64 from the folder's weights.
"""
import pathlib
import random
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

STEPS, BATCH, CONTEXT, VOCABULARY = 20, 2, 16, 64
LLAMA = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCABULARY,
             max_position_embeddings=64, initializer_range=0.2)
SCALED = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)


def models():
    yield "hf-llama", LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, rope_parameters=SCALED, **LLAMA)), \
        torch.float32, "12KB"
    yield "hf-llama-tied", LlamaForCausalLM(LlamaConfig(num_key_value_heads=1, tie_word_embeddings=True, head_dim=8,
                                                        **LLAMA)), torch.bfloat16, "5GB"
    yield "hf-gpt2", GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=VOCABULARY, n_positions=32,
                                                initializer_range=0.2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                                                bos_token_id=0, eos_token_id=0)), torch.float16, "5GB"


FAMILIES = ("yarn", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text")


def yarn(r):
    rope = dict(rope_type="yarn", rope_theta=r.choice([100.0, 10000.0]), factor=r.choice([2.0, 6.5]),
                original_max_position_embeddings=r.choice([8, 32]), beta_fast=r.choice([2.0, 8.0]), beta_slow=0.5)
    return rope | r.choice([{}, dict(attention_factor=1.3), dict(mscale=0.7, mscale_all_dim=1.4, truncate=False)])


def drawn(family, seed):
    """Every member that changes the function has several values."""
    r = random.Random(f"{family} {seed}")
    heads = r.choice([2, 4])
    c = dict(hidden_size=16, intermediate_size=r.choice([20, 24]), num_hidden_layers=3, num_attention_heads=heads,
             num_key_value_heads=r.choice([1, heads // 2, heads]), head_dim=r.choice([4, 6, 8]), vocab_size=VOCABULARY,
             max_position_embeddings=64, initializer_range=0.2, rms_norm_eps=r.choice([1e-6, 1e-5, 1e-3]),
             tie_word_embeddings=seed % 2 == 0, pad_token_id=None)
    rope = yarn(r) if family == "yarn" or seed == 2 else dict(rope_type="default", rope_theta=r.choice([50.0, 1e4]))
    window = r.choice([2, 3, 5, 11])
    if family.startswith("qwen") and seed == 2:
        c |= dict(use_sliding_window=True, max_window_layers=r.choice([0, 1, 2]))
    if family == "mistral" and seed == 1:
        window = None
    if family != "yarn":
        c |= dict(sliding_window=window)
    if family == "qwen2":
        c.pop("head_dim")
    if family.startswith("gemma"):
        c |= dict(query_pre_attn_scalar=r.choice([3, 8, 20]), attn_logit_softcapping=r.choice([0.8, 2.0]),
                  final_logit_softcapping=r.choice([1.5, 4.0]))
        if seed == 2:
            near, far = "sliding_attention", "full_attention"
            c |= dict(layer_types=r.choice([[near, near, far], [far, near, near], [near, near, near]]))
    if family == "gemma3_text":
        c |= dict(attn_logit_softcapping=None)  # which it would not use
        rope = dict(full_attention=rope, sliding_attention=dict(rope_type="default", rope_theta=20.0))
    return AutoConfig.for_model("llama" if family == "yarn" else family, rope_parameters=rope, **c)


def randomise(model):
    """Gains and biases that are not what they begin as."""
    for name, p in model.named_parameters():
        if p.ndim == 1:
            torch.nn.init.normal_(p, 0 if "bias" in name or "gemma" in model.config.model_type else 1, 0.3)
    return model


def families(names):
    for family in FAMILIES:
        for seed in (1, 2):
            name = f"hf-{family.removesuffix('_text')}-{seed}"
            torch.manual_seed(seed)
            if not names or name in names:
                yield name, randomise(AutoModelForCausalLM.from_config(drawn(family, seed))), torch.float32, "5GB"


def loss_of(model, tokens):
    logits = model(input_ids=tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), logits


def reference(model):
    torch.manual_seed(2)
    tokens = torch.randint(0, VOCABULARY, (STEPS, BATCH, CONTEXT + 1))
    values = {"tokens": tokens.int()}
    groups = [dict(params=[p for p in model.parameters() if p.ndim >= 2], weight_decay=0.1),
              dict(params=[p for p in model.parameters() if p.ndim < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, logits = loss_of(model, tokens[step])
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            values["logits"] = logits.detach().float().contiguous()
            values |= {name: p.grad.float().contiguous() for name, p in model.named_parameters()}
        optimizer.step()
    losses.append(loss_of(model, tokens[0])[0].item())
    values["losses"] = torch.tensor(losses, dtype=torch.float64).float()
    return values


def main(out, names):
    torch.manual_seed(1)
    for name, model, dtype, shard in [*models(), *families(names)]:
        if names and name not in names:
            continue
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        model.to(dtype).save_pretrained(folder, max_shard_size=shard)
        (folder / "generation_config.json").unlink(missing_ok=True)
        wide = type(model).from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").train()
        save_file(reference(wide), out / f"{name}.safetensors")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
