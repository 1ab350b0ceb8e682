/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera/torch.hpp on a GPU that is none. LibTorch gets a device whose operators run on the CPU, and autograd's thread
 * of that device; Tessera gets the driver's stand-in, whose memory a CPU can read. So a sharded model on the device has
 * the bits of LibTorch alone on the CPU. */
#include <tessera/torch.hpp>

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <cuda.h>

#include <cstdio>

namespace nn = torch::nn;
using torch::Tensor;

C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>);
struct Hooks : at::CUDAHooksInterface {
    explicit Hooks(at::CUDAHooksArgs) {}
    void initCUDA() const override {}
    bool hasCUDA() const override { return true; } /* so that backward looks after streams */
    bool hasPrimaryContext(int64_t) const override { return true; }
    int getNumGPUs() const override { return 0; } /* none with random numbers */
};
namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)
}

/* ---- the device of LibTorch's side ---- */

struct Side : c10::TensorImpl {
    static void move(const Tensor &t, bool to_gpu) {
        auto cpu = c10::BackendComponent::CPUBit, gpu = c10::BackendComponent::CUDABit;
        c10::TensorImpl *impl = t.unsafeGetTensorImpl();
        c10::DispatchKeySet &keys = impl->*(&Side::key_set_);
        keys = keys.remove_backend(to_gpu ? cpu : gpu) | c10::DispatchKeySet(to_gpu ? gpu : cpu);
        c10::Device device = to_gpu ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
        impl->*(&Side::device_opt_) = device;
        t.storage().unsafeGetStorageImpl()->data_ptr().unsafe_set_device(device);
    }
};
static void good(CUresult r) {
    if (r != CUDA_SUCCESS)
        throw std::runtime_error("the driver's stand-in refuses a call: " + std::to_string(r));
}
/* Memory of the driver's, which no CPU may touch, as the stream has left it. Of LibTorch's own there is nothing to do.
 */
struct Contents {
    c10::StorageImpl *storage;
    CUdeviceptr device;
    std::vector<char> host;
    explicit Contents(const Tensor &t)
        : storage(t.storage().unsafeGetStorageImpl()), device(reinterpret_cast<CUdeviceptr>(storage->data())) {
        CUmemorytype kind;
        if (cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device) != CUDA_SUCCESS ||
            kind != CU_MEMORYTYPE_DEVICE)
            return;
        host.resize(storage->nbytes());
        good(cuMemcpyDtoH(host.data(), device, host.size()));
        storage->set_data_ptr_noswap(at::DataPtr(host.data(), c10::Device(c10::kCPU)));
    }
    void leave() const {
        if (host.empty())
            return;
        good(cuMemcpyHtoD(device, host.data(), host.size()));
        storage->set_data_ptr_noswap(at::DataPtr(reinterpret_cast<void *>(device), c10::Device(c10::kCUDA, 0)));
    }
};
/* This thread in the driver's context. */
struct InContext {
    CUcontext context = nullptr;
    InContext() {
        good(cuInit(0));
        good(cuDevicePrimaryCtxRetain(&context, 0));
        good(cuCtxPushCurrent(context));
    }
    ~InContext() {
        cuCtxPopCurrent(&context);
        cuDevicePrimaryCtxRelease(0);
    }
};
/* Tensors of the device become the CPU's while an operator of the CPU's runs; what it makes becomes the device's. */
static void on_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    const auto &arguments = op.schema().arguments();
    const size_t first = stack->size() - arguments.size();
    std::vector<Tensor> moved;
    std::vector<std::unique_ptr<Contents>> contents;
    bool leaves = false, comes = false;
    auto move = [&](const Tensor &t) {
        if (t.defined() && t.is_cuda()) {
            Side::move(t, false);
            moved.push_back(t);
            contents.push_back(std::make_unique<Contents>(t));
        }
    };
    InContext context;
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
    for (const auto &c : contents)
        c->leave();
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
    tess_info info = {};
    info.struct_size = sizeof info;
    tessera::detail::ok(tess_info_get(sharded.engine(), &info));
    if (info.prefetch != 1)
        failures++, printf("%d units are gathered ahead on a GPU, not 1\n", info.prefetch);
    std::string said = on_another_stream(net);
    if (said.find("stream") == std::string::npos)
        failures++, printf("another stream: %s\n", said.c_str());
    printf("%s\n", failures ? "FAILED" : "all cases passed");
    return failures != 0;
} catch (const std::exception &e) {
    fprintf(stderr, "%s\n", e.what());
    return 1;
}
