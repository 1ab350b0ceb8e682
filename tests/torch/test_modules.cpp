/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera/torch.hpp: models whose parameters are tied, or sized by their first input; that nothing is copied; values
 * from a file of Python's and to one of LibTorch's. With an argument it is a program for e2e/test_torch. */
#include "net.hpp"

#include <cmath>
#include <fstream>

static std::string message_of(const std::function<void()> &use) {
    try {
        use();
    } catch (const tessera::Error &e) {
        return e.what();
    }
    return "nothing";
}
static tess_options by_libtorch() {
    tess_options o = {};
    o.optimizer = "own"; /* LibTorch's operators */
    return o;
}

/* ---- tied parameters ---- */

struct ReaderImpl : nn::Module {
    explicit ReaderImpl(Tensor of) { weight = register_parameter("weight", std::move(of)); }
    Tensor forward(Tensor x) { return x.matmul(weight.t()); }
    Tensor weight;
};
TORCH_MODULE(Reader);
/* The last layer has the embedding's weight: the same tensor, or another one of its memory. */
struct TiedImpl : nn::Module {
    explicit TiedImpl(bool one_tensor) {
        torch::manual_seed(11);
        embed = register_module("embed", nn::Embedding(13, 8));
        body = register_module("body", nn::Linear(8, 8));
        out = register_module("out", Reader(one_tensor ? embed->weight : embed->weight.detach()));
    }
    Tensor forward(Tensor ids) {
        return tessera::forward(out, torch::tanh(tessera::forward(body, tessera::forward(embed, ids))));
    }
    nn::Embedding embed{ nullptr };
    nn::Linear body{ nullptr };
    Reader out{ nullptr };
};
TORCH_MODULE(Tied);
template <class M>
static Tensor tied_loss(M &net, int step) {
    torch::manual_seed(200 + step);
    Tensor ids = torch::randint(13, { 20 }, torch::kLong);
    return F::cross_entropy(net->forward(ids), (ids + 1).remainder(13));
}
struct Trained {
    std::vector<double> losses;
    Tensor weight;
};
static Trained tied_alone(bool one_tensor, const torch::optim::SGDOptions &o) {
    Trained run;
    Tied net(one_tensor);
    std::vector<Tensor> params{ net->embed->weight, net->body->weight, net->body->bias };
    if (!one_tensor)
        params.push_back(net->out->weight);
    torch::optim::SGD optimizer(params, o);
    for (int step = 0; step < 20; step++) {
        optimizer.zero_grad();
        Tensor loss = tied_loss(net, step);
        loss.backward();
        optimizer.step();
        run.losses.push_back(loss.item<double>());
    }
    run.weight = net->embed->weight.detach().clone();
    return run;
}
static Trained tied_sharded(bool one_tensor, const torch::optim::SGDOptions &o) {
    Trained run;
    Tied net(one_tensor);
    tessera::Sharded s(net, tessera::Options(o).engine(by_libtorch()));
    for (int step = 0; step < 20; step++) {
        Tensor loss = tied_loss(net, step);
        loss.backward();
        s.step();
        run.losses.push_back(loss.item<double>());
    }
    s.summon([&] {
        run.weight = net->embed->weight.detach().clone();
        EXPECT(net->out->weight.equal(run.weight));
    });
    return run;
}
static void test_tied() {
    now = "a tensor that two modules register";
    Trained plain = tied_alone(true, torch::optim::SGDOptions(0.5).momentum(0.9));
    Trained mine = tied_sharded(true, torch::optim::SGDOptions(0.5).momentum(0.9));
    EXPECT(plain.losses == mine.losses && plain.weight.equal(mine.weight) && mine.losses.size() == 20);
    EXPECT(mine.losses.back() < 0.5 * mine.losses.front());
    now = "two tensors of one memory"; /* LibTorch steps them one after the other, which rounds twice */
    plain = tied_alone(false, torch::optim::SGDOptions(0.5));
    mine = tied_sharded(false, torch::optim::SGDOptions(0.5));
    EXPECT(plain.weight.allclose(mine.weight, 1e-5, 1e-6));
    EXPECT(std::abs(plain.losses.back() - mine.losses.back()) < 1e-5);
}

/* ---- modules that the first input sizes ---- */

struct LazyImpl : nn::Module {
    explicit LazyImpl(int64_t out) : out(out) {}
    Tensor forward(Tensor x) {
        if (!weight.defined())
            weight = register_parameter("weight", 0.3 * torch::randn({ out, x.size(-1) }));
        return torch::tanh(x.matmul(weight.t()));
    }
    int64_t out;
    Tensor weight;
};
TORCH_MODULE(Lazy);
struct LazyPairImpl : nn::Module {
    LazyPairImpl() : first(register_module("first", Lazy(12))), second(register_module("second", Lazy(5))) {}
    Tensor forward(Tensor x) { return tessera::forward(second, tessera::forward(first, x)); }
    Lazy first, second;
};
TORCH_MODULE(LazyPair);
static LazyPair sized() {
    torch::manual_seed(21);
    LazyPair net;
    net->forward(torch::ones({ 1, 7 }));
    return net;
}
template <class Step>
static std::vector<double> train_lazy(LazyPair &net, const Step &step) {
    std::vector<double> losses;
    for (int i = 0; i < 10; i++) {
        torch::manual_seed(300 + i);
        Tensor loss = net->forward(torch::randn({ 6, 7 })).pow(2).sum();
        loss.backward();
        step();
        losses.push_back(loss.item<double>());
    }
    return losses;
}
static void test_lazy() {
    auto sgd = torch::optim::SGDOptions(0.05);
    now = "sized by a first input";
    LazyPair alone = sized(), net = sized(), from = sized();
    torch::optim::SGD optimizer(alone->parameters(), sgd);
    std::vector<double> plain = train_lazy(alone, [&] {
        optimizer.step();
        optimizer.zero_grad();
    });
    {
        tessera::Sharded s(net, tessera::Options(sgd).engine(by_libtorch()));
        EXPECT(train_lazy(net, [&] { s.step(); }) == plain);
    }
    now = "sized on the meta device";
    LazyPair meta = tessera::on_meta(sized);
    EXPECT(meta->first->weight.is_meta() && meta->first->weight.sizes() == torch::IntArrayRef({ 12, 7 }));
    {
        auto values = [&](const std::string &name, Tensor t) { t.copy_(from->named_parameters()[name].detach()); };
        tessera::Sharded s(meta, tessera::Options(sgd).values(values).engine(by_libtorch()));
        EXPECT(train_lazy(meta, [&] { s.step(); }) == plain);
    }
    now = "not sized";
    EXPECT(message_of([&] {
               LazyPair none;
               tessera::Sharded s(none, sgd);
           }) ==
           "tessera::Sharded: the model has no parameters yet: where a first input sizes them, run one forward before, "
           "within tessera::on_meta say");
    EXPECT(message_of([&] {
               LazyPair half;
               tessera::forward(half->first, torch::ones({ 1, 7 }));
               tessera::Sharded s(half, sgd);
               half->forward(torch::ones({ 1, 7 }));
               half->forward(torch::ones({ 1, 7 }));
           }).find("module \"second\" has changed since tessera::Sharded was made") == 0);
}

/* ---- no copies; threads; files of LibTorch's ---- */

static uint64_t held_now() {
    return tessera::detail::Counting::get().now().bytes;
}
static uint64_t held_most() {
    return tessera::detail::Counting::get().now().peak;
}
/* LibTorch allocates neither parameters nor gradients: one gradient of a weight at a time is autograd's, until it is
 * added. */
static void test_no_copies() {
    now = "no copies";
    const uint64_t weight = 4 * 512 * 512, small = weight / 8;
    nn::Sequential net(nn::Linear(512, 512), nn::Linear(512, 512));
    uint64_t whole = held_now();
    tessera::Sharded s(net, tessera::Options(torch::optim::SGDOptions(0.1)).blocks({ "0", "1" }));
    uint64_t bare = held_now();
    EXPECT(whole - bare >= 2 * weight); /* its own memory has gone */
    Tensor x = torch::ones({ 2, 512 });
    for (int step = 0; step < 2; step++) {
        tessera::detail::Counting::get().reset();
        Tensor y = x;
        for (auto &layer : *net)
            y = tessera::forward(layer, y);
        EXPECT(held_most() < bare + small);
        y.sum().backward();
        EXPECT(held_most() < bare + small + weight);
        y.reset();
        EXPECT(held_now() < bare + small);
        s.step();
    }
    EXPECT(!net->parameters()[0].grad().defined());
}
static void test_threads() {
    now = "threads";
    const char *was = getenv("TESSERA_THREADS");
    for (const char *n : { "3", "1" }) {
        setenv("TESSERA_THREADS", n, 1);
        nn::Linear net(4, 4);
        tessera::Sharded s(net, tessera::Options(torch::optim::SGDOptions(0.1)).blocks({ "" }));
        EXPECT(at::get_num_threads() == atoi(n));
    }
    setenv("TESSERA_THREADS", was ? was : "1", 1);
}
static void test_save() {
    now = "torch::save within summon";
    Net net = make_net(), again = make_net();
    auto state = state_dict(net);
    for (const Tensor &p : again->parameters())
        p.detach().fill_(7);
    tessera::Sharded s(net, options(torch::optim::SGDOptions(0.1)));
    s.summon([&] { torch::save(net, "net.pt"); });
    torch::load(again, "net.pt");
    std::remove("net.pt");
    for (auto &v : state_dict(again))
        EXPECT(v.second.equal(state.at(v.first)));
}

/* ---- a file as Python's save_file(model.state_dict()) writes it ---- */

static const char *word_of(at::ScalarType type) {
    return type == at::kLong       ? "I64"
           : type == at::kBool     ? "BOOL"
           : type == at::kBFloat16 ? "BF16"
           : type == at::kDouble   ? "F64"
                                   : "F32";
}
static void write_safetensors(const std::string &path, const std::map<std::string, Tensor> &state) {
    std::string header = "{\"__metadata__\":{\"format\":\"pt\"}", data;
    for (const auto &v : state) {
        Tensor t = v.second.detach().contiguous();
        header += ",\"" + v.first + "\":{\"dtype\":\"" + word_of(t.scalar_type()) + "\",\"shape\":[";
        for (int64_t d = 0; d < t.dim(); d++)
            header += (d ? "," : "") + std::to_string(t.size(d));
        header += "],\"data_offsets\":[" + std::to_string(data.size()) + ",";
        data.append(static_cast<const char *>(t.data_ptr()), t.nbytes());
        header += std::to_string(data.size()) + "]}";
    }
    header += "}";
    uint64_t length = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char *>(&length), 8) << header << data;
    if (!file)
        throw std::runtime_error(path + " cannot be written");
}
/* Other values than make_net's, and a count of batches. */
static std::map<std::string, Tensor> other_state() {
    Net from = make_net();
    torch::manual_seed(99);
    auto state = state_dict(from);
    for (auto &v : state)
        v.second = v.second.is_floating_point() ? torch::rand_like(v.second) : torch::full_like(v.second, 41);
    return state;
}
template <class M>
static std::string load_error(M model, const tessera::Options &o, std::map<std::string, Tensor> state) {
    write_safetensors("state.safetensors", state);
    tessera::Sharded s(model, o);
    try {
        s.load("state.safetensors");
    } catch (const tessera::Error &e) {
        EXPECT(e.status() == TESS_E_DATA);
        return e.what();
    }
    return "nothing";
}
/* Two names of one parameter within a block, and a table, which is the program's own. */
struct TwinImpl : nn::Module {
    TwinImpl() {
        left = register_module("left", nn::Linear(4, 4));
        right = register_module("right", left);
        mask = register_buffer("mask", torch::ones({ 4, 4 }, torch::kBool).triu(1));
    }
    nn::Linear left{ nullptr }, right{ nullptr };
    Tensor mask;
};
TORCH_MODULE(Twin);

static void test_import() {
    auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
    now = "values from Python's file";
    auto state = other_state();
    write_safetensors("state.safetensors", state);
    for (bool meta : { false, true }) {
        Net net = meta ? tessera::on_meta(make_net) : make_net();
        tessera::Sharded s(net, options(sgd));
        EXPECT(s.load("state.safetensors") == 0);
        s.summon([&] {
            auto mine = state_dict(net);
            EXPECT(mine.size() == state.size() && mine.size() == 23);
            for (const auto &v : state)
                EXPECT(mine.at(v.first).equal(v.second) && mine.at(v.first).dtype() == v.second.dtype());
        });
        loss_of(net, 0).backward(); /* and training goes on */
        s.step();
        s.summon([&] { EXPECT(net->bn->num_batches_tracked.item<int64_t>() == 42); });
    }
    now = "values in bfloat16 and in double";
    state["mix.weight"] = state["mix.weight"].to(torch::kBFloat16);
    state["mix.bias"] = state["mix.bias"].to(torch::kDouble);
    write_safetensors("state.safetensors", state);
    {
        Net net = make_net();
        tessera::Sharded s(net, options(sgd));
        s.load("state.safetensors");
        s.summon(net->mix, [&] {
            EXPECT(net->mix->weight.equal(state["mix.weight"].to(torch::kFloat)));
            EXPECT(net->mix->bias.equal(state["mix.bias"].to(torch::kFloat)));
        });
    }
    now = "a file of another model";
    auto error = [&](const std::map<std::string, Tensor> &other) {
        return load_error(make_net(), options(sgd), other);
    };
    auto fewer = state, more = state, turned = state, whole_numbers = state;
    fewer.erase("mix.weight");
    more["mix.scale"] = torch::ones({ 3 });
    turned["layers.0.a.weight"] = torch::ones({ 16, 48 });
    whole_numbers["mix.bias"] = torch::ones({ 16 }, torch::kLong);
    EXPECT(error(fewer) == "state.safetensors: parameter 'mix.weight' is not in it");
    EXPECT(error(more) == "state.safetensors: tensor 'mix.scale' is no parameter and no buffer of this model");
    EXPECT(error(turned) == "state.safetensors: tensor 'layers.0.a.weight' has the shape [16, 48], expected [48, 16]");
    EXPECT(error(whole_numbers) == "state.safetensors: tensor 'mix.bias' is i64, expected f32");
    now = "two names of a parameter, and a table";
    Twin twin;
    auto both = state_dict(twin);
    EXPECT(both.size() == 5);
    EXPECT(load_error(twin, tessera::Options(sgd).blocks({ "" }), both) == "nothing");
    std::remove("state.safetensors");
}

/* ---- on several ranks ---- */

/* With the values of a file, which Python has written (tests/reference/save_file.py). */
static int evaluate(const char *path) {
    Net net = tessera::on_meta(make_net);
    tessera::Sharded s(net, options(torch::optim::SGDOptions(0.05)));
    s.load(path);
    net->eval();
    torch::NoGradGuard no_grad;
    Tensor at = torch::arange(24, torch::kLong);
    double loss = F::cross_entropy(net->forward((at * 7).remainder(33)), (at * 5).remainder(33)).item<double>();
    if (s.rank() == 0)
        printf("evaluation %.9g\n", loss);
    return 0;
}

/* Statistics of BatchNorm: each rank's own, until they are asked for as the mean. */
static int train_buffers() {
    Net net = make_net();
    tessera::Sharded s(net, options(torch::optim::SGDOptions(0.05)));
    for (uint64_t step = 0; step < 3; step++) {
        loss_of(net, s.microbatch(step)).backward();
        s.step();
    }
    auto sum = [&] { return net->bn->running_mean.to(torch::kDouble).sum().item<double>(); };
    double mine = sum(), mean = s.mean(mine);
    s.sync_buffers();
    bool apart = s.ranks() == 1 || std::abs(mine - mean) > 1e-4, same = std::abs(sum() - mean) < 1e-5;
    loss_of(net, s.microbatch(3)).backward(); /* and they are the rank's own again */
    bool again = s.ranks() == 1 || std::abs(sum() - s.mean(sum())) > 1e-5;
    printf("buffers %s\n", apart && same && again ? "ok" : "WRONG");
    return !(apart && same && again);
}

int main(int argc, char **argv) {
    try {
        std::string what = argc > 1 ? argv[1] : "";
        if (what == "buffers")
            return train_buffers();
        if (argc > 2 && what == "evaluate")
            return evaluate(argv[2]);
        if (argc > 2 && what == "write") { /* what "train" of test_torch begins with, for its import= */
            Net net = make_net();
            write_safetensors(argv[2], state_dict(net));
            return 0;
        }
        test_tied();
        test_lazy();
        test_no_copies();
        test_threads();
        test_save();
        test_import();
    } catch (const std::exception &e) {
        fprintf(stderr, "%s: %s\n", now.c_str(), e.what());
        auto *ours = dynamic_cast<const tessera::Error *>(&e);
        return ours ? ours->exit_code() : 1;
    }
    printf("%s\n", failures ? "FAILED" : "all cases passed");
    return failures != 0;
}
