/* SPDX-License-Identifier: BSD-3-Clause */
/* Forward and backward of blocks: their begins and ends, and what is refused in between. */
#ifndef TESSERA_TORCH_PASS_HPP
#define TESSERA_TORCH_PASS_HPP
#include <tessera/torch/state.hpp>

#include <torch/csrc/autograd/engine.h>

namespace tessera::detail {

inline void State::hold(Block &b, bool backward) {
    size_t n = b.params.size();
    std::vector<void *> at(n + 1), grad(n + 1);
    if (n == 0)
        return;
    if (device.is_cuda() && stream_of(device) != tess_stream_get(engine))
        fail("block \"" + b.name + "\" is entered on another stream than tessera::Sharded was made on");
    ok(backward ? tess_backward_begin(engine, b.scope, at.data(), grad.data(), static_cast<int32_t>(n))
                : tess_forward_begin(engine, b.scope, at.data(), static_cast<int32_t>(n)));
    for (size_t i = 0; i < n; i++) {
        params[b.params[i]].begin(at[i]);
        params[b.params[i]].begin_grad(grad[i]);
    }
}
inline void State::let_go(Block &b, bool backward, bool engine_too) {
    const Parameter *changed = nullptr;
    for (size_t i : b.params) {
        if (backward)
            params[i].end_grad();
        if (params[i].end())
            changed = &params[i];
    }
    if (changed && engine_too)
        fail("parameter \"" + changed->name + "\" was changed in place within block \"" + b.name +
             "\": parameters are read-only there, and the optimizer alone changes them");
    if (engine_too && !b.params.empty())
        ok(backward ? tess_backward_end(engine, b.scope) : tess_forward_end(engine, b.scope));
}

/* ---- forward ---- */
inline void State::begin_pass(const Block &b) {
    bool grad = torch::GradMode::is_enabled() && model->is_training();
    if (!back.empty() && running.expired())
        fail("the backward before block \"" + b.name + "\" did not come to its end");
    if (!running.expired() || inside > 0)
        return; /* a recomputation, or a block within a block */
    bool waiting = pass == TESS_PASS_TRAIN && !went_back && !(&b == first && outstanding == 0 && made > 0);
    if (waiting && std::this_thread::get_id() != thread)
        fail("block \"" + b.name +
             "\" is entered on another thread than the blocks before it: a pass stays on one "
             "thread");
    if (waiting && outstanding > 0 && !torch::GradMode::is_enabled())
        fail("block \"" + b.name +
             "\" is entered under NoGradGuard in a training pass: freeze parameters by requires_grad_(false) before "
             "tessera::Sharded, and evaluate between backward and the next forward");
    if ((grad && waiting) || (!grad && pass == TESS_PASS_EVAL && &b != first))
        return;
    if (unloaded)
        fail("the model was made on the meta device and has no values yet: tessera::Options().values or Sharded::load "
             "gives them");
    check_modules();
    ok(tess_pass(engine, pass = grad ? TESS_PASS_TRAIN : TESS_PASS_EVAL));
    pass_number++;
    first = &b;
    outstanding = made = 0;
    went_back = scaled = false;
    thread = std::this_thread::get_id();
    for (Parameter &p : params)
        p.got_grad = false;
}
inline void State::check_output(const Block &b, const at::Tensor &t) {
    for (size_t i : b.params)
        if (!params[i].buffer && t.has_storage() && t.storage().is_alias_of(params[i].tensor().storage()))
            fail("block \"" + b.name + "\" returns parameter \"" + params[i].name +
                 "\" or a view of it, which is kept past the block and would be read when its memory is gone; "
                 "return a clone()");
}
inline void State::end_forward(Block &b) {
    inside--;
    let_go(b, false);
}
/* An exception of the program's within a block: this rank cannot go on, and the others hear why. */
inline void State::abandon(Block &b, const std::string &what) {
    inside--;
    let_go(b, false, false);
    give_up("forward of block \"" + b.name + "\" ended by an exception: " + what);
}
inline std::string State::text_of(const std::exception_ptr &e) {
    try {
        std::rethrow_exception(e);
    } catch (const c10::Error &x) {
        return x.what_without_backtrace();
    } catch (const std::exception &x) {
        return x.what();
    } catch (...) {
        return "not a std::exception";
    }
}

/* ---- backward ---- */
/* The loss with the factor that keeps small gradients in 16 bits. Without one it is the loss itself. */
inline at::Tensor State::scale(const at::Tensor &loss) {
    Entry entry(*this, "Sharded::scale");
    float by = tess_loss_scale(engine);
    scaled = true;
    return by == 1 ? loss : loss * by;
}
inline void State::begin_backward(Call &call) {
    Entry entry(*this, "backward of block \"" + call.block->name + "\"");
    const std::string name = "block \"" + call.block->name + "\"";
    if (torch::GradMode::is_enabled())
        fail("backward of " + name + " with create_graph: gradients of gradients are not there");
    if (call.begun)
        fail("backward of " + name +
             " runs twice for one forward (retain_graph): its gradients have been reduced; add "
             "the losses up and call backward once");
    if (call.pass != pass_number)
        fail("backward of " + name +
             " belongs to a pass that has ended: call backward before the next forward or step");
    if (!scaled && tess_loss_scale(engine) != 1)
        fail("backward of " + name + " with a loss that is not scaled, under TESSERA_PRECISION=" + info.precision +
             ": Sharded::scale(loss).backward()");
    call.begun = true;
    outstanding--;
    *(retained = call.retained) = true; /* until autograd releases what it has saved */
    if (running.expired()) {
        auto token = std::make_shared<char>();
        std::weak_ptr<State> self = weak_from_this();
        running = token;
        torch::autograd::Engine::get_default_engine().queue_callback([self, token] {
            if (auto s = self.lock())
                s->end_of_backward();
        });
    }
    hold(*call.block, true);
    back.push_back(call.block);
}
inline void State::end_backward(Block &b) {
    Entry entry(*this, "backward of block \"" + b.name + "\"");
    back.erase(std::find(back.begin(), back.end(), &b));
    let_go(b, true);
}
inline void State::end_of_backward() {
    Entry entry(*this, "the end of backward");
    running.reset();
    if (!went_back)
        trained++;
    went_back = true;
    if (!back.empty())
        fail("backward of block \"" + back.back()->name +
             "\" did not reach its inputs: torch::autograd::grad of some "
             "tensors alone is not there");
    if (outstanding == 0)
        check_backward();
}
inline void State::check_backward() {
    for (const Parameter &p : params) {
        if (p.trains && !p.got_grad && !options.unused())
            fail("parameter \"" + p.name +
                 "\" got no gradient in this pass: freeze it by requires_grad_(false), or set "
                 "tessera::Options().unused(true), which takes it as zero");
        if (!p.buffer && !*retained && p.tensor().storage().use_count() > p.resting_uses)
            fail("parameter \"" + p.name +
                 "\" is kept past its block: a view of it, or a graph that backward has not taken, is "
                 "alive, and would be read when its memory is gone; keep a clone()");
    }
}

} // namespace tessera::detail
#endif
