#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Small adapters beside the folders of make_hf_reference.py, and what peft computes with them.

Run once: python make_peft_reference.py DATA_DIR (needs torch, transformers, peft, safetensors). DATA_DIR/NAME is the folder
as peft saves it, with random B; DATA_DIR/NAME.safetensors holds the tokens of 20 batches, the logits of the first one, the
gradients of its loss by the names of the folder's tensors, and the losses before each of 20 steps of AdamW and after the
last, computed in fp64. losses_fp16 are the same of an fp32 model under torch.autocast in fp16, with the loss times 1024.
"""
import copy
import pathlib
import shutil
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

STEPS, BATCH, CONTEXT, VOCABULARY, SCALE = 20, 2, 16, 64, 1024
CASES = [("peft-llama", "hf-llama", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj", "up_proj",
                                                                            "down_proj"])),
         ("peft-gpt2", "hf-gpt2", dict(r=3, lora_alpha=6, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True,
                                       use_rslora=True))]


def loss_of(model, tokens):
    logits = model(input_ids=tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), logits


def name_of(parameter):
    return parameter.replace(".default.", ".")


def train(model, tokens, narrow, values):
    """Losses of all steps. The logits and gradients of the first one go into `values`, unless it is None."""
    trained = {name_of(n): p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    losses = []
    for step in range(STEPS + 1):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=narrow):
            loss, logits = loss_of(model, tokens[step % STEPS])
        (loss * SCALE).backward()
        for p in trained.values():
            p.grad /= SCALE
        losses.append(loss.item())
        if step == 0 and values is not None:
            values["logits"] = logits.detach().float().contiguous()
            values |= {name: p.grad.float().contiguous() for name, p in trained.items()}
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64).float()


def reference(model):
    torch.manual_seed(2)
    tokens = torch.randint(0, VOCABULARY, (STEPS, BATCH, CONTEXT + 1))
    values = {"tokens": tokens.int()}
    values["losses_fp16"] = train(copy.deepcopy(model).float(), tokens, True, None)
    values["losses"] = train(model, tokens, False, values)
    return values


def main(data):
    for name, base, how in CASES:
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_pretrained(data / base, dtype=torch.float64, attn_implementation="eager")
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **how))
        for n, p in model.named_parameters():
            if p.requires_grad:
                if "lora_B" in n:
                    torch.nn.init.normal_(p, std=0.1)
                p.data = p.data.float().to(torch.float64)
        folder = data / name
        shutil.rmtree(folder, ignore_errors=True)
        model.to(torch.float32).save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        save_file(reference(model.to(torch.float64).train()), data / f"{name}.safetensors")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
