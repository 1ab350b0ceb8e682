/* SPDX-License-Identifier: BSD-3-Clause */
/* LibTorch's own memory on the CPU, counted. */
#ifndef TESSERA_TORCH_MEMORY_HPP
#define TESSERA_TORCH_MEMORY_HPP
#include <torch/torch.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <cstring>

namespace tessera {

/** What LibTorch has allocated on the model's device: activations, workspaces, the program's own tensors. It is in no
 * plan, and in the ledger as the program's own: tess_ledger_held. */
struct Allocated {
    uint64_t bytes, peak;
};

/* ---- LibTorch's own memory ------------------------------------------------------------------------ */
namespace detail {
/* The size stands before the memory, whose alignment is torch's, so that the deleter needs the pointer alone. */
class Counting : public c10::Allocator {
  public:
    static Counting &get() {
        static Counting *allocator = new Counting; /* memory is given back until the very end of the process */
        return *allocator;
    }
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
    at::DataPtr allocate(size_t n) override {
        return make(n);
    }
    void copy_data(void *to, const void *from, std::size_t n) const override {
        default_copy_data(to, from, n);
    }
#else
    at::DataPtr allocate(size_t n) const override {
        return make(n);
    }
#endif
    at::DeleterFnPtr raw_deleter() const override {
        return &release;
    }
    Allocated now() const {
        return { live(), peak() };
    }
    void reset() {
        peak() = live().load();
    }
    /* tess_held_fn; one engine of the process asks, so that `most` has no second reader. */
    static uint64_t held(void *, uint64_t *most) {
        uint64_t bytes = live();
        *most = recent().exchange(bytes);
        return bytes;
    }
    static uint64_t none(void *, uint64_t *most) {
        return *most = 0;
    }
    static std::atomic<bool> &asked() {
        static std::atomic<bool> by_an_engine{ false };
        return by_an_engine;
    }

  private:
    static constexpr size_t head = 64;
    static std::atomic<uint64_t> &live() {
        static std::atomic<uint64_t> bytes{ 0 };
        return bytes;
    }
    static std::atomic<uint64_t> &peak() {
        static std::atomic<uint64_t> bytes{ 0 };
        return bytes;
    }
    static std::atomic<uint64_t> &recent() {
        static std::atomic<uint64_t> bytes{ 0 };
        return bytes;
    }
    static void raise(std::atomic<uint64_t> &most, uint64_t bytes) {
        uint64_t seen = most;
        while (bytes > seen && !most.compare_exchange_weak(seen, bytes)) {
        }
    }
    static at::DataPtr make(size_t n) {
        if (n == 0)
            return { nullptr, nullptr, &release, at::Device(at::kCPU) };
        char *at = static_cast<char *>(c10::alloc_cpu(n + head));
        memcpy(at, &n, sizeof n);
        uint64_t bytes = live() += n;
        raise(peak(), bytes);
        raise(recent(), bytes);
        return { at + head, at + head, &release, at::Device(at::kCPU) };
    }
    static void release(void *memory) {
        if (!memory)
            return;
        char *at = static_cast<char *>(memory) - head;
        size_t n;
        memcpy(&n, at, sizeof n);
        live() -= n;
        c10::free_cpu(at);
    }
};
} // namespace detail

} // namespace tessera
#endif
