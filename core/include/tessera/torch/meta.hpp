/* SPDX-License-Identifier: BSD-3-Clause */
/* Models that are larger than a rank's memory: made without values. */
#ifndef TESSERA_TORCH_META_HPP
#define TESSERA_TORCH_META_HPP
#include <torch/torch.h>
#include <torch/library.h>

namespace tessera {

namespace detail {
/* LibTorch has no default device. One key that it leaves to others sends every operator here, where those that make a
 * tensor are told to make it on the meta device. */
constexpr c10::DispatchKey making_key = c10::DispatchKey::TESTING_ONLY_GenericMode;

inline void make_on_meta(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    const auto &arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); i++)
        if (arguments[i].name() == "device")
            (*stack)[stack->size() - arguments.size() + i] = c10::Device(c10::kMeta);
    c10::impl::ExcludeDispatchKeyGuard once(making_key);
    op.callBoxed(stack);
}

inline void register_making() {
    static torch::Library library(torch::Library::IMPL, "_", making_key, __FILE__, __LINE__);
    static bool once = (library.fallback(torch::CppFunction::makeFromBoxedFunction<&make_on_meta>()), true);
    (void)once;
}
} // namespace detail

/** make() in which tensors get names and shapes, but no memory: tessera::on_meta([] { return Model(…); }). Their values
 * come from Options().values, one parameter at a time, or from Sharded::load. */
template <class F>
auto on_meta(F &&make) {
    detail::register_making();
    c10::impl::IncludeDispatchKeyGuard guard(detail::making_key);
    return make();
}

} // namespace tessera
#endif
