/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera/torch.hpp on a GPU that is none. LibTorch gets a device whose operators run on the CPU, and autograd's thread
 * of that device; Tessera gets the driver's stand-in, whose memory a CPU can read. So a sharded model on the device has
 * the bits of LibTorch alone on the CPU. */
#include <tessera/torch.hpp>

#include <c10/core/impl/FakeGuardImpl.h>
#include <cuda.h>

#include <cstdio>

namespace nn = torch::nn;
using torch::Tensor;

C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>);

/* ---- the device of LibTorch's side ---- */

struct Side : c10::TensorImpl {
    static void move(const Tensor &t, bool to_gpu) {
        auto cpu = c10::BackendComponent::CPUBit, gpu = c10::BackendComponent::CUDABit;
        c10::TensorImpl *impl = t.unsafeGetTensorImpl();
        c10::DispatchKeySet &keys = impl->*(&Side::key_set_);
        keys = keys.remove_backend(to_gpu ? cpu : gpu) | c10::DispatchKeySet(to_gpu ? gpu : cpu);
        impl->*(&Side::device_opt_) = to_gpu ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
    }
};
/* A CPU reads what the stream has come to. */
static void wait_for_the_stream() {
    CUcontext context = nullptr;
    if (cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) {
        cuInit(0);
        cuDevicePrimaryCtxRetain(&context, 0);
        cuCtxSetCurrent(context);
    }
    if (cuStreamSynchronize(nullptr) != CUDA_SUCCESS)
        throw std::runtime_error("the stream failed");
}
/* Tensors of the device become the CPU's while an operator of the CPU's runs; what it makes becomes the device's. */
static void on_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    const auto &arguments = op.schema().arguments();
    const size_t first = stack->size() - arguments.size();
    std::vector<Tensor> moved;
    bool leaves = false, comes = false;
    auto move = [&](const Tensor &t) {
        if (t.defined() && t.is_cuda()) {
            Side::move(t, false);
            moved.push_back(t);
        }
    };
    wait_for_the_stream();
    for (size_t i = 0; i < arguments.size(); i++) {
        c10::IValue &v = (*stack)[first + i];
        if (v.isTensor())
            move(v.toTensor());
        else if (v.isTensorList())
            for (const Tensor &t : v.toTensorVector())
                move(t);
        else if (v.isDevice()) {
            comes = v.toDevice().is_cuda(), leaves = !comes;
            v = c10::Device(c10::kCPU);
        }
    }
    op.callBoxed(stack);
    const size_t results = stack->size() - first;
    for (size_t i = 0; i < results; i++) {
        const c10::IValue &v = (*stack)[first + i];
        if (v.isTensor() && v.toTensor().defined() && v.toTensor().is_cpu() && !leaves && (comes || !moved.empty()))
            Side::move(v.toTensor(), true);
    }
    for (const Tensor &t : moved)
        Side::move(t, true);
}
static void register_device() {
    static torch::Library all(torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
    static torch::Library own(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    for (const char *name : { "copy_", "_local_scalar_dense" }) /* which look at the device themselves */
        own.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

/* ---- the model: blocks without and with inputs that have gradients, buffers, a counter ---- */

struct NetImpl : nn::Module {
    NetImpl() {
        torch::manual_seed(5);
        embed = register_module("embed", nn::Embedding(11, 6));
        mix = register_module("mix", nn::Linear(6, 6));
        bn = register_module("bn", nn::BatchNorm1d(6));
        head = register_module("head", nn::Linear(6, 3));
    }
    Tensor forward(Tensor ids) {
        Tensor x = torch::tanh(tessera::forward(mix, tessera::forward(embed, ids)));
        x = tessera::forward(mix, x); /* twice in a pass */
        return tessera::forward(head, tessera::forward(bn, x));
    }
    nn::Embedding embed{ nullptr };
    nn::Linear mix{ nullptr }, head{ nullptr };
    nn::BatchNorm1d bn{ nullptr };
};
TORCH_MODULE(Net);

template <class Optimizer>
static std::vector<double> train(Net &net, Optimizer &optimizer, torch::Device device) {
    std::vector<double> losses;
    for (uint64_t step = 0; step < 20; step++) {
        torch::manual_seed(100 + step);
        Tensor ids = torch::randint(11, { 8 }, torch::kLong), want = torch::randn({ 8, 3 });
        optimizer.zero_grad();
        Tensor loss = (net->forward(ids.to(device)) - want.to(device)).pow(2).mean();
        loss.backward();
        losses.push_back(loss.template item<double>());
        optimizer.step();
    }
    return losses;
}
static std::string on_another_stream(Net &net) {
    c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    c10::Stream mine(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0), 0), other(c10::Stream::UNSAFE, mine.device(), 64);
    std::string said = "nothing";
    guard.exchangeStream(other);
    try {
        torch::NoGradGuard no_grad;
        net->forward(torch::zeros({ 2 }, torch::kLong).to(mine.device()));
    } catch (const tessera::Error &e) {
        said = e.what();
    }
    guard.exchangeStream(mine);
    return said;
}

int main() try {
    const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
    const torch::Device gpu(torch::kCUDA, 0);
    Net alone, net;
    torch::optim::SGD optimizer(alone->parameters(), sgd);
    std::vector<double> want = train(alone, optimizer, torch::kCPU), got;
    register_device();
    net->to(gpu);
    tessera::Sharded sharded(net, sgd);
    got = train(net, sharded, gpu);
    int failures = 0;
    for (size_t i = 0; i < want.size(); i++)
        if (want[i] != got.at(i))
            failures++, printf("loss %zu: %.9g, not %.9g\n", i, got[i], want[i]);
    sharded.summon([&] {
        auto left = alone->named_parameters(), right = net->named_parameters();
        for (auto &p : left)
            if (!p.value().equal(right[p.key()].detach().to(torch::kCPU)))
                failures++, printf("%s: other values\n", p.key().c_str());
    });
    auto left = alone->named_buffers(), right = net->named_buffers();
    for (auto &b : left)
        if (!b.value().equal(right[b.key()].to(torch::kCPU)))
            failures++, printf("%s: other values\n", b.key().c_str());
    std::string said = on_another_stream(net);
    if (said.find("stream") == std::string::npos)
        failures++, printf("another stream: %s\n", said.c_str());
    printf("%s\n", failures ? "FAILED" : "all cases passed");
    return failures != 0;
} catch (const std::exception &e) {
    fprintf(stderr, "%s\n", e.what());
    return 1;
}
