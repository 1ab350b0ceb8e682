/* SPDX-License-Identifier: BSD-3-Clause */
// Debian's libgloo-dev leaves this header of Gloo out, which its tcp/pair.h and tcp/context.h include. The declarations
// below only match its names and sizes. libgloo makes, moves and destroys these members; we never touch them.
#pragma once
#include <memory>

namespace gloo {

template <typename T>
class NonOwningPtr final {
    std::shared_ptr<T> ptr_;
};
template <typename T>
class WeakNonOwningPtr final {
    std::weak_ptr<T> ptr_;
};

} // namespace gloo
