/* SPDX-License-Identifier: BSD-3-Clause */
/* The world of comm-nccl on one thread. A driver and an NCCL write down their calls. There is page-locked memory, and a
 * host with a key-value store. Threads run at once, and the clock stands still while nobody naps. All of them fail when
 * they are told to. The linker puts this file's functions between the plugin and what it calls. */
#ifndef TEST_NCCL_WORLD_H
#define TEST_NCCL_WORLD_H
#include "plugins/comm-nccl/communicator.h"
#include "tests/unit/plugins/written_driver.h"

#include <unistd.h>

const unsigned char tess_nccl_kernels[1];
enum { KEYS = 32, VALUE = 512 };

static const tess_comm_ops *ops;
static void *plugin;
static tess_comm *comm;

/* ---- NCCL ---- */

static struct nccl_library nccl;
static struct {
    int comms, memory, registrations, windows; /* not given back */
    int in_group;
    ncclResult_t async;
    int no_windows; /* NCCL makes none, without an error */
    int child_size, child_rank;
    size_t takes; /* of the GPU's memory beside what was asked for */
} world;

static ncclResult_t result(void) {
    return written_call() ? ncclSystemError : ncclSuccess;
}
static ncclResult_t made(int *live, void **out) {
    ncclResult_t r = result();
    *out = NULL;
    if (r == ncclSuccess) {
        ++*live;
        *out = (void *)((uintptr_t)++written.made << 32);
    }
    return r;
}
static int short_of(const void *what) {
    return (int)((uintptr_t)what >> 32);
}
static ncclResult_t unique_id(ncclUniqueId *id) {
    memset(id, 'i', sizeof *id);
    say("id; ");
    return result();
}
#ifdef NCCL_CTA_POLICY_ZERO
enum { HAS_ENGINES = 1 };
static int takes_engines(const ncclConfig_t *c) {
    return c->CTAPolicy == NCCL_CTA_POLICY_ZERO;
}
#else /* an older nccl.h */
enum { HAS_ENGINES = 0 };
static int takes_engines(const ncclConfig_t *c) {
    (void)c;
    return 0;
}
#endif
static void say_config(const ncclConfig_t *c) {
    assert_int_equal(c->blocking, 1);
    assert_int_equal(c->splitShare, 0);
    say(", %d channels%s", c->maxCTAs, takes_engines(c) ? ", engines" : "");
}
static ncclResult_t init_comm(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *config) {
    for (size_t i = 0; i < sizeof id; i++)
        assert_int_equal(((char *)&id)[i], 'i');
    say("init %d of %d", rank, n);
    say_config(config);
    say("; ");
    return made(&world.comms, (void **)out);
}
static ncclResult_t split_comm(ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    assert_non_null(c);
    say("split by %d, %d", color, key);
    say_config(config);
    say("; ");
    if (color != NCCL_SPLIT_NOCOLOR)
        return made(&world.comms, (void **)out);
    *out = NULL;
    return result();
}
static ncclResult_t count_of(ncclComm_t c, int *out) {
    (void)c;
    *out = world.child_size;
    return result();
}
static ncclResult_t rank_of(ncclComm_t c, int *out) {
    (void)c;
    *out = world.child_rank;
    return result();
}
static ncclResult_t finalize_comm(ncclComm_t c) {
    say("finalize n%d; ", short_of(c));
    return result();
}
static ncclResult_t destroy_comm(ncclComm_t c) {
    say("destroy n%d; ", short_of(c));
    world.comms--;
    return result();
}
static ncclResult_t abort_comm(ncclComm_t c) {
    assert_non_null(c);
    say("abort n%d; ", short_of(c));
    world.comms--;
    world.registrations = world.windows = 0; /* which go with it */
    return ncclSuccess;
}
static ncclResult_t async_error(ncclComm_t c, ncclResult_t *out) {
    assert_non_null(c);
    *out = world.async;
    return ncclSuccess;
}
static const char *error_text(ncclResult_t r) {
    return r == ncclSuccess ? "fine" : "why";
}
static ncclResult_t begin_group(void) {
    ncclResult_t r = result();
    assert_int_equal(world.in_group, 0);
    world.in_group = r == ncclSuccess;
    say("( ");
    return r;
}
static ncclResult_t end_group(void) {
    world.in_group = 0;
    say("); ");
    return result();
}
static ncclResult_t gather(const void *from, void *to, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s) {
    (void)from, (void)to, (void)t;
    say("gather %zu of n%d on s%d; ", n, short_of(c), number_of(s));
    return result();
}
static ncclResult_t take_memory(void **out, size_t bytes) {
    say("take %zuK; ", bytes >> 10);
    written.free_bytes -= bytes + world.takes;
    return made(&world.memory, out);
}
static ncclResult_t give_memory(void *at) {
    say("give m%d; ", short_of(at));
    world.memory--;
    return ncclSuccess;
}
static ncclResult_t register_memory(const ncclComm_t c, void *at, size_t bytes, void **out) {
    say("register m%d, %zuK with n%d; ", short_of(at), bytes >> 10, short_of(c));
    return made(&world.registrations, out);
}
static ncclResult_t deregister_memory(const ncclComm_t c, void *handle) {
    (void)c;
    say("deregister r%d; ", short_of(handle));
    world.registrations--;
    return ncclSuccess;
}
static ncclResult_t make_window(ncclComm_t c, void *at, size_t bytes, ncclWindow_t *out, int flags) {
    (void)c;
    assert_int_equal(flags, NCCL_WIN_COLL_SYMMETRIC);
    say("window of m%d, %zuK; ", short_of(at), bytes >> 10);
    *out = NULL;
    return world.no_windows ? result() : made(&world.windows, (void **)out);
}
static ncclResult_t end_window(ncclComm_t c, ncclWindow_t w) {
    (void)c;
    say("end w%d; ", short_of(w));
    world.windows--;
    return ncclSuccess;
}

tess_status __wrap_nccl_library_get(const struct nccl_library **out, tess_error *f);
tess_status __wrap_nccl_library_get(const struct nccl_library **out, tess_error *f) {
    if (written_call())
        return tess_plugin_fail(f, TESS_E_SYSTEM, "nccl: no library");
    *out = &nccl;
    return TESS_OK;
}
static void begin_nccl(int version) {
    memset(&world, 0, sizeof world);
    world.child_size = 1;
    nccl = (struct nccl_library){ .version = version,
                                  .ncclGetUniqueId = unique_id,
                                  .ncclCommInitRankConfig = init_comm,
                                  .ncclCommSplit = split_comm,
                                  .ncclCommCount = count_of,
                                  .ncclCommUserRank = rank_of,
                                  .ncclCommFinalize = finalize_comm,
                                  .ncclCommDestroy = destroy_comm,
                                  .ncclCommAbort = abort_comm,
                                  .ncclCommGetAsyncError = async_error,
                                  .ncclGetErrorString = error_text,
                                  .ncclGroupStart = begin_group,
                                  .ncclGroupEnd = end_group,
                                  .ncclAllGather = gather,
                                  .ncclMemAlloc = take_memory,
                                  .ncclMemFree = give_memory,
                                  .ncclCommRegister = register_memory,
                                  .ncclCommDeregister = deregister_memory,
                                  .ncclCommWindowRegister = make_window,
                                  .ncclCommWindowDeregister = end_window };
}

/* ---- page-locked memory, which is read and written ---- */

static int mismatch; /* another rank announces another count */

static CUresult lock_memory(void **out, size_t bytes, unsigned flags) {
    assert_int_equal(flags, 0);
    CUresult r = written_call();
    if (r == CUDA_SUCCESS) {
        *out = __real_calloc(1, bytes);
        written.live.locked++;
    }
    return r;
}
static CUresult unlock_memory(void *at) {
    CUresult r = written_give(&written.live.locked, at);
    __real_free(at);
    return r;
}
/* What comes down is what all ranks announced: the same as this one, unless they differ. */
static CUresult bring_down(void *to, CUdeviceptr from, size_t bytes, CUstream s) {
    const kit_announcement *own = (const kit_announcement *)to - 1;
    (void)from;
    say("down %zu on s%d; ", bytes, number_of(s));
    for (size_t i = 0; i < bytes / sizeof *own; i++) {
        kit_announcement *theirs = (kit_announcement *)to + i;
        *theirs = *own;
        theirs->count += i > 0 ? (uint64_t)mismatch : 0;
    }
    return written_call();
}

/* Of which a communicator makes hundreds. */
static CUresult make_event(CUevent *out, unsigned flags) {
    assert_int_equal(flags, CU_EVENT_DISABLE_TIMING);
    return written_make(&written.live.events, (void **)out);
}
static CUresult end_event(CUevent event) {
    return written_give(&written.live.events, event);
}

/* Says when work ends, not how often it was asked for. */
static CUresult ask_stream(CUstream s) {
    (void)s;
    CUresult r = written_answer();
    if (r == CUDA_ERROR_NOT_READY && written.busy_for == 0)
        say("idle; ");
    return r;
}

/* ---- threads, which run at once, and the clock ---- */

static int64_t clock_ns;
static int no_threads; /* the n-th from now does not start */
static void (*watch)(void *);
static void *watched;
static void (*at_nap)(void); /* while somebody waits */
static int naps;

static void *nothing(void *unused) {
    return unused;
}
tess_status __wrap_kit_thread_start(pthread_t *out, const tess_host *host, const char *who, const char *name,
                                    void (*run)(void *), void *arg, tess_error *error);
tess_status __wrap_kit_thread_start(pthread_t *out, const tess_host *host, const char *who, const char *name,
                                    void (*run)(void *), void *arg, tess_error *error) {
    (void)host;
    if (no_threads && --no_threads == 0)
        return tess_plugin_fail(error, TESS_E_SYSTEM, "%s: no thread", who);
    if (strcmp(name, "tess-nccl-watch") == 0)
        watch = run, watched = arg;
    else
        run(arg);
    assert_int_equal(pthread_create(out, NULL, nothing, NULL), 0);
    return TESS_OK;
}
int64_t __wrap_kit_now_ns(void);
int64_t __wrap_kit_now_ns(void) {
    return clock_ns;
}
int __wrap_pthread_mutex_timedlock(pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_mutex_timedlock(pthread_mutex_t *lock, const struct timespec *until) {
    (void)until;
    return pthread_mutex_trylock(lock);
}
int64_t __wrap_kit_until_ns(int64_t timeout_ns);
int64_t __wrap_kit_until_ns(int64_t timeout_ns) {
    return timeout_ns < 0 ? INT64_MAX : clock_ns + timeout_ns;
}
void __wrap_kit_nap(int64_t ns);
void __wrap_kit_nap(int64_t ns) {
    clock_ns += ns;
    naps++;
    if (at_nap)
        at_nap();
}

/* ---- the host ---- */

static struct {
    char key[256], value[VALUE];
    uint64_t bytes;
} store[KEYS];
static int n_keys, aborting;
static const char *settings[4]; /* keys and their texts */

static int find_key(const char *key) {
    int i = 0;
    while (i < n_keys && strcmp(store[i].key, key) != 0)
        i++;
    return i;
}
static tess_status kv_set(void *host, const char *key, const void *value, uint64_t bytes) {
    (void)host;
    int i = find_key(key);
    assert_true(i < KEYS && bytes <= VALUE);
    snprintf(store[i].key, sizeof store[i].key, "%s", key);
    memcpy(store[i].value, value, bytes);
    store[i].bytes = bytes;
    n_keys = i == n_keys ? n_keys + 1 : n_keys;
    return written_call() ? TESS_E_PEER : TESS_OK;
}
static tess_status kv_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    (void)host, (void)timeout_ns;
    int i = find_key(key);
    if (written_call())
        return TESS_E_PEER;
    if (i == n_keys)
        return TESS_E_TIMEOUT;
    assert_true(store[i].bytes <= *bytes);
    memcpy(value, store[i].value, store[i].bytes);
    *bytes = store[i].bytes;
    return TESS_OK;
}
static const char *option(void *host, const char *key) {
    (void)host;
    for (int i = 0; i < 4 && settings[i]; i += 2)
        if (strcmp(settings[i], key) == 0)
            return settings[i + 1];
    return NULL;
}
static int32_t is_aborting(void *host) {
    (void)host;
    return aborting;
}
static tess_host host = { .struct_size = sizeof host,
                          .log = write_log,
                          .option = option,
                          .kv_set = kv_set,
                          .kv_get = kv_get,
                          .aborting = is_aborting,
                          .args = "",
                          .helper_cpus = "" };

static tess_status open_with(const char *key, const char *text) {
    const void *table;
    settings[0] = key, settings[1] = text;
    tess_status s = tess_plugin_open_v1(&host, TESS_KIND_COMM, &table, &plugin, no_error());
    if (!s)
        ops = table;
    return s;
}
static int begin(void **state) {
    (void)state;
    written_begin();
    written_forget();
    const tess_cuda *loaded;
    char why[200];
    assert_int_equal(tess_cuda_get(&loaded, why, sizeof why), TESS_OK);
    cuda.cuMemHostAlloc = lock_memory, cuda.cuMemFreeHost = unlock_memory, cuda.cuMemcpyDtoHAsync = bring_down;
    cuda.cuEventCreate = make_event, cuda.cuEventDestroy = end_event;
    cuda.cuStreamQuery = ask_stream;
    written.processors = 100;
    begin_nccl(NCCL_VERSION(2, 28, 9));
    clock_ns = 0, no_threads = no_memory_in = 0, watch = NULL, at_nap = NULL, mismatch = aborting = n_keys = naps = 0;
    memset(settings, 0, sizeof settings);
    host.args = "";
    assert_int_equal(open_with(NULL, NULL), TESS_OK);
    said_so_far[0] = 0;
    return 0;
}
static void nothing_is_left(void) {
    is_clean();
    assert_true(world.comms == 0 && world.memory == 0 && world.registrations == 0 && world.windows == 0);
}
static int end(void **state) {
    (void)state;
    ops->close(plugin);
    nothing_is_left();
    assert_int_equal(live_memory, 0);
    return 0;
}
static tess_comm_config config_of(int rank, int n) {
    return (tess_comm_config){ .struct_size = sizeof(tess_comm_config),
                               .rank = rank,
                               .nranks = n,
                               .local_rank = 0,
                               .device = 1,
                               .group = "g",
                               .timeout_ns = INT64_C(5000000000) };
}

/* ---- what tests do in it ---- */

static inline tess_comm_caps caps_of(tess_comm *c) {
    tess_comm_caps caps = { .struct_size = sizeof caps };
    assert_int_equal(ops->query(plugin, c, &caps), TESS_OK);
    return caps;
}

static inline tess_collective a_call(uint32_t op, uint64_t count) {
    return (tess_collective){ .struct_size = sizeof(tess_collective),
                              .op = op,
                              .redop = TESS_SUM,
                              .send_dtype = TESS_F32,
                              .recv_dtype = TESS_F32,
                              .send_mem = TESS_MEM_CUDA,
                              .recv_mem = TESS_MEM_CUDA,
                              .count = count,
                              .scale = 1 };
}

static inline tess_status make_alone(void) {
    const tess_comm_config config = config_of(0, 1);
    comm = NULL;
    tess_status s = ops->init(plugin, &config, &comm, &e);
    assert_int_equal(comm == NULL, s != TESS_OK);
    return s;
}

static inline void destroy(void) {
    written.fails_in = 0;
    ops->destroy(comm);
    comm = NULL;
    written.made = 0;
}

/* Fails each call of the driver, of NCCL and of the store once, then each allocation and each thread. `work` fails,
 * too, but for so many of these calls, which it does without or makes again. Returns how many calls there are. */
static inline int fail_each(tess_status (*work)(void), void (*clean)(void), int without) {
    int calls = 0;
    for (int what = 0; what < 3; what++)
        for (int n = 1;; n++) {
            int *const in = what == 0 ? &written.fails_in : what == 1 ? &no_memory_in : &no_threads;
            no_error();
            *in = n, written.fails_with = CUDA_ERROR_UNKNOWN;
            tess_status s = work();
            int reached = *in == 0;
            written.fails_in = no_memory_in = no_threads = 0;
            if (s > 0 || (s < 0 && (!reached || strncmp(e.message, "nccl: ", 6) != 0 || e.code != s)))
                fail_msg("%d, call %d fails: status %d, \"%s\"", what, n, s, e.message);
            without -= reached && !s;
            clean();
            said_so_far[0] = 0;
            if (!reached)
                break;
            calls += what == 0;
        }
    assert_int_equal(without, 0);
    return calls;
}

static inline void end_what_is_left(void) {
    if (comm)
        destroy();
    nothing_is_left();
}

static inline struct rank_record *record_of(int rank) {
    char key[40];
    snprintf(key, sizeof key, "g/nccl/%d", rank);
    int i = find_key(key);
    if (i == n_keys)
        snprintf(store[n_keys++].key, sizeof store[0].key, "%s", key);
    store[i].bytes = sizeof(struct rank_record);
    return (struct rank_record *)(void *)store[i].value;
}

/* A rank on another GPU of this host. */
static inline struct rank_record *add_rank(int rank) {
    struct rank_record *r = record_of(rank);
    *r = (struct rank_record){ .version = nccl.version, .apart = 1, .multiprocessors = 100 };
    memset(r->uuid, rank, sizeof r->uuid);
    snprintf(r->bus_id, sizeof r->bus_id, "0000:AB:0%d.0", rank + 4);
    snprintf(r->host, sizeof r->host, "elsewhere");
    return r;
}

static inline tess_status make_of(int n) {
    const tess_comm_config config = config_of(0, n);
    comm = NULL;
    return ops->init(plugin, &config, &comm, &e);
}

static inline tess_status make_two(void) {
    add_rank(1);
    return make_of(2);
}

static const tess_stream stream = { .mem = TESS_MEM_CUDA, .handle = (void *)(uintptr_t)70 };

static tess_request *request;
static char from[64], to[64];

static inline tess_collective a_gather(void) {
    tess_collective c = a_call(TESS_ALL_GATHER, 2);
    c.send = from, c.recv = to, c.after = stream;
    return c;
}

static inline tess_status post(void) {
    const tess_collective c = a_gather();
    return ops->post(comm, &c, 1, &request, &e);
}

static inline void begin_two(void) {
    assert_int_equal(make_two(), TESS_OK);
    said_so_far[0] = 0;
}
#define ON_ONE_THREAD(test) cmocka_unit_test_setup_teardown(test, begin, end)
#endif
