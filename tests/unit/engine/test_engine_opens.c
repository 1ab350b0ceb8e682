/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening and closing an engine alone, with all that both call written down. These tests hold the order, the ranks that
 * take part, what is refused, and what of the plugins goes into the plan. Every failure ends in a whole teardown. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/log.h"
#include "core/base/options.h"
#include "core/base/status.h"
#include "core/control/host_id.h"
#include "core/control/mesh.h"
#include "core/engine/scaler.h"
#include "core/readers/declaration_file.h"
#include "core/readers/last_run.h"
#include "tests/unit/noted.h"

static struct {
    const char *fails[2]; /* the calls that fail, by their first word */
    int32_t rank, nranks, local_rank, generation, outside, mirror, plan_only, optimizer, least;
    const char *level;
    tess_device_info info;
    tess_comm_caps caps;
    uint64_t ids[8];
    const tess__given *given;
    int no_memory;
    tess *t;
    int64_t held;
} world;
static tess__given callers;

static tess__plugin plugins[TESS__N_KINDS];
static int kinds[2 * TESS__N_KINDS]; /* addresses of operations and contexts */

#define note(...) noted(world.fails, 2, __VA_ARGS__)
static tess_status read_world(tess__world *w) {
    *w = (tess__world){ .rank = world.rank, .nranks = world.nranks, .local_rank = world.local_rank };
    w->generation = world.generation;
    return note("world");
}
static tess_status join(const tess__world *w, const void *user, tess__control_seat *seat) {
    assert_true(w == &world.t->comms.world && user == &world.t->comms);
    seat->control = (tess__control *)&world;
    seat->engine = 3;
    return note("join");
}
static tess_status join_group(tess__comms *c, int *outside) {
    *outside = world.outside;
    c->world.rank = 1;
    c->world.nranks = 2;
    return note("join-group");
}
static tess_status exchange(const char *what, const void *mine, uint64_t bytes, void *all) {
    if (bytes == 8) {
        assert_true(*(const uint64_t *)mine == 77);
        memcpy(all, world.ids, (size_t)world.t->plan.setup.nranks * 8);
    } else
        memset(all, 0, (size_t)world.t->plan.setup.nranks);
    return note("exchange '%s'", what);
}
static tess_status read_plan(tess *t) {
    world.t = t;
    t->settings.plan_only = world.plan_only;
    t->settings.strategy = strdup("full");
    return note("plan");
}
static tess_status read_options(tess *t) {
    t->settings.strict = 1;
    t->settings.timeout_ns = 55;
    t->plan.setup.mirror = world.mirror;
    t->plan.setup.prefetch = 4;
    return note("options");
}
static tess_status open_selection(tess__selection *s, int32_t n, int32_t per_host, int announce) {
    for (int k = 1; k < TESS__N_KINDS; k++) {
        plugins[k].ops = &kinds[k];
        plugins[k].ctx = &kinds[TESS__N_KINDS + k];
        s->plugins[k] = k == TESS_KIND_OPTIMIZER && !world.optimizer ? NULL : &plugins[k];
        s->text[k] = (char *)(uintptr_t)(k == TESS_KIND_DEVICE ? "dev" : k == TESS_KIND_COMM ? "net" : "text");
    }
    return note("select %d %d%s", n, per_host, announce ? " announced" : "");
}
static tess_status describe(int32_t index, tess_device_info *out) {
    assert_int_equal(index, -1);
    *out = world.info;
    return note("describe");
}
static tess_status read_caps(tess_comm_caps *out) {
    *out = world.caps;
    return note("caps");
}
static tess_status create_it(tess *t, int32_t index, uint64_t budget, const void *stream, int repeats) {
    (void)stream;
    t->device.handle = (tess_device *)&world;
    return note("device %d %d %d", index, (int)budget, repeats);
}
static tess_status fail_engine(tess *t, tess_status s) {
    say("fail; ");
    return t->error = t->error ? t->error : s;
}
static const tess__given *use_given(const tess__given *g) {
    const tess__given *before = world.given;
    world.given = g;
    return before;
}
static void *get_memory(size_t n, size_t size) {
    return world.no_memory == (size == sizeof(tess) ? 1 : 2) ? NULL : calloc(n, size);
}
static void keep(const tess__last_run *run) {
    (void)note("keep %d %d", (int)run->held_bytes, run->ranks);
}
static tess_status set_key(const char *key, uint64_t bytes) {
    assert_true(!strcmp(key, TESS__KV_READY) && !bytes);
    return note("not-ready");
}
static void make_host(tess *t) {
    world.t = t;
    (void)note("host");
}
static int unmap(void *at, size_t n) {
    (void)note("unmap %d %d", (int)(uintptr_t)at, (int)n);
    return 0;
}
#define tess__world_from_env(w) read_world(w)
#define tess__log_set_rank(r) ((void)note("log-rank %d", r))
#define tess__control_join(w, lost, user, seat) join(w, user, seat)
#define tess__read_group(e) note("group")
#define tess__mesh_stride(name, out) (*(out) = 6, note("stride '%s'", name))
#define tess__comms_join_group(c, g, outside) join_group(c, outside)
#define tess__host_id() 77
#define tess__most_on_a_host(all, n) ((all)[0] == 5 ? 20 + (n) : -1)
#define tess__layout_of_hosts(all, n) (100 + (uint64_t)(n))
#define tess__comms_exchange(c, what, mine, bytes, all) exchange(what, mine, bytes, all)
#define tess__comms_rank(c, r) ((r) + ((c)->members ? 10 : 0))
#define tess__selection_open(s, n, per_host, announce) open_selection(s, n, per_host, announce)
#define tess__device_use(d, p) ((void)note((p) == &plugins[TESS_KIND_DEVICE] ? "use-device" : "use-device?"))
#define tess__comms_use(c, p, d) ((void)note((p) == &plugins[TESS_KIND_COMM] ? "use-comm" : "use-comm?"))
#define tess__option_choice(key, out) (*(out) = world.level, note("choice %s", key))
#define tess__log_set_least(n) (world.least = (n))
#define tess__device_describe(d, index, out) describe(index, out)
#define tess__comms_caps(c, out) read_caps(out)
#define tess__device_create(d, index, budget, stream, repeats) create_it(t, index, budget, stream, repeats)
#define tess__streams_start(q, d, c) note("streams")
#define tess__read_plan(e) read_plan(e)
#define tess__read_options(e) read_options(e)
#define tess__scaler_open(e) note("scaler")
#define tess__given_check(g) note("given")
#define tess__options_warn_unknown() ((void)note("unknown"))
#define tess__handshake_identity(e) note("identity")
#define tess__comms_create(c, s) note("comms")
#define tess__given_of(o, out) note("given-of")
#define tess__given_use(g) use_given(g)
#define tess__given_free(g) ((void)note("given-free"))
#define tess__host_make(e) make_host(e)
#define tess__engine_fail(e, s) fail_engine(e, s)
#define tess__comm_drop(c, r) ((void)((r) ? note("drop %d", (int)(uintptr_t)(r)) : TESS_OK))
#define tess__streams_drop(q) ((void)note("drop-streams"))
#define tess__comms_abort(c, why) ((void)note("abort %s", (why) == TESS_E_DEVICE ? "device" : "?"))
#define tess__comms_withdraw(c) ((void)note("withdraw"))
#define tess__streams_idle(q) ((void)note("idle"))
#define tess__graphs_drop(g, d) ((void)note("graphs"))
#define tess__memory_release(m, of_comm) ((void)note("release %d", of_comm))
#define tess__comms_destroy(c, orderly) ((void)note("comms-end %d", orderly))
#define tess__pass_finish(e) note("finish")
#define tess__control_set(c, key, v, n) (void)set_key(key, n)
#define tess__describe_expect(n) ((void)note("expect %d", n))
#define tess__last_run_keep(m, ...) keep(__VA_ARGS__)
#define tess__streams_sync(q) note("sync")
#define tess__transfers_end(e) ((void)note("lanes"))
#define tess__tracing_end(e) ((void)note("trace"))
#define tess__control_leave(seat, orderly) ((void)note("leave %d", orderly))
#define tess__guard_destroy(g) ((void)note("guard"))
#define tess__memory_free(m) ((void)note("memory"))
#define tess__streams_end(q) ((void)note("streams-end"))
#define tess__device_free(d, b) ((void)note("scratch"))
#define tess__device_destroy(d) ((void)note("device-end"))
#define munmap(at, n) unmap(at, n)
#define tess__selection_close(s) ((void)note("plugins-end"))
#define tess__tables_destroy(e) ((void)note("tables"))
#define tess__plan_free(p) ((void)note("plan-end"))
#define tess__comms_leave_group(c) ((void)note("leave-group"))
#define calloc get_memory
#include "core/engine/open.c"
#undef calloc

static void end_save(tess *t) {
    (void)t;
    (void)note("save");
}
static void end_digests(tess *t) {
    (void)t;
    (void)note("digests");
}
static void end_recovery(tess *t) {
    (void)t;
    (void)note("recovery");
}
static const tess__hooks hooks = { .end_save = end_save, .end_digests = end_digests, .end_recovery = end_recovery };

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    said_so_far[0] = 0;
    world.nranks = 4;
    world.local_rank = 2;
    world.rank = 1;
    world.least = -1;
    world.given = &callers;
    world.ids[0] = 5;
    world.info = (tess_device_info){ .mem = TESS_MEM_HOST, .align = 32, .granularity_bytes = 4096 };
    world.caps = (tess_comm_caps){ .mem_mask = 1u << TESS_MEM_HOST, .max_bytes = 640 };
    return 0;
}

#define SEEN "world; log-rank 1; join; "
#define TO_PLUGINS "exchange 'the comparison of hosts'; options; select 4 24; use-device; use-comm; scaler; given; "
#define OPENED                                                                                                         \
    "given-of; host; plan; group; " SEEN TO_PLUGINS "describe; caps; identity; device 0 0 0; streams; comms; "
#define CLOSED_WITH(abort, idle, end)                                                                                  \
    abort "drop-streams; lanes; trace; " abort "withdraw; " idle "graphs; release 1; comms-end " end "; leave " end    \
          "; recovery; guard; memory; streams-end; device-end; plugins-end; tables; plan-end; "                        \
          "given-free; leave-group; "
#define CLOSED CLOSED_WITH("", "", "1")
#define BROKEN CLOSED_WITH("abort device; ", "idle; ", "0")

static tess *opens(const tess_options *o, const char *want) {
    tess *t = NULL;
    assert_int_equal(tess__engine_open(o, &hooks, &t), TESS_OK);
    expect_said(want);
    assert_ptr_equal(world.given, &callers); /* the caller's options are in use again */
    return t;
}
static void closes(tess *t, tess_status want, const char *said) {
    assert_int_equal(tess_close(t), want);
    expect_said(said);
}

static void test_engine_opens__in_this_order_and_closes_in_that(void **state) {
    (void)state;
    tess *t = opens(NULL, OPENED);
    assert_true(tess_rank(t) == 1 && tess_ranks(t) == 4 && t->hooks == &hooks && t->mirror.own[0] == -1);
    assert_string_equal(t->comms.title, "engine 3");
    assert_ptr_equal(t->comms.control, &world);
    assert_true(t->memory.strict == 1 && t->comms.timeout_ns == 55 && t->mirror.rank == 1 && !t->mirror.joins);
    assert_true(t->memory.plan == &t->plan && t->memory.device == &t->device && t->memory.comms == &t->comms);
    assert_true(t->memory.streams == &t->streams);
    const tess__setup *u = &t->plan.setup;
    assert_true(u->nranks == 4 && u->env.ranks_per_host == 24 && u->hosts == 104);
    assert_true(u->comm == (void *)&kinds[TESS_KIND_COMM] && u->device == (void *)&kinds[TESS_KIND_DEVICE]);
    assert_true(u->precision == (void *)&kinds[TESS_KIND_PRECISION] && u->offload == (void *)&kinds[TESS_KIND_OFFLOAD]);
    assert_true(u->comm_ctx == &kinds[TESS__N_KINDS + TESS_KIND_COMM]);
    assert_true(u->device_ctx == &kinds[TESS__N_KINDS + TESS_KIND_DEVICE]);
    assert_true(u->precision_ctx == &kinds[TESS__N_KINDS + TESS_KIND_PRECISION]);
    assert_true(u->offload_ctx == &kinds[TESS__N_KINDS + TESS_KIND_OFFLOAD]);
    assert_true(t->plan.wrap.ops == (void *)&kinds[TESS_KIND_WRAP]);
    assert_true(t->plan.wrap.ctx == &kinds[TESS__N_KINDS + TESS_KIND_WRAP]);
    assert_string_equal(t->plan.wrap.text, "text");
    assert_true(!u->step && !u->optimizer);
    closes(t, TESS_OK, "save; digests; sync; " CLOSED);
    world.optimizer = 1;
    t = opens(NULL, OPENED);
    assert_true(t->plan.setup.optimizer == TESS__OPT_PLUGIN &&
                t->plan.setup.step_ctx == &kinds[TESS__N_KINDS + TESS_KIND_OPTIMIZER]);
    assert_true(t->plan.setup.step == (void *)&kinds[TESS_KIND_OPTIMIZER]);
    t->comms.list[TESS__WORLD] = (tess_comm *)&world; /* the others still listen */
    closes(t, TESS_OK, "save; digests; exchange 'tess_close'; sync; " CLOSED);
    closes(NULL, TESS_OK, "");
    assert_true(tess_rank(NULL) == -1 && tess_ranks(NULL) == -1);
}

static void test_engine_opens__one_rank_asks_nobody(void **state) {
    (void)state;
    world.nranks = 1;
    world.rank = 0;
    tess *t =
        opens(NULL, "given-of; host; plan; group; world; options; select 1 1 announced; use-device; use-comm; scaler; "
                    "given; unknown; describe; caps; identity; device 0 0 0; streams; comms; ");
    assert_null(t->comms.control);
    assert_string_equal(t->comms.title, "engine 0");
    assert_int_equal(t->plan.setup.hosts, 0);
    t->comms.list[TESS__WORLD] = (tess_comm *)&world;
    closes(t, TESS_OK, "save; digests; sync; " CLOSED);
}

static void test_engine_opens__groups_have_ranks_of_their_own(void **state) {
    static const tess_group_options group = { .struct_size = sizeof group, .name = "tp", .ranks = 6 };
    tess_options o = { .struct_size = sizeof o, .group = &group };
    (void)state;
    tess *t =
        opens(&o, "given-of; host; plan; group; " SEEN "join-group; exchange 'the comparison of hosts'; options; "
                  "select 2 22; use-device; use-comm; scaler; given; describe; caps; identity; device 0 0 0; streams; "
                  "comms; ");
    assert_true(t->plan.setup.nranks == 2 && t->mirror.rank == 1);
    closes(t, TESS_OK, "save; digests; sync; " CLOSED);
    world.outside = 1; /* nobody gets this engine */
    t = (tess *)&world;
    assert_int_equal(tess__engine_open(&o, &hooks, &t), TESS_OK);
    assert_null(t);
    expect_said("given-of; host; plan; group; " SEEN "join-group; save; digests; " CLOSED);
    world.outside = 0;
    world.plan_only = 1;
    t = opens(&o, "given-of; host; plan; group; stride 'tp'; options; select 6 6; use-device; use-comm; scaler; given; "
                  "describe; caps; ");
    assert_int_equal(t->plan.setup.stride, 6);
    closes(t, TESS_OK, "save; digests; expect -1; " CLOSED);
    tess_group_options unnamed = group;
    unnamed.name = NULL;
    o.group = &unnamed;
    o.plan_only = 1; /* of the program's own: it is told what the options do not say */
    t = opens(&o, "given-of; host; plan; group; stride ''; options; select 6 6; use-device; use-comm; scaler; given; "
                  "unknown; describe; caps; ");
    closes(t, TESS_OK, "save; digests; " CLOSED);
    o.group = NULL;
    o.ranks = 3;
    t = opens(
        &o, "given-of; host; plan; group; options; select 3 3; use-device; use-comm; scaler; given; unknown; describe; "
            "caps; ");
    t->plan.n_user = 2; /* addresses without memory */
    t->memory.user[0] = (tess_buffer){ .ptr = (void *)4, .bytes = 40 };
    closes(t, TESS_OK,
           "save; digests; drop-streams; lanes; trace; withdraw; graphs; release 1; comms-end 1; leave 1; "
           "recovery; guard; memory; streams-end; device-end; unmap 4 40; plugins-end; tables; plan-end; "
           "given-free; leave-group; ");
}

static void test_engine_opens__who_takes_a_lost_ranks_place_is_not_compared(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        begin(NULL);
        world.mirror = i & 1;
        world.generation = i >> 1;
        world.info.mem = TESS_MEM_CUDA; /* of which each rank of a host has one */
        world.caps.mem_mask = 1u << TESS_MEM_CUDA;
        const tess_options o = { .struct_size = sizeof o, .pointer_mem = 1u << TESS_MEM_CUDA };
        tess *t = NULL;
        assert_int_equal(tess__engine_open(&o, &hooks, &t), TESS_OK);
        assert_int_equal(t->mirror.joins, i == 3);
        assert_int_equal(strstr(said_so_far, "identity") == NULL, i == 3);
        assert_non_null(strstr(said_so_far, "device 2 0 0"));
        said_so_far[0] = 0;
        assert_int_equal(tess_close(t), TESS_OK);
    }
}

static void test_engine_opens__levels_of_the_log_are_asked_for(void **state) {
    static const char *const levels[] = { "error", "warning", "info", "debug" };
    const tess_options o = { .struct_size = sizeof o, .log = "x" };
    (void)state;
    for (int i = 0; i < 4; i++) {
        begin(NULL);
        world.level = levels[i];
        tess *t = NULL;
        assert_int_equal(tess__engine_open(&o, &hooks, &t), TESS_OK);
        assert_int_equal(world.least, i);
        assert_int_equal(tess_close(t), TESS_OK);
    }
    begin(NULL);
    tess *t = NULL;
    assert_int_equal(tess__engine_open(NULL, &hooks, &t), TESS_OK);
    assert_null(strstr(said_so_far, "choice"));
    assert_int_equal(world.least, -1);
    assert_int_equal(tess_close(t), TESS_OK);
}

/* ---- plugins that go together ---- */

static tess_status reads(tess *t, uint32_t pointer_mem, int32_t nranks) {
    memset(t, 0, sizeof *t);
    t->settings.options.pointer_mem = pointer_mem;
    t->plan.setup.nranks = nranks;
    t->plan.setup.prefetch = 4;
    t->selection.text[TESS_KIND_DEVICE] = (char *)(uintptr_t) "dev";
    t->selection.text[TESS_KIND_COMM] = (char *)(uintptr_t) "net";
    return read_device(t);
}

static void test_engine_opens__alignment_and_memory_are_both_plugins(void **state) {
    static tess t;
    static const struct {
        uint32_t device;
        uint64_t comm, want;
    } aligns[] = {
        { 32, 0, 64 }, { 64, 64, 64 }, { 65, 64, 65 }, { 256, 128, 256 }, { 32, 65, 65 }, { 256, 4096, 4096 }
    };
    (void)state;
    for (size_t i = 0; i < sizeof aligns / sizeof *aligns; i++) {
        world.info.align = aligns[i].device;
        world.caps.align = aligns[i].comm;
        assert_int_equal(reads(&t, 0, 2), TESS_OK);
        assert_int_equal(t.plan.setup.align, aligns[i].want);
    }
    assert_true(t.plan.setup.granularity == 4096 && t.plan.setup.most_bytes == 640 && !t.plan.setup.parts);
    assert_true(t.plan.setup.env.struct_size == sizeof t.plan.setup.env && t.plan.setup.env.nranks == 2);
    assert_true(t.plan.setup.env.mem == TESS_MEM_HOST && t.plan.setup.env.in_flight == 4 &&
                t.device.mem == TESS_MEM_HOST);
    world.info.granularity_bytes = 0;
    world.caps.op_mask = 1u << TESS_ALL_TO_ALL_V;
    assert_int_equal(reads(&t, 0, 2), TESS_OK);
    assert_true(t.plan.setup.granularity == 1 && t.plan.setup.parts == 1);
    world.caps.op_mask = ~world.caps.op_mask;
    assert_int_equal(reads(&t, 1u << TESS_MEM_HOST, 2), TESS_OK);
    assert_int_equal(t.plan.setup.parts, 0);
    assert_int_equal(reads(&t, ~(1u << TESS_MEM_HOST), 2), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(),
                        "TESSERA_DEVICE=dev: this program's kernels do not read that device's memory");
    world.caps.mem_mask = 1u << TESS_MEM_CUDA;
    assert_int_equal(reads(&t, 0, 1), TESS_OK); /* alone a rank sends nothing */
    assert_int_equal(reads(&t, 0, 2), TESS_E_UNSUPPORTED);
    assert_string_equal(tess_last_error(), "TESSERA_COMM=net does not reach the memory of device dev");
    world.info.mem = TESS_MEM_CUDA;
    assert_int_equal(reads(&t, 1u << TESS_MEM_HOST | 1u << TESS_MEM_CUDA, 2), TESS_OK);
    assert_int_equal(t.device.mem, TESS_MEM_CUDA);
    assert_int_equal(reads(&t, 0, 2), TESS_E_UNSUPPORTED); /* nothing said: the host's alone */
}

/* ---- failures ---- */

static void test_engine_opens__a_failure_is_torn_down_whole(void **state) {
    static const char *const calls[] = { "given-of",   "choice",   "plan",     "group",  "world",   "join",
                                         "join-group", "exchange", "options",  "select", "scaler",  "given",
                                         "describe",   "caps",     "identity", "device", "streams", "comms" };
    static const char *const whole =
        "given-of; host; choice log; plan; group; " SEEN
        "join-group; exchange 'the comparison of hosts'; options; select 2 22; "
        "use-device; use-comm; scaler; given; describe; caps; identity; device 0 0 0; streams; comms; ";
    static const tess_group_options group = { .struct_size = sizeof group, .ranks = 2 };
    const tess_options o = { .struct_size = sizeof o, .group = &group, .log = "x" };
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        begin(NULL);
        world.fails[0] = calls[i];
        tess *t = (tess *)&world;
        assert_int_equal(tess__engine_open(&o, &hooks, &t), TESS_E_DEVICE);
        assert_ptr_equal(t, &world); /* outputs are written on success only */
        char *end = strstr(said_so_far, "fail; ");
        assert_non_null(end);
        assert_string_equal(end, "fail; save; digests; " BROKEN);
        *end = 0;
        if (i) { /* behind it nothing was called */
            assert_int_equal(strncmp(said_so_far, whole, strlen(said_so_far)), 0);
            expect_last(calls[i]);
        } else
            assert_string_equal(said_so_far, "given-of; host; ");
        assert_ptr_equal(world.given, &callers);
        said_so_far[0] = 0;
    }
    begin(NULL);
    assert_int_equal(tess__engine_open(NULL, &hooks, NULL), TESS_E_INVALID);
    assert_string_equal(tess_last_error(), "tess_open: there is no place for the engine pointer");
    tess *t = NULL;
    const tess_options sizeless = { .struct_size = 1 };
    assert_int_equal(tess__engine_open(&sizeless, &hooks, &t), TESS_E_INVALID);
    world.no_memory = 1;
    assert_int_equal(tess__engine_open(NULL, &hooks, &t), TESS_E_NOMEM);
    expect_said("");
    assert_string_equal(tess_last_error(), "no memory for the engine");
    world.no_memory = 2;
    assert_int_equal(tess__engine_open(NULL, &hooks, &t), TESS_E_NOMEM);
    assert_null(t);
}

/* ---- the end ---- */

static tess *open_one(void) {
    tess *t = NULL;
    begin(NULL);
    assert_int_equal(tess__engine_open(NULL, &hooks, &t), TESS_OK);
    said_so_far[0] = 0;
    return t;
}

static void test_engine_opens__an_end_waits_for_what_is_under_way(void **state) {
    tess__in_flight flying[2] = { { .gather = (tess_request *)1, .reduce = (tess_request *)2 },
                                  { .gather = (tess_request *)3, .reduce = (tess_request *)4 } };
    (void)state;
    tess *t = open_one();
    t->transfers.in_flight = flying;
    t->plan.layout.n_groups = 2;
    t->comms.unowned_request = (tess_request *)5;
    t->scratch.ptr = &world;
    t->pass.kind = TESS_PASS_TRAIN;
    t->sharded = 1;
    closes(t, TESS_OK,
           "finish; save; digests; sync; drop 1; drop 2; drop 3; drop 4; drop 5; drop-streams; lanes; trace; "
           "withdraw; graphs; release 1; comms-end 1; leave 1; recovery; guard; memory; streams-end; scratch; "
           "device-end; plugins-end; tables; plan-end; given-free; leave-group; ");
    for (int i = 0; i < 2; i++) { /* no pass, or none that can have begun */
        t = open_one();
        t->pass.kind = i;
        t->sharded = !i;
        closes(t, TESS_OK, "save; digests; sync; " CLOSED);
    }
    t = open_one(); /* its rank's images can be counted on no more */
    t->mirror.ready = 1;
    closes(t, TESS_OK, "save; digests; not-ready; sync; " CLOSED);
    t = open_one();
    t->device.handle = NULL;
    closes(t, TESS_OK, "save; digests; " CLOSED);
}

static void test_engine_opens__an_end_that_fails_is_told_and_ends_all_the_same(void **state) {
    (void)state;
    static const char *const calls[] = { "finish", "exchange", "sync" };
    for (int i = 0; i < 3; i++) {
        tess *t = open_one();
        t->pass.kind = TESS_PASS_TRAIN;
        t->sharded = 1;
        t->mirror.ready = 1;
        t->comms.list[TESS__WORLD] = (tess_comm *)&world;
        world.fails[0] = calls[i];
        assert_int_equal(tess_close(t), TESS_E_DEVICE);
        static const char *const first[] = { "finish; fail; save; digests; ",
                                             "finish; save; digests; not-ready; exchange 'tess_close'; fail; ",
                                             "finish; save; digests; not-ready; exchange 'tess_close'; sync; fail; " };
        assert_int_equal(strncmp(said_so_far, first[i], strlen(first[i])), 0);
        assert_string_equal(said_so_far + strlen(first[i]), BROKEN);
        said_so_far[0] = 0;
    }
    tess *t = open_one(); /* with an error nobody is waited for, and it is the engine's */
    t->error = TESS_E_DEVICE;
    t->pass.kind = TESS_PASS_TRAIN;
    t->sharded = t->mirror.ready = 1;
    t->comms.list[TESS__WORLD] = (tess_comm *)&world;
    assert_int_equal(tess_close(t), TESS_E_DEVICE);
    assert_int_equal(strncmp(said_so_far, "save; digests; ", 15), 0);
    assert_string_equal(said_so_far + 15, BROKEN);
}

static void test_engine_opens__what_a_program_held_is_kept_by_rank_0(void **state) {
    (void)state;
    for (int i = 0; i < 7; i++) {
        tess__held held = { .most = i == 3 ? 0 : 88 };
        tess *t = open_one();
        t->comms.world.rank = i == 1;
        t->sharded = i != 2;
        t->memory.held = i == 4 ? NULL : &held;
        t->error = i == 5 ? TESS_E_DEVICE : TESS_OK;
        t->settings.plan_only = i == 6;
        t->settings.options.plan_only = i == 6;
        (void)tess_close(t);
        assert_int_equal(strstr(said_so_far, "keep 88 4; ") != NULL, i == 0);
        assert_int_equal(strstr(said_so_far, "keep") != NULL, i == 0);
    }
}

static void test_engine_opens__a_large_world_does_not_wait_at_its_end(void **state) {
    (void)state;
    for (int more = 0; more < 2; more++) {
        tess *t = open_one();
        t->comms.list[TESS__WORLD] = (tess_comm *)&world;
        t->plan.setup.nranks = 4096 + more; /* for whom there is room */
        assert_int_equal(tess_close(t), TESS_OK);
        assert_int_equal(strstr(said_so_far, "exchange") == NULL, more);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_engine_opens__in_this_order_and_closes_in_that, begin),
        cmocka_unit_test_setup(test_engine_opens__one_rank_asks_nobody, begin),
        cmocka_unit_test_setup(test_engine_opens__groups_have_ranks_of_their_own, begin),
        cmocka_unit_test_setup(test_engine_opens__who_takes_a_lost_ranks_place_is_not_compared, begin),
        cmocka_unit_test_setup(test_engine_opens__levels_of_the_log_are_asked_for, begin),
        cmocka_unit_test_setup(test_engine_opens__alignment_and_memory_are_both_plugins, begin),
        cmocka_unit_test_setup(test_engine_opens__a_failure_is_torn_down_whole, begin),
        cmocka_unit_test_setup(test_engine_opens__an_end_waits_for_what_is_under_way, begin),
        cmocka_unit_test_setup(test_engine_opens__an_end_that_fails_is_told_and_ends_all_the_same, begin),
        cmocka_unit_test_setup(test_engine_opens__what_a_program_held_is_kept_by_rank_0, begin),
        cmocka_unit_test_setup(test_engine_opens__a_large_world_does_not_wait_at_its_end, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
