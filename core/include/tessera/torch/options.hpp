/* SPDX-License-Identifier: BSD-3-Clause */
/* How a model is to be sharded, and the exception of this header. */
#ifndef TESSERA_TORCH_OPTIONS_HPP
#define TESSERA_TORCH_OPTIONS_HPP
#include <tessera/inspect.h>

#include <torch/torch.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace tessera {

class Error : public std::runtime_error {
  public:
    Error(tess_status status, const std::string &what) : std::runtime_error(what), status_(status) {}
    tess_status status() const { return status_; }
    int exit_code() const { return tess_exit_code(status_); }

  private:
    tess_status status_;
};

/** Parameters with numbers of their own, by patterns of their names in which * stands for any text. */
struct Group {
    std::vector<std::string> names;
    double weight_decay = 0, lr_scale = 1;
};

/** A block that reads a parameter of another one, by name: { "head", "wte.weight" }. */
struct Shared {
    std::string block, parameter;
};

/** Writes the values of a parameter or buffer into a tensor of its shape. Called for one at a time. */
using Values = std::function<void(const std::string &name, at::Tensor values)>;

struct Options {
    Options(const torch::optim::AdamWOptions &o = {}) : optimizer_("adamw") { adam(o); }
    Options(const torch::optim::AdamOptions &o) : optimizer_("adam") { adam(o); }
    Options(const torch::optim::SGDOptions &o) : optimizer_("sgd") {
        if (o.nesterov() || o.dampening() != 0)
            throw Error(TESS_E_UNSUPPORTED, "tessera::Options: SGD with nesterov or dampening is not there");
        lr_ = o.lr(), momentum_ = o.momentum(), weight_decay_ = o.weight_decay();
    }
    /** Patterns of module names in forward order; * stands for one part of a name, and "" for the model. Without any:
     * the children of the model, and in place of a list or a Sequential the modules in it. Parameters in no block
     * belong to the model's own forward, which is then entered as a block too. */
    TORCH_ARG(std::vector<std::string>, blocks);
    /** Of these blocks only the inputs are kept: forward runs again for backward. */
    TORCH_ARG(std::vector<std::string>, recompute);
    TORCH_ARG(std::vector<Shared>, shared);
    TORCH_ARG(std::vector<Group>, groups);
    /** Passes per step and rank; their gradients are averaged, so the loss is not divided. */
    TORCH_ARG(int32_t, accumulate) = 1;
    /** Parameters may go without a gradient, which is then zero. */
    TORCH_ARG(bool, unused) = false;
    /** Values of a model that on_meta has made. Called on the ranks that own a part of a parameter, in the model's
     * order. */
    TORCH_ARG(Values, values);
    /** All else that tess_open takes. */
    TORCH_ARG(tess_options, engine) = {};

  public:
    const char *optimizer_;
    double lr_ = 0, momentum_ = 0, weight_decay_ = 0, beta1_ = 0, beta2_ = 0, eps_ = 0;

  private:
    template <class O>
    void adam(const O &o) {
        if (o.amsgrad())
            throw Error(TESS_E_UNSUPPORTED, "tessera::Options: amsgrad is not there");
        lr_ = o.lr(), weight_decay_ = o.weight_decay(), eps_ = o.eps();
        beta1_ = std::get<0>(o.betas()), beta2_ = std::get<1>(o.betas());
    }
};

} // namespace tessera
#endif
