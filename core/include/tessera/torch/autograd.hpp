/* SPDX-License-Identifier: BSD-3-Clause */
/* Autograd's side of a block. */
#ifndef TESSERA_TORCH_AUTOGRAD_HPP
#define TESSERA_TORCH_AUTOGRAD_HPP
#include <tessera/torch/pass.hpp>
#include <tessera/torch/tensors.hpp>

namespace tessera::detail {

/* Backward reaches Begin from a block's outputs. Behind Begin lie the block's nodes and, by an edge of its own, End.
 * Autograd runs the node first that was made last, and End was made before the block's nodes: so it runs when they
 * have. Autograd has a queue for each device, and takes a node to that of its gradients: so End gets one there. */
struct End : torch::autograd::Node {
    std::shared_ptr<State> state;
    std::shared_ptr<Call> call;
    size_t inputs = 0;

    torch::autograd::variable_list apply(torch::autograd::variable_list &&grads) override {
        state->end_backward(*call->block);
        grads.resize(inputs);
        return std::move(grads);
    }
    std::string name() const override { return "tessera::End(" + call->block->name + ")"; }
};

struct Begin : torch::autograd::Node {
    std::shared_ptr<State> state;
    std::shared_ptr<Call> call;

    ~Begin() override {
        if (!call->begun && call->pass == state->pass_number)
            state->outstanding--;
    }
    torch::autograd::variable_list apply(torch::autograd::variable_list &&grads) override {
        state->begin_backward(*call);
        grads.push_back(state->token); /* for End */
        return std::move(grads);
    }
    void release_variables() override { *call->retained = false; }
    std::string name() const override { return "tessera::Begin(" + call->block->name + ")"; }
};

template <class N>
PtrOf<N> make_node(State &s, const std::shared_ptr<Call> &call) {
    PtrOf<N> node = new_node<N>(static_cast<const NodePtr *>(nullptr));
    node->state = s.shared_from_this();
    node->call = call;
    return node;
}

template <class... Args>
PtrOf<End> cut_inputs(State &s, const std::shared_ptr<Call> &call, std::tuple<Args...> &args) {
    auto end = make_node<End>(s, call);
    each_tensor(args, [&](at::Tensor &t) {
        if (differentiable(t))
            end->add_next_edge(torch::autograd::impl::gradient_edge(t));
    });
    end->inputs = end->num_outputs();
    each_tensor(args, [&](at::Tensor &t) {
        if (differentiable(t))
            leads_to(t, end);
    });
    return end;
}

template <class R>
void cut_outputs(State &s, const std::shared_ptr<Call> &call, const PtrOf<End> &end, R &out) {
    auto begin = make_node<Begin>(s, call);
    each_tensor(out, [&](at::Tensor &t) {
        if (differentiable(t))
            begin->add_next_edge(torch::autograd::impl::gradient_edge(t));
    });
    if (begin->num_outputs() == 0) {
        call->begun = true; /* nothing goes back through this block */
        return;
    }
    begin->add_next_edge({ end, end->add_input_metadata(s.token) });
    s.outstanding++, s.made++;
    each_tensor(out, [&](at::Tensor &t) {
        if (differentiable(t))
            leads_to(t, begin);
    });
}

/* ---- a block that runs again for its backward ----------------------------------------------------------- */
struct Again : torch::autograd::Node {
    std::shared_ptr<State> state;
    std::shared_ptr<Call> call;
    std::function<torch::autograd::variable_list(torch::autograd::variable_list &&)> run;

    ~Again() override {
        if (!call->begun && call->pass == state->pass_number)
            state->outstanding--;
    }
    torch::autograd::variable_list apply(torch::autograd::variable_list &&grads) override {
        state->begin_backward(*call);
        torch::autograd::variable_list inputs = run(std::move(grads));
        state->end_backward(*call->block);
        return inputs;
    }
    void release_variables() override { *call->retained = false; }
    std::string name() const override { return "tessera::Again(" + call->block->name + ")"; }
};

/* Buffers of a block, as a first forward left them, over a second one. */
struct SameBuffers {
    std::vector<std::pair<at::Tensor, at::Tensor>> kept;
    explicit SameBuffers(State &s, const Block &b) {
        torch::NoGradGuard no_grad;
        for (size_t i : b.params)
            if (s.params[i].buffer)
                kept.emplace_back(s.params[i].tensor(), s.params[i].tensor().clone());
    }
    ~SameBuffers() {
        torch::NoGradGuard no_grad;
        for (auto &k : kept)
            k.first.copy_(k.second);
    }
};

/* The generator as it was at the first forward, so that dropout draws the same, and afterwards as it is now. */
struct SameDraws {
    at::Generator generator;
    at::Tensor now;
    SameDraws(const at::Generator &g, const at::Tensor &then) : generator(g), now(g.get_state()) {
        generator.set_state(then);
    }
    ~SameDraws() { generator.set_state(now); }
};

template <class F, class... Args>
torch::autograd::variable_list go_back_again(State &s, Block &b, const F &forward, std::tuple<Args...> args,
                                             const torch::autograd::variable_list &grads,
                                             const at::Generator &generator, const at::Tensor &drawn) {
    SameBuffers buffers(s, b);
    SameDraws draws(generator, drawn);
    struct Inside {
        int32_t &n;
        explicit Inside(int32_t &count) : n(++count) {}
        ~Inside() { n--; }
    } inside(s.inside);
    torch::autograd::variable_list inputs, outputs, given, found;
    {
        torch::AutoGradMode on(true);
        each_tensor(args, [&](at::Tensor &t) {
            bool wanted = differentiable(t);
            t = t.detach();
            if (wanted)
                inputs.push_back(t.set_requires_grad(true));
        });
        auto out = std::apply(forward, args);
        size_t i = 0;
        each_tensor(out, [&](at::Tensor &t) {
            if (t.is_floating_point() && grads.at(i++).defined() && differentiable(t)) {
                outputs.push_back(t);
                given.push_back(grads[i - 1]);
            }
        });
    }
    if (!outputs.empty())
        torch::autograd::backward(outputs, given);
    for (const at::Tensor &t : inputs)
        found.push_back(t.grad());
    return found;
}

template <class F, class R, class... Args>
void run_again(State &s, const std::shared_ptr<Call> &call, const F &forward, const std::tuple<Args...> &args, R &out,
               const at::Generator &generator, const at::Tensor &drawn) {
    auto again = make_node<Again>(s, call);
    std::tuple<Args...> kept = args;
    each_tensor(kept, [&](at::Tensor &t) {
        if (differentiable(t))
            again->add_next_edge(torch::autograd::impl::gradient_edge(t));
    });
    State *state = &s; /* the node keeps it */
    again->run = [state, call, forward, kept, generator, drawn](torch::autograd::variable_list &&grads) {
        return go_back_again(*state, *call->block, forward, kept, grads, generator, drawn);
    };
    s.outstanding++, s.made++;
    each_tensor(out, [&](at::Tensor &t) {
        if (t.is_floating_point())
            leads_to(t, again);
    });
}

} // namespace tessera::detail
#endif
