/* SPDX-License-Identifier: BSD-3-Clause */
/* A model with all that a module may have, and how these tests say what is not so. */
#ifndef TEST_TORCH_NET_HPP
#define TEST_TORCH_NET_HPP
#include <tessera/torch.hpp>

#include <cstdio>
#include <map>

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

static int failures;
#define EXPECT(what)                                                                                                   \
    ((what) ? (void)0 : (void)(failures++, printf("%s:%d: %s: not so: %s\n", __FILE__, __LINE__, now.c_str(), #what)))
static std::string now; /* the case that runs */

/* ---- a model with all that a module may have ---- */

/* Two inputs and two outputs, dropout, parameters of several shapes. */
struct LayerImpl : nn::Module {
    LayerImpl() {
        a = register_module("a", nn::Linear(16, 48));
        b = register_module("b", nn::Linear(48, 16));
        norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({ 16 })));
        drop = register_module("drop", nn::Dropout(0.1));
    }
    std::tuple<Tensor, Tensor> forward(Tensor x, Tensor sum) {
        x = norm(x + drop(b(torch::gelu(a(x)))));
        return { x, sum + x };
    }
    nn::Linear a{ nullptr }, b{ nullptr };
    nn::LayerNorm norm{ nullptr };
    nn::Dropout drop{ nullptr };
};
TORCH_MODULE(Layer);

struct HeadImpl : nn::Module {
    explicit HeadImpl(nn::Embedding embed) : embed(embed) { scale = register_parameter("scale", torch::ones({ 16 })); }
    Tensor forward(Tensor x) { return (x * scale).matmul(embed->weight.t()); }
    Tensor scale;
    nn::Embedding embed;
};
TORCH_MODULE(Head);

struct NetImpl : nn::Module {
    NetImpl() {
        embed = register_module("embed", nn::Embedding(33, 16)); /* 528 elements: no rank number divides them well */
        fixed = register_module("fixed", nn::Linear(16, 16));
        for (Tensor &p : fixed->parameters())
            p.set_requires_grad(false);
        for (int i = 0; i < 2; i++)
            layers->push_back(Layer());
        register_module("layers", layers);
        mix = register_module("mix", nn::Linear(16, 16));
        bn = register_module("bn", nn::BatchNorm1d(16));
        head = register_module("head", Head(embed));
    }
    Tensor forward(Tensor ids) {
        Tensor x = tessera::forward(embed, ids), sum = torch::zeros_like(x);
        x = x + tessera::forward(fixed, x);
        for (auto &layer : *layers)
            std::tie(x, sum) = tessera::forward(layer->as<Layer>(), x, sum);
        x = torch::tanh(tessera::forward(mix, x));
        x = tessera::forward(mix, x + sum); /* the second use in a pass */
        return tessera::forward(head, tessera::forward(bn, x));
    }
    nn::Embedding embed{ nullptr };
    nn::Linear fixed{ nullptr }, mix{ nullptr };
    nn::ModuleList layers;
    nn::BatchNorm1d bn{ nullptr };
    Head head{ nullptr };
};
TORCH_MODULE(Net);

static Net make_net() {
    torch::manual_seed(7);
    return Net();
}
static std::pair<Tensor, Tensor> data(uint64_t microbatch) {
    torch::manual_seed(1000 + microbatch); /* dropout draws from it, too: the same for the same microbatch */
    return { torch::randint(33, { 24 }, torch::kLong), torch::randint(33, { 24 }, torch::kLong) };
}
static bool whole; /* the model is a block around its blocks */
static Tensor loss_of(Net &net, uint64_t microbatch) {
    auto b = data(microbatch);
    Tensor y = whole ? tessera::forward(net, b.first) : net->forward(b.first);
    return F::cross_entropy(y.to(torch::kFloat), b.second);
}
template <class O>
static tessera::Options options(const O &o) {
    return tessera::Options(o).shared({ { "head", "embed.weight" } });
}
template <class M>
static std::map<std::string, Tensor> state_dict(M &model) {
    std::map<std::string, Tensor> all;
    for (auto &p : model->named_parameters())
        all[p.key()] = p.value().detach().clone();
    for (auto &b : model->named_buffers())
        all[b.key()] = b.value().detach().clone();
    return all;
}
#endif
