/* SPDX-License-Identifier: BSD-3-Clause */
/* A parameter's memory: whole within its block, and to be used by nothing at any other time. */
#ifndef TESSERA_TORCH_PARAMETER_HPP
#define TESSERA_TORCH_PARAMETER_HPP
#include <tessera/torch/options.hpp>

#include <torch/library.h>

#include <cstring>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>
#include <unordered_map>

namespace tessera::detail {

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
    void *to = memory || t.device() != c10::kCPU ? memory : closed_memory(t.nbytes());
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
    bool on_meta = false; /* made without memory, and so without values */
    at::Device place{ at::kCPU };
    at::Tensor mirror; /* the engine's copy of a counter, which is an integer here */
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
    at::TensorOptions plain() const { return tensor().options().requires_grad(false).device(place); }
    /* A tensor of this shape at memory of the engine's. */
    at::Tensor over(void *memory, at::ScalarType type) const {
        return at::for_blob(memory, tensor().sizes()).options(plain().dtype(type)).target_device(place).make_tensor();
    }
    c10::BackendComponent backend() const {
        return place.is_cuda() ? c10::BackendComponent::CUDABit : c10::BackendComponent::CPUBit;
    }
    void take(const at::Tensor &data) {
        for (at::Tensor &t : handles) {
            if (t.is_meta()) /* set_data refuses another kind of tensor */
                Keys::of(t) =
                    Keys::of(t).remove_backend(c10::BackendComponent::MetaBit) | c10::DispatchKeySet(backend());
            t.set_data(data);
        }
    }
    /* Gives the tensors a storage of their own, in the dtype that the engine computes in. */
    void prepare() {
        if (!on_meta)
            start = tensor().detach().to(c10::kCPU).contiguous();
        void *closed = place.is_cpu() ? closed_memory(static_cast<size_t>(tensor().numel()) * 8 + 8) : nullptr;
        take(over(closed, scalar_type(dtype)));
        if (trains)
            grad = over(closed, scalar_type(grad_dtype));
        resting_uses = tensor().storage().use_count();
        lock(true);
    }
    void lock(bool closed) {
        std::lock_guard<std::mutex> guard(names_lock());
        auto own = backend();
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
            mirror = over(memory, at::kDouble);
            tensor().copy_(mirror);
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
        if (mirror.defined())
            mirror.copy_(tensor());
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

} // namespace tessera::detail
#endif
