/* SPDX-License-Identifier: BSD-3-Clause */
/* Handwritten digits, as a program on LibTorch reads them: a small convolutional network, SGD, an evaluation per epoch.
 *
 *   tessera run -n 2 -- mnist_sharded FOLDER [EPOCHS]
 *
 * FOLDER has the four files of MNIST, unpacked. */
#include <tessera/torch.hpp>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <iostream>

namespace nn = torch::nn;
namespace F = torch::nn::functional;

struct ConvImpl : nn::Module {
    ConvImpl(int in, int out) {
        conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).bias(false)));
        norm = register_module("norm", nn::BatchNorm2d(out));
    }
    torch::Tensor forward(torch::Tensor x) {
        return F::max_pool2d(torch::relu(norm(conv(x))), F::MaxPool2dFuncOptions(2));
    }
    nn::Conv2d conv{ nullptr };
    nn::BatchNorm2d norm{ nullptr };
};
TORCH_MODULE(Conv);

struct ClassifierImpl : nn::Module {
    ClassifierImpl() {
        hidden = register_module("hidden", nn::Linear(32 * 7 * 7, 64));
        out = register_module("out", nn::Linear(64, 10));
        drop = register_module("drop", nn::Dropout(0.25));
    }
    torch::Tensor forward(torch::Tensor x) { return out(drop(torch::relu(hidden(x.flatten(1))))); }
    nn::Linear hidden{ nullptr }, out{ nullptr };
    nn::Dropout drop{ nullptr };
};
TORCH_MODULE(Classifier);

struct NetImpl : nn::Module {
    NetImpl() {
        first = register_module("first", Conv(1, 16));
        second = register_module("second", Conv(16, 32));
        classifier = register_module("classifier", Classifier());
    }
    torch::Tensor forward(torch::Tensor x) {
        x = tessera::forward(first, x);
        x = tessera::forward(second, x);
        return tessera::forward(classifier, x);
    }
    Conv first{ nullptr }, second{ nullptr };
    Classifier classifier{ nullptr };
};
TORCH_MODULE(Net);

/* An IDX file of bytes: two zeros, the type, the number of dimensions, the dimensions big endian, the bytes. */
static torch::Tensor read_idx(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    unsigned char head[4], size[4];
    file.read(reinterpret_cast<char *>(head), 4);
    TORCH_CHECK(file && head[2] == 8 && head[3] >= 1 && head[3] <= 3, path, " is no IDX file of bytes");
    std::vector<int64_t> shape;
    for (int i = 0; i < head[3]; i++) {
        file.read(reinterpret_cast<char *>(size), 4);
        shape.push_back(int64_t{ size[0] } << 24 | size[1] << 16 | size[2] << 8 | size[3]);
    }
    auto t = torch::empty(shape, torch::kUInt8);
    file.read(static_cast<char *>(t.data_ptr()), t.numel());
    TORCH_CHECK(file, path, " is shorter than its header says");
    return t;
}

struct Digits {
    explicit Digits(const std::string &stem) {
        images = read_idx(stem + "-images-idx3-ubyte").unsqueeze(1).to(torch::kFloat).div(255).sub(0.1307).div(0.3081);
        labels = read_idx(stem + "-labels-idx1-ubyte").to(torch::kLong);
    }
    torch::Tensor images, labels;
};

static double evaluate(Net &net, const Digits &test) {
    torch::NoGradGuard no_grad;
    net->eval();
    auto right = net->forward(test.images).argmax(1).eq(test.labels).sum().item<int64_t>();
    net->train();
    return static_cast<double>(right) / static_cast<double>(test.labels.size(0));
}

int main(int argc, char **argv) {
    if (argc < 2) {
        std::cerr << "usage: " << argv[0] << " FOLDER [EPOCHS]\n";
        return 2;
    }
    const std::string folder = argv[1];
    const int64_t epochs = argc > 2 ? std::stoll(argv[2]) : 2, batch = 64;
    torch::manual_seed(1);
    Digits train(folder + "/train"), test(folder + "/t10k");
    Net net;
    tessera::Sharded optimizer(net, torch::optim::SGDOptions(0.05).momentum(0.9));
    const int64_t rows = batch / optimizer.ranks(), first = optimizer.rank() * rows;
    for (int64_t epoch = 0; epoch < epochs; epoch++) {
        auto order = torch::randperm(train.labels.size(0));
        for (int64_t i = 0; i + batch <= order.size(0); i += batch) {
            auto pick = order.slice(0, i + first, i + first + rows);
            optimizer.zero_grad();
            auto loss = F::cross_entropy(net->forward(train.images.index({ pick })), train.labels.index({ pick }));
            loss.backward();
            optimizer.step();
            double mean = optimizer.mean(loss.item<double>());
            if (i / batch % 10 == 0 && optimizer.rank() == 0)
                printf("epoch %d step %d loss %.6f\n", (int)epoch, (int)(i / batch), mean);
        }
        optimizer.sync_buffers();
        double accuracy = evaluate(net, test);
        if (optimizer.rank() == 0)
            printf("epoch %d accuracy %.4f\n", (int)epoch, accuracy);
    }
    optimizer.save("mnist");
    return 0;
}
