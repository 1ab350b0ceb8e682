/* SPDX-License-Identifier: BSD-3-Clause */
/* A language model on bytes, as a program on LibTorch has it: a decoder with tied embeddings, AdamW, clipping, a
 * learning rate that warms up, and an evaluation.
 *
 *   tessera run -n 2 -- decoder_sharded TEXT [STEPS [LAYERS [WIDTH [DEVICE]]]] */
#include <tessera/torch.hpp>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t vocabulary = 256, context = 64, batch = 8, heads = 4;

struct BlockImpl : nn::Module {
    explicit BlockImpl(int64_t width) {
        ln1 = register_module("ln1", nn::LayerNorm(nn::LayerNormOptions({ width })));
        qkv = register_module("qkv", nn::Linear(width, 3 * width));
        proj = register_module("proj", nn::Linear(width, width));
        ln2 = register_module("ln2", nn::LayerNorm(nn::LayerNormOptions({ width })));
        fc = register_module("fc", nn::Linear(width, 4 * width));
        out = register_module("out", nn::Linear(4 * width, width));
        drop = register_module("drop", nn::Dropout(0.1));
        mask = register_buffer("mask", torch::ones({ context, context }, torch::kBool).triu(1));
    }
    torch::Tensor attend(torch::Tensor x) {
        int64_t B = x.size(0), T = x.size(1), C = x.size(2);
        auto p = qkv(x).view({ B, T, 3, heads, C / heads }).permute({ 2, 0, 3, 1, 4 });
        auto a = p[0].matmul(p[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(C / heads));
        a = a.masked_fill(mask.slice(0, 0, T).slice(1, 0, T), -INFINITY).softmax(-1);
        return proj(a.matmul(p[2]).transpose(1, 2).reshape({ B, T, C }));
    }
    torch::Tensor forward(torch::Tensor x) {
        x = x + drop(attend(ln1(x)));
        return x + drop(out(torch::gelu(fc(ln2(x)))));
    }
    nn::LayerNorm ln1{ nullptr }, ln2{ nullptr };
    nn::Linear qkv{ nullptr }, proj{ nullptr }, fc{ nullptr }, out{ nullptr };
    nn::Dropout drop{ nullptr };
    torch::Tensor mask;
};
TORCH_MODULE(Block);

struct EmbedImpl : nn::Module {
    explicit EmbedImpl(int64_t width) {
        tokens = register_module("tokens", nn::Embedding(vocabulary, width));
        positions = register_module("positions", nn::Embedding(context, width));
        nn::init::normal_(tokens->weight, 0, 0.02);
        nn::init::normal_(positions->weight, 0, 0.02);
    }
    torch::Tensor forward(torch::Tensor ids) {
        return tokens(ids) + positions(torch::arange(ids.size(1), ids.device()));
    }
    nn::Embedding tokens{ nullptr }, positions{ nullptr };
};
TORCH_MODULE(Embed);

struct HeadImpl : nn::Module {
    HeadImpl(int64_t width, Embed embed) : embed(embed) {
        norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({ width })));
    }
    torch::Tensor forward(torch::Tensor x) { return norm(x).matmul(embed->tokens->weight.t()); }
    nn::LayerNorm norm{ nullptr };
    Embed embed; /* whose tokens are the last layer's weight; not registered here */
};
TORCH_MODULE(Head);

struct DecoderImpl : nn::Module {
    DecoderImpl(int64_t layers, int64_t width) {
        embed = register_module("embed", Embed(width));
        for (int64_t i = 0; i < layers; i++)
            h->push_back(Block(width));
        register_module("h", h);
        head = register_module("head", Head(width, embed));
    }
    torch::Tensor forward(torch::Tensor ids) {
        auto x = tessera::forward(embed, ids);
        for (auto &block : *h)
            x = tessera::forward(block->as<Block>(), x);
        return tessera::forward(head, x);
    }
    Embed embed{ nullptr };
    nn::ModuleList h;
    Head head{ nullptr };
};
TORCH_MODULE(Decoder);

static torch::Tensor read_text(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<unsigned char> bytes{ std::istreambuf_iterator<char>(file), {} };
    TORCH_CHECK(static_cast<int64_t>(bytes.size()) > context, path, " cannot be read, or is too short");
    return torch::from_blob(bytes.data(), { static_cast<int64_t>(bytes.size()) }, torch::kUInt8).to(torch::kLong);
}

/* A batch of `rows` rows; its places follow from its number. */
static std::pair<torch::Tensor, torch::Tensor> pick(const torch::Tensor &text, uint64_t number, int64_t rows) {
    torch::manual_seed(1000 + number);
    std::vector<torch::Tensor> x, y;
    auto places = torch::randint(text.size(0) - context, { rows }, torch::kLong);
    for (int64_t i = 0; i < rows; i++) {
        auto at = places[i].item<int64_t>();
        x.push_back(text.slice(0, at, at + context));
        y.push_back(text.slice(0, at + 1, at + context + 1));
    }
    return { torch::stack(x), torch::stack(y) };
}

static torch::Tensor loss_of(Decoder &model, const std::pair<torch::Tensor, torch::Tensor> &b) {
    auto logits = model->forward(b.first).to(torch::kFloat);
    return F::cross_entropy(logits.view({ -1, vocabulary }), b.second.view({ -1 }));
}

int main(int argc, char **argv) {
    if (argc < 2) {
        std::cerr << "usage: " << argv[0] << " TEXT [STEPS [LAYERS [WIDTH [DEVICE]]]]\n";
        return 2;
    }
    const int steps = argc > 2 ? std::stoi(argv[2]) : 100;
    const int64_t layers = argc > 3 ? std::stoll(argv[3]) : 4, width = argc > 4 ? std::stoll(argv[4]) : 64;
    const double rate = 1e-3;
    const torch::Device device(argc > 5 ? argv[5] : "cpu");
    auto text = read_text(argv[1]).to(device);
    torch::manual_seed(1);
    Decoder model(layers, width);
    model->to(device);
    tessera::Sharded optimizer(
        model, tessera::Options(torch::optim::AdamWOptions(rate)).shared({ { "head", "embed.tokens.weight" } }));
    const int64_t rows = batch / optimizer.ranks(), first = optimizer.rank() * rows;
    for (int step = 0; step < steps; step++) {
        auto all = pick(text, step, batch);
        auto b = std::make_pair(all.first.narrow(0, first, rows), all.second.narrow(0, first, rows));
        optimizer.zero_grad();
        auto loss = loss_of(model, b);
        optimizer.scale(loss).backward();
        auto norm = optimizer.clip_grad_norm_(1.0);
        optimizer.lr(rate * std::min(1.0, (step + 1) / 10.0));
        optimizer.step();
        double mean = optimizer.mean(loss.item<double>());
        if (optimizer.rank() == 0)
            printf("step %d loss %.9g norm %.6g\n", step, mean, norm);
    }
    torch::NoGradGuard no_grad;
    model->eval();
    double loss = loss_of(model, pick(text, 1000000, batch)).item<double>();
    if (optimizer.rank() == 0)
        printf("evaluation %.9g\n", loss);
    optimizer.save("decoder");
    return 0;
}
