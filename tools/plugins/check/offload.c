/* SPDX-License-Identifier: BSD-3-Clause */
/* An offload plugin's answers about places, and its handling of memory that it keeps itself. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "suites.h"

enum { UNITS = 23, PER_UNIT = 4, N = UNITS * PER_UNIT + 1 };

static const tess_offload_ops *ops;
static void *ctx;

static void open_offload(check *c) {
    ops = check_open(c);
    ctx = c->ctx;
}

/* ---- place, called as planning does ------------------------------------------------------------ */

static const struct {
    uint32_t region, index;
} of_unit[PER_UNIT] = {
    { TESS_REGION_MASTER, 0 }, { TESS_REGION_GRAD, 0 }, { TESS_REGION_STATE, 0 }, { TESS_REGION_STATE, 1 }
};

static uint32_t make_regions(tess_region *out) {
    for (int i = 0; i < N; i++) {
        int unit = i / PER_UNIT, k = i % PER_UNIT;
        uint64_t elems = 64 * (uint64_t)(1 + unit * unit);
        out[i] = (tess_region){ .struct_size = sizeof *out,
                                .region = i == N - 1 ? TESS_REGION_ACTIVATION : of_unit[k].region,
                                .dtype = TESS_F32,
                                .index = of_unit[k].index,
                                .unit = i == N - 1 ? -1 : unit,
                                .group = i == N - 1 ? -1 : unit,
                                .elems = elems,
                                .bytes = elems * 4 };
    }
    return N;
}

static tess_plan_env environment(int32_t nranks) {
    return (tess_plan_env){ .struct_size = sizeof(tess_plan_env),
                            .mem = TESS_MEM_HOST,
                            .nranks = nranks,
                            .ranks_per_host = nranks,
                            .in_flight = 1 };
}

static void place(check *c, const tess_region *regions, uint32_t n, tess_placement *out, int garbage) {
    tess_plan_env env = environment(4);
    tess_error e = { .struct_size = sizeof e };
    memset(out, garbage, n * sizeof *out);
    for (uint32_t i = 0; i < n; i++)
        out[i].struct_size = sizeof *out;
    check_doing(c, "place");
    tess_status s = ops->place(ctx, &env, regions, n, out, &e);
    check_doing(c, "");
    check_that(c, s == TESS_OK, "place gave %s: %s", check_status(s), e.message);
}

static void place_is_pure(check *c) {
    tess_region regions[N];
    tess_placement a[N], b[N];
    open_offload(c);
    uint32_t n = make_regions(regions);
    place(c, regions, n, a, 0x5a);
    place(c, regions, n, b, 0xa5);
    for (uint32_t i = 0; i < n; i++)
        check_that(c, memcmp(&a[i], &b[i], sizeof a[i]) == 0,
                   "place of region %u says something else the second time, or leaves a part unwritten", i);
    for (uint32_t i = 0; i < n; i++)
        check_that(c, a[i].struct_size == sizeof a[i], "place wrote struct_size of region %u", i);
    for (int round = 0; round < 6; round++) {
        tess_placement one;
        if (round == 3) { /* a new instance */
            check_close(c);
            open_offload(c);
        }
        check_sleep_ms(round == 4 ? 1100 : 1); /* nor does the clock matter */
        place(c, &regions[round], 1, &one, 0x5a);
        place(c, regions, n, b, 0x11 * round);
        for (uint32_t i = 0; i < n; i++)
            check_that(c, memcmp(&a[i], &b[i], sizeof a[i]) == 0, "place of region %u says something else at call %d",
                       i, 2 * round + 4);
    }
    tess_plan_env env = environment(1);
    check_that(c, ops->place(ctx, &env, NULL, 0, NULL, NULL) == TESS_OK, "place of no region failed");
}

static void sizes_fit(check *c) {
    tess_region regions[N];
    tess_placement p[N];
    open_offload(c);
    uint32_t n = make_regions(regions);
    int rests[4] = { 0 };
    place(c, regions, n, p, 0);
    for (uint32_t i = 0; i < n; i++) {
        check_that(c, p[i].rest >= TESS_REST_DEVICE && p[i].rest <= TESS_REST_PLUGIN, "region %u rests in %u", i,
                   p[i].rest);
        rests[p[i].rest]++;
        check_that(c, (p[i].align & (p[i].align - 1)) == 0, "region %u: alignment %u", i, p[i].align);
        check_that(c, p[i].rest != TESS_REST_HOST || p[i].host_bytes >= regions[i].bytes,
                   "region %u of %llu bytes rests on the host with %llu", i, (unsigned long long)regions[i].bytes,
                   (unsigned long long)p[i].host_bytes);
        check_that(c, p[i].rest != TESS_REST_DEVICE || (p[i].host_bytes == 0 && p[i].storage_bytes == 0),
                   "region %u rests on the device and takes %llu bytes elsewhere", i,
                   (unsigned long long)(p[i].host_bytes + p[i].storage_bytes));
        check_that(c, p[i].pinned_bytes <= p[i].host_bytes, "region %u: more pinned than there is on the host", i);
        check_that(c,
                   p[i].rest != TESS_REST_PLUGIN ||
                       (TESS_CAN(tess_offload_ops, ops, post) && TESS_CAN(tess_offload_ops, ops, step)),
                   "region %u rests in the plugin, which has no post or step", i);
    }
    for (int i = 1; i < N - 1; i++)
        check_that(c, regions[i].region != TESS_REGION_STATE || regions[i].index == 0 || p[i].rest == p[i - 1].rest,
                   "the states of unit %d rest in different places", regions[i].unit);
    check_note(c, "%d regions: %d on the device, %d on the host, %d in the plugin", N, rests[1], rests[2], rests[3]);
}

/* Structs of a later core are longer: walked by their size, the rest of an answer zeroed. */
static void longer_structs(check *c) {
    struct {
        tess_region r;
        uint64_t later[3];
    } regions[N];
    struct {
        tess_placement p;
        uint64_t later[2];
    } out[N];
    tess_region plain[N];
    tess_placement expected[N];
    tess_plan_env env = environment(4);
    open_offload(c);
    uint32_t n = make_regions(plain);
    place(c, plain, n, expected, 0);
    memset(regions, 0xee, sizeof regions);
    memset(out, 0xdd, sizeof out);
    for (uint32_t i = 0; i < n; i++) {
        regions[i].r = plain[i];
        regions[i].r.struct_size = sizeof regions[i];
        out[i].p.struct_size = sizeof out[i];
    }
    tess_status s = ops->place(ctx, &env, &regions[0].r, n, &out[0].p, NULL);
    check_that(c, s == TESS_OK, "place of longer structs gave %s", check_status(s));
    for (uint32_t i = 0; i < n; i++) {
        check_that(c, out[i].later[0] == 0 && out[i].later[1] == 0,
                   "place leaves the end of a longer answer unwritten");
        check_that(c, out[i].p.struct_size == sizeof out[i], "place wrote struct_size");
        out[i].p.struct_size = sizeof expected[i];
        check_that(c, memcmp(&out[i].p, &expected[i], sizeof expected[i]) == 0,
                   "place of longer structs says something else of region %u: are arrays walked by struct_size?", i);
    }
}

/* The bytes of the whole do not depend on how many ranks look. */
static void same_on_all_ranks(check *c) {
    tess_region regions[N];
    tess_placement p[N];
    open_offload(c);
    uint32_t n = make_regions(regions);
    uint64_t hash = 1469598103934665603u;
    place(c, regions, n, p, 0);
    for (size_t i = 0; i < sizeof p; i++)
        hash = (hash ^ ((unsigned char *)p)[i]) * 1099511628211u;
    check_flag_set(c, c->rank, (int64_t)(hash >> 1));
    check_meet(c);
    for (int r = 0; r < c->nranks; r++)
        check_that(c, check_flag_get(c, r) == (int64_t)(hash >> 1), "place says something else on rank %d", r);
}

/* ---- what rests in the plugin ------------------------------------------------------------------ */

static tess_offload *instance;

static void finish(check *c) {
    check_doing(c, "destroy");
    ops->destroy(instance);
    ops->destroy(NULL);
    check_doing(c, "");
}

static void open_instance(check *c) {
    tess_plan_env env = environment(c->nranks);
    tess_error e = { .struct_size = sizeof e };
    open_offload(c);
    if (!TESS_CAN(tess_offload_ops, ops, create) || !TESS_CAN(tess_offload_ops, ops, post))
        check_skip(c, "keeps nothing itself (no slot post): the core moves what it places");
    check_doing(c, "create");
    tess_status s = ops->create(ctx, &env, c->rank, -1, NULL, &instance, &e);
    check_doing(c, "");
    check_that(c, s == TESS_OK, "create gave %s: %s", check_status(s), e.message);
    c->finish = finish;
}

static tess_region the_region = { .struct_size = sizeof the_region,
                                  .region = TESS_REGION_MASTER,
                                  .dtype = TESS_F32,
                                  .elems = 100003,
                                  .bytes = 100003 * 4 };

enum { STAGING = 64 };
static void *staging[STAGING]; /* each in flight has its own; kept until the process ends */
static int n_staging;

/* Posts a transfer of a part of the region; the request. */
static tess_request *moving(check *c, const tess_region *region, void *ptr, uint64_t offset, uint64_t bytes,
                            uint32_t flags) {
    tess_placement place_of = { .struct_size = sizeof place_of };
    tess_plan_env env = environment(c->nranks);
    tess_request *request = NULL;
    tess_error e = { .struct_size = sizeof e };
    tess_status s = ops->place(ctx, &env, region, 1, &place_of, &e);
    check_that(c, s == TESS_OK, "place gave %s: %s", check_status(s), e.message);
    if (place_of.rest != TESS_REST_PLUGIN)
        check_skip(c, "does not keep this region itself");
    if (flags & 1) /* a region is kept from its first way there on */
        c->stated_bytes += place_of.host_bytes;
    tess_transfer t = { .struct_size = sizeof t,
                        .flags = flags,
                        .region = region,
                        .ptr = ptr,
                        .mem = TESS_MEM_HOST,
                        .offset_bytes = offset,
                        .bytes = bytes,
                        .staging_bytes = place_of.staging_bytes };
    if (place_of.staging_bytes)
        t.staging = staging[n_staging++ % STAGING] = malloc(place_of.staging_bytes);
    check_doing(c, "post");
    s = ops->post(instance, &t, 1, &request, &e);
    check_doing(c, "");
    check_that(c, s == TESS_OK, "post gave %s: %s", check_status(s), e.message);
    return request;
}

static void moved(check *c, tess_request *request) {
    tess_error e = { .struct_size = sizeof e };
    check_doing(c, "wait");
    tess_status s = ops->wait(request, CHECK_LONG_NS, &e);
    check_that(c, s == TESS_OK, "a transfer ended with %s: %s", check_status(s), e.message);
    check_that(c, ops->test(request, &e) == TESS_OK, "test after the end says something else");
    check_doing(c, "request_free");
    ops->request_free(request);
    check_doing(c, "");
}

static void compare(check *c, const unsigned char *got, const unsigned char *want, uint64_t bytes, const char *what) {
    for (uint64_t i = 0; i < bytes; i++)
        check_that(c, got[i] == want[i], "%s: byte %llu of %llu is %#x, not %#x", what, (unsigned long long)i,
                   (unsigned long long)bytes, got[i], want[i]);
}

static void round_trips(check *c) {
    static unsigned char up[100003 * 4], down[100003 * 4 + 64];
    uint64_t seed = 7, all = sizeof up;
    open_instance(c);
    for (uint64_t i = 0; i < all; i++)
        up[i] = (unsigned char)check_random(&seed);
    moved(c, moving(c, &the_region, up, 0, all, 1));
    for (uint64_t bytes = 1, more = 1; more; bytes = bytes * 5 + 2) {
        more = bytes < all;
        bytes = more ? bytes : all;
        memset(down, 0x5a, sizeof down);
        moved(c, moving(c, &the_region, down, all - bytes, bytes, 0));
        compare(c, down, up + all - bytes, bytes, "a round trip");
        check_that(c, down[bytes] == 0x5a, "a transfer of %llu bytes wrote past its end", (unsigned long long)bytes);
    }
}

static void limits(check *c) {
    tess_error e = { .struct_size = sizeof e };
    unsigned char byte = 0;
    tess_request *request = NULL;
    open_instance(c);
    tess_transfer t = { .struct_size = sizeof t,
                        .region = &the_region,
                        .ptr = &byte,
                        .mem = TESS_MEM_HOST,
                        .offset_bytes = the_region.bytes,
                        .bytes = 1 };
    tess_status s = ops->post(instance, &t, 1, &request, &e);
    if (s == TESS_OK) {
        s = ops->wait(request, CHECK_LONG_NS, &e);
        ops->request_free(request);
    }
    check_that(c, s < 0 && *e.message, "a transfer beyond the region gave %s", check_status(s));
}

/* ---- many at once, what moves them on, and what ends them -------------------------------------------------------- */

enum { MANY = 16, BYTES = 20001 };
static unsigned char up[MANY][BYTES], down[MANY][BYTES];
static tess_region regions[MANY];

/* Posts MANY transfers into the plugin. */
static void post_many(check *c, tess_request **requests) {
    uint64_t seed = 9;
    for (int i = 0; i < MANY; i++) {
        regions[i] = the_region;
        regions[i].unit = regions[i].group = i;
        regions[i].bytes = BYTES;
        for (int k = 0; k < BYTES; k++)
            up[i][k] = (unsigned char)check_random(&seed);
        requests[i] = moving(c, &regions[i], up[i], 0, BYTES, 1);
    }
}

/* Many at once, from last to first; every one has its own bytes. */
static void overlap(check *c) {
    tess_request *requests[MANY];
    open_instance(c);
    post_many(c, requests);
    for (int i = MANY; i-- > 0;)
        moved(c, requests[i]);
    for (int i = 0; i < MANY; i++)
        requests[i] = moving(c, &regions[i], down[i], 0, BYTES, 0);
    for (int i = MANY; i-- > 0;) {
        moved(c, requests[i]);
        compare(c, down[i], up[i], BYTES, "one of many transfers");
    }
}

static atomic_int pushing;
static void *push(void *user) {
    check *c = user;
    while (atomic_load(&pushing)) {
        tess_status s = ops->progress(instance);
        check_that(c, s == TESS_OK || s == TESS_PENDING, "progress gave %s", check_status(s));
    }
    return NULL;
}

/* Beside post, test and wait of another thread; with nothing in flight there is nothing to do. */
static void progress(check *c) {
    tess_request *requests[MANY];
    pthread_t thread;
    open_instance(c);
    if (!TESS_CAN(tess_offload_ops, ops, progress))
        check_skip(c, "has no slot progress");
    atomic_store(&pushing, 1);
    check_that(c, pthread_create(&thread, NULL, push, c) == 0, "no thread");
    post_many(c, requests);
    for (int i = 0; i < MANY; i++)
        moved(c, requests[i]);
    atomic_store(&pushing, 0);
    pthread_join(thread, NULL);
    tess_status s = ops->progress(instance);
    check_that(c, s == TESS_PENDING, "with nothing in flight progress gave %s", check_status(s));
    for (int i = 0; i < MANY; i++) {
        moved(c, moving(c, &regions[i], down[i], 0, BYTES, 0));
        compare(c, down[i], up[i], BYTES, "a transfer beside progress");
    }
}

/* Without queues of a device, the stream is all zero and the transfer is over when wait_stream returns. */
static void wait_stream(check *c) {
    const tess_stream none = { 0 };
    tess_error e = { .struct_size = sizeof e };
    tess_request *requests[MANY];
    open_instance(c);
    if (!TESS_CAN(tess_offload_ops, ops, wait_stream))
        check_skip(c, "has no slot wait_stream");
    post_many(c, requests);
    for (int i = 0; i < MANY; i++)
        moved(c, requests[i]);
    for (int i = 0; i < MANY; i++) {
        tess_request *request = moving(c, &regions[i], down[i], 0, BYTES, 0);
        check_doing(c, "wait_stream");
        tess_status s = ops->wait_stream(request, &none, &e);
        check_doing(c, "");
        check_that(c, s == TESS_OK, "wait_stream gave %s: %s", check_status(s), e.message);
        compare(c, down[i], up[i], BYTES, "after wait_stream");
        moved(c, request);
    }
}

/* Requests in flight end with their result or with the first `why`, those that come later with `why`. */
static void abort_ends_requests(check *c) {
    tess_request *requests[MANY];
    tess_error e = { .struct_size = sizeof e };
    open_instance(c);
    if (!TESS_CAN(tess_offload_ops, ops, abort))
        check_skip(c, "has no slot abort");
    post_many(c, requests);
    check_doing(c, "abort");
    check_that(c, ops->abort(instance, TESS_E_PEER) == TESS_OK, "abort failed");
    check_that(c, ops->abort(instance, TESS_E_DATA) == TESS_OK, "a second abort failed");
    for (int i = 0; i < MANY; i++) {
        check_doing(c, "wait, after abort");
        tess_status s = ops->wait(requests[i], CHECK_LONG_NS, &e);
        check_that(c, s == TESS_OK || s == TESS_E_PEER, "after abort a request ended with %s", check_status(s));
        ops->request_free(requests[i]);
    }
    tess_request *late = NULL;
    tess_transfer t = {
        .struct_size = sizeof t, .region = &regions[0], .ptr = up[0], .mem = TESS_MEM_HOST, .bytes = BYTES, .flags = 1
    };
    check_doing(c, "post, after abort");
    tess_status s = ops->post(instance, &t, 1, &late, &e);
    if (s == TESS_OK) {
        s = ops->wait(late, CHECK_LONG_NS, &e);
        ops->request_free(late);
    }
    check_doing(c, "");
    check_that(c, s == TESS_E_PEER, "a transfer after abort gave %s", check_status(s));
}

/* ---- the optimizer's step ---------------------------------------------------------------------- */

enum { ELEMS = 5003, OF_GROUP = 4 /* master, gradient, two states */ };
static float theirs[OF_GROUP][ELEMS], ours[OF_GROUP][ELEMS];

static void kernel_step(check *c, const tess_optimizer *o) {
    const void *gradient[1] = { ours[1] };
    tess_error e = { .struct_size = sizeof e };
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = TESS_K_OPTIMIZER,
                      .in_dtype = TESS_F32,
                      .out_dtype = TESS_F32,
                      .n_in = 1,
                      .in = gradient,
                      .out = ours[0],
                      .state = { ours[2], o->optimizer == TESS_OPT_SGD ? NULL : ours[3] },
                      .elems = ELEMS,
                      .optimizer = o };
    check_that(c, tess__kernel_run(&k, NULL, &e) == TESS_OK, "reference: %s", e.message);
}

/* One group's regions, filled and sent into the plugin. */
static void send_group(check *c, tess_region *group, uint32_t n, int32_t unit) {
    uint64_t seed = 77;
    for (uint32_t i = 0; i < n; i++) {
        group[i] = (tess_region){ .struct_size = sizeof *group,
                                  .region = i == 0   ? TESS_REGION_MASTER
                                            : i == 1 ? TESS_REGION_GRAD
                                                     : TESS_REGION_STATE,
                                  .dtype = TESS_F32,
                                  .index = i == 3,
                                  .unit = unit,
                                  .group = unit,
                                  .elems = ELEMS,
                                  .bytes = sizeof ours[0] };
        for (int k = 0; k < ELEMS; k++)
            ours[i][k] = i < 2 ? check_random_float(&seed) : 0;
        moved(c, moving(c, &group[i], ours[i], 0, sizeof ours[i], 1));
    }
}

static void step_of(check *c, uint32_t optimizer, tess_region *group) {
    static const char *const names[] = { "?", "sgd", "adam", "adamw", "adadelta" };
    const uint32_t n = optimizer == TESS_OPT_SGD ? OF_GROUP - 1 : OF_GROUP;
    const tess_segment part = {
        .struct_size = sizeof part, .first = 5, .elems = ELEMS - 9, .lr = 0.01f, .weight_decay = 0.1f, .momentum = 0.9f
    };
    tess_optimizer o = { .struct_size = sizeof o,
                         .optimizer = optimizer,
                         .n_segments = 1,
                         .segments = &part,
                         .beta1 = 0.9f,
                         .beta2 = 0.99f,
                         .eps = 1e-6f,
                         .rho = 0.95f,
                         .grad_scale = 0.7f };
    send_group(c, group, n, (int32_t)optimizer);
    for (o.step = 1; o.step <= 3; o.step++) {
        tess_request *request = NULL;
        tess_error e = { .struct_size = sizeof e };
        kernel_step(c, &o);
        check_doing(c, "step");
        tess_status s = ops->step(instance, group, n, &o, &request, &e);
        check_that(c, s == TESS_OK, "step of %s gave %s: %s", names[optimizer], check_status(s), e.message);
        moved(c, request);
    }
    for (uint32_t i = 0; i < n; i++) {
        moved(c, moving(c, &group[i], theirs[i], 0, sizeof theirs[i], 0));
        compare(c, (unsigned char *)theirs[i], (unsigned char *)ours[i], sizeof ours[i], names[optimizer]);
    }
}

/* The bits of TESS_K_OPTIMIZER, on master and states; the gradient stays. */
static void steps(check *c) {
    static tess_region groups[TESS_OPT_ADADELTA + 1][OF_GROUP];
    open_instance(c);
    if (!TESS_CAN(tess_offload_ops, ops, step))
        check_skip(c, "has no slot step");
    for (uint32_t optimizer = TESS_OPT_SGD; optimizer <= TESS_OPT_ADADELTA; optimizer++)
        step_of(c, optimizer, groups[optimizer]);
}

/* ---- nothing left ------------------------------------------------------------------------------ */

static tess_status no_memory(void *host, uint32_t domain, uint32_t category, uint64_t bytes, uint64_t align,
                             void **out) {
    (void)host, (void)domain, (void)category, (void)bytes, (void)align, (void)out;
    return TESS_E_NOMEM;
}

/* Without memory from the host it fails, or has kept the bytes elsewhere; it does not lose them. */
static void no_space(check *c) {
    static unsigned char up[4096], down[4096];
    tess_error e = { .struct_size = sizeof e };
    tess_request *request = NULL;
    open_instance(c);
    c->host.mem_alloc = no_memory;
    memset(up, 0x3c, sizeof up);
    tess_transfer t = {
        .struct_size = sizeof t, .region = &the_region, .ptr = up, .mem = TESS_MEM_HOST, .bytes = sizeof up, .flags = 1
    };
    check_doing(c, "post, with no memory left");
    tess_status s = ops->post(instance, &t, 1, &request, &e);
    if (s == TESS_OK) {
        s = ops->wait(request, CHECK_LONG_NS, &e);
        ops->request_free(request);
    }
    check_doing(c, "");
    check_that(c, s <= TESS_OK && (s == TESS_OK || *e.message), "with no memory left, post gave %s: '%s'",
               check_status(s), e.message);
    if (s < 0)
        return;
    moved(c, moving(c, &the_region, down, 0, sizeof down, 0));
    compare(c, down, up, sizeof up, "a round trip with no memory left");
}

const check_case check_cases_offload[] = {
    { "place_is_pure", 1, place_is_pure, 0, 0 },
    { "sizes_fit", 1, sizes_fit, 0, 0 },
    { "longer_structs", 1, longer_structs, 0, 0 },
    { "same_on_all_ranks", 3, same_on_all_ranks, 0, 0 },
    { "round_trips", 1, round_trips, 0, 0 },
    { "overlap", 1, overlap, 0, 0 },
    { "limits", 1, limits, 0, 0 },
    { "progress", 1, progress, 0, 0 },
    { "wait_stream", 1, wait_stream, 0, 0 },
    { "abort", 1, abort_ends_requests, 0, 0 },
    { "steps", 1, steps, 0, 0 },
    { "no_space", 1, no_space, 0, 0 },
    { 0 },
};
