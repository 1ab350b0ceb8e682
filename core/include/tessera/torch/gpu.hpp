/* SPDX-License-Identifier: BSD-3-Clause */
/* LibTorch on a GPU: its stream, and what its allocator counts. Since 2.11 both are there without CUDA's headers. */
#ifndef TESSERA_TORCH_GPU_HPP
#define TESSERA_TORCH_GPU_HPP
#include <tessera/torch/memory.hpp>
#include <tessera/torch/options.hpp>

#include <c10/core/impl/VirtualGuardImpl.h>
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 11)
#define TESSERA_TORCH_TELLS 1
#include <c10/core/CachingDeviceAllocator.h>
#else
#define TESSERA_TORCH_TELLS 0
#endif

namespace tessera::detail {

/* LibTorch's current stream, a cudaStream_t. */
inline void *stream_of(at::Device device) {
    c10::impl::VirtualGuardImpl of(device.type());
    c10::Stream stream = of.getStream(device);
#if TESSERA_TORCH_TELLS
    return of.getStreamNativeHandle(stream);
#else
    if (stream.id() != 0)
        throw Error(TESS_E_UNSUPPORTED, "tessera::Sharded: a stream of one's own needs LibTorch 2.11 or later");
    return nullptr; /* the default stream */
#endif
}
#if TESSERA_TORCH_TELLS
/* What the allocator has handed out, and the most since the call before. */
inline Allocated allocated_on(at::Device device) {
    c10::DeviceAllocator *allocator = c10::getDeviceAllocator(device.type());
    auto bytes = allocator->getDeviceStats(device.index()).allocated_bytes[0]; /* of all its pools */
    allocator->resetPeakStats(device.index());
    return { static_cast<uint64_t>(bytes.current), static_cast<uint64_t>(bytes.peak) };
}
#else
inline Allocated allocated_on(at::Device) {
    return { 0, 0 }; /* it is not known */
}
#endif

/* LibTorch's memory on one GPU, for two readers of the most: the ledger and the program. */
struct OnGpu {
    at::Device device{ at::kCUDA, 0 };
    uint64_t most[2] = { 0, 0 };

    Allocated look(int reader) {
        Allocated a = allocated_on(device);
        for (uint64_t &m : most)
            m = std::max(m, a.peak);
        a.peak = most[reader];
        most[reader] = a.bytes;
        return a;
    }
    /* tess_held_fn */
    static uint64_t held(void *self, uint64_t *most) {
        Allocated a = static_cast<OnGpu *>(self)->look(0);
        *most = a.peak;
        return a.bytes;
    }
};

} // namespace tessera::detail
#endif
