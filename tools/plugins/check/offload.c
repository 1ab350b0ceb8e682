/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks where an offload plugin places regions. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/plugin_helpers.h>

#include "suites.h"

enum { UNITS = 23, PER_UNIT = 5, N = UNITS * PER_UNIT + 1 };

static const tess_offload_ops *ops;
static void *ctx;

static void open_offload(check *c) {
    ops = check_open(c);
    ctx = c->ctx;
}

/* ---- place, called as planning calls it -------------------------------------------------------- */

static const struct {
    uint32_t region, index;
} of_unit[PER_UNIT] = {
    { TESS_REGION_MASTER, 0 }, { TESS_REGION_MASTER, 1 }, { TESS_REGION_GRAD, 0 },
    { TESS_REGION_STATE, 0 },  { TESS_REGION_STATE, 1 },
};

static uint32_t make_regions(tess_region *out) {
    for (int i = 0; i < N; i++) {
        int unit = i / PER_UNIT, k = i % PER_UNIT;
        uint64_t elems = 64 * (uint64_t)(1 + unit * unit);
        uint32_t dtype = of_unit[k].region == TESS_REGION_MASTER && of_unit[k].index ? TESS_BF16 : TESS_F32;
        out[i] = (tess_region){ .struct_size = sizeof *out,
                                .region = i == N - 1 ? TESS_REGION_ACTIVATION : of_unit[k].region,
                                .dtype = dtype,
                                .index = of_unit[k].index,
                                .unit = i == N - 1 ? -1 : unit,
                                .group = i == N - 1 ? -1 : unit,
                                .elems = elems,
                                .bytes = elems * tess_dtype_bytes(dtype) };
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
        if (round == 3) { /* a new instance must answer the same */
            check_close(c);
            open_offload(c);
        }
        check_sleep_ms(round == 4 ? 1100 : 1); /* nor may the clock change the answer */
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
        check_that(c, p[i].rest >= TESS_REST_DEVICE && p[i].rest <= TESS_REST_STORE,
                   "region %u rests in %u, which is neither the device nor the host nor a store", i, p[i].rest);
        check_that(c, p[i].rest != TESS_REST_STORE || regions[i].region != TESS_REGION_ACTIVATION,
                   "region %u rests in a store, which takes parameters, gradients and optimizer states alone", i);
        check_that(c, p[i].rest != TESS_REST_STORE || TESS_CAN(tess_offload_ops, ops, store_close),
                   "region %u rests in a store, and the table has none", i);
        rests[p[i].rest]++;
        check_that(c, (p[i].align & (p[i].align - 1)) == 0, "region %u: alignment %llu", i,
                   (unsigned long long)p[i].align);
        check_that(c, p[i].rest != TESS_REST_HOST || p[i].host_bytes >= regions[i].bytes,
                   "region %u of %llu bytes rests on the host with %llu", i, (unsigned long long)regions[i].bytes,
                   (unsigned long long)p[i].host_bytes);
        check_that(c, p[i].rest != TESS_REST_DEVICE || p[i].host_bytes == 0,
                   "region %u rests on the device and takes %llu bytes on the host", i,
                   (unsigned long long)p[i].host_bytes);
        check_that(c, p[i].pinned_bytes <= p[i].host_bytes, "region %u: more pinned than there is on the host", i);
    }
    for (int i = 1; i < N - 1; i++)
        check_that(c, regions[i].index == 0 || p[i].rest == p[i - 1].rest, "the %s of unit %d rest in different places",
                   regions[i].region == TESS_REGION_STATE ? "states" : "masters and their bf16 copy", regions[i].unit);
    check_note(c, "%d regions: %d on the device, %d on the host, %d in a store", N, rests[1], rests[2], rests[3]);
}

/* A newer core's structs are longer. The plugin must step by their size and zero the rest of an answer. */
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

/* The number of ranks must not change the bytes of the whole. */
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

/* ---- a store --------------------------------------------------------------------------------------- */

enum { REQUESTS = 4, LARGE = 3 << 20 };

typedef struct {
    tess_store *store;
    tess_store_config config;
    void *memory; /* of the store */
    char *data;   /* aligned as the store's requests of a step are */
} stored;

/* Opens a store for the regions that place sends there; 0: there is none. */
static int open_store(check *c, stored *x) {
    tess_region regions[N];
    tess_placement p[N];
    uint64_t obtained = 0;
    tess_error e = { .struct_size = sizeof e };
    open_offload(c);
    uint32_t n = make_regions(regions);
    for (uint32_t i = 0; i < n; i++)
        regions[i].bytes += regions[i].unit < 16 ? LARGE : 0;
    place(c, regions, n, p, 0);
    *x = (stored){ .config = { .struct_size = sizeof x->config,
                               .most_posted = REQUESTS,
                               .rank = c->rank,
                               .nranks = c->nranks,
                               .local_rank = c->rank,
                               .align = 64 } };
    for (uint32_t i = 0; i < n; i++)
        if (p[i].rest == TESS_REST_STORE) {
            x->config.align = p[i].align > x->config.align ? (uint32_t)p[i].align : x->config.align;
            x->config.memory_bytes += p[i].host_bytes;
        }
    for (uint32_t i = 0; i < n; i++)
        if (p[i].rest == TESS_REST_STORE)
            x->config.bytes += (regions[i].bytes + x->config.align - 1) / x->config.align * x->config.align;
    if (!x->config.bytes || !TESS_CAN(tess_offload_ops, ops, store_close))
        return 0;
    size_t room = (x->config.memory_bytes / x->config.align + 1) * x->config.align;
    x->memory = x->config.memory = aligned_alloc(x->config.align, room);
    x->data = aligned_alloc(x->config.align, REQUESTS * (size_t)LARGE);
    if (!x->memory || !x->data)
        check_skip(c, "no memory for a store");
    check_doing(c, "store_open");
    tess_status s = ops->store_open(ctx, &x->config, &x->store, &obtained, &e);
    check_doing(c, "");
    check_that(c, s == TESS_OK, "store_open gave %s: %s", check_status(s), e.message);
    check_that(c, obtained >= x->config.bytes, "a store of %llu bytes takes %llu", (unsigned long long)x->config.bytes,
               (unsigned long long)obtained);
    return 1;
}

static void close_store(stored *x) {
    ops->store_close(x->store);
    free(x->memory);
    free(x->data);
}

static void move(check *c, const stored *x, uint32_t op, uint64_t at, void *memory, uint64_t bytes) {
    tess_store_io io = { .struct_size = sizeof io, .op = op, .at = at, .bytes = bytes, .memory = memory };
    tess_error e = { .struct_size = sizeof e };
    tess_request *request = NULL;
    tess_status s = ops->store_post(x->store, &io, &request, &e);
    if (s == TESS_OK)
        s = ops->store_wait(x->store, request, &e);
    check_that(c, s == TESS_OK, "%llu bytes at %llu: %s: %s", (unsigned long long)bytes, (unsigned long long)at,
               check_status(s), e.message);
}

static char byte_of(uint64_t at, int round) {
    return (char)(at * 0x9e3779b97f4a7c15u >> 56 ^ (uint64_t)round * 91); /* the upper bits depend on all of `at` */
}

static void expect_bytes(check *c, const char *got, uint64_t at, uint64_t bytes, int round, const char *what) {
    for (uint64_t i = 0; i < bytes; i++)
        check_that(c, got[i] == (round < 0 ? 0 : byte_of(at + i, round)), "%s: byte %llu of the store is another", what,
                   (unsigned long long)(at + i));
}

static void store_is_zero_at_first(check *c) {
    stored x;
    if (!open_store(c, &x))
        check_skip(c, "nothing rests in a store");
    memset(x.data, 0x5a, LARGE);
    move(c, &x, TESS_STORE_READ, 0, x.data, LARGE);
    expect_bytes(c, x.data, 0, LARGE, -1, "at first");
    close_store(&x);
}

/* As a step does: all are under way at once, and the waits come in another order. */
static void store_keeps_bytes(check *c) {
    stored x;
    if (!open_store(c, &x))
        check_skip(c, "nothing rests in a store");
    for (int round = 0; round < 2; round++)
        for (uint32_t op = TESS_STORE_WRITE; op >= TESS_STORE_READ; op--) {
            tess_request *request[REQUESTS];
            tess_error e = { .struct_size = sizeof e };
            for (uint64_t i = 0; i < REQUESTS * (uint64_t)LARGE; i++)
                x.data[i] = op == TESS_STORE_WRITE ? byte_of(i, round) : 0;
            for (int i = 0; i < REQUESTS; i++) {
                tess_store_io io = { .struct_size = sizeof io,
                                     .op = op,
                                     .at = (uint64_t)i * LARGE,
                                     .bytes = LARGE,
                                     .memory = x.data + (size_t)i * LARGE };
                tess_status s = ops->store_post(x.store, &io, &request[i], &e);
                check_that(c, s == TESS_OK, "store_post gave %s: %s", check_status(s), e.message);
            }
            for (int i = REQUESTS; i-- > 0;) {
                tess_status s = ops->store_wait(x.store, request[i], &e);
                check_that(c, s == TESS_OK, "store_wait gave %s: %s", check_status(s), e.message);
            }
            expect_bytes(c, x.data, 0, REQUESTS * (uint64_t)LARGE, round, "what a step wrote");
        }
    close_store(&x);
}

/* As whoever reads and writes apart from a step does: from any byte on, to any memory. */
static void store_takes_any_bytes(check *c) {
    static const struct {
        uint64_t at, bytes;
    } part[] = { { 0, 1 }, { 4095, 2 }, { 4096, 4096 }, { 8191, 300001 }, { 777, 0 }, { 1 << 20, 4097 } };
    stored x;
    if (!open_store(c, &x))
        check_skip(c, "nothing rests in a store");
    for (uint64_t i = 0; i < LARGE; i++)
        x.data[i] = byte_of(i, 0);
    move(c, &x, TESS_STORE_WRITE, 0, x.data, LARGE);
    for (size_t k = 0; k < sizeof part / sizeof *part; k++) {
        char *odd = x.data + LARGE + 3;
        for (uint64_t i = 0; i < part[k].bytes; i++)
            odd[i] = byte_of(part[k].at + i, 5);
        move(c, &x, TESS_STORE_WRITE, part[k].at, odd, part[k].bytes);
        memset(odd, 0, part[k].bytes);
        move(c, &x, TESS_STORE_READ, part[k].at, odd, part[k].bytes);
        expect_bytes(c, odd, part[k].at, part[k].bytes, 5, "a part");
        for (uint64_t i = 0; i < part[k].bytes; i++)
            odd[i] = byte_of(part[k].at + i, 0);
        move(c, &x, TESS_STORE_WRITE, part[k].at, odd, part[k].bytes);
    }
    move(c, &x, TESS_STORE_READ, 0, x.data, LARGE);
    expect_bytes(c, x.data, 0, LARGE, 0, "beside what was written in parts");
    close_store(&x);
}

/* Requests of a step lie in memory that the store was told of; others lie elsewhere. Told of larger memory, as when a
 * pass takes more than planned, it forgets the first. */
static void store_knows_memory(check *c) {
    stored x;
    if (!open_store(c, &x))
        check_skip(c, "nothing rests in a store");
    if (!TESS_CAN(tess_offload_ops, ops, store_deregister)) {
        close_store(&x);
        check_skip(c, "the store has no store_register");
    }
    for (int round = 0; round < 3; round++) {
        tess_error e = { .struct_size = sizeof e };
        check_doing(c, "store_register");
        tess_status s = ops->store_register(x.store, x.data, (uint64_t)(round + 1) * LARGE, &e);
        check_doing(c, "");
        check_that(c, s == TESS_OK || s == TESS_E_UNSUPPORTED, "store_register gave %s: %s", check_status(s),
                   e.message);
        for (uint64_t i = 0; i < 2 * (uint64_t)LARGE; i++)
            x.data[i] = byte_of(i, round);
        move(c, &x, TESS_STORE_WRITE, 0, x.data, 2 * (uint64_t)LARGE); /* from within, and in round 0 from beyond */
        memset(x.data, 0, REQUESTS * (size_t)LARGE);
        move(c, &x, TESS_STORE_READ, 0, x.data, LARGE);
        move(c, &x, TESS_STORE_READ, LARGE, x.data + (size_t)3 * LARGE, LARGE);
        expect_bytes(c, x.data, 0, LARGE, round, "in memory that it knows");
        expect_bytes(c, x.data + (size_t)3 * LARGE, LARGE, LARGE, round, "in memory beyond it");
        if (s == TESS_OK && round < 2)
            ops->store_deregister(x.store);
    }
    close_store(&x);
}

typedef struct {
    check *c;
    const stored *x;
    int which;
} poster;

static void *post_beside(void *arg) {
    const poster *p = arg;
    uint64_t at = (uint64_t)p->which * LARGE;
    char *data = p->x->data + at;
    for (int round = 0; round < 8; round++) {
        for (uint64_t i = 0; i < LARGE; i++)
            data[i] = byte_of(at + i, round);
        move(p->c, p->x, TESS_STORE_WRITE, at, data, LARGE);
        memset(data, 0, LARGE);
        move(p->c, p->x, TESS_STORE_READ, at, data, LARGE);
        expect_bytes(p->c, data, at, LARGE, round, "what one of several threads wrote");
    }
    return NULL;
}

/* The engine's thread reads ahead while the lane that has stepped writes. */
static void store_takes_threads(check *c) {
    stored x;
    pthread_t thread[REQUESTS];
    poster p[REQUESTS];
    if (!open_store(c, &x))
        check_skip(c, "nothing rests in a store");
    int n = 0;
    for (int i = 0; i < REQUESTS; i++, n++) {
        p[i] = (poster){ c, &x, i };
        if (pthread_create(&thread[i], NULL, post_beside, &p[i]))
            break;
    }
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    check_that(c, n == REQUESTS, "no thread can be started");
    close_store(&x);
}

const check_case check_cases_offload[] = {
    { "place_is_pure", 1, place_is_pure, 0, 0 },
    { "sizes_fit", 1, sizes_fit, 0, 0 },
    { "longer_structs", 1, longer_structs, 0, 0 },
    { "same_on_all_ranks", 3, same_on_all_ranks, 0, 0 },
    { "store_is_zero_at_first", 1, store_is_zero_at_first, 0, 0 },
    { "store_keeps_bytes", 2, store_keeps_bytes, 0, 0 },
    { "store_takes_any_bytes", 1, store_takes_any_bytes, 0, 0 },
    { "store_knows_memory", 1, store_knows_memory, 0, 0 },
    { "store_takes_threads", 1, store_takes_threads, 0, 0 },
    { 0 },
};
