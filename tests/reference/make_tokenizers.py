#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Small tokenizers in the forms of GPT-2, Llama 3, Qwen, Llama 2, Mistral and Gemma, documents, and the tokens that
Hugging Face's tokenizers (PyPI, 0.23.3) gives them, for e2e/test_tokenize. Run once, from the root of the tree, with
`pip install tokenizers sentencepiece` (0.2.3 makes models that Debian's 0.1.97 reads):

  tests/reference/make_tokenizers.py tests/reference/data/tokenizers [NAME…]
"""
import glob
import json
import os
import random
import struct
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
PHRASES = [
    "Доброе утро, шарды собираются по кольцу!", "今天天气很好，每个进程都有一部分参数。", "切って並べて、また集める。",
    "모든 순위가 같은 비트를 본다", "كل رتبة تحمل جزءا", "כל דרגה מחזיקה חלק", "हर रैंक एक भाग रखता है क्षत्रिय",
    "ทุกอันดับถือส่วนหนึ่ง", "Κάθε κόμβος κρατά ένα μέρος", "👩‍👩‍👧‍👦🏳️‍🌈👍🏽🇩🇪 ok", "e\u0301 a\u0308 \u1e9b\u0323 ﬁ Å q\u0323\u0307",
    "I'M don't WE'LL they'Re ſ'ſ 'S 'ſ", "\x01\x02\x1b[31m\x7f\x80\x9f", "\u180e\u200b\u2028\u2029\u0085\u3000\u00a0 x",
    "   \n\n  \t\tx\r\n\r\ny  ", "12345678901234567890 ١٢٣٤ ½ Ⅷ 三", "<|endoftext|>a <|endoftext|> <|end|>  y user\n<|turn|>z",
]


def documents():
    old = unicodedata.ucd_3_2_0  # characters that every library's tables have
    every = "".join(chr(c) for c in range(1, 0x3000) if old.category(chr(c)) not in ("Cn", "Cs"))
    r = random.Random(3)
    shuffled = list(every)
    r.shuffle(shuffled)
    yield every.encode()
    yield "".join(c + r.choice(["", " ", "\n", "a", "1", "."]) for c in shuffled).encode()
    yield "\n".join(PHRASES).encode()
    for _ in range(40):
        pieces = (r.choice(PHRASES)[r.randint(0, 9):][: r.randint(1, 9)] + r.choice(["", " ", "\n", "  ", "'s", "\t"])
                  for _ in range(r.randint(1, 60)))
        yield "".join(pieces).encode()
    for _ in range(10):
        yield bytes(r.choices(range(1, 256), k=r.randint(1, 300)))  # hardly any of it is UTF-8
    for _ in range(20):
        broken = bytearray(r.choice(PHRASES).encode() * 3)
        for _ in range(4):
            broken[r.randrange(len(broken))] = r.randrange(1, 256)
        yield bytes(broken)
    yield b"x" * 5000
    yield b" " * 5001 + b"a"
    yield "中".encode() * 3000
    yield b""


def build(name, texts):
    t = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    split = lambda pattern: pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.pre_tokenizer = {
        "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "llama3": split(GPT4 % "{1,3}"),
        "qwen": split(GPT4 % ""),
        "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                           pre_tokenizers.ByteLevel(add_prefix_space=True)]),
    }[name]
    t.normalizer = normalizers.NFC() if name == "qwen" else None
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=["<|endoftext|>"], show_progress=False)
    t.train_from_iterator(texts, trainer)
    if name == "llama3":
        t.add_special_tokens(["<|begin_of_text|>"])
        begin = ("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))
        template = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[begin])
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    if name == "qwen":
        t.add_special_tokens(["<|turn|>", AddedToken("<|end|>", lstrip=True, rstrip=True, special=True)])
        t.add_tokens(["user\n", "Åq"])
    return t


def characters(name, texts):
    """Words of characters, bytes where one has no token, and U+2581 for blanks."""
    every = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Metaspace(split=name != "crossing")
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=700, special_tokens=every, limit_alphabet=110,
                                                     show_progress=False))
    replace = normalizers.Replace(" ", "\u2581")
    t.pre_tokenizer = None
    if name in ("llama2", "crossing"):
        t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace])
    elif name == "gemma":
        t.normalizer = replace
        t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        t.add_tokens([AddedToken(text, normalized=False) for text in ("\n\n", "\u2581\u2581", "<end>")])
    elif name == "mistral":
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        t.add_special_tokens([AddedToken("<|end|>", rstrip=True, special=True)])
    else:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made = json.loads(t.to_str())
    bare = [a for a in made["added_tokens"] if not a["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(made | {"added_tokens": bare}))


def write(out, name, ids):
    header = [20240520, 1, len(ids)] + [0] * 253
    open(f"{out}/{name}.bin", "wb").write(struct.pack("<256i", *header) + struct.pack(f"<{len(ids)}H", *ids))


def sentences(out, name, texts, documents):
    """tokenizer.model: bpe as Llama 2 has it, unigram without bytes and without a token that begins a text."""
    import sentencepiece
    os.makedirs(f"{out}/{name}", exist_ok=True)
    kind = dict(model_type="bpe", byte_fallback=True) if name == "pieces" else dict(model_type="unigram", bos_id=-1)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in texts for line in text.splitlines()), vocab_size=700,
        model_prefix=f"{out}/{name}/tokenizer", normalization_rule_name="identity", character_coverage=0.98,
        remove_extra_whitespaces=name == "unigram", **kind)
    os.remove(f"{out}/{name}/tokenizer.vocab")
    model = sentencepiece.SentencePieceProcessor(f"{out}/{name}/tokenizer.model")
    begin, ids = [model.bos_id()] if model.bos_id() >= 0 else [], []
    for path in documents:
        ids += begin + model.encode(open(path, "rb").read().decode("utf8", "replace")) + [model.eos_id()]
    write(out, name, ids)


def main(out, *only):
    texts = [open(p, encoding="utf8").read() for p in sorted(glob.glob("docs/*.md"))] + PHRASES
    os.makedirs(f"{out}/documents", exist_ok=True)
    names = []
    for i, document in enumerate(documents()):
        names.append(f"{out}/documents/{i:02d}.txt")
        open(names[-1], "wb").write(document)
    for name in only or ("gpt2", "llama3", "qwen", "digits", "llama2", "gemma", "mistral", "metaspace", "crossing",
                         "pieces", "unigram"):
        if name in ("pieces", "unigram"):
            sentences(out, name, texts, names)
            continue
        is_bytes = name in ("gpt2", "llama3", "qwen", "digits")
        t = build(name, texts) if is_bytes else characters(name, texts)
        last = "<|endoftext|>" if is_bytes else "</s>"
        os.makedirs(f"{out}/{name}", exist_ok=True)
        t.save(f"{out}/{name}/tokenizer.json", pretty=False)
        json.dump({"eos_token": last}, open(f"{out}/{name}/tokenizer_config.json", "w"))
        ids, end = [], t.token_to_id(last)
        for path in names:
            ids += t.encode(open(path, "rb").read().decode("utf8", "replace")).ids
            ids += [] if ids and ids[-1] == end and os.path.getsize(path) else [end]
        write(out, name, ids)


main(*sys.argv[1:])
