/* SPDX-License-Identifier: BSD-3-Clause */
/* From the module tree to the engine's scopes and parameters, and their values into it. */
#ifndef TESSERA_TORCH_DECLARE_HPP
#define TESSERA_TORCH_DECLARE_HPP
#include <tessera/torch/state.hpp>

namespace tessera::detail {

inline void State::open(torch::nn::Module &m, const Options &o) {
    refuse_closed();
    c10::SetCPUAllocator(&Counting::get(), 1);
    options = o;
    model = &m;
    if (m.parameters().empty())
        throw Error(TESS_E_INVALID,
                    "tessera::Sharded: the model has no parameters yet: where a first input sizes them, "
                    "run one forward before, within tessera::on_meta say");
    tess_options t = o.engine();
    t.struct_size = sizeof t;
    t.optimizer = t.optimizer ? t.optimizer : o.optimizer_;
    t.momentum = t.momentum != 0 ? t.momentum : static_cast<float>(o.momentum_);
    t.accum = t.accum || t.microbatches ? t.accum : o.accumulate();
    t.own_states = std::string(o.optimizer_) != "sgd" ? 2 : o.momentum_ != 0;
    t.flags |= TESS_OPTIONS_LOSS_SCALE; /* Sharded::scale; a backward without it is refused */
    find_device(t);
    ok(tess_open(&t, &engine));
    info.struct_size = sizeof info;
    ok(tess_info_get(engine, &info));
    at::set_num_threads(info.threads);
    check_device();
    count_memory();
    find_blocks();
    find_parameters();
    shard();
}
/* A model on the meta device goes where the engine is: TESSERA_DEVICE. */
inline void State::find_device(tess_options &t) {
    auto all = model->parameters();
    bool anywhere = !all.empty() && all[0].is_meta() && at::hasCUDA();
    uint32_t host = 1u << TESS_MEM_HOST, cuda = 1u << TESS_MEM_CUDA;
    if (!all.empty() && !all[0].is_meta())
        device = all[0].device();
    if (!t.pointer_mem)
        t.pointer_mem = anywhere ? host | cuda : device.is_cuda() ? cuda : host;
    if (device.is_cuda() && !t.stream)
        t.stream = stream_of(device);
}
inline void State::check_device() {
    at::Device engines(at::kCPU);
    if (info.memory == TESS_MEM_CUDA)
        engines = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(info.local_rank));
    auto all = model->parameters();
    if (all.empty() || all[0].is_meta())
        device = engines;
    if (device != engines)
        throw Error(TESS_E_INVALID, "tessera::Sharded: the model is on " + device.str() + ", and rank " +
                                        std::to_string(info.rank) + " works on " + engines.str() +
                                        ": move the model there, or set TESSERA_DEVICE");
    token = at::zeros({ 1 }, at::TensorOptions(device));
}
inline void State::count_memory() {
    gpu.device = device;
    if (Counting::asked().exchange(true)) { /* an engine before this one counts it all */
        ok(tess_ledger_held(engine, Counting::none, nullptr));
        return;
    }
    uint64_t most; /* of an engine before this one, perhaps */
    counts = true;
    auto held = device.is_cuda() ? OnGpu::held : Counting::held;
    held(&gpu, &most);
    ok(tess_ledger_held(engine, held, &gpu));
}
/* The module tree's own spelling of the name, and the name in the engine, are the same. */
inline bool State::matches(const std::string &pattern, const std::string &name) {
    std::string a = pattern, b = name;
    std::replace(a.begin(), a.end(), '.', '/');
    std::replace(b.begin(), b.end(), '.', '/');
    return fnmatch(a.c_str(), b.c_str(), FNM_PATHNAME) == 0;
}
inline bool State::any_matches(const std::vector<std::string> &patterns, const std::string &name) {
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string &p) { return matches(p, name); });
}
inline bool State::is_list(const torch::nn::Module &m) {
    return dynamic_cast<const torch::nn::ModuleListImpl *>(&m) || dynamic_cast<const torch::nn::SequentialImpl *>(&m);
}
inline void State::add_block(const std::string &name, torch::nn::Module &m) {
    for (const Block &b : blocks)
        if (b.name == name)
            return;
    blocks.push_back({ name, &m, -1, {}, any_matches(options.recompute(), name), {} });
}
inline void State::children(const std::string &prefix, torch::nn::Module &m) {
    for (const auto &child : m.named_children())
        if (is_list(*child.value()))
            children(prefix + child.key() + ".", *child.value());
        else if (!child.value()->parameters().empty())
            add_block(prefix + child.key(), *child.value());
}
inline void State::find_blocks() {
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
inline Block *State::holder_of(const std::string &name) {
    Block *best = nullptr;
    for (Block &b : blocks)
        if ((b.name.empty() || name.compare(0, b.name.size() + 1, b.name + ".") == 0) &&
            (!best || best->name.size() < b.name.size()))
            best = &b;
    return best;
}
inline void State::find_parameters() {
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
inline void State::add_parameter(const std::string &name, const at::Tensor &t, bool buffer,
                                 std::vector<std::pair<std::string, std::string>> &ties) {
    if (!t.defined())
        return;
    if (buffer && !t.is_floating_point() && t.numel() != 1) { /* an integer table is the program's own */
        tables.emplace_back(name, t);
        return;
    }
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
    p.on_meta = t.is_meta();
    p.place = device;
    p.trains = !buffer && t.requires_grad();
    p.mirrored = buffer && !t.is_floating_point();
    declare(p);
    if (!buffer && p.dtype != p.declared)
        b->computes = scalar_type(p.dtype);
    b->params.push_back(params.size());
    params.push_back(std::move(p));
}
/* Whether the precision computes in the 16 bits that the model has, so that its masters can be fp32. */
inline bool State::computes_in(tess_param_options o) const {
    uint32_t own = o.dtype, dtype = 0;
    o.dtype = TESS_F32, o.compute_dtypes |= 1u << TESS_F32;
    ok(tess_compute_dtype(engine, &o, &dtype, nullptr));
    return dtype == own;
}
inline void State::declare(Parameter &p) {
    tess_param_options o = {};
    o.struct_size = sizeof o;
    o.dtype = p.declared = p.mirrored ? static_cast<uint32_t>(TESS_F64) : dtype_of(p.tensor(), p.name);
    o.flags = p.buffer ? TESS_BUFFER : p.trains ? 0 : TESS_FROZEN;
    o.compute_dtypes = p.buffer ? 0 : 1u << o.dtype | 1u << TESS_BF16 | 1u << TESS_F16;
    o.name = p.name.c_str();
    o.ndim = static_cast<int32_t>(p.tensor().dim());
    o.shape = o.ndim > 0 ? p.tensor().sizes().data() : nullptr;
    o.tag = params.size();
    for (size_t i = 0; i < options.groups().size(); i++)
        for (const std::string &pattern : options.groups()[i].names)
            if (fnmatch(pattern.c_str(), p.name.c_str(), 0) == 0)
                o.optimizer_group = static_cast<int32_t>(i) + 1;
    if (p.trains && (o.dtype == TESS_BF16 || o.dtype == TESS_F16) && computes_in(o))
        o.dtype = p.declared = TESS_F32, o.compute_dtypes |= 1u << TESS_F32;
    ok(tess_param_add(engine, &o, nullptr));
    p.dtype = p.grad_dtype = o.dtype;
    if (!p.buffer)
        ok(tess_compute_dtype(engine, &o, &p.dtype, &p.grad_dtype));
}
inline void State::add_tie(const std::string &alias, const std::string &of) {
    auto found = std::find_if(params.begin(), params.end(), [&](const Parameter &p) { return p.name == of; });
    Block *b = holder_of(alias);
    if (found == params.end())
        throw Error(TESS_E_INVALID, "tessera::Options: no parameter is called \"" + of + "\"");
    size_t index = static_cast<size_t>(found - params.begin());
    if (std::find(b->params.begin(), b->params.end(), index) != b->params.end()) {
        second_names.push_back(alias);
        return;
    }
    ok(tess_param_tie(engine, alias.c_str(), of.c_str()));
    b->params.push_back(index);
}
/* Of a state_dict: what the engine does not know by that name. Null at the end. */
inline std::vector<const char *> State::names_besides() const {
    std::vector<const char *> all;
    for (const auto &table : tables)
        all.push_back(table.first.c_str());
    for (const std::string &name : second_names)
        all.push_back(name.c_str());
    all.push_back(nullptr);
    return all;
}
inline std::vector<const c10::TensorImpl *> State::tensors_of(const torch::nn::Module &m) {
    std::vector<const c10::TensorImpl *> all;
    for (const at::Tensor &t : m.parameters(false))
        all.push_back(t.unsafeGetTensorImpl());
    return all;
}
inline void State::remember_modules() {
    for (const auto &m : model->modules(true))
        declared.emplace_back(m.get(), tensors_of(*m));
}
/* A parameter that was registered or replaced after sharding belongs to nobody. */
inline void State::check_modules() {
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
/* Of a tensor that was made without memory. */
inline void State::find_values(const std::string &name, at::Tensor values) {
    if (options.values())
        options.values()(name, values);
    else
        unloaded = true;
}
inline void State::make_buffers() {
    for (auto &table : tables)
        if (table.second.is_meta()) {
            Parameter p;
            p.handles.push_back(table.second);
            p.on_meta = true;
            p.place = device;
            if (!options.values())
                throw Error(TESS_E_INVALID, "buffer \"" + table.first +
                                                "\" is on the meta device, and no checkpoint has it: "
                                                "tessera::Options().values gives it");
            p.take(at::zeros(p.tensor().sizes(), p.plain()));
            find_values(table.first, p.tensor());
        }
    for (Parameter &p : params)
        if (p.buffer) {
            p.start = p.on_meta ? at::zeros(p.tensor().sizes(), p.plain()) : p.tensor().detach().contiguous();
            if (p.on_meta)
                find_values(p.name, p.start);
            p.take(p.start.clone());
        }
}
inline tess_status State::fill(void *user, const tess_range *r, void *data) {
    try {
        static_cast<State *>(user)->copy_range(*r, data);
        return TESS_OK;
    } catch (...) {
        return tess_fail(TESS_E_INVALID, "values of parameter \"%s\": %s", r->name,
                         text_of(std::current_exception()).c_str());
    }
}
/* Values of a model on the meta device are made for one parameter at a time. */
inline void State::copy_range(const tess_range &r, void *data) {
    Parameter &p = params[static_cast<size_t>(r.tag)];
    if (p.on_meta && !p.start.defined()) {
        if (params[filled].on_meta && !params[filled].buffer)
            params[filled].start.reset();
        filled = static_cast<size_t>(r.tag);
        p.start = at::zeros(p.tensor().sizes(), p.plain().device(c10::kCPU).dtype(scalar_type(p.declared)));
        find_values(p.name, p.start);
    }
    at::ScalarType type = p.declared == TESS_F64 ? at::kDouble : at::kFloat;
    at::from_blob(data, { static_cast<int64_t>(r.elems) }, type)
        .copy_(p.start.view(-1).narrow(0, static_cast<int64_t>(r.first_elem), static_cast<int64_t>(r.elems)));
}
inline void State::shard() {
    torch::NoGradGuard no_grad;
    make_buffers();
    for (Parameter &p : params)
        if (!p.buffer)
            p.prepare();
    tess_status s = tess_shard(engine, fill, this);
    if (s == TESS_E_PLANNED)
        std::exit(0); /* `tessera plan -- PROGRAM` has what it wants */
    ok(s);
    for (Parameter &p : params)
        p.start.reset();
}

} // namespace tessera::detail
#endif
