/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera/torch.hpp: LibTorch programs, sharded. C++17, header only; docs/from-libtorch.md is the guide.
 *
 *  - A block is a module that is entered by tessera::forward. Its parameters are whole while its forward runs, and
 * again while its backward does: their storage points into the engine's memory, and gradients add up in place there.
 *  - At any other time an operator on a parameter throws. Memory that was kept by other means reads as NaN.
 *  - Errors are tessera::Error. As in tessera.h the first one stays, and ranks hear of each other's. */
#ifndef TESSERA_TORCH_HPP
#define TESSERA_TORCH_HPP
#include <tessera/inspect.h>

#include <torch/torch.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fnmatch.h>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <unordered_map>
#include <utility>
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

/** What LibTorch has allocated on the CPU: activations, workspaces, the program's own tensors. It is in no plan. */
struct Allocated {
    uint64_t bytes, peak;
};

/* ---- LibTorch's own memory ------------------------------------------------------------------------ */
namespace detail {
/* The size stands before the memory, whose alignment is torch's, so that the deleter needs the pointer alone. */
class Counting : public c10::Allocator {
  public:
    static Counting &get() {
        static Counting *allocator = new Counting; /* memory is given back until the very end of the process */
        return *allocator;
    }
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
    at::DataPtr allocate(size_t n) override {
        return make(n);
    }
    void copy_data(void *to, const void *from, std::size_t n) const override {
        default_copy_data(to, from, n);
    }
#else
    at::DataPtr allocate(size_t n) const override {
        return make(n);
    }
#endif
    at::DeleterFnPtr raw_deleter() const override {
        return &release;
    }
    Allocated now() const {
        return { live(), peak() };
    }
    void reset() {
        peak() = live().load();
    }

  private:
    static constexpr size_t head = 64;
    static std::atomic<uint64_t> &live() {
        static std::atomic<uint64_t> bytes{ 0 };
        return bytes;
    }
    static std::atomic<uint64_t> &peak() {
        static std::atomic<uint64_t> bytes{ 0 };
        return bytes;
    }
    static at::DataPtr make(size_t n) {
        if (n == 0)
            return { nullptr, nullptr, &release, at::Device(at::kCPU) };
        char *at = static_cast<char *>(c10::alloc_cpu(n + head));
        memcpy(at, &n, sizeof n);
        uint64_t most = peak(), bytes = live() += n;
        while (bytes > most && !peak().compare_exchange_weak(most, bytes)) {
        }
        return { at + head, at + head, &release, at::Device(at::kCPU) };
    }
    static void release(void *memory) {
        if (!memory)
            return;
        char *at = static_cast<char *>(memory) - head;
        size_t n;
        memcpy(&n, at, sizeof n);
        live() -= n;
        c10::free_cpu(at);
    }
};
} // namespace detail

/* ---- a parameter's memory ----------------------------------------------------------------------- */
namespace detail {

inline void ok(tess_status status) {
    if (status < 0)
        throw Error(status, tess_last_error());
}

/* What a closed parameter's storage points to: NaN in every float format, and only to be read. One page file is mapped
 * again and again, so that it takes no memory. */
inline void *closed_memory(size_t bytes) {
    constexpr size_t chunk = size_t{ 2 } << 20;
    static void *at = nullptr;
    static size_t room = 0;
    if (bytes <= room)
        return at;
    size_t size = (bytes + chunk - 1) / chunk * chunk;
    int file = memfd_create("tessera-closed", MFD_CLOEXEC);
    char *fresh =
        static_cast<char *>(mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    bool made = file >= 0 && fresh != MAP_FAILED && ftruncate(file, chunk) == 0;
    for (size_t i = 0; made && i < size; i += chunk)
        made = mmap(fresh + i, chunk, i ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) !=
               MAP_FAILED;
    if (file >= 0)
        close(file);
    if (!made)
        throw Error(TESS_E_SYSTEM, "tessera::Sharded: no addresses for parameters that are not in use");
    memset(fresh, 0xff, chunk);
    mprotect(fresh, chunk, PROT_READ);
    room = size;
    return at = fresh; /* one that was smaller stays, since storages may point to it */
}

inline void point(const at::Tensor &t, void *memory) {
    void *to = memory || t.device().type() != c10::kCPU ? memory : closed_memory(t.nbytes());
    t.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(to, t.device()));
}

/* A closed parameter has the dispatch key of no backend here, where one fallback refuses every operator. */
struct Keys : c10::TensorImpl {
    static c10::DispatchKeySet &of(const at::Tensor &t) { return t.unsafeGetTensorImpl()->*(&Keys::key_set_); }
};

inline std::mutex &names_lock() {
    static std::mutex lock;
    return lock;
}
inline std::unordered_map<const c10::TensorImpl *, std::string> &names() {
    static std::unordered_map<const c10::TensorImpl *, std::string> of;
    return of;
}

inline void refuse(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    std::lock_guard<std::mutex> guard(names_lock());
    std::string name;
    auto look = [&](const at::Tensor &t) {
        auto found = t.defined() ? names().find(t.unsafeGetTensorImpl()) : names().end();
        if (name.empty() && found != names().end() && t.key_set().has_backend(c10::BackendComponent::PrivateUse1Bit))
            name = found->second;
    };
    for (const c10::IValue &v : *stack) {
        if (v.isTensor())
            look(v.toTensor());
        if (v.isTensorList())
            for (const at::Tensor &t : v.toTensorVector())
                look(t);
    }
    throw Error(TESS_E_INVALID, (name.empty() ? "a detached parameter" : "parameter \"" + name + "\"") +
                                    " is used by " + op.schema().name() +
                                    " outside its block: it is there from the beginning to the end of tessera::forward "
                                    "of a block that holds it, in its backward, and in Sharded::summon");
}

inline void refuse_closed() {
    static torch::Library library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    static bool once = (library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>()), true);
    (void)once;
}

inline uint32_t dtype_of(const at::Tensor &t, const std::string &name) {
    switch (t.scalar_type()) {
    case at::kFloat: return TESS_F32;
    case at::kDouble: return TESS_F64;
    case at::kBFloat16: return TESS_BF16;
    case at::kHalf: return TESS_F16;
    default:
        throw Error(TESS_E_UNSUPPORTED, "tessera::Sharded: parameter \"" + name + "\" is " + toString(t.scalar_type()) +
                                            "; float, double, bfloat16 and half are there");
    }
}
inline at::ScalarType scalar_type(uint32_t dtype) {
    return dtype == TESS_F64    ? at::kDouble
           : dtype == TESS_BF16 ? at::kBFloat16
           : dtype == TESS_F16  ? at::kHalf
                                : at::kFloat;
}

struct Parameter {
    std::string name;
    std::vector<at::Tensor> handles; /* more than one share a storage */
    at::Tensor start;                /* the values to begin with, until they are in the engine */
    at::Tensor grad;
    uint32_t declared = 0, dtype = 0, grad_dtype = 0;
    bool buffer = false, trains = false, got_grad = false, mirrored = false;
    double *mirror = nullptr; /* the engine's copy of a counter, which is an integer here */
    int32_t open = 0, open_grad = 0;
    int64_t version = 0, grad_version = 0;
    size_t resting_uses = 0;

    const at::Tensor &tensor() const { return handles[0]; }
    int64_t versions() const {
        int64_t sum = 0;
        for (const at::Tensor &t : handles)
            sum += static_cast<int64_t>(t._version());
        return sum;
    }
    /* Gives the tensors a storage of their own, in the dtype that the engine computes in. */
    void prepare() {
        start = tensor().detach().to(c10::kCPU).contiguous();
        at::Tensor fresh = at::from_blob(closed_memory(start.numel() * 8 + 8), tensor().sizes(),
                                         tensor().options().dtype(scalar_type(dtype)).requires_grad(false));
        for (at::Tensor &t : handles)
            t.set_data(fresh);
        if (trains)
            grad = at::from_blob(closed_memory(start.numel() * 8 + 8), tensor().sizes(),
                                 fresh.options().dtype(scalar_type(grad_dtype)));
        fresh.reset();
        resting_uses = tensor().storage().use_count();
        lock(true);
    }
    void lock(bool closed) {
        std::lock_guard<std::mutex> guard(names_lock());
        auto own = tensor().is_cuda() ? c10::BackendComponent::CUDABit : c10::BackendComponent::CPUBit;
        for (at::Tensor &t : handles) {
            c10::DispatchKeySet &keys = Keys::of(t);
            keys = keys.remove_backend(closed ? own : c10::BackendComponent::PrivateUse1Bit) |
                   c10::DispatchKeySet(closed ? c10::BackendComponent::PrivateUse1Bit : own);
            if (closed)
                names()[t.unsafeGetTensorImpl()] = name;
        }
    }
    void begin(void *memory) {
        if (mirrored) {
            mirror = static_cast<double *>(memory);
            tensor().fill_(*mirror);
            return;
        }
        point(tensor(), memory);
        if (open++ == 0 && !buffer) {
            lock(false);
            version = versions();
        }
    }
    void begin_grad(void *memory) {
        if (!memory || open_grad++ > 0)
            return;
        point(grad, memory);
        grad_version = static_cast<int64_t>(grad._version());
        for (at::Tensor &t : handles)
            t.mutable_grad() = grad;
    }
    /* Tells whether the program has changed it. */
    bool end() {
        if (mirrored && mirror)
            *mirror = tensor().item<double>();
        if (buffer || --open > 0)
            return false;
        bool changed = versions() != version;
        lock(true);
        point(tensor(), nullptr);
        return changed;
    }
    void end_grad() {
        if (open_grad == 0 || --open_grad > 0)
            return;
        got_grad = got_grad || static_cast<int64_t>(grad._version()) != grad_version;
        for (at::Tensor &t : handles)
            t.mutable_grad().reset();
        point(grad, nullptr);
    }
    void forget() {
        std::lock_guard<std::mutex> guard(names_lock());
        for (at::Tensor &t : handles)
            names().erase(t.unsafeGetTensorImpl());
    }
};

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
} // namespace detail

/* ---- tensors in what a forward takes and returns -------------------------------------------------- */
namespace detail {
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

/* The tensor alone, as an output of `node`. */
inline void leads_to(at::Tensor &t, const std::shared_ptr<torch::autograd::Node> &node) {
    at::Tensor fresh = t.detach();
    torch::autograd::create_gradient_edge(fresh, node);
    t = fresh;
}
inline bool differentiable(const at::Tensor &t) {
    return t.requires_grad();
}

/* ---- the engine's side ----------------------------------------------------------------------------- */
struct State : std::enable_shared_from_this<State> {
    tess *engine = nullptr;
    Options options;
    torch::nn::Module *model = nullptr;
    std::string broken; /* why nothing can go on, when that is not the engine's error */
    std::vector<Parameter> params;
    std::vector<Block> blocks;
    std::unordered_map<const torch::nn::Module *, size_t> block_of;
    std::vector<std::pair<const torch::nn::Module *, std::vector<const c10::TensorImpl *>>> declared;
    std::unordered_map<const torch::nn::Module *, std::string> modules;
    tess_info info = {};
    at::Device device{ at::kCPU };

    std::atomic<bool> busy{ false };
    uint32_t pass = 0; /* TESS_PASS_… or 0 */
    uint64_t pass_number = 0;
    const Block *first = nullptr;      /* of this pass */
    int64_t outstanding = 0, made = 0; /* forwards of this pass whose backward has not begun, and all that have one */
    bool went_back = false;
    std::weak_ptr<char> running; /* lives as long as autograd's backward, also one that throws */
    int32_t inside = 0;          /* nested forwards */
    uint64_t trained = 0;        /* passes with backward since the last step */
    std::thread::id thread;
    std::shared_ptr<bool> retained; /* of the last block that went back */
    std::vector<Block *> back;      /* whose backward has begun and not ended */
    double clip = 0;

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

    /* ---- declare ---- */

    void open(torch::nn::Module &m, const Options &o) {
        refuse_closed();
        c10::SetCPUAllocator(&Counting::get(), 1);
        options = o;
        model = &m;
        tess_options t = o.engine();
        t.struct_size = sizeof t;
        t.optimizer = t.optimizer ? t.optimizer : o.optimizer_;
        t.momentum = t.momentum != 0 ? t.momentum : static_cast<float>(o.momentum_);
        t.accum = t.accum || t.microbatches ? t.accum : o.accumulate();
        t.own_states = std::string(o.optimizer_) != "sgd" ? 2 : o.momentum_ != 0;
        auto all = m.parameters();
        device = all.empty() ? device : all[0].device();
        t.pointer_mem = t.pointer_mem ? t.pointer_mem : 1u << (device.is_cuda() ? TESS_MEM_CUDA : TESS_MEM_HOST);
        ok(tess_open(&t, &engine));
        info.struct_size = sizeof info;
        ok(tess_info_get(engine, &info));
        at::set_num_threads(info.threads);
        find_blocks();
        find_parameters();
        shard();
    }

    /* The module tree's own spelling of the name, and the name in the engine, are the same. */
    static bool matches(const std::string &pattern, const std::string &name) {
        std::string a = pattern, b = name;
        std::replace(a.begin(), a.end(), '.', '/');
        std::replace(b.begin(), b.end(), '.', '/');
        return fnmatch(a.c_str(), b.c_str(), FNM_PATHNAME) == 0;
    }
    static bool any_matches(const std::vector<std::string> &patterns, const std::string &name) {
        return std::any_of(patterns.begin(), patterns.end(), [&](const std::string &p) { return matches(p, name); });
    }
    static bool is_list(const torch::nn::Module &m) {
        return dynamic_cast<const torch::nn::ModuleListImpl *>(&m) ||
               dynamic_cast<const torch::nn::SequentialImpl *>(&m);
    }
    void add_block(const std::string &name, torch::nn::Module &m) {
        for (const Block &b : blocks)
            if (b.name == name)
                return;
        blocks.push_back({ name, &m, -1, {}, any_matches(options.recompute(), name), {} });
    }
    void children(const std::string &prefix, torch::nn::Module &m) {
        for (const auto &child : m.named_children())
            if (is_list(*child.value()))
                children(prefix + child.key() + ".", *child.value());
            else if (!child.value()->parameters().empty())
                add_block(prefix + child.key(), *child.value());
    }
    void find_blocks() {
        auto all = model->named_modules("", false);
        modules[model] = "";
        for (const auto &m : all)
            modules[m.value().get()] = m.key();
        for (const std::string &pattern : options.blocks()) {
            size_t before = blocks.size();
            if (pattern.empty())
                add_block("", *model);
            for (const auto &m : all)
                if (matches(pattern, m.key()))
                    add_block(m.key(), *m.value());
            if (blocks.size() == before)
                throw Error(TESS_E_INVALID, "tessera::Options: no module is called \"" + pattern + "\"");
        }
        if (options.blocks().empty())
            children("", *model);
    }
    /* The block with the longest name above; that of the model itself is above all. */
    Block *holder_of(const std::string &name) {
        Block *best = nullptr;
        for (Block &b : blocks)
            if ((b.name.empty() || name.compare(0, b.name.size() + 1, b.name + ".") == 0) &&
                (!best || best->name.size() < b.name.size()))
                best = &b;
        return best;
    }

    void find_parameters() {
        bool whole = false; /* the model holds a parameter itself */
        for (const auto &p : model->named_parameters())
            whole = whole || !holder_of(p.key());
        for (const auto &b : model->named_buffers())
            whole = whole || !holder_of(b.key());
        if (whole && std::none_of(blocks.begin(), blocks.end(), [](const Block &b) { return b.name.empty(); }))
            blocks.insert(blocks.begin(), { "", model, -1, {}, any_matches(options.recompute(), ""), {} });
        for (Block &b : blocks) {
            block_of[b.module] = static_cast<size_t>(&b - blocks.data());
            ok(tess_scope_add(engine, b.name.c_str(), 0, &b.scope));
        }
        std::vector<std::pair<std::string, std::string>> ties; /* another name, the first one */
        for (const auto &p : model->named_parameters())
            add_parameter(p.key(), p.value(), false, ties);
        for (const auto &b : model->named_buffers())
            add_parameter(b.key(), b.value(), true, ties);
        for (const Shared &s : options.shared())
            ties.emplace_back(s.block + "." + s.parameter, s.parameter);
        for (const auto &tie : ties)
            add_tie(tie.first, tie.second);
        remember_modules();
    }
    void add_parameter(const std::string &name, const at::Tensor &t, bool buffer,
                       std::vector<std::pair<std::string, std::string>> &ties) {
        if (!t.defined() || (buffer && !t.is_floating_point() && t.numel() != 1))
            return; /* an integer table is the program's own */
        for (Parameter &p : params)
            if (p.tensor().unsafeGetTensorImpl() == t.unsafeGetTensorImpl() ||
                (!t.is_meta() && p.tensor().is_alias_of(t))) {
                if (p.tensor().unsafeGetTensorImpl() != t.unsafeGetTensorImpl())
                    p.handles.push_back(t);
                ties.emplace_back(name, p.name);
                return;
            }
        Block *b = holder_of(name);
        Parameter p;
        p.name = name;
        p.handles.push_back(t);
        p.buffer = buffer;
        p.trains = !buffer && t.requires_grad();
        p.mirrored = buffer && !t.is_floating_point();
        declare(p);
        if (!buffer && p.dtype != p.declared)
            b->computes = scalar_type(p.dtype);
        b->params.push_back(params.size());
        params.push_back(std::move(p));
    }
    void declare(Parameter &p) {
        tess_param_options o = {};
        o.struct_size = sizeof o;
        o.dtype = p.declared = p.mirrored ? static_cast<uint32_t>(TESS_F64) : dtype_of(p.tensor(), p.name);
        o.flags = p.buffer ? TESS_BUFFER : p.trains ? 0 : TESS_FROZEN;
        o.compute_dtypes = p.buffer ? 0 : 1u << o.dtype | 1u << TESS_BF16;
        o.name = p.name.c_str();
        o.ndim = static_cast<int32_t>(p.tensor().dim());
        o.shape = o.ndim > 0 ? p.tensor().sizes().data() : nullptr;
        o.tag = params.size();
        for (size_t i = 0; i < options.groups().size(); i++)
            for (const std::string &pattern : options.groups()[i].names)
                if (fnmatch(pattern.c_str(), p.name.c_str(), 0) == 0)
                    o.optimizer_group = static_cast<int32_t>(i) + 1;
        ok(tess_param_add(engine, &o, nullptr));
        p.dtype = p.grad_dtype = o.dtype;
        if (!p.buffer)
            ok(tess_compute_dtype(engine, &o, &p.dtype, &p.grad_dtype));
    }
    void add_tie(const std::string &alias, const std::string &of) {
        auto found = std::find_if(params.begin(), params.end(), [&](const Parameter &p) { return p.name == of; });
        Block *b = holder_of(alias);
        if (found == params.end())
            throw Error(TESS_E_INVALID, "tessera::Options: no parameter is called \"" + of + "\"");
        size_t index = static_cast<size_t>(found - params.begin());
        if (std::find(b->params.begin(), b->params.end(), index) != b->params.end())
            return; /* two names within one block */
        ok(tess_param_tie(engine, alias.c_str(), of.c_str()));
        b->params.push_back(index);
    }
    static std::vector<const c10::TensorImpl *> tensors_of(const torch::nn::Module &m) {
        std::vector<const c10::TensorImpl *> all;
        for (const at::Tensor &t : m.parameters(false))
            all.push_back(t.unsafeGetTensorImpl());
        return all;
    }
    void remember_modules() {
        for (const auto &m : model->modules(true))
            declared.emplace_back(m.get(), tensors_of(*m));
    }
    /* A parameter that was registered or replaced after sharding belongs to nobody. */
    void check_modules() {
        size_t i = 0;
        for (const auto &m : model->modules(true)) {
            if (i >= declared.size() || declared[i].first != m.get() || declared[i].second != tensors_of(*m))
                fail("module \"" + (modules.count(m.get()) ? modules[m.get()] : m->name()) +
                     "\" has changed since tessera::Sharded was made: another parameter or module is in it; make the "
                     "whole "
                     "model first");
            i++;
        }
    }

    /* ---- shard ---- */

    static tess_status fill(void *user, const tess_range *r, void *data) {
        const Parameter &p = static_cast<State *>(user)->params[static_cast<size_t>(r->tag)];
        at::ScalarType type = p.declared == TESS_F64 ? at::kDouble : at::kFloat;
        at::from_blob(data, { static_cast<int64_t>(r->elems) }, type)
            .copy_(p.start.view(-1).narrow(0, static_cast<int64_t>(r->first_elem), static_cast<int64_t>(r->elems)));
        return TESS_OK;
    }
    void shard() {
        torch::NoGradGuard no_grad;
        for (Parameter &p : params)
            if (p.buffer) {
                p.start = p.tensor().detach().contiguous();
                p.handles[0].set_data(p.start.clone());
            } else
                p.prepare();
        tess_status s = tess_shard(engine, fill, this);
        if (s == TESS_E_PLANNED)
            std::exit(0); /* `tessera plan -- PROGRAM` has what it wants */
        ok(s);
        for (Parameter &p : params)
            p.start.reset();
    }

    /* ---- hold and let go ---- */

    void hold(Block &b, bool backward) {
        size_t n = b.params.size();
        std::vector<void *> at(n + 1), grad(n + 1);
        if (n == 0)
            return;
        ok(backward ? tess_backward_begin(engine, b.scope, at.data(), grad.data(), static_cast<int32_t>(n))
                    : tess_forward_begin(engine, b.scope, at.data(), static_cast<int32_t>(n)));
        for (size_t i = 0; i < n; i++) {
            params[b.params[i]].begin(at[i]);
            params[b.params[i]].begin_grad(grad[i]);
        }
    }
    void let_go(Block &b, bool backward, bool engine_too = true) {
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

    void begin_pass(const Block &b) {
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
            fail(
                "block \"" + b.name +
                "\" is entered under NoGradGuard in a training pass: freeze parameters by requires_grad_(false) before "
                "tessera::Sharded, and evaluate between backward and the next forward");
        if ((grad && waiting) || (!grad && pass == TESS_PASS_EVAL && &b != first))
            return;
        check_modules();
        ok(tess_pass(engine, pass = grad ? TESS_PASS_TRAIN : TESS_PASS_EVAL));
        pass_number++;
        first = &b;
        outstanding = made = 0;
        went_back = false;
        thread = std::this_thread::get_id();
        for (Parameter &p : params)
            p.got_grad = false;
    }
    void check_output(const Block &b, const at::Tensor &t) {
        for (size_t i : b.params)
            if (!params[i].buffer && t.has_storage() && t.storage().is_alias_of(params[i].tensor().storage()))
                fail("block \"" + b.name + "\" returns parameter \"" + params[i].name +
                     "\" or a view of it, which is kept past the block and would be read when its memory is gone; "
                     "return a clone()");
    }
    void end_forward(Block &b) {
        inside--;
        let_go(b, false);
    }
    /* An exception of the program's within a block: this rank cannot go on, and the others hear why. */
    void abandon(Block &b, const std::string &what) {
        inside--;
        let_go(b, false, false);
        give_up("forward of block \"" + b.name + "\" ended by an exception: " + what);
    }
    static std::string text_of(const std::exception_ptr &e) {
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

    void begin_backward(Call &call) {
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
    void end_backward(Block &b) {
        Entry entry(*this, "backward of block \"" + b.name + "\"");
        back.erase(std::find(back.begin(), back.end(), &b));
        let_go(b, true);
    }
    void end_of_backward() {
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
    void check_backward() {
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

    /* ---- step ---- */

    tess_optimizer_options step_options(std::vector<tess_optimizer_group> &all) const {
        tess_optimizer_options o = {};
        o.struct_size = sizeof o;
        o.lr = static_cast<float>(options.lr_), o.momentum = static_cast<float>(options.momentum_);
        o.beta1 = static_cast<float>(options.beta1_), o.beta2 = static_cast<float>(options.beta2_);
        o.eps = static_cast<float>(options.eps_), o.clip_norm = static_cast<float>(clip);
        all.push_back({ static_cast<float>(options.weight_decay_), 1 });
        for (const Group &g : options.groups())
            all.push_back({ static_cast<float>(g.weight_decay), static_cast<float>(g.lr_scale) });
        o.groups = all.data(), o.n_groups = static_cast<int32_t>(all.size());
        return o;
    }
    void step() {
        Entry entry(*this, "Sharded::step");
        if (trained == 0)
            fail("Sharded::step without a backward since the step before: was forward run under NoGradGuard, or with "
                 "model->eval()?");
        std::vector<tess_optimizer_group> all;
        tess_optimizer_options o = step_options(all);
        if (std::string(info.optimizer) == "own")
            own_step();
        else
            ok(tess_step(engine, &o));
        trained = 0, clip = 0, pass = 0;
    }

    void zero_grad() {
        Entry entry(*this, "Sharded::zero_grad");
        if (trained > 0)
            ok(tess_grad_drop(engine));
        trained = 0, pass = 0;
    }
    double clip_to(double most) {
        Entry entry(*this, "Sharded::clip_grad_norm_");
        float norm = 0;
        ok(tess_grad_norm(engine, &norm));
        clip = most, pass = 0;
        return static_cast<double>(norm);
    }
    void sync_buffers() {
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
    double own_scale = 1;
    void own_step() {
        float norm = 0;
        own_scale = 1;
        if (clip > 0) {
            ok(tess_grad_norm(engine, &norm));
            own_scale = std::min(1.0, clip / (static_cast<double>(norm) + 1e-6));
        }
        ok(tess_update(engine, own_update, this));
    }
    static tess_status own_update(void *user, const tess_range *r, void *param, const float *grad,
                                  float *const *state) {
        try {
            static_cast<State *>(user)->update(*r, param, const_cast<float *>(grad), state);
            return TESS_OK;
        } catch (const std::exception &e) {
            return tess_fail(TESS_E_INVALID, "optimizer of parameter \"%s\": %s", r->name, e.what());
        }
    }
    void update(const tess_range &r, void *param, float *grad, float *const *state) {
        torch::NoGradGuard no_grad;
        const Parameter &mine = params[static_cast<size_t>(r.tag)];
        if (mine.declared == TESS_F64)
            throw Error(TESS_E_UNSUPPORTED, "double is not there with optimizer own");
        double lr = options.lr_, decay = options.weight_decay_;
        for (const Group &group : options.groups())
            for (const std::string &pattern : group.names)
                if (fnmatch(pattern.c_str(), r.name, 0) == 0)
                    lr = options.lr_ * group.lr_scale, decay = group.weight_decay;
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
    void sgd(at::Tensor &p, at::Tensor g, at::Tensor buffer, double lr, double decay) const {
        if (decay != 0)
            g = g.add(p, decay);
        if (buffer.defined())
            g = buffer.mul_(options.momentum_).add_(g);
        p.add_(g, -1 * lr);
    }
    void adam(at::Tensor &p, at::Tensor g, at::Tensor m, at::Tensor v, double lr, double decay, double step) const {
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

    /* ---- summon ---- */

    template <class F>
    void summon(F &&look) {
        Entry entry(*this, "Sharded::summon");
        for (Block &b : blocks)
            if (!b.params.empty()) {
                std::vector<void *> at(b.params.size());
                ok(tess_summon_begin(engine, b.scope, at.data(), static_cast<int32_t>(at.size())));
                for (size_t i = 0; i < at.size(); i++)
                    params[b.params[i]].begin(at[i]);
            }
        pass = 0;
        try {
            look();
        } catch (...) {
            dismiss();
            throw;
        }
        dismiss();
    }
    void dismiss() {
        for (Block &b : blocks) {
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
        engine = nullptr;
        if (broken.empty())
            broken = "tessera::Sharded of this model is gone";
    }
};

inline std::unordered_map<const torch::nn::Module *, std::pair<State *, Block *>> &sharded_modules() {
    static std::unordered_map<const torch::nn::Module *, std::pair<State *, Block *>> of;
    return of;
}

/* ---- autograd's side --------------------------------------------------------------------------------- */
/* Backward reaches Begin from a block's outputs. Behind Begin lie the block's nodes and, by an edge of its own, End.
 * Autograd runs the node first that was made last, and End was made before the block's nodes: so it runs when they
 * have. */
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
        grads.emplace_back(); /* for End */
        return std::move(grads);
    }
    void release_variables() override { *call->retained = false; }
    std::string name() const override { return "tessera::Begin(" + call->block->name + ")"; }
};

template <class N>
std::shared_ptr<N> make_node(State &s, const std::shared_ptr<Call> &call) {
    std::shared_ptr<N> node(new N, torch::autograd::deleteNode);
    node->state = s.shared_from_this();
    node->call = call;
    return node;
}

template <class... Args>
std::shared_ptr<End> cut_inputs(State &s, const std::shared_ptr<Call> &call, std::tuple<Args...> &args) {
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
void cut_outputs(State &s, const std::shared_ptr<Call> &call, const std::shared_ptr<End> &end, R &out) {
    auto begin = make_node<Begin>(s, call);
    each_tensor(out, [&](at::Tensor &t) {
        if (differentiable(t))
            begin->add_next_edge(torch::autograd::impl::gradient_edge(t));
    });
    if (begin->num_outputs() == 0) {
        call->begun = true; /* nothing goes back through this block */
        return;
    }
    begin->add_next_edge({ end, end->add_input_metadata(torch::autograd::Node::undefined_input()) });
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

/* ---- forward ------------------------------------------------------------------------------------------------ */
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
    std::shared_ptr<End> end;
    each_tensor(args, [&](at::Tensor &t) {
        if (b.computes && t.is_floating_point())
            t = t.to(*b.computes);
    });
    at::Generator generator = at::globalContext().defaultGenerator(s.device);
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

/* ---- what a program makes ------------------------------------------------------------------------------------- */
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
    /** One step of the optimizer on the averaged gradients. */
    void step() { state_->step(); }
    /** Drops gradients that no step has used; after a step there are none. */
    void zero_grad() { state_->zero_grad(); }
    /** The norm of the averaged gradients; the next step clips to `most`. */
    double clip_grad_norm_(double most) { return state_->clip_to(most); }
    /** The rate of the steps to come. Local. */
    void lr(double rate) { state_->options.lr_ = rate; }
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
        state_->summon(std::forward<F>(look));
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
    /** tess_checkpoint_load of the newest in `dir`: the number of steps done. Without one, nothing and 0. */
    uint64_t load(const std::string &dir) {
        tess_checkpoint_info info = {};
        info.struct_size = sizeof info;
        tess_checkpoint_load_options o = {};
        o.struct_size = sizeof o;
        o.flags = TESS_CHECKPOINT_IF_ANY;
        o.path = dir.c_str();
        detail::ok(tess_checkpoint_load(state_->engine, &o, &info));
        return info.step;
    }
    /** Since the model was sharded, or since the call before this one. Local. */
    Allocated torch_bytes() {
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
