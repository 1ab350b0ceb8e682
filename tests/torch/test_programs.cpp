/* SPDX-License-Identifier: BSD-3-Clause */
/* Three programs as tutorials on LibTorch have them, written here from their description: a variational autoencoder, a
 * generator against a discriminator, a recurrent model of letters. Each runs alone and sharded on one rank, to the same
 * bits. Lines that sharding adds or changes end in "sharded"; at the end they are counted. */
#include <tessera/torch.hpp>

#include <cstdio>
#include <fstream>

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

/* ---- a variational autoencoder: several outputs of a block, a loss of two terms ---- */
namespace vae {
struct EncoderImpl : nn::Module {
    EncoderImpl()
        : hidden(register_module("hidden", nn::Linear(64, 32))), mean(register_module("mean", nn::Linear(32, 8))),
          spread(register_module("spread", nn::Linear(32, 8))) {}
    std::tuple<Tensor, Tensor> forward(Tensor x) {
        auto h = torch::relu(hidden(x));
        return { mean(h), spread(h) };
    }
    nn::Linear hidden, mean, spread;
};
TORCH_MODULE(Encoder);
struct VaeImpl : nn::Module {
    VaeImpl() {
        encoder = register_module("encoder", Encoder());
        decoder = register_module("decoder",
                                  nn::Sequential(nn::Linear(8, 32), nn::ReLU(), nn::Linear(32, 64), nn::Sigmoid()));
    }
    std::tuple<Tensor, Tensor, Tensor> forward(Tensor x) {
        auto [mean, spread] = tessera::forward(encoder, x); // sharded
        auto z = mean + torch::randn_like(mean) * (0.5 * spread).exp();
        return { tessera::forward(decoder, z), mean, spread }; // sharded
    }
    Encoder encoder{ nullptr };
    nn::Sequential decoder{ nullptr };
};
TORCH_MODULE(Vae);

template <class Optimizer>
static std::vector<double> train() {
    std::vector<double> losses;
    Vae model;
    Optimizer optimizer(model,
                        tessera::Options(torch::optim::AdamOptions(1e-3)).blocks({ "encoder", "decoder" })); // sharded
    for (int i = 0; i < 20; i++) {
        auto x = torch::rand({ 16, 64 });
        auto [y, mean, spread] = model->forward(x);
        auto loss = F::binary_cross_entropy(y, x, F::BinaryCrossEntropyFuncOptions().reduction(torch::kSum)) -
                    0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum();
        optimizer.zero_grad();
        loss.backward();
        optimizer.step();
        losses.push_back(loss.template item<double>());
    }
    return losses;
}
} // namespace vae

/* ---- two models that train against each other: two engines, three backwards per step ---- */
namespace gan {
struct GeneratorImpl : nn::Module {
    GeneratorImpl()
        : up1(register_module("up1", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(16, 8, 4).bias(false)))),
          norm(register_module("norm", nn::BatchNorm2d(8))),
          up2(register_module(
              "up2", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 1, 4).stride(2).padding(1).bias(false)))) {}
    Tensor forward(Tensor z) { return torch::tanh(up2(torch::relu(norm(up1(z))))); }
    nn::ConvTranspose2d up1;
    nn::BatchNorm2d norm;
    nn::ConvTranspose2d up2;
};
TORCH_MODULE(Generator);
struct DiscriminatorImpl : nn::Module {
    DiscriminatorImpl()
        : down(register_module("down", nn::Conv2d(nn::Conv2dOptions(1, 8, 4).stride(2).padding(1).bias(false)))),
          out(register_module("out", nn::Conv2d(nn::Conv2dOptions(8, 1, 4).bias(false)))) {}
    Tensor forward(Tensor x) { return torch::sigmoid(out(torch::leaky_relu(down(x), 0.2))).view(-1); }
    nn::Conv2d down, out;
};
TORCH_MODULE(Discriminator);

template <class Optimizer>
static std::vector<double> train() {
    std::vector<double> losses;
    Generator generator;
    Discriminator discriminator;
    auto adam = torch::optim::AdamOptions(1e-3).betas(std::make_tuple(0.5, 0.999));
    Optimizer g(generator, tessera::Options(adam).blocks({ "" }));                   // sharded
    Optimizer d(discriminator, tessera::Options(adam).blocks({ "" }).accumulate(2)); // sharded
    const double twice = Optimizer::averages ? 2 : 1; // sharded: the passes of a step are averaged
    for (int i = 0; i < 10; i++) {
        d.zero_grad();
        auto real = torch::rand({ 4, 1, 8, 8 });
        auto judged = tessera::forward(discriminator, real); // sharded
        auto loss_real = F::binary_cross_entropy(judged, torch::ones(4));
        (loss_real * twice).backward();                                         // sharded
        auto made = tessera::forward(generator, torch::randn({ 4, 16, 1, 1 })); // sharded
        auto loss_fake =
            F::binary_cross_entropy(tessera::forward(discriminator, made.detach()), torch::zeros(4)); // sharded
        (loss_fake * twice).backward();                                                               // sharded
        d.step();
        g.zero_grad();
        auto loss = F::binary_cross_entropy(tessera::forward(discriminator, made), torch::ones(4)); // sharded
        loss.backward();
        g.step();
        losses.push_back(loss_real.template item<double>() + loss_fake.template item<double>());
        losses.push_back(loss.template item<double>());
    }
    return losses;
}
} // namespace gan

/* ---- a recurrent model of letters: nested outputs, a state that goes from batch to batch ---- */
namespace letters {
struct LettersImpl : nn::Module {
    LettersImpl()
        : embed(register_module("embed", nn::Embedding(30, 16))),
          lstm(register_module("lstm", nn::LSTM(nn::LSTMOptions(16, 24).num_layers(2).batch_first(true)))),
          out(register_module("out", nn::Linear(24, 30))) {}
    std::pair<Tensor, std::tuple<Tensor, Tensor>> forward(Tensor x, std::tuple<Tensor, Tensor> state) {
        auto [y, next] = tessera::forward(lstm, tessera::forward(embed, x), c10::make_optional(state)); // sharded
        return { tessera::forward(out, y), next };                                                      // sharded
    }
    nn::Embedding embed;
    nn::LSTM lstm;
    nn::Linear out;
};
TORCH_MODULE(Letters);

template <class Optimizer>
static std::vector<double> train() {
    std::vector<double> losses;
    Letters model;
    Optimizer optimizer(model, torch::optim::AdamOptions(1e-3)); // sharded
    auto state = std::make_tuple(torch::zeros({ 2, 4, 24 }), torch::zeros({ 2, 4, 24 }));
    for (int i = 0; i < 20; i++) {
        auto text = torch::randint(30, { 4, 9 }, torch::kLong);
        auto [y, next] = model->forward(text.slice(1, 0, 8), state);
        auto loss = F::cross_entropy(y.reshape({ -1, 30 }), text.slice(1, 1, 9).reshape({ -1 }));
        optimizer.zero_grad();
        loss.backward();
        optimizer.clip_grad_norm_(5.0); // sharded
        optimizer.step();
        state = { std::get<0>(next).detach(), std::get<1>(next).detach() };
        losses.push_back(loss.template item<double>());
    }
    return losses;
}
} // namespace letters

/* ---- alone and sharded ---- */
struct Alone : torch::optim::Adam {
    static constexpr bool averages = false;
    template <class M>
    Alone(M &model, const tessera::Options &o)
        : Adam(model->parameters(), torch::optim::AdamOptions(o.lr_).betas(std::make_tuple(o.beta1_, o.beta2_))) {}
    void clip_grad_norm_(double most) { nn::utils::clip_grad_norm_(param_groups()[0].params(), most); }
};
struct Ours : tessera::Sharded {
    static constexpr bool averages = true;
    using Sharded::Sharded;
};

static const char *source = __FILE__; /* of this file; a compiler's cache may make it relative */
static int compare(const char *name, std::vector<double> (*alone)(), std::vector<double> (*ours)()) {
    torch::manual_seed(3);
    auto left = alone();
    torch::manual_seed(3);
    auto right = ours();
    bool same = left == right && left.size() == 20;
    int lines = 0;
    std::string line, space;
    for (std::ifstream file(source); std::getline(file, line);) {
        space = line.rfind("namespace ", 0) == 0 && line.back() == '{' ? line : space;
        space = line.rfind("} // namespace", 0) == 0 ? "" : space;
        lines += space == std::string("namespace ") + name + " {" && line.find("// sharded") != std::string::npos;
    }
    printf("%s: %d lines for sharding, losses of %zu steps %s, the last %.9g\n", name, lines, left.size(),
           same ? "equal" : "DIFFER", right.back());
    return !same || lines == 0;
}

int main(int argc, char **argv) {
    source = argc > 1 ? argv[1] : source;
    setenv("TESSERA_OPTIMIZER", "own", 1); /* LibTorch's operators, to its bits */
    int failed = compare("vae", vae::train<Alone>, vae::train<Ours>);
    failed += compare("gan", gan::train<Alone>, gan::train<Ours>);
    failed += compare("letters", letters::train<Alone>, letters::train<Ours>);
    return failed;
}
