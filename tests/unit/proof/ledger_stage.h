/* SPDX-License-Identifier: BSD-3-Clause */
/* The ledger's source over values, ranks, a lane and a disk of a test's own. After cmocka.h. */
#ifndef TEST_LEDGER_STAGE_H
#define TEST_LEDGER_STAGE_H
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/engine/state.h"
#include "core/kernels/digest.h"
#include "core/kernels/isa.h"
#include "core/proof/at_rest.h"
#include "core/proof/chain.h"
#include "core/proof/detail.h"
#include "tests/unit/drawn.h"
#include "tests/unit/logged.h"
#include "tests/unit/said.h"
#include "halves.h"

enum {
    PARAMS = 10,
    SCOPES = 6,
    LEDGER_UNITS = 4,
    GROUPS = 3,
    KINDS = 4,
    PAD = 64,
    LARGE = 262144 /* whole pieces, of any dtype */,
    ROOM = TESS__PROOF_CHUNK + 4096
};
#define FAR ((uintptr_t)1 << 44) /* what lies in a device's memory is nowhere that a host reads */

static tess t;
static struct {
    tess__group groups[GROUPS + 1]; /* the last of each is none of them */
    tess__param params[PARAMS + 1];
    tess__scope scopes[SCOPES + 1];
    char names[PARAMS][8];
    int32_t order[PARAMS], shards;
    char *flat[GROUPS][KINDS]; /* all of a group: parameters, gradients, states */
    uint8_t booked[GROUPS];    /* of gradients that a step finds staged */
    uint64_t total[SCOPES * KINDS], n_total, copies;
    char room[2][ROOM + 64]; /* of rank 0, and of others */
    unsigned chance;
} world;
static struct {
    int memory; /* which of the next allocations fails, from 1; 0: none */
    int script[8], scripted, writes, cuts, cut_error, depth, opened, stat_error, lock_error, close_error;
    tess_status pool, lane, sync, waited, sum, rest, checked;
    tess__job_fn job;
    uint64_t ticket, done;
} disk;
static tess__pool *const the_pool = (tess__pool *)&world;
static tess__lane *const the_lane = (tess__lane *)&disk;

static int fails_now(void) {
    return disk.memory && --disk.memory == 0;
}
static void *take_memory(size_t n, size_t size) {
    return fails_now() ? NULL : calloc(n, size);
}
static char *copy_text(const char *text) {
    return fails_now() ? NULL : strdup(text);
}
static FILE *open_stream(char **text, size_t *bytes) {
    return fails_now() ? NULL : open_memstream(text, bytes);
}
static int close_stream(FILE *f) {
    int failed = fclose(f);
    return disk.close_error ? EOF : failed;
}
static int open_disk(const char *path, int flags, mode_t mode) {
    assert_true(flags == (O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC) && mode == 0666);
    int fd = open(path, flags, mode);
    disk.opened += fd >= 0;
    return fd;
}
static int close_disk(int fd) {
    disk.opened--;
    return close(fd);
}
static int stat_disk(int fd, struct stat *st) {
    return disk.stat_error ? -1 : fstat(fd, st);
}
static int lock_disk(int fd, int how) {
    assert_int_equal(how, LOCK_EX | LOCK_NB);
    return disk.lock_error ? -1 : flock(fd, how);
}
/* At most so many bytes, or an error, as the script says; then all. */
static ssize_t write_disk(int fd, const void *at, size_t n) {
    assert_int_equal(disk.depth, 1);
    int next = disk.writes < disk.scripted ? disk.script[disk.writes] : (int)n;
    disk.writes++;
    if (next > 0)
        return write(fd, at, (size_t)next < n ? (size_t)next : n);
    errno = next ? -next : EIO; /* of an earlier call */
    return next ? -1 : 0;
}
static int cut_disk(int fd, off_t bytes) {
    disk.cuts++;
    errno = EIO;
    return disk.cut_error ? -1 : ftruncate(fd, bytes);
}
static int lock_mutex(int more) {
    disk.depth += more;
    assert_true(disk.depth == 0 || disk.depth == 1);
    return 0;
}

static uint32_t mem_of(const tess__rest *r) {
    return r->domain; /* here of what kind the memory is */
}
static void *address_of(int role, int32_t g) {
    assert_true(role != TESS__DIGESTS || g == 0);
    if (role == TESS__DIGESTS)
        return world.room[t.comms.world.rank > 0];
    int kind = role == TESS__MASTER                                     ? 0
               : role == TESS__SHARD_GRAD || role == TESS__STAGED_GRAD0 ? 1
                                                                        : role - TESS__STATE0 + 2;
    const tess__group *of = &world.groups[g];
    const tess__rest *rest = kind == 0 ? &of->param_rest : kind == 1 ? &of->grad_rest : &of->state_rest;
    uint32_t every = kind > 1 && of->step.state[kind - 2].every ? of->step.state[kind - 2].every : 1;
    uint32_t dtype = kind == 0 ? of->master : kind == 1 ? of->grad_shard : of->step.state[kind - 2].dtype;
    uint64_t at = (uint64_t)t.comms.shard_rank * of->shard_elems / every * tess_dtype_bytes(dtype);
    assert_true(kind != 1 || (role == TESS__STAGED_GRAD0) == world.booked[g]);
    uintptr_t far = rest->domain == TESS_MEM_CUDA && !(kind == 1 && world.booked[g]) ? FAR : 0;
    return (void *)((uintptr_t)world.flat[g][kind] + at + far);
}
static tess_status copy_from_device(void *to, uint32_t to_mem, const void *from, uint32_t from_mem, uint64_t bytes) {
    assert_true(to == address_of(TESS__DIGESTS, 0) && to_mem == TESS_MEM_HOST && from_mem == TESS_MEM_CUDA);
    assert_true(bytes > 0 && bytes <= TESS__PROOF_CHUNK);
    memcpy(to, (const void *)((uintptr_t)from - FAR), bytes);
    world.copies++;
    return disk.checked;
}
static tess__pool *pool_now(void) {
    return t.plan.setup.threads > 1 ? the_pool : NULL;
}
/* Ranks come one behind another, rank 0 last. */
static tess_status add_up(void *values, uint64_t n, uint32_t dtype, uint32_t op) {
    assert_true(dtype == TESS_I64 && op == TESS_SUM && n <= SCOPES * KINDS);
    uint64_t *own = values;
    int reached = t.plan.setup.env.mem == TESS_MEM_HOST && !t.plan.layout.store_align;
    assert_ptr_equal(own, world.room[t.comms.world.rank > 0] + (reached ? 0 : TESS__PROOF_CHUNK));
    world.n_total = n;
    for (uint64_t i = 0; i < n; i++) {
        world.total[i] += own[i];
        own[i] = t.comms.world.rank ? own[i] : world.total[i];
    }
    return disk.sum;
}
/* A lane does nothing before it is waited for. */
static uint64_t post_job(tess__lane *lane, tess__job_fn fn, void *user) {
    assert_true(lane == the_lane && user == &t && disk.done == disk.ticket);
    disk.job = fn;
    return ++disk.ticket;
}
static tess_status wait_job(tess__lane *lane, uint64_t ticket) {
    assert_true(lane == the_lane || (!lane && !ticket));
    assert_true(ticket == disk.ticket);
    if (disk.done < ticket)
        assert_int_equal(disk.job(&t, &(tess__job){ .op = 0 }), TESS_OK);
    disk.done = ticket;
    return disk.waited;
}
static void end_lane(tess__lane *lane) {
    if (lane)
        (void)wait_job(lane, disk.ticket);
    say("lane; ");
}
static tess_status make_lane(const char *cpus, tess__lane **out) {
    assert_string_equal(cpus, "2-3");
    *out = disk.lane ? NULL : the_lane;
    disk.ticket = disk.done = 0;
    return disk.lane ? tess__fail(disk.lane, "no lane") : TESS_OK;
}
static tess_status make_pool(int32_t threads, tess__pool **out, tess_error *e) {
    assert_int_equal(threads, t.plan.setup.threads);
    assert_int_equal(e->struct_size, sizeof *e);
    *out = disk.pool ? NULL : the_pool;
    snprintf(e->message, sizeof e->message, "no threads");
    say("pool of %d; ", threads);
    return disk.pool;
}
static tess_status tell(tess_status s, const char *what, int n) {
    say("%s %d; ", what, n);
    return s;
}

#define TESSERA_VERSION "9.8"
#define calloc(n, size) take_memory(n, size)
#define strdup(text) copy_text(text)
#define open_memstream(text, bytes) open_stream(text, bytes)
#define fclose(f) close_stream(f)
#define open(path, flags, mode) open_disk(path, flags, mode)
#define close(fd) close_disk(fd)
#define fstat(fd, st) stat_disk(fd, st)
#define flock(fd, how) lock_disk(fd, how)
#define write(fd, at, n) write_disk(fd, at, n)
#define ftruncate(fd, n) cut_disk(fd, n)
#define pthread_mutex_lock(m) ((void)(m), lock_mutex(1))
#define pthread_mutex_unlock(m) ((void)(m), lock_mutex(-1))
#define tess__rest_mem(e, r) ((void)(e), mem_of(r))
#define tess__address_of(e, role, i) ((void)(e), address_of(role, i))
#define tess__copy_now(e, to, tm, from, fm, n) ((void)(e), copy_from_device(to, tm, from, fm, n))
#define tess__pool_run(pool, n, least, fn, user) (assert_ptr_equal(pool, pool_now()), run_halves(n, least, fn, user))
#define tess__pool_create(n, cpus, out, e) make_pool(n, out, e)
#define tess__pool_destroy(pool) ((void)(pool), say("pool ends; "))
#define tess__lane_create(cpus, out) make_lane(cpus, out)
#define tess__lane_destroy(lane) end_lane(lane)
#define tess__lane_post(lane, fn, user, job) ((void)(job), post_job(lane, fn, user))
#define tess__lane_wait(lane, ticket) wait_job(lane, ticket)
#define tess__streams_sync(s) ((void)(s), tell(disk.sync, "sync", 0))
#define tess_all_reduce(e, at, n, dtype, op) ((void)(e), add_up(at, n, dtype, op))
#define tess__detail_pass(e, d, kind) ((void)(e), (void)(d), tell(TESS_OK, "detail", (int)(kind)))
#define tess__detail_instr(e, d, in) ((void)(e), (void)(d), tell(disk.checked, "instr", (in)->index))
#define tess__detail_event(e, d, ev) ((void)(e), (void)(d), tell(disk.checked, "event", (ev)->scope))
#define tess__detail_end(d) ((void)(d), say("detail ends; "))
#define tess__at_rest_take(e, a, pool) ((void)(e), (void)(a), (void)(pool), tell(disk.rest, "take", 0))
#define tess__at_rest_take_pass(e, a, pool) ((void)(e), (void)(a), (void)(pool), tell(disk.rest, "take pass", 0))
#define tess__at_rest_check(e, a, pool, states) ((void)(e), (void)(a), (void)(pool), tell(disk.rest, "check", states))
#define tess__at_rest_check_pass(e, a, pool) ((void)(e), (void)(a), (void)(pool), tell(disk.rest, "check pass", 0))
#define tess__at_rest_check_group(e, a, pool, g) ((void)(e), (void)(a), (void)(pool), tell(disk.rest, "check group", g))
#define tess__at_rest_free(a) ((void)(a), say("rest ends; "))
#define tess__engine_check(e) ((void)(e), TESS_OK)
#define tess__engine_fail(e, s) ((void)(e), (s))
#include "core/proof/proof.c"
#undef open
#undef close
#undef write
#undef calloc
#undef fclose
#undef fstat
#undef ftruncate

/* ---- a model, its layout, and all values ---- */

#define drawn(below) drawn32(&world.chance, below)

static void draw_group(int32_t g, int32_t shards, int streams) {
    static const uint32_t mems[] = { TESS_MEM_HOST, TESS_MEM_PINNED, TESS_MEM_CUDA };
    static const tess_state wide = { TESS_F32, 1, "m" }, narrow = { TESS_U8, PAD, "v" }, whole = { TESS_F64, 0, "v" };
    tess__group *of = &world.groups[g];
    of->trainable = g < 2;
    of->master = (const uint32_t[]){ TESS_F32, TESS_F64, TESS_BF16 }[drawn(3)];
    of->grad_shard = drawn(2) ? TESS_BF16 : TESS_F32;
    of->pad = PAD;
    of->shard_elems = (of->used_elems + (uint64_t)shards * PAD - 1) / ((uint64_t)shards * PAD) * PAD;
    of->flat_elems = of->shard_elems * (uint64_t)shards;
    of->step = (tess_grain){ .n_states = g < 2 ? drawn(3) : 0, .state = { wide, drawn(2) ? narrow : whole } };
    of->param_rest.domain = mems[drawn(streams ? 3 : 2)];
    of->grad_rest.domain = mems[drawn(streams ? 3 : 2)];
    of->state_rest.domain = mems[drawn(streams ? 3 : 2)];
    world.booked[g] = drawn(3) == 0;
    if (of->used_elems >= LARGE - 1) {
        of->param_rest.domain = of->grad_rest.domain = of->state_rest.domain = TESS_MEM_CUDA;
        of->grad_shard = TESS_BF16;
        world.booked[g] = 0;
    }
    for (int k = 0; k < KINDS; k++) {
        uint64_t x = drawn(1000), *values = malloc(8 * of->flat_elems + 8);
        for (uint64_t i = 0; i < of->flat_elems; i++)
            values[i] = x = x * 6364136223846793005u + 1442695040888963407u;
        world.flat[g][k] = (char *)values;
    }
}

/* Scope 2 has a buffer alone, scope 4 an alias alone: neither is a unit. The first and the last parameter are alone. */
static void draw_params(uint64_t large) {
    world.params[PARAMS] = (tess__param){ .scope = 2, .tied_to = PARAMS };
    for (int32_t i = 0; i < PARAMS; i++) {
        tess__param *p = &world.params[i];
        snprintf(world.names[i], sizeof world.names[i], "p%d", (int)i);
        *p = (tess__param){ .name = world.names[i], .scope = i % 2, .tied_to = i };
        p->scope = i == 0 ? 3 : i == PARAMS - 1 ? 5 : p->scope;
        p->elems = i == 0 && large ? large : 1 + drawn(400);
        p->group = i == 0 && large ? 0 : (int32_t)drawn(GROUPS);
        if (i == 4)
            p->flags = TESS_BUFFER, p->scope = 2, p->group = -1;
        else if (i == 7)
            p->tied_to = 1, p->scope = 4, p->group = world.params[1].group, p->offset = world.params[1].offset;
        else {
            p->offset = world.groups[p->group].used_elems;
            world.groups[p->group].used_elems += (p->elems + PAD - 1) / PAD * PAD;
        }
    }
}

static void list_params(void) {
    int32_t n = 0;
    for (int32_t g = 0; g < GROUPS; g++) {
        world.groups[g].first_param = n;
        for (int32_t i = 0; i < PARAMS; i++)
            if (world.params[i].group == g && world.params[i].tied_to == i)
                world.order[n++] = i;
        world.groups[g].n_params = n - world.groups[g].first_param;
    }
    t.plan.layout.n_order = n;
}

static void draw_world(unsigned seed, int32_t shards, int32_t replicas, int streams) {
    static char names[SCOPES][4] = { "a", "b", "c", "d", "e", "f" };
    memset(&world, 0, sizeof world);
    memset(&disk, 0, sizeof disk);
    memset(&logged, 0, sizeof logged);
    memset(&t, 0, sizeof t);
    said_so_far[0] = 0;
    world.chance = seed * 2654435761u + 1;
    world.shards = shards;
    for (int k = 0; k < SCOPES; k++)
        world.scopes[k].name = names[k];
    t.plan.model =
        (tess__model){ .params = world.params, .n_params = PARAMS, .scopes = world.scopes, .n_scopes = SCOPES };
    t.plan.layout = (tess__layout){ .groups = world.groups, .n_groups = GROUPS, .order = world.order, .n_states = 2 };
    t.plan.layout.state[0] = (tess_state){ TESS_F32, 1, "m" };
    t.plan.layout.state[1] = (tess_state){ TESS_F32, 1, "v" };
    t.plan.setup =
        (tess__setup){ .nranks = shards * replicas, .shard_ranks = shards, .replicas = replicas, .accum = 2 };
    t.plan.setup.threads = 1 + (int)drawn(2);
    t.plan.setup.ledger_every = 1;
    t.plan.setup.env.mem = streams ? TESS_MEM_CUDA : TESS_MEM_HOST;
    t.plan.layout.store_align = !streams && drawn(3) == 0 ? 4096 : 0;
    t.memory.booked[TESS__STAGED_GRAD0] = world.booked;
    t.selection.host.helper_cpus = (char *)"2-3";
    draw_params(streams && seed % 4 == 0 ? LARGE - 1 + seed / 12 % 3 : 0);
    list_params();
    for (int32_t g = 0; g < GROUPS; g++)
        draw_group(g, shards, streams);
    world.groups[GROUPS] = world.groups[0];
}

static void drop_world(void) {
    for (int32_t g = 0; g < GROUPS; g++)
        for (int k = 0; k < KINDS; k++)
            free(world.flat[g][k]);
}

static int32_t unit_of(int32_t scope) {
    return (const int32_t[SCOPES]){ 0, 1, -1, 2, -1, 3 }[scope];
}

/* All of a parameter at once. */
static uint64_t digest_of(const tess__param *p, int kind) {
    const tess__group *g = &world.groups[p->group];
    const tess_state *x = kind > 1 ? &g->step.state[kind - 2] : NULL;
    uint32_t dtype = kind == 0 ? g->master : kind == 1 ? g->grad_shard : x->dtype;
    uint64_t every = x && x->every ? x->every : 1, n = p->elems / every + (p->elems % every > 0);
    const char *at = world.flat[p->group][kind] + p->offset / every * tess_dtype_bytes(dtype);
    uint64_t seed = tess__spread(tess__spread(tess__hash_text(TESS__HASH_START, p->name)) + (uint64_t)kind);
    if ((kind == 1 && !g->trainable) || (kind > 1 && kind - 2 >= (int)g->step.n_states))
        return 0;
    if (kind != 1 || dtype == TESS_F32)
        return tess__digest(at, tess_dtype_bytes(dtype), 0, n, seed);
    uint32_t *wide = malloc(n * 4 + 1);
    for (uint64_t i = 0; i < n; i++)
        wide[i] = (uint32_t)((unsigned char)at[2 * i] | (unsigned char)at[2 * i + 1] << 8) << 16;
    uint64_t sum = tess__digest(wide, 4, 0, n, seed);
    free(wide);
    return sum;
}

/* ---- a file ---- */

static struct {
    int lines;
    char text[16][4096];
} file;

static tess_status take_text(void *user, const char *line, uint64_t number) {
    (void)user;
    assert_true(number == (uint64_t)file.lines + 1 && file.lines < 16);
    snprintf(file.text[file.lines++], sizeof file.text[0], "%s", line);
    return TESS_OK;
}

static tess__chain_read_info read_ledger(const char *path) {
    tess__chain_read_info info = { 0 };
    int fd = open(path, O_RDONLY);
    file.lines = 0;
    assert_true(fd >= 0);
    assert_int_equal(tess__chain_read(fd, path, take_text, NULL, &info), TESS_OK);
    close(fd);
    return info;
}

static char path[64];
static void new_file(void) {
    snprintf(path, sizeof path, "/tmp/tessera-test-XXXXXX");
    close(mkstemp(path));
    t.settings.ledger = path;
}
#endif
