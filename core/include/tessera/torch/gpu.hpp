/* SPDX-License-Identifier: BSD-3-Clause */
/* LibTorch on a GPU: its stream, and what its allocator counts. Since 2.11 both are there without CUDA's headers. */
#ifndef TESSERA_TORCH_GPU_HPP
#define TESSERA_TORCH_GPU_HPP
#include <tessera/torch/memory.hpp>
#include <tessera/torch/options.hpp>

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 11)
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#endif

namespace tessera::detail {

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 11)
/* LibTorch's current stream, a cudaStream_t. */
inline void *stream_of(at::Device device) {
    c10::impl::VirtualGuardImpl of(device.type());
    return of.getStreamNativeHandle(of.getStream(device));
}
/* What the allocator has handed out, and the most since the call before. */
inline Allocated allocated_on(at::Device device) {
    c10::DeviceAllocator *allocator = c10::getDeviceAllocator(device.type());
    auto bytes = allocator->getDeviceStats(device.index()).allocated_bytes[0]; /* of all its pools */
    allocator->resetPeakStats(device.index());
    return { static_cast<uint64_t>(bytes.current), static_cast<uint64_t>(bytes.peak) };
}
#else
inline void *stream_of(at::Device) {
    throw Error(TESS_E_UNSUPPORTED, "tessera::Sharded: a model on a GPU needs LibTorch 2.11 or later");
}
inline Allocated allocated_on(at::Device) {
    return { 0, 0 };
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
