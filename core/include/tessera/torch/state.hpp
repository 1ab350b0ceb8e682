/* SPDX-License-Identifier: BSD-3-Clause */
/* A sharded model: its parameters and blocks, the pass that runs, and the engine behind them. */
#ifndef TESSERA_TORCH_STATE_HPP
#define TESSERA_TORCH_STATE_HPP
#include <tessera/gpu.h>
#include <tessera/torch/gpu.hpp>
#include <tessera/torch/parameter.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <fnmatch.h>
#include <functional>
#include <optional>
#include <thread>

namespace tessera::detail {

struct Block {
    std::string name;
    torch::nn::Module *module = nullptr;
    tess_scope scope = -1;
    std::vector<size_t> params; /* in the order of the engine's pointers */
    bool recomputes = false;
    std::optional<at::ScalarType> computes; /* in place of the declared dtype */
};

/* One forward of a block in a training pass, and the backward that belongs to it. */
struct Call {
    Block *block;
    uint64_t pass;
    bool begun = false;
    std::shared_ptr<bool> retained = std::make_shared<bool>(false); /* the graph stays after its backward */
};

struct State : std::enable_shared_from_this<State> {
    tess *engine = nullptr;
    Options options;
    std::vector<double> rates; // of groups, the first of parameters in none; empty: the options' rate and lr_scale
    torch::nn::Module *model = nullptr;
    std::string broken; /* why nothing can go on, when that is not the engine's error */
    std::vector<Parameter> params;
    std::vector<Block> blocks;
    std::unordered_map<const torch::nn::Module *, size_t> block_of;
    std::vector<std::pair<const torch::nn::Module *, std::vector<const c10::TensorImpl *>>> declared;
    std::unordered_map<const torch::nn::Module *, std::string> modules;
    tess_info info = {};
    at::Device device{ at::kCPU };
    at::Tensor token; /* the gradient that stands for none */
    OnGpu gpu;

    std::atomic<bool> busy{ false };
    uint32_t pass = 0; /* TESS_PASS_… or 0 */
    uint64_t pass_number = 0;
    const Block *first = nullptr;      /* of this pass */
    int64_t outstanding = 0, made = 0; /* forwards of this pass whose backward has not begun, and all that have one */
    bool went_back = false;
    bool scaled = false;         /* a loss of this pass, by Sharded::scale */
    std::weak_ptr<char> running; /* lives as long as autograd's backward, also one that throws */
    int32_t inside = 0;          /* nested forwards */
    uint64_t trained = 0;        /* passes with backward since the last step */
    std::thread::id thread;
    std::shared_ptr<bool> retained; /* of the last block that went back */
    std::vector<Block *> back;      /* whose backward has begun and not ended */
    double clip = 0, own_scale = 1;
    std::vector<at::Tensor> norms;                          /* of gradients, while they are looked at */
    bool counts = false;                                    /* the engine books what LibTorch holds */
    bool unloaded = false;                                  /* some values are zeros until a load */
    std::vector<std::pair<std::string, at::Tensor>> tables; /* buffers that the engine does not have */
    std::vector<std::string> second_names;                  /* of parameters that have two within one block */
    size_t filled = 0;                                      /* the parameter whose values are made */

    ~State() {
        for (Parameter &p : params)
            p.forget();
        close();
    }

    void give_up(const std::string &what) {
        if (!broken.empty() || !engine)
            return;
        broken = what;
        tess_fail(TESS_E_INVALID, "%s", what.c_str());
        tess_give_up(engine, TESS_E_INVALID);
    }
    [[noreturn]] void fail(const std::string &what) {
        give_up(what);
        throw Error(TESS_E_INVALID, broken);
    }
    void alive() {
        if (!broken.empty())
            throw Error(TESS_E_INVALID, broken);
    }

    /* Two threads in the engine at once are told, and do not reach it. */
    struct Entry {
        State &s;
        explicit Entry(State &state, const std::string &what) : s(state) {
            if (s.busy.exchange(true))
                throw Error(TESS_E_INVALID, what + " is entered by a second thread at the same time; one thread at a "
                                                   "time may use a tessera::Sharded");
            try {
                s.alive();
            } catch (...) {
                s.busy = false;
                throw;
            }
        }
        ~Entry() { s.busy = false; }
    };

    /* ---- declare.hpp ---- */

    void open(torch::nn::Module &m, const Options &o);
    void find_device(tess_options &t);
    void check_device();
    void count_memory();
    static bool matches(const std::string &pattern, const std::string &name);
    static bool any_matches(const std::vector<std::string> &patterns, const std::string &name);
    static bool is_list(const torch::nn::Module &m);
    void add_block(const std::string &name, torch::nn::Module &m);
    void children(const std::string &prefix, torch::nn::Module &m);
    void find_blocks();
    Block *holder_of(const std::string &name);
    void find_parameters();
    void add_parameter(const std::string &name, const at::Tensor &t, bool buffer,
                       std::vector<std::pair<std::string, std::string>> &ties);
    bool computes_in(tess_param_options o) const;
    void declare(Parameter &p);
    void add_tie(const std::string &alias, const std::string &of);
    std::vector<const char *> names_besides() const;
    static std::vector<const c10::TensorImpl *> tensors_of(const torch::nn::Module &m);
    void remember_modules();
    void check_modules();
    void find_values(const std::string &name, at::Tensor values);
    void make_buffers();
    static tess_status fill(void *user, const tess_range *r, void *data);
    void copy_range(const tess_range &r, void *data);
    void shard();

    /* ---- pass.hpp ---- */

    void hold(Block &b, bool backward);
    void let_go(Block &b, bool backward, bool engine_too = true);
    void begin_pass(const Block &b);
    at::Tensor scale(const at::Tensor &loss);
    void check_output(const Block &b, const at::Tensor &t);
    void end_forward(Block &b);
    void abandon(Block &b, const std::string &what);
    static std::string text_of(const std::exception_ptr &e);
    void begin_backward(Call &call);
    void end_backward(Block &b);
    void end_of_backward();
    void check_backward();

    /* ---- step.hpp ---- */

    void set_rates(const std::vector<double> &all);
    tess_optimizer_options step_options(std::vector<tess_optimizer_group> &all, std::vector<float> &lrs) const;
    void step();
    void zero_grad();
    double clip_to(double most);
    bool own() const { return std::string(info.optimizer) == "own"; }
    double norm_alone(double most);
    static tess_status own_gradient(void *user, const tess_range *r, void *data);
    void sync_buffers();
    static tess_status own_update(void *user, const tess_range *r, void *param, const float *grad, float *const *state);
    void update(const tess_range &r, void *param, float *grad, float *const *state);
    void sgd(at::Tensor &p, at::Tensor g, at::Tensor buffer, double lr, double decay) const;
    void adam(at::Tensor &p, at::Tensor g, at::Tensor m, at::Tensor v, double lr, double decay, double step) const;

    /* ---- summon ---- */

    /* Null: all blocks. */
    template <class F>
    void summon(const torch::nn::Module *only, F &&look) {
        Entry entry(*this, "Sharded::summon");
        for (Block &b : blocks)
            if (!b.params.empty() && (!only || b.module == only)) {
                std::vector<void *> at(b.params.size());
                ok(tess_summon_begin(engine, b.scope, at.data(), static_cast<int32_t>(at.size())));
                for (size_t i = 0; i < at.size(); i++)
                    params[b.params[i]].begin(at[i]);
            }
        pass = 0;
        try {
            look();
        } catch (...) {
            dismiss(only);
            throw;
        }
        dismiss(only);
    }
    void dismiss(const torch::nn::Module *only) {
        for (Block &b : blocks) {
            if (only && b.module != only)
                continue;
            bool changed = false;
            for (size_t i : b.params)
                changed = params[i].end() || changed;
            if (changed)
                fail("parameters of block \"" + b.name +
                     "\" were changed in Sharded::summon, where they are read-only");
            if (!b.params.empty())
                ok(tess_summon_end(engine, b.scope));
        }
    }
    void close() {
        if (engine)
            tess_close(engine);
        if (counts)
            Counting::asked() = false;
        counts = false;
        engine = nullptr;
        if (broken.empty())
            broken = "tessera::Sharded of this model is gone";
    }
};

inline std::unordered_map<const torch::nn::Module *, std::pair<State *, Block *>> &sharded_modules() {
    static std::unordered_map<const torch::nn::Module *, std::pair<State *, Block *>> of;
    return of;
}

} // namespace tessera::detail
#endif
