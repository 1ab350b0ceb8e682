/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera::forward: a block with its parameters in place. */
#ifndef TESSERA_TORCH_FORWARD_HPP
#define TESSERA_TORCH_FORWARD_HPP
#include <tessera/torch/autograd.hpp>

namespace tessera {

namespace detail {
template <class M>
auto &module_of(M &m) {
    if constexpr (std::is_base_of_v<torch::nn::Module, M>)
        return m;
    else
        return *m;
}

template <class F, class... Args>
auto run_block(State &s, Block &b, const F &forward, std::tuple<Args...> args) {
    {
        typename State::Entry entry(s, "block \"" + b.name + "\"");
        s.begin_pass(b);
        s.hold(b, false);
        s.inside++;
    }
    bool training = s.pass == TESS_PASS_TRAIN && torch::GradMode::is_enabled(), again = training && b.recomputes;
    auto call = std::make_shared<Call>(Call{ &b, s.pass_number });
    PtrOf<End> end;
    each_tensor(args, [&](at::Tensor &t) {
        if (b.computes && t.is_floating_point())
            t = t.to(*b.computes);
    });
    at::Generator generator = again ? at::globalContext().defaultGenerator(s.device) : at::Generator();
    at::Tensor drawn = again ? generator.get_state() : at::Tensor();
    if (training && !again)
        end = cut_inputs(s, call, args);
    auto out = [&] {
        try {
            torch::AutoGradMode mode(training && !again);
            return std::apply(forward, args);
        } catch (...) {
            s.abandon(b, State::text_of(std::current_exception()));
            throw;
        }
    }();
    typename State::Entry entry(s, "the end of block \"" + b.name + "\"");
    each_tensor(out, [&](at::Tensor &t) { s.check_output(b, t); });
    s.end_forward(b);
    if (again)
        run_again(s, call, forward, args, out, generator, drawn);
    else if (training)
        cut_outputs(s, call, end, out);
    return out;
}

template <class F, class... Args>
auto enter(torch::nn::Module &m, const F &forward, std::tuple<Args...> args) {
    std::pair<State *, Block *> at{ nullptr, nullptr };
    {
        std::lock_guard<std::mutex> guard(names_lock());
        auto found = sharded_modules().find(&m);
        if (found != sharded_modules().end())
            at = found->second;
    }
    if (at.first && at.second)
        return run_block(*at.first, *at.second, forward, std::move(args));
    if (at.first && at.first->inside == 0 && !m.parameters().empty())
        throw Error(TESS_E_INVALID, "module \"" + at.first->modules[&m] +
                                        "\" is no block: name it in tessera::Options().blocks, or enter the block that "
                                        "it is in");
    return std::apply(forward, args);
}
} // namespace detail

/** Runs block->forward(inputs…). Where a tessera::Sharded has the block, its parameters are there meanwhile and in
 * backward; else nothing is added. [C] Tensors are found in inputs and outputs that are tensors, optionals, vectors,
 * pairs or tuples of them. */
template <class M, class... Args>
auto forward(M &&block, Args &&...inputs) {
    auto *m = &detail::module_of(block);
    return detail::enter(
        *m, [m](auto &...x) { return m->forward(x...); },
        std::tuple<std::decay_t<Args>...>(std::forward<Args>(inputs)...));
}
template <class... Args>
at::Tensor forward(torch::nn::AnyModule &block, Args &&...inputs) {
    auto *m = &block;
    return detail::enter(
        *m->ptr(), [m](auto &...x) { return m->template forward<at::Tensor>(x...); },
        std::tuple<std::decay_t<Args>...>(std::forward<Args>(inputs)...));
}

} // namespace tessera
#endif
