/* SPDX-License-Identifier: BSD-3-Clause */
/* Between passes: the optimizer, buffers. */
#ifndef TESSERA_TORCH_STEP_HPP
#define TESSERA_TORCH_STEP_HPP
#include <tessera/torch/state.hpp>

namespace tessera::detail {

inline tess_optimizer_options State::step_options(std::vector<tess_optimizer_group> &all,
                                                  std::vector<float> &lrs) const {
    tess_optimizer_options o = {};
    o.struct_size = sizeof o;
    o.lr = static_cast<float>(options.lr_), o.momentum = static_cast<float>(options.momentum_);
    o.beta1 = static_cast<float>(options.beta1_), o.beta2 = static_cast<float>(options.beta2_);
    o.eps = static_cast<float>(options.eps_), o.clip_norm = static_cast<float>(clip);
    all.push_back({ static_cast<float>(options.weight_decay_), 1 });
    for (const Group &g : options.groups())
        all.push_back({ static_cast<float>(g.weight_decay), static_cast<float>(g.lr_scale) });
    o.groups = all.data(), o.n_groups = static_cast<int32_t>(all.size());
    for (double rate : rates)
        lrs.push_back(static_cast<float>(rate));
    o.group_lr = lrs.empty() ? nullptr : lrs.data();
    return o;
}
inline void State::set_rates(const std::vector<double> &all) {
    if (all.size() != options.groups().size() + 1)
        throw Error(TESS_E_INVALID, "Sharded::lr: " + std::to_string(all.size()) + " rates, expected " +
                                        std::to_string(options.groups().size() + 1) +
                                        ": of the parameters in no group, and of each group");
    rates = all;
}
inline void State::step() {
    Entry entry(*this, "Sharded::step");
    if (trained == 0)
        fail("Sharded::step without a backward since the step before: was forward run under NoGradGuard, or with "
             "model->eval()?");
    std::vector<tess_optimizer_group> all;
    std::vector<float> lrs;
    tess_optimizer_options o = step_options(all, lrs);
    if (own())
        ok(tess_update(engine, own_update, this));
    else
        ok(tess_step(engine, &o));
    trained = 0, clip = 0, own_scale = 1, pass = 0;
}
inline void State::zero_grad() {
    Entry entry(*this, "Sharded::zero_grad");
    if (trained > 0)
        ok(tess_grad_drop(engine));
    trained = 0, clip = 0, own_scale = 1, pass = 0;
}
inline double State::clip_to(double most) {
    Entry entry(*this, "Sharded::clip_grad_norm_");
    clip = most, pass = 0;
    if (own() && info.ranks == 1 && !info.deterministic && tess_loss_scale(engine) == 1)
        return norm_alone(most);
    float norm = 0;
    ok(tess_grad_norm(engine, &norm));
    own_scale = std::min(1.0, most / (static_cast<double>(norm) + 1e-6));
    return static_cast<double>(norm);
}
inline void State::sync_buffers() {
    Entry entry(*this, "Sharded::sync_buffers");
    for (Parameter &p : params) {
        if (!p.buffer || p.mirrored)
            continue;
        at::Tensor host = p.tensor().detach().to(c10::kCPU).contiguous();
        ok(tess_all_reduce(engine, host.data_ptr(), static_cast<uint64_t>(host.numel()), p.dtype, TESS_AVG));
        p.tensor().detach().copy_(host);
    }
}

/* LibTorch's own arithmetic, operator by operator, on what this rank owns: TESSERA_OPTIMIZER=own. */
inline tess_status State::own_gradient(void *user, const tess_range *r, void *data) {
    auto *s = static_cast<State *>(user);
    auto first = static_cast<int64_t>(r->first_elem), n = static_cast<int64_t>(r->elems);
    Parameter &p = s->params[static_cast<size_t>(r->tag)];
    at::Tensor part = at::from_blob(data, { n }, p.declared == TESS_F64 ? at::kDouble : at::kFloat);
    if (first == 0)
        p.start = at::empty(p.tensor().sizes(), part.options());
    p.start.view(-1).narrow(0, first, n).copy_(part);
    if (first + n == p.start.numel()) {
        s->norms.push_back(p.start.norm(2.0));
        p.start.reset();
    }
    return TESS_OK;
}
/* clip_grad_norm_ of LibTorch, in its order and in fp32: on one rank, where all gradients are whole. */
inline double State::norm_alone(double most) {
    torch::NoGradGuard no_grad;
    norms.clear();
    ok(tess_each_owned(engine, TESS_OF_GRAD, own_gradient, this));
    at::Tensor norm = norms.size() == 1 ? norms[0] : at::stack(norms).norm(2.0);
    own_scale = at::clamp(most / (norm + 1e-6), c10::nullopt, 1.0).item<double>();
    return norm.item<double>();
}
inline tess_status State::own_update(void *user, const tess_range *r, void *param, const float *grad,
                                     float *const *state) {
    try {
        static_cast<State *>(user)->update(*r, param, const_cast<float *>(grad), state);
        return TESS_OK;
    } catch (const std::exception &e) {
        return tess_fail(TESS_E_INVALID, "optimizer of parameter \"%s\": %s", r->name, e.what());
    }
}
inline void State::update(const tess_range &r, void *param, float *grad, float *const *state) {
    torch::NoGradGuard no_grad;
    const Parameter &mine = params[static_cast<size_t>(r.tag)];
    if (mine.declared == TESS_F64)
        throw Error(TESS_E_UNSUPPORTED, "double is not there with optimizer own");
    double lr = rates.empty() ? options.lr_ : rates[0], decay = options.weight_decay_;
    for (size_t i = 0; i < options.groups().size(); i++) {
        const Group &group = options.groups()[i];
        for (const std::string &pattern : group.names)
            if (fnmatch(pattern.c_str(), r.name, 0) == 0) {
                lr = rates.empty() ? options.lr_ * group.lr_scale : rates[i + 1];
                decay = group.weight_decay;
            }
    }
    auto range = [&](void *at) { return at::from_blob(at, { static_cast<int64_t>(r.elems) }, at::kFloat); };
    at::Tensor p = range(param), g = range(grad);
    if (own_scale != 1)
        g = g.mul(own_scale);
    uint64_t step = tess_steps_done(engine) + 1;
    if (options.beta1_ > 0)
        adam(p, g, range(state[0]), range(state[1]), lr, decay, static_cast<double>(step));
    else
        sgd(p, g, options.momentum_ != 0 ? range(state[0]) : at::Tensor(), lr, decay);
}
inline void State::sgd(at::Tensor &p, at::Tensor g, at::Tensor buffer, double lr, double decay) const {
    if (decay != 0)
        g = g.add(p, decay);
    if (buffer.defined())
        g = buffer.mul_(options.momentum_).add_(g);
    p.add_(g, -1 * lr);
}
inline void State::adam(at::Tensor &p, at::Tensor g, at::Tensor m, at::Tensor v, double lr, double decay,
                        double step) const {
    bool apart = std::string(options.optimizer_) == "adamw";
    if (decay != 0 && apart)
        p.mul_(1 - lr * decay);
    else if (decay != 0)
        g = g.add(p, decay);
    double left1 = 1 - std::pow(options.beta1_, step), left2 = 1 - std::pow(options.beta2_, step);
    m.mul_(options.beta1_).add_(g, 1 - options.beta1_);
    v.mul_(options.beta2_).addcmul_(g, g, 1 - options.beta2_);
    at::Tensor below = (v.sqrt() / std::sqrt(left2)).add_(options.eps_);
    p.addcdiv_(m, below, -(lr / left1));
}

} // namespace tessera::detail
#endif
