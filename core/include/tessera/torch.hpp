/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera/torch.hpp: LibTorch programs, sharded. C++17, header only; docs/from-libtorch.md is the guide.
 *
 *  - A block is a module that is entered by tessera::forward. Its parameters are whole while its forward runs, and
 * again while its backward does: their storage points into the engine's memory, and gradients add up in place there.
 *  - At any other time an operator on a parameter throws. Memory that was kept by other means reads as NaN.
 *  - Errors are tessera::Error. As in tessera.h the first one stays, and ranks hear of each other's.
 *
 * Its parts are in tessera/torch; a program includes this header. */
#ifndef TESSERA_TORCH_HPP
#define TESSERA_TORCH_HPP
#include <tessera/torch/declare.hpp>
#include <tessera/torch/forward.hpp>
#include <tessera/torch/meta.hpp>
#include <tessera/torch/step.hpp>

namespace tessera {

/** A model over all ranks, and its optimizer. [C] unless said. It has the names of torch::optim::Optimizer, so that a
 * loop keeps its lines. The model lives longer. */
class Sharded {
  public:
    /** Takes the values of the model's parameters, which are the same on every rank, and their memory. */
    template <class M>
    explicit Sharded(M &model, const Options &options = Options())
        : state_(std::make_shared<detail::State>()), exceptions_(std::uncaught_exceptions()) {
        state_->open(detail::module_of(model), options);
        std::lock_guard<std::mutex> guard(detail::names_lock());
        for (const auto &m : state_->modules) {
            auto block = state_->block_of.find(m.first);
            detail::sharded_modules()[m.first] = { state_.get(), block == state_->block_of.end()
                                                                     ? nullptr
                                                                     : &state_->blocks[block->second] };
        }
    }
    Sharded(const Sharded &) = delete;
    Sharded &operator=(const Sharded &) = delete;
    ~Sharded() {
        {
            std::lock_guard<std::mutex> guard(detail::names_lock());
            for (const auto &m : state_->modules)
                detail::sharded_modules().erase(m.first);
        }
        if (std::uncaught_exceptions() > exceptions_)
            state_->give_up("an exception of the program's ends training");
        state_->close();
    }

    template <class M, class... Args>
    auto forward(M &&block, Args &&...inputs) {
        return tessera::forward(std::forward<M>(block), std::forward<Args>(inputs)...);
    }
    /** The loss that backward starts from: scale(loss).backward(). With TESSERA_PRECISION=fp16 it is multiplied as by
     * PyTorch's GradScaler, whose unscale_ and update are in step and clip_grad_norm_; else it is the loss. Local. */
    torch::Tensor scale(const torch::Tensor &loss) { return state_->scale(loss); }
    /** The factor now; 1 where losses are not scaled. Local. */
    double loss_scale() const { return static_cast<double>(tess_loss_scale(state_->engine)); }
    /** One step of the optimizer on the averaged gradients. A step whose gradients overflow fp16 changes nothing. */
    void step() { state_->step(); }
    /** Drops gradients that no step has used; after a step there are none. */
    void zero_grad() { state_->zero_grad(); }
    /** The norm of the averaged gradients; the next step clips to `most`. */
    double clip_grad_norm_(double most) { return state_->clip_to(most); }
    /** The rate of the steps to come. Local. */
    void lr(double rate) { state_->options.lr_ = rate, state_->rates.clear(); }
    /** A rate for each group: first for parameters in none, then for options.groups() in order, whose lr_scale is not
     * read then. Local. */
    void lr(const std::vector<double> &rates) { state_->set_rates(rates); }
    int32_t rank() const { return state_->info.rank; }
    int32_t ranks() const { return state_->info.ranks; }
    /** Passes per step, and the global number of this rank's microbatch k: tess_microbatch. Local. */
    int32_t accumulate() const { return tess_accum(state_->engine); }
    uint64_t microbatch(uint64_t k) const { return tess_microbatch(state_->engine, k); }
    /** The mean over all ranks. */
    double mean(double mine) {
        detail::ok(tess_all_reduce(state_->engine, &mine, 1, TESS_F64, TESS_AVG));
        return mine;
    }
    /** Calls look() while all parameters are whole, to be read: torch::save(model, …) on rank 0 say. */
    template <class F>
    void summon(F &&look) {
        state_->summon(nullptr, std::forward<F>(look));
    }
    /** The same of one block, whose memory alone is taken. */
    template <class M, class F>
    void summon(M &block, F &&look) {
        const torch::nn::Module *m = &detail::module_of(block);
        if (!state_->block_of.count(m))
            throw Error(TESS_E_INVALID, "Sharded::summon: the module is no block of this model");
        state_->summon(m, std::forward<F>(look));
    }
    /** Buffers of floating point become the mean over all ranks. Until then each rank has its own. */
    void sync_buffers() { state_->sync_buffers(); }
    /** tess_checkpoint_save. `tessera ckpt export` makes safetensors of it, with the model's names. */
    void save(const std::string &dir, uint64_t keep = 0) {
        tess_checkpoint_options o = {};
        o.struct_size = sizeof o;
        o.dir = dir.c_str();
        o.keep = keep;
        detail::ok(tess_checkpoint_save(state_->engine, &o));
        state_->pass = 0;
    }
    /** tess_checkpoint_load of the newest in `path`: the number of steps done. Without one, nothing and 0. Or of a file
     * *.safetensors with the names of Python's state_dict, which gives parameters and buffers: 0. */
    uint64_t load(const std::string &path) {
        tess_checkpoint_info info = {};
        info.struct_size = sizeof info;
        tess_checkpoint_load_options o = {};
        o.struct_size = sizeof o;
        o.flags = TESS_CHECKPOINT_IF_ANY;
        o.path = path.c_str();
        std::vector<const char *> others = state_->names_besides();
        o.others = others.data();
        detail::ok(tess_checkpoint_load(state_->engine, &o, &info));
        state_->unloaded = state_->unloaded && info.ranks == 0;
        return info.step;
    }
    /** Since the model was sharded, or since the call before this one. Local. */
    Allocated torch_bytes() {
        if (state_->device.is_cuda())
            return state_->gpu.look(1);
        Allocated a = detail::Counting::get().now();
        detail::Counting::get().reset();
        return a;
    }
    /** For the rest of tessera.h and inspect.h. */
    tess *engine() const { return state_->engine; }

  private:
    std::shared_ptr<detail::State> state_;
    int exceptions_;
};

} // namespace tessera
#endif
