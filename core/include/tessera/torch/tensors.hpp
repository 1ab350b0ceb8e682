/* SPDX-License-Identifier: BSD-3-Clause */
/* Tensors in what a forward takes and returns. */
#ifndef TESSERA_TORCH_TENSORS_HPP
#define TESSERA_TORCH_TENSORS_HPP
#include <torch/torch.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera::detail {

template <class T, class F>
void each_tensor(T &, F &&) {}
template <class F>
void each_tensor(at::Tensor &t, F &&f) {
    if (t.defined())
        f(t);
}
template <class T, class F>
void each_tensor(c10::optional<T> &v, F &&f);
template <class T, class F>
void each_tensor(std::vector<T> &v, F &&f);
template <class... T, class F>
void each_tensor(std::tuple<T...> &v, F &&f);
template <class T, class U, class F>
void each_tensor(std::pair<T, U> &v, F &&f);

template <class T, class F>
void each_tensor(c10::optional<T> &v, F &&f) {
    if (v)
        each_tensor(*v, f);
}
template <class T, class F>
void each_tensor(std::vector<T> &v, F &&f) {
    for (T &x : v)
        each_tensor(x, f);
}
template <class... T, class F>
void each_tensor(std::tuple<T...> &v, F &&f) {
    std::apply([&](T &...x) { (each_tensor(x, f), ...); }, v);
}
template <class T, class U, class F>
void each_tensor(std::pair<T, U> &v, F &&f) {
    each_tensor(v.first, f);
    each_tensor(v.second, f);
}

/* LibTorch holds its nodes by std::shared_ptr with a deleter of its own, or, as 2.15 does, by c10::intrusive_ptr.
 * Neither has a name in the other's headers: `deleteNode` is found by its argument. */
using NodePtr = decltype(torch::autograd::Edge::function);
template <class N>
std::shared_ptr<N> new_node(const std::shared_ptr<torch::autograd::Node> *) {
    return std::shared_ptr<N>(new N, [](N *node) { deleteNode(node); });
}
template <class N>
c10::intrusive_ptr<N> new_node(const c10::intrusive_ptr<torch::autograd::Node> *) {
    return c10::make_intrusive<N>();
}
template <class N>
using PtrOf = decltype(new_node<N>(static_cast<const NodePtr *>(nullptr)));

/* The tensor alone, as an output of `node`. */
inline void leads_to(at::Tensor &t, const NodePtr &node) {
    at::Tensor fresh = t.detach();
    torch::autograd::create_gradient_edge(fresh, node);
    t = fresh;
}
inline bool differentiable(const at::Tensor &t) {
    return t.requires_grad();
}

} // namespace tessera::detail
#endif
