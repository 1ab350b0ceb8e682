/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera/torch.hpp on one rank: the bits of LibTorch alone for what a model may have, and one message for each misuse.
 * With an argument it trains the model on the ranks that it is started on, and prints losses and a digest. */
#include <tessera/torch.hpp>

#include <csignal>
#include <cstdio>
#include <map>
#include <thread>

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

static int failures;
#define EXPECT(what)                                                                                                   \
    ((what) ? (void)0 : (void)(failures++, printf("%s:%d: %s: not so: %s\n", __FILE__, __LINE__, now.c_str(), #what)))
static std::string now; /* the case that runs */

/* ---- a model with all that a module may have ---- */

/* Two inputs and two outputs, dropout, parameters of several shapes. */
struct LayerImpl : nn::Module {
    LayerImpl() {
        a = register_module("a", nn::Linear(16, 48));
        b = register_module("b", nn::Linear(48, 16));
        norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({ 16 })));
        drop = register_module("drop", nn::Dropout(0.1));
    }
    std::tuple<Tensor, Tensor> forward(Tensor x, Tensor sum) {
        x = norm(x + drop(b(torch::gelu(a(x)))));
        return { x, sum + x };
    }
    nn::Linear a{ nullptr }, b{ nullptr };
    nn::LayerNorm norm{ nullptr };
    nn::Dropout drop{ nullptr };
};
TORCH_MODULE(Layer);

struct HeadImpl : nn::Module {
    explicit HeadImpl(nn::Embedding embed) : embed(embed) { scale = register_parameter("scale", torch::ones({ 16 })); }
    Tensor forward(Tensor x) { return (x * scale).matmul(embed->weight.t()); }
    Tensor scale;
    nn::Embedding embed;
};
TORCH_MODULE(Head);

struct NetImpl : nn::Module {
    NetImpl() {
        embed = register_module("embed", nn::Embedding(33, 16)); /* 528 elements: no rank number divides them well */
        fixed = register_module("fixed", nn::Linear(16, 16));
        for (Tensor &p : fixed->parameters())
            p.set_requires_grad(false);
        for (int i = 0; i < 2; i++)
            layers->push_back(Layer());
        register_module("layers", layers);
        mix = register_module("mix", nn::Linear(16, 16));
        bn = register_module("bn", nn::BatchNorm1d(16));
        head = register_module("head", Head(embed));
    }
    Tensor forward(Tensor ids) {
        Tensor x = tessera::forward(embed, ids), sum = torch::zeros_like(x);
        x = x + tessera::forward(fixed, x);
        for (auto &layer : *layers)
            std::tie(x, sum) = tessera::forward(layer->as<Layer>(), x, sum);
        x = torch::tanh(tessera::forward(mix, x));
        x = tessera::forward(mix, x + sum); /* the second use in a pass */
        return tessera::forward(head, tessera::forward(bn, x));
    }
    nn::Embedding embed{ nullptr };
    nn::Linear fixed{ nullptr }, mix{ nullptr };
    nn::ModuleList layers;
    nn::BatchNorm1d bn{ nullptr };
    Head head{ nullptr };
};
TORCH_MODULE(Net);

static Net make_net() {
    torch::manual_seed(7);
    return Net();
}
static std::pair<Tensor, Tensor> data(uint64_t microbatch) {
    torch::manual_seed(1000 + microbatch); /* dropout draws from it, too: the same for the same microbatch */
    return { torch::randint(33, { 24 }, torch::kLong), torch::randint(33, { 24 }, torch::kLong) };
}
static bool whole; /* the model is a block around its blocks */
static Tensor loss_of(Net &net, uint64_t microbatch) {
    auto b = data(microbatch);
    Tensor y = whole ? tessera::forward(net, b.first) : net->forward(b.first);
    return F::cross_entropy(y.to(torch::kFloat), b.second);
}
template <class O>
static tessera::Options options(const O &o) {
    return tessera::Options(o).shared({ { "head", "embed.weight" } });
}

/* ---- the same bits as LibTorch alone ---- */

struct Run {
    std::vector<double> losses;
    std::map<std::string, Tensor> values;
};
static void keep_values(Run &run, Net &net) {
    for (auto &p : net->named_parameters())
        run.values[p.key()] = p.value().detach().clone();
    for (auto &b : net->named_buffers())
        run.values[b.key()] = b.value().detach().clone();
}
/* This library's rule: squares in fp32, their exact sum, the factor in fp64. */
static void clip_exactly(const std::vector<Tensor> &params, double most, bool rounded) {
    long double sum = 0;
    for (const Tensor &p : params)
        if (p.grad().defined()) {
            Tensor squares = p.grad().contiguous() * p.grad().contiguous();
            for (int64_t i = 0; i < squares.numel(); i++)
                sum += static_cast<long double>(squares.data_ptr<float>()[i]);
        }
    double norm = std::sqrt(static_cast<double>(sum));
    double scale = most / ((rounded ? static_cast<double>(static_cast<float>(norm)) : norm) + 1e-6);
    for (const Tensor &p : params)
        if (p.grad().defined() && scale < 1)
            p.grad().mul_(static_cast<float>(scale));
}
enum { LIBTORCHS, EXACT, EXACT_ROUNDED };
template <class Optimizer, class O>
static Run alone(const O &o, double clip, int microbatches, int norm = LIBTORCHS) {
    Run run;
    Net net = make_net();
    Optimizer optimizer(net->parameters(), o);
    for (int step = 0; step < 50; step++) {
        optimizer.zero_grad();
        for (int k = 0; k < microbatches; k++) {
            Tensor loss = loss_of(net, static_cast<uint64_t>(step * microbatches + k)) / microbatches;
            loss.backward();
            run.losses.push_back(loss.item<double>());
        }
        if (clip > 0 && norm == LIBTORCHS)
            nn::utils::clip_grad_norm_(net->parameters(), clip);
        else if (clip > 0)
            clip_exactly(net->parameters(), clip, norm == EXACT_ROUNDED);
        optimizer.step();
    }
    keep_values(run, net);
    return run;
}
static std::vector<double> rates; // of groups; empty: the options' own
static Run sharded(const tessera::Options &o, double clip) {
    Run run;
    Net net = make_net();
    tessera::Sharded optimizer(net, o);
    if (!rates.empty())
        optimizer.lr(rates);
    const int microbatches = optimizer.accumulate();
    for (int step = 0; step < 50; step++) {
        optimizer.zero_grad();
        for (int k = 0; k < microbatches; k++) {
            Tensor loss = loss_of(net, static_cast<uint64_t>(step * microbatches + k));
            loss.backward();
            run.losses.push_back(loss.item<double>() / microbatches);
        }
        if (clip > 0)
            optimizer.clip_grad_norm_(clip);
        if (step % 20 == 0) { /* an evaluation in between changes nothing */
            torch::NoGradGuard no_grad;
            net->eval();
            loss_of(net, 1);
            net->train();
        }
        optimizer.step();
    }
    optimizer.summon([&] { keep_values(run, net); });
    return run;
}
static void same(const Run &left, const Run &right) {
    EXPECT(left.losses == right.losses);
    EXPECT(left.values.size() == right.values.size() && left.values.size() == 23);
    for (const auto &v : left.values)
        if (!v.second.equal(right.values.at(v.first)))
            EXPECT(!"the values are equal"), printf("  %s\n", v.first.c_str());
}
static tess_options engine(const char *optimizer) {
    tess_options o = {};
    o.optimizer = optimizer;
    return o;
}

static void test_bits() {
    auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01);
    now = "sgd";
    Run plain = alone<torch::optim::SGD>(sgd, 0, 1);
    same(plain, sharded(options(sgd), 0));
    now = "recomputed";
    same(plain, sharded(options(sgd).recompute({ "layers.*", "bn" }), 0));
    now = "the model a block around some blocks";
    whole = true;
    same(plain, sharded(options(sgd).blocks({ "layers.*", "bn" }), 0));
    whole = false;
    now = "sgd, clipped by the exact norm";
    same(alone<torch::optim::SGD>(sgd, 0.5, 1, EXACT), sharded(options(sgd), 0.5));
}

/* A rate for each group is the options' rate times the group's factor, and wins over both; by the engine and by
 * LibTorch. */
static void test_rates() {
    for (const char *by : { "sgd", "own" }) {
        auto with = [&](double rate, double scale) {
            tessera::Group biases;
            biases.names = { "*.bias" }, biases.lr_scale = scale;
            auto sgd = torch::optim::SGDOptions(rate).momentum(0.9).weight_decay(0.01);
            return options(sgd).groups({ biases }).engine(engine(by));
        };
        now = by;
        Run factors = sharded(with(0.05, 0.5), 0);
        rates = { 0.05, 0.025 };
        same(sharded(with(0.7, 3), 0), factors);
        rates = { 0.05, 0.05 };
        EXPECT(sharded(with(0.05, 1), 0).losses != factors.losses);
        rates.clear();
        Net net = make_net();
        tessera::Sharded one(net, with(0.05, 1));
        try {
            one.lr(std::vector<double>{ 0.05 });
            EXPECT(!"one rate for two groups is refused");
        } catch (const tessera::Error &e) {
            EXPECT(std::string(e.what()).find("1 rates, expected 2") != std::string::npos);
        }
    }
}

static void test_own() {
    auto adamw = torch::optim::AdamWOptions(1e-2);
    now = "adamw with LibTorch's arithmetic, clipped, two microbatches";
    Run plain = alone<torch::optim::AdamW>(adamw, 0, 2);
    Run mine = sharded(options(adamw).accumulate(2).engine(engine("own")), 0);
    for (size_t i = 0; i < plain.losses.size(); i++)
        EXPECT(std::abs(plain.losses[i] - mine.losses[i]) < 1e-5);
    now = "adamw with LibTorch's arithmetic";
    same(alone<torch::optim::AdamW>(adamw, 0, 1), sharded(options(adamw).engine(engine("own")), 0));
    now = "adam with LibTorch's arithmetic";
    auto adam = torch::optim::AdamOptions(1e-2).weight_decay(0.02);
    same(alone<torch::optim::Adam>(adam, 0, 1), sharded(options(adam).engine(engine("own")), 0));
    now = "adamw with LibTorch's arithmetic, clipped";
    same(alone<torch::optim::AdamW>(adamw, 0.5, 1), sharded(options(adamw).engine(engine("own")), 0.5));
    now = "adamw with LibTorch's arithmetic, clipped by the exact norm";
    tess_options exact = engine("own");
    exact.deterministic = 1;
    same(alone<torch::optim::AdamW>(adamw, 0.5, 1, EXACT_ROUNDED), sharded(options(adamw).engine(exact), 0.5));
    now = "adamw, clipped";
    plain = alone<torch::optim::AdamW>(adamw, 0.5, 1), mine = sharded(options(adamw), 0.5);
    for (size_t i = 0; i < plain.losses.size(); i++)
        EXPECT(std::abs(plain.losses[i] - mine.losses[i]) < 1e-4);
}

/* ---- 16 bits: parameters in half, masters in fp32, scaled losses ---- */

/* Debian's LibTorch has no products in half on a CPU. */
struct RoughImpl : nn::Module {
    RoughImpl(int64_t in, int64_t out) {
        weight = register_parameter("weight", 0.3 * torch::randn({ out, in }));
        bias = register_parameter("bias", torch::zeros({ out }));
    }
    Tensor forward(Tensor x) {
        kind = weight.scalar_type();
        Tensor y = F::linear(x.to(torch::kFloat), weight.to(torch::kFloat), bias.to(torch::kFloat));
        return torch::tanh(y).to(kind);
    }
    Tensor weight, bias;
    at::ScalarType kind = at::kFloat; /* that the last forward has seen */
};
TORCH_MODULE(Rough);
struct RoughPairImpl : nn::Module {
    RoughPairImpl() {
        torch::manual_seed(3);
        first = register_module("first", Rough(9, 21));
        second = register_module("second", Rough(21, 5));
    }
    Tensor forward(Tensor x) { return tessera::forward(second, tessera::forward(first, x)); }
    Rough first{ nullptr }, second{ nullptr };
};
TORCH_MODULE(RoughPair);
static Tensor rough_loss(RoughPair &net, uint64_t microbatch) {
    torch::manual_seed(500 + microbatch);
    Tensor x = torch::randn({ 12, 9 }), want = torch::randn({ 12, 5 });
    return 30 * (net->forward(x.to(net->first->weight.scalar_type())).to(torch::kFloat) - want).pow(2).mean();
}
enum { ROUGH_STEPS = 40, ROUGH_EVERY = 6 };
static constexpr double rough_init = 1 << 20; /* overflows at first */
struct RoughRun {
    std::vector<double> losses;
    std::vector<float> masters;
    double scale = rough_init;
    uint64_t skipped = 0;
};

/* By hand, with LibTorch alone: rounded copies of the masters, and the rules of GradScaler. */
static RoughRun rough_alone(at::ScalarType kind, bool rounded, bool scales) {
    RoughRun run;
    RoughPair net;
    std::vector<Tensor> masters;
    for (Tensor &p : net->parameters())
        masters.push_back((rounded ? p.detach().to(kind) : p.detach().clone()).to(torch::kFloat));
    run.scale = scales ? rough_init : 1;
    torch::optim::SGD optimizer(masters, torch::optim::SGDOptions(0.02).momentum(0.9));
    for (uint64_t step = 0, good = 0; step < ROUGH_STEPS; step++) {
        auto all = net->parameters();
        for (size_t i = 0; i < all.size(); i++) {
            all[i].mutable_grad().reset();
            all[i].set_data(masters[i].to(kind));
        }
        Tensor loss = rough_loss(net, step);
        (loss * run.scale).backward();
        run.losses.push_back(loss.item<double>());
        bool finite = true;
        for (size_t i = 0; i < all.size(); i++) {
            masters[i].mutable_grad() = all[i].grad().to(torch::kFloat) * (1 / run.scale);
            finite = finite && masters[i].grad().isfinite().all().item<bool>();
        }
        if (finite)
            optimizer.step();
        good = finite ? good + 1 : 0;
        run.skipped += !finite;
        if (!finite)
            run.scale /= 2;
        else if (scales && good == ROUGH_EVERY)
            run.scale *= 2, good = 0;
    }
    for (const Tensor &m : masters)
        run.masters.insert(run.masters.end(), m.data_ptr<float>(), m.data_ptr<float>() + m.numel());
    return run;
}
static tess_status add_masters(void *user, const tess_range *r, void *data) {
    auto *all = static_cast<std::vector<float> *>(user);
    all->insert(all->end(), static_cast<float *>(data), static_cast<float *>(data) + r->elems);
    return TESS_OK;
}
static tessera::Options rough_options(const char *precision) {
    tess_options o = {};
    o.precision = precision;
    return tessera::Options(torch::optim::SGDOptions(0.02).momentum(0.9)).engine(o);
}
static RoughRun rough_sharded(const char *precision, at::ScalarType model, at::ScalarType within) {
    RoughRun run;
    RoughPair net;
    net->to(model);
    tessera::Sharded s(net, rough_options(precision));
    for (uint64_t step = 0; step < ROUGH_STEPS; step++) {
        Tensor loss = rough_loss(net, step);
        s.scale(loss).backward();
        EXPECT(net->first->kind == within);
        run.losses.push_back(loss.item<double>());
        s.step();
    }
    tess_stats stats = {};
    stats.struct_size = sizeof stats;
    tessera::detail::ok(tess_stats_get(s.engine(), &stats));
    tessera::detail::ok(tess_each_owned(s.engine(), TESS_OF_PARAM, add_masters, &run.masters));
    run.scale = s.loss_scale(), run.skipped = stats.n_overflows;
    return run;
}
static void same_rough(const RoughRun &left, const RoughRun &right) {
    EXPECT(left.losses == right.losses);
    EXPECT(left.masters == right.masters && left.masters.size() == 9 * 21 + 21 + 21 * 5 + 5);
    EXPECT(left.scale == right.scale && left.skipped == right.skipped);
}
static void test_rough() {
    const char *fp16 = "fp16:init=1048576,every=6";
    now = "fp16";
    RoughRun half = rough_alone(at::kHalf, false, true);
    EXPECT(half.skipped >= 3 && half.skipped < 20);
    same_rough(half, rough_sharded(fp16, at::kFloat, at::kHalf));
    now = "a model in half, in fp16";
    same_rough(rough_alone(at::kHalf, true, true), rough_sharded(fp16, at::kHalf, at::kHalf));
    now = "a model in bfloat16, in bf16";
    same_rough(rough_alone(at::kBFloat16, true, false), rough_sharded("bf16", at::kBFloat16, at::kBFloat16));
    now = "a loss without its scale";
    std::string got = "nothing";
    RoughPair net;
    tessera::Sharded s(net, rough_options(fp16));
    try {
        rough_loss(net, 0).backward();
    } catch (const tessera::Error &e) {
        got = e.what();
    }
    EXPECT(got == "backward of block \"second\" with a loss that is not scaled, under "
                  "TESSERA_PRECISION=fp16:init=1048576,every=6: Sharded::scale(loss).backward()");
}

/* ---- misuse ---- */

struct SmallImpl : nn::Module {
    SmallImpl() {
        a = register_module("a", nn::Linear(4, 4));
        b = register_module("b", nn::Linear(4, 4));
    }
    Tensor forward(Tensor x) {
        if (inside)
            inside(*this);
        return b(torch::relu(a(x)));
    }
    nn::Linear a{ nullptr }, b{ nullptr };
    std::function<void(SmallImpl &)> inside;
};
TORCH_MODULE(Small);
struct PairImpl : nn::Module {
    PairImpl() {
        first = register_module("first", Small());
        second = register_module("second", Small());
    }
    Tensor forward(Tensor x) { return tessera::forward(second, tessera::forward(first, x)); }
    Small first{ nullptr }, second{ nullptr };
};
TORCH_MODULE(Pair);

static void test_counted() {
    now = "memory of LibTorch";
    Pair net;
    tessera::Sharded s(net, torch::optim::SGDOptions(0.1));
    auto before = s.torch_bytes();
    {
        Tensor t = torch::empty({ 1000 });
        EXPECT(s.torch_bytes().bytes == before.bytes + 4000);
    }
    auto after = s.torch_bytes();
    EXPECT(after.bytes == before.bytes && after.peak == before.bytes + 4000);
}

/* The ledger has what LibTorch holds, which the plan has not. */
static tess_stats stats_of(const tessera::Sharded &s) {
    tess_stats stats = {};
    stats.struct_size = sizeof stats;
    tessera::detail::ok(tess_stats_get(s.engine(), &stats));
    return stats;
}
static void test_booked() {
    now = "LibTorch's memory in the ledger";
    Pair net;
    tessera::Sharded s(net, torch::optim::SGDOptions(0.1));
    std::vector<uint64_t> held;
    auto look = [](void *user, const tess_ledger_point *p) {
        if (p->held_bytes != tessera::detail::Counting::get().now().bytes || p->point == TESS_LEDGER_PEAK)
            EXPECT(!"a point has the bytes that LibTorch holds");
        static_cast<std::vector<uint64_t> *>(user)->push_back(p->held_bytes);
    };
    tessera::detail::ok(tess_ledger_hook(s.engine(), look, &held));
    net->forward(torch::ones({ 1000, 4 })).sum().backward();
    s.step();
    EXPECT(held.size() > 8 && *std::max_element(held.begin(), held.end()) >= held.front() + 1000 * 4 * 4);
    uint64_t before = stats_of(s).held_bytes, large = uint64_t{ 1 } << 22;
    EXPECT(before == s.torch_bytes().bytes);
    torch::empty({ 1 << 20 }); /* has come and gone when the engine asks */
    tess_stats after = stats_of(s);
    EXPECT(after.held_bytes == before && after.held_peak_bytes == before + large);
    EXPECT(after.whole_peak_bytes == after.live_bytes[TESS_DOMAIN_DEVICE] + before + large);
    EXPECT(after.live_peak_bytes[TESS_DOMAIN_DEVICE] < after.whole_peak_bytes);
    Pair other;
    tessera::Sharded second(other, torch::optim::SGDOptions(0.1));
    EXPECT(stats_of(second).held_bytes == 0); /* the first one has it */
}

static void test_summon_one() {
    now = "one block summoned";
    Pair net;
    Tensor a = net->first->a->weight.detach().clone();
    tessera::Sharded s(net, torch::optim::SGDOptions(0.1));
    uint64_t resting = stats_of(s).live_bytes[TESS_DOMAIN_DEVICE];
    s.summon(net->first, [&] {
        EXPECT(net->first->a->weight.equal(a));
        std::string got;
        try {
            net->second->a->weight.sum();
        } catch (const tessera::Error &e) {
            got = e.what();
        }
        EXPECT(got.find("parameter \"second.a.weight\" is used by aten::sum outside its block") == 0);
    });
    EXPECT(stats_of(s).live_bytes[TESS_DOMAIN_DEVICE] == resting);
    std::string got;
    try {
        s.summon(net->first->a, [] {});
    } catch (const tessera::Error &e) {
        got = e.what();
    }
    EXPECT(got == "Sharded::summon: the module is no block of this model");
    net->forward(torch::ones({ 2, 4 })).sum().backward(); /* all is well */
    s.step();
}

/* ---- a model without memory ---- */

struct MaskedImpl : nn::Module {
    MaskedImpl() {
        line = register_module("line", nn::Linear(4, 4));
        mask = register_buffer("mask", torch::ones({ 4, 4 }, torch::kBool).triu(1));
    }
    Tensor forward(Tensor x) { return line(x).masked_fill(mask, 0); }
    nn::Linear line{ nullptr };
    Tensor mask;
};
TORCH_MODULE(Masked);

static void test_meta() {
    auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
    now = "made on the meta device";
    Run plain = sharded(options(sgd), 0), mine;
    Net from = make_net();
    std::map<std::string, Tensor> values;
    for (auto &p : from->named_parameters())
        values[p.key()] = p.value().detach();
    for (auto &b : from->named_buffers())
        values[b.key()] = b.value();
    uint64_t before = tessera::detail::Counting::get().now().bytes, most = 0, begin = 0;
    Net net = tessera::on_meta(make_net);
    EXPECT(tessera::detail::Counting::get().now().bytes == before);
    EXPECT(net->mix->weight.is_meta() && net->bn->running_var.is_meta() && !torch::ones({ 1 }).is_meta());
    std::vector<std::string> asked;
    auto fill = [&](const std::string &name, Tensor t) {
        t.copy_(values.at(name));
        asked.push_back(name);
        begin = begin ? begin : tessera::detail::Counting::get().now().bytes;
        most = std::max(most, tessera::detail::Counting::get().now().bytes);
    };
    {
        tessera::Sharded s(net, options(sgd).values(fill));
        EXPECT(asked.size() == values.size());
        EXPECT(most < begin + 3 * 4 * 48 * 16); /* one parameter at a time, the largest twice */
        for (int step = 0; step < 50; step++) {
            Tensor loss = loss_of(net, static_cast<uint64_t>(step));
            loss.backward();
            mine.losses.push_back(loss.item<double>());
            s.step();
        }
        s.summon([&] { keep_values(mine, net); });
    }
    same(plain, mine);
    auto message = [](auto &&use) {
        try {
            use();
        } catch (const tessera::Error &e) {
            return std::string(e.what());
        }
        return std::string("nothing");
    };
    EXPECT(message([&] {
               Net bare = tessera::on_meta(make_net);
               tessera::Sharded s(bare, options(sgd));
               loss_of(bare, 0);
           }).find("has no values yet") != std::string::npos);
    EXPECT(message([&] {
               Masked masked = tessera::on_meta([] { return Masked(); });
               tessera::Sharded s(masked, tessera::Options(sgd).blocks({ "" }));
           }).find("buffer \"mask\" is on the meta device") == 0);
    EXPECT(message([&] {
               Net bare = tessera::on_meta(make_net);
               tessera::Sharded s(bare, options(sgd).values([](const std::string &name, Tensor) {
                   if (name == "mix.bias")
                       throw std::runtime_error("no such file");
               }));
           }).find("values of parameter \"mix.bias\": no such file") != std::string::npos);
}

/* One message, once; and the same again from every later call, as the first error stays. */
template <class F>
static void refused(const char *name, const std::string &message, bool stays, F &&misuse) {
    now = name;
    std::string got = "nothing";
    Pair net;
    tessera::Sharded s(net, tessera::Options(torch::optim::SGDOptions(0.1)).accumulate(2));
    try {
        misuse(net, s);
    } catch (const tessera::Error &e) {
        got = e.what();
        EXPECT(e.exit_code() != 0);
    } catch (const std::exception &e) {
        got = std::string("another exception: ") + e.what();
    }
    EXPECT(got.find(message) != std::string::npos);
    if (got.find(message) == std::string::npos)
        printf("  %s\n", got.c_str());
    if (!stays)
        return;
    std::string again = "nothing";
    try {
        net->first->inside = nullptr;
        net->forward(torch::ones({ 2, 4 }));
    } catch (const tessera::Error &e) {
        again = e.what();
    }
    EXPECT(again == got);
    if (again != got)
        printf("  %s\n  %s\n", got.c_str(), again.c_str());
}
static Tensor ones() {
    return torch::ones({ 2, 4 });
}

static void test_misuse() {
    refused("outside", "parameter \"first.a.weight\" is used by aten::", false,
            [](Pair &net, tessera::Sharded &) { net->first->a->weight.sum().item<float>(); });
    refused("outside, in a linear", "outside its block", false,
            [](Pair &net, tessera::Sharded &) { net->first->a->forward(ones()); });
    refused("outside, by another thread", "outside its block", false, [](Pair &net, tessera::Sharded &) {
        std::exception_ptr caught;
        std::thread([&] {
            try {
                net->first->a->weight.mul(2);
            } catch (...) {
                caught = std::current_exception();
            }
        }).join();
        std::rethrow_exception(caught);
    });
    refused("kept", "parameter \"first.a.weight\" is kept past its block", true, [](Pair &net, tessera::Sharded &) {
        Tensor kept;
        net->first->inside = [&](SmallImpl &m) { kept = m.a->weight.view({ -1 }); };
        Tensor loss = net->forward(ones()).sum();
        EXPECT(std::isnan(kept[0].item<float>())); /* not a crash */
        loss.backward();
    });
    refused("returned", "returns parameter \"first.b.bias\" or a view of it", true, [](Pair &net, tessera::Sharded &) {
        torch::NoGradGuard no_grad;
        auto *m = net->first.get();
        tessera::detail::enter(
            *m,
            [m](auto &...) {
                return m->b->bias.view({ 2, 2 });
            },
            std::tuple<Tensor>(ones()));
    });
    refused("mutated", "module \"first\" has changed since tessera::Sharded was made", true,
            [](Pair &net, tessera::Sharded &) {
                net->first->register_parameter("more", torch::ones({ 2 }));
                net->forward(ones());
            });
    refused("backward twice", "backward of block \"second\" runs twice", true, [](Pair &net, tessera::Sharded &) {
        Tensor loss = net->forward(ones()).sum();
        loss.backward({}, true);
        loss.backward();
    });
    refused("double backward", "with create_graph", true, [](Pair &net, tessera::Sharded &) {
        Tensor loss = net->forward(ones()).sum();
        loss.backward({}, true, true);
    });
    refused("no_grad", "block \"second\" is entered under NoGradGuard in a training pass", true,
            [](Pair &net, tessera::Sharded &) {
                Tensor x = tessera::forward(net->first, ones());
                torch::NoGradGuard no_grad;
                tessera::forward(net->second, x);
            });
    refused("no_grad in all of it", "Sharded::step without a backward", true, [](Pair &net, tessera::Sharded &s) {
        torch::NoGradGuard no_grad;
        net->forward(ones());
        s.step();
    });
    refused("no gradient", "parameter \"first.a.weight\" got no gradient", true, [](Pair &net, tessera::Sharded &s) {
        Tensor y = tessera::forward(net->second, ones()).sum();
        net->first->inside = nullptr;
        auto *m = net->first.get();
        Tensor x = tessera::detail::enter(
            *m, [m](auto &t) { return m->b(t); }, std::tuple<Tensor>(ones()));
        (x.sum() + y).backward();
        s.step();
    });
    refused("another thread", "is entered on another thread", true, [](Pair &net, tessera::Sharded &) {
        Tensor x = tessera::forward(net->first, ones());
        std::exception_ptr caught;
        std::thread([&] {
            try {
                tessera::forward(net->second, x);
            } catch (...) {
                caught = std::current_exception();
            }
        }).join();
        std::rethrow_exception(caught);
    });
    refused("in place", "parameter \"first.b.bias\" was changed in place within block \"first\"", true,
            [](Pair &net, tessera::Sharded &) {
                net->first->inside = [](SmallImpl &m) {
                    torch::NoGradGuard no_grad;
                    m.b->bias.add_(1);
                };
                net->forward(ones());
            });
    refused("no block", "module \"first.a\" is no block", false,
            [](Pair &net, tessera::Sharded &) { tessera::forward(net->first->a, ones()); });
    refused("an exception in forward", "forward of block \"first\" ended by an exception: mine", true,
            [](Pair &net, tessera::Sharded &) {
                net->first->inside = [](SmallImpl &) { throw std::logic_error("mine"); };
                bool own = false;
                try {
                    net->forward(ones());
                } catch (const std::logic_error &) {
                    own = true; /* the program's own type comes through */
                }
                EXPECT(own);
                net->forward(ones());
            });
    refused("an old graph", "belongs to a pass that has ended", true, [](Pair &net, tessera::Sharded &s) {
        Tensor first = tessera::forward(net->first, ones()).sum(), kept = tessera::forward(net->second, ones()).sum();
        first.backward();
        (void)s;
        net->forward(ones());
        kept.backward();
    });
}

/* ---- on several ranks ---- */

template <class M>
static uint64_t digest_of(M &net) {
    uint64_t h = 1469598103934665603u;
    for (auto &p : net->named_parameters()) {
        Tensor t = p.value().detach().to(torch::kFloat).contiguous();
        auto *bytes = static_cast<const unsigned char *>(t.data_ptr());
        for (size_t i = 0; i < t.nbytes(); i++)
            h = (h ^ bytes[i]) * 1099511628211u;
    }
    return h;
}
/* Groups, of which each has a rate of its own in each step. */
static tessera::Options with_groups(const tessera::Options &o) {
    tessera::Group biases, first;
    biases.names = { "*.bias" }, first.names = { "layers.0.*", "embed.*" };
    return tessera::Options(o).groups({ biases, first });
}
static std::vector<double> rates_of(uint64_t step) {
    const double warm = step < 10 ? static_cast<double>(step + 1) / 10 : 1;
    return { 0.05 * warm, 0.02, 0.08 - 0.001 * static_cast<double>(step) };
}
static int train(int argc, char **argv) {
    auto o = options(torch::optim::SGDOptions(0.05).momentum(0.9));
    std::string save, fault;
    bool meta = false, bare = false, grouped = false;
    for (int i = 1; i < argc; i++) {
        std::string a = argv[i];
        bare = bare || a == "bare"; /* its values come from a checkpoint */
        if (a == "recompute")
            o.recompute({ "layers.*", "bn" });
        else if (a == "meta" || a == "bare")
            meta = true;
        else if (a == "rates" || a == "rates=own")
            grouped = true, o = with_groups(o).engine(engine(a == "rates" ? "sgd" : "own"));
        else if (a.rfind("save=", 0) == 0)
            save = a.substr(5);
        else if (a.rfind("fault=", 0) == 0)
            fault = a.substr(6);
    }
    Net net = meta ? tessera::on_meta(make_net) : make_net();
    Net from = make_net(); /* the values of one made on the meta device */
    auto values = [&](const std::string &name, Tensor t) {
        auto p = from->named_parameters();
        t.copy_((p.contains(name) ? p[name] : from->named_buffers()[name]).detach());
    };
    if (!bare)
        o.values(values);
    tessera::Sharded s(net, o);
    uint64_t begin = save.empty() ? 0 : s.load(save), steps = 50;
    for (uint64_t step = begin; step < steps; step++) {
        const auto n = static_cast<uint64_t>(s.accumulate());
        double loss = 0;
        for (uint64_t k = 0; k < n; k++) {
            bool fails = step == 3 && s.rank() == 1;
            if (fault == "throw" && fails)
                net->layers[1]->as<Layer>()->drop->options.p(-1);
            if (fault == "kill" && fails)
                raise(SIGKILL);
            if (fault == "order" && fails) {
                torch::NoGradGuard evaluation;
                loss_of(net, 0);
            }
            Tensor l = loss_of(net, s.microbatch(step * n + k));
            l.backward();
            loss += l.item<double>() / static_cast<double>(n);
        }
        s.clip_grad_norm_(1);
        if (grouped)
            s.lr(rates_of(step));
        s.step();
        loss = s.mean(loss);
        if (s.rank() == 0)
            printf("step %d loss %.9g\n", static_cast<int>(step), loss);
        if (!save.empty() && step == 24) {
            s.save(save);
            return 0;
        }
    }
    uint64_t digest = 0;
    s.sync_buffers();
    s.summon([&] { digest = digest_of(net); });
    if (s.rank() == 0)
        printf("digest %016llx\n", static_cast<unsigned long long>(digest));
    return 0;
}

/* In fp16, on several ranks. */
static int train_rough() {
    RoughPair net;
    tessera::Sharded s(net, rough_options("fp16:init=1048576,every=6"));
    for (uint64_t step = 0; step < ROUGH_STEPS; step++) {
        const auto n = static_cast<uint64_t>(s.accumulate());
        for (uint64_t k = 0; k < n; k++)
            s.scale(rough_loss(net, s.microbatch(step * n + k))).backward();
        double norm = s.clip_grad_norm_(1);
        s.step();
        if (s.rank() == 0)
            printf("step %d norm %.9g scale %g\n", static_cast<int>(step), norm, s.loss_scale());
    }
    uint64_t digest = 0;
    s.summon([&] { digest = digest_of(net); });
    if (s.rank() == 0)
        printf("digest %016llx\n", static_cast<unsigned long long>(digest));
    return 0;
}

int main(int argc, char **argv) {
    try {
        if (argc > 1 && std::string(argv[1]) == "rough")
            return train_rough();
        if (argc > 1)
            return train(argc, argv);
        test_bits();
        test_own();
        test_rates();
        test_rough();
        test_counted();
        test_booked();
        test_summon_one();
        test_meta();
        test_misuse();
    } catch (const tessera::Error &e) {
        fprintf(stderr, "%s: %s\n", now.c_str(), e.what());
        return e.exit_code();
    } catch (const std::exception &e) {
        fprintf(stderr, "%s: %s\n", now.c_str(), e.what());
        return 1;
    }
    printf("%s\n", failures ? "FAILED" : "all cases passed");
    return failures != 0;
}
