/* SPDX-License-Identifier: BSD-3-Clause */
/* comm-hosts over two plugins of this test's own, which work in memory: ranks are threads. Every collective has its
 * values on hosts of any numbers of ranks and in groups split off; a failure within a host, between hosts or on a rail
 * names the rank as the communicator counts it, and every rank comes to an end. */
#include "tests/unit/plugins/comm_ranks.h"

enum { GROUPS = 256, NEED = 192, SMALL = 64 << 10 };

/* ---- a group of threads --------------------------------------------------------------------------- */

struct tess_request {
    tess_comm *comm;
    tess_collective calls[RANKS];
    uint32_t n;
};

typedef struct {
    char name[256];
    int n, came, left, turn, aborted;
    tess_request *at[RANKS];
    int32_t color[RANKS], key[RANKS];
} group;

struct tess_comm {
    group *g;
    int rank;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t change;
    group groups[GROUPS];
    int n;
} all = { .lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER };

static const char *fail_in; /* where a group's name ends so, all that is large fails and names its rank fail_rank */
static int fail_rank;

static double reduce_value(const group *g, uint32_t k, uint64_t i) {
    double v = 0;
    for (int s = 0; s < g->n; s++) {
        const tess_collective *c = &g->at[s]->calls[k];
        double x = read_value(c->send, c->send_dtype, i);
        v = s == 0 || (c->redop == TESS_MIN ? x < v : c->redop == TESS_MAX && x > v) ? x
            : c->redop == TESS_SUM                                                   ? v + x
                                                                                     : v;
    }
    return v;
}

/* What the output holds belongs to the sum, which is scaled at its end. */
static void reduce(const group *g, uint32_t k, int rank) {
    const tess_collective *c = &g->at[rank]->calls[k];
    const uint64_t first = c->op == TESS_REDUCE_SCATTER ? (uint64_t)rank * c->count : 0;
    for (uint64_t i = 0; i < c->count; i++) {
        double held = c->flags & 1 ? read_value(c->recv, c->recv_dtype, i) : 0;
        write_value(c->recv, c->recv_dtype, i, (reduce_value(g, k, first + i) + held) * c->scale);
    }
}

static void move(const group *g, uint32_t k, int rank) {
    const tess_collective *c = &g->at[rank]->calls[k];
    const uint64_t bytes = c->count * tess_dtype_bytes(c->send_dtype);
    for (int s = 0; s < g->n; s++) {
        const char *from = g->at[s]->calls[k].send;
        if (c->op == TESS_BROADCAST && s == c->root && c->recv)
            memmove(c->recv, from, bytes);
        else if (c->op == TESS_ALL_GATHER)
            memmove((char *)c->recv + (uint64_t)s * bytes, from, bytes);
        else if (c->op == TESS_ALL_TO_ALL)
            memmove((char *)c->recv + (uint64_t)s * bytes, from + (uint64_t)rank * bytes, bytes);
    }
}

/* In-place sums are written when all have been read. */
static void run_calls(const group *g) {
    for (uint32_t k = 0; k < g->at[0]->n; k++) {
        const tess_collective *c = &g->at[0]->calls[k];
        const int sums = c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_REDUCE;
        void *kept[RANKS];
        for (int r = 0; sums && r < g->n; r++) { /* the inputs, apart from outputs */
            tess_collective *x = &g->at[r]->calls[k];
            const uint64_t bytes =
                x->count * tess_dtype_bytes(x->send_dtype) * (c->op == TESS_REDUCE_SCATTER ? (uint64_t)g->n : 1);
            kept[r] = malloc(bytes + 1);
            memcpy(kept[r], x->send, bytes);
            x->send = kept[r];
        }
        for (int r = 0; r < g->n; r++)
            sums ? reduce(g, k, r) : move(g, k, r);
        for (int r = 0; sums && r < g->n; r++)
            free(kept[r]);
    }
}

/* The last one to come works for all. */
static int meet(tess_comm *c, tess_request *r) {
    group *g = c->g;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 20;
    pthread_mutex_lock(&all.lock);
    const int turn = g->turn;
    g->at[c->rank] = r;
    if (++g->came == g->n) {
        if (r && !g->aborted)
            run_calls(g);
        g->came = 0;
        g->turn++;
        pthread_cond_broadcast(&all.change);
    }
    while (g->turn == turn && !g->aborted && pthread_cond_timedwait(&all.change, &all.lock, &end) == 0) {
    }
    int s = g->turn != turn ? TESS_OK : g->aborted ? TESS_E_ABORTED : TESS_E_TIMEOUT;
    pthread_mutex_unlock(&all.lock);
    return s;
}

static group *find_group(const char *name, int n) {
    pthread_mutex_lock(&all.lock);
    int i = 0;
    while (i < all.n && strcmp(all.groups[i].name, name) != 0)
        i++;
    if (i == all.n && all.n < GROUPS) {
        all.groups[all.n] = (group){ .n = n };
        snprintf(all.groups[all.n++].name, sizeof all.groups[0].name, "%s", name);
    }
    pthread_mutex_unlock(&all.lock);
    return i < GROUPS && all.groups[i].n == n ? &all.groups[i] : NULL;
}

/* ---- as a plugin ---------------------------------------------------------------------------------- */

static int ends_so(const char *name, const char *end) {
    size_t n = strlen(name), m = end ? strlen(end) : 0;
    return m && n >= m && strcmp(name + n - m, end) == 0;
}

static tess_status part_query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    (void)ctx, (void)comm;
    out->caps = TESS_COMM_TREE_ORDER | TESS_COMM_SPLIT | TESS_COMM_ABORT | TESS_COMM_BATCH;
    out->op_mask = out->redop_mask = out->dtype_mask = out->mem_mask = UINT32_MAX;
    snprintf(out->wire_id, sizeof out->wire_id, "part %s", (const char *)ctx);
    return TESS_OK;
}

static tess_status part_need(void *ctx, const tess_plan_env *env, const tess_collective *c, tess_need *out) {
    (void)ctx, (void)env;
    out->device_bytes = c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_REDUCE ? NEED : 0;
    return TESS_OK;
}

static tess_status part_init(void *ctx, const tess_comm_config *config, tess_comm **out, tess_error *e) {
    (void)ctx, (void)e;
    group *g = find_group(config->group, config->nranks);
    CHECK(g); /* all of a group name as many */
    CHECK(config->rank >= 0 && config->rank <= config->nranks - 1);
    *out = calloc(1, sizeof **out);
    **out = (tess_comm){ .g = g, .rank = config->rank };
    return meet(*out, NULL);
}

static tess_status part_split(tess_comm *c, int32_t color, int32_t key, const tess_comm_config *config, tess_comm **out,
                              tess_error *e) {
    group *g = c->g;
    char name[300];
    int n = 0, self = 0;
    (void)e;
    pthread_mutex_lock(&all.lock);
    g->color[c->rank] = color;
    g->key[c->rank] = key;
    pthread_mutex_unlock(&all.lock);
    tess_status s = meet(c, NULL);
    for (int r = 0; r < g->n; r++) {
        n += g->color[r] == color;
        self += g->color[r] == color && (g->key[r] < key || (g->key[r] == key && r < c->rank));
    }
    snprintf(name, sizeof name, "%.200s of %.60s.%d.%d", config->group ? config->group : "", g->name, color, g->turn);
    if (s == TESS_OK)
        s = meet(c, NULL); /* nobody splits again before all have looked */
    *out = NULL;
    if (s || color < 0)
        return s;
    *out = calloc(1, sizeof **out);
    **out = (tess_comm){ .g = find_group(name, n), .rank = self };
    CHECK((*out)->g);
    return meet(*out, NULL);
}

static tess_status part_finalize(tess_comm *c, int64_t timeout_ns, tess_error *e) {
    (void)timeout_ns, (void)e;
    return meet(c, NULL);
}

static tess_status part_abort(tess_comm *c, tess_status why) {
    (void)why;
    pthread_mutex_lock(&all.lock);
    c->g->aborted = 1;
    pthread_cond_broadcast(&all.change);
    pthread_mutex_unlock(&all.lock);
    return TESS_OK;
}

static void part_destroy(tess_comm *c) {
    free(c);
}

static tess_status part_post(tess_comm *c, const tess_collective *calls, uint32_t n, tess_request **out,
                             tess_error *e) {
    (void)e;
    tess_request *r = calloc(1, sizeof *r);
    *r = (tess_request){ .comm = c, .n = n };
    CHECK(n >= 1 && n <= RANKS);
    for (uint32_t i = 0; i < n; i++) {
        r->calls[i] = calls[i];
        tess_need need = { .struct_size = sizeof need };
        part_need(NULL, NULL, &calls[i], &need);
        if (!strstr(c->g->name, "/host") && calls[i].count * tess_dtype_bytes(calls[i].send_dtype) > SMALL / 8)
            CHECK(calls[i].scratch_bytes >= need.device_bytes); /* what it asked for */
    }
    *out = r;
    return TESS_OK;
}

static tess_status part_wait(tess_request *r, int64_t timeout_ns, tess_error *e) {
    (void)timeout_ns;
    if (ends_so(r->comm->g->name, fail_in) && r->calls[0].count * tess_dtype_bytes(r->calls[0].send_dtype) > 1024) {
        if (e) {
            e->rank = fail_rank;
            snprintf(e->message, sizeof e->message, "gone");
        }
        return TESS_E_PEER;
    }
    return meet(r->comm, r);
}

static tess_status part_test(tess_request *r, tess_error *e) {
    return part_wait(r, 0, e);
}

static void part_free(tess_request *r) {
    free(r);
}

static tess_status part_alloc(tess_comm *c, const tess_alloc_request *r, tess_buffer *out, tess_error *e) {
    (void)c, (void)e;
    out->ptr = malloc(r->bytes);
    out->bytes = 77;
    return TESS_OK;
}

static void part_mem_free(tess_comm *c, tess_buffer *b) {
    (void)c;
    CHECK(b->bytes == 77);
    free(b->ptr);
}

static tess_comm_ops part_ops = { .struct_size = sizeof part_ops,
                                  .abi_major = TESS_ABI_MAJOR,
                                  .abi_minor = TESS_ABI_MINOR,
                                  .query = part_query,
                                  .need = part_need,
                                  .init = part_init,
                                  .split = part_split,
                                  .finalize = part_finalize,
                                  .destroy = part_destroy,
                                  .abort = part_abort,
                                  .post = part_post,
                                  .test = part_test,
                                  .wait = part_wait,
                                  .request_free = part_free };

static tess_status open_part(void *host, uint32_t kind, const char *name, const void **ops, void **ctx, void **handle,
                             tess_error *e) {
    (void)host, (void)kind, (void)e;
    CHECK(strcmp(name, "in") == 0 || strcmp(name, "out") == 0);
    *ops = &part_ops;
    *ctx = *handle = (void *)(strcmp(name, "in") == 0 ? "in" : "out");
    return TESS_OK;
}

static void close_part(void *host, void *handle) {
    (void)host, (void)handle;
}

/* ---- what they do --------------------------------------------------------------------------------- */

static atomic_int lines; /* of the log */
static char line[240];
static void take_line(void *h, int32_t level, const char *plugin, const char *message) {
    (void)h;
    CHECK(level == 2 && strcmp(plugin, "comm hosts") == 0);
    lines++;
    snprintf(line, sizeof line, "%s", message);
}

static void test_hosts_parts__every_collective_has_its_values(void **state) {
    (void)state;
    static const int cases[][2] = { { 3, 2 }, { 4, 2 }, { 5, 2 }, { 6, 4 }, { 7, 4 },
                                    { 9, 4 }, { 4, 1 }, { 3, 3 }, { 6, 3 } };
    /* One rank says how they work. */
    static const char *const said[] = { "2 hosts of 2 ranks, the last of 1: ",
                                        "2 hosts of 2 ranks: ",
                                        "3 hosts of 2 ranks, the last of 1: ",
                                        "2 hosts of 4 ranks, the last of 2: ",
                                        "2 hosts of 4 ranks, the last of 3: ",
                                        "3 hosts of 4 ranks, the last of 1: ",
                                        NULL,
                                        NULL,
                                        " alone between all 6 ranks: the ranks of a host are no power of two" };
    host.log = take_line;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rank_state ranks[RANKS] = { 0 };
        all.n = 0;
        lines = 0;
        run_ranks(ranks, cases[i][0], cases[i][1], work_all);
        assert_int_equal(lines, said[i] != NULL);
        assert_true(!said[i] || strstr(line, said[i]));
    }
    host.log = log_nothing;
}

static uint64_t need_of(rank_state *r, uint32_t redop, uint32_t dtype, uint64_t count) {
    const tess_plan_env env = {
        .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = r->n, .ranks_per_host = r->each, .in_flight = 1
    };
    const tess_collective c = { .struct_size = sizeof c,
                                .op = TESS_ALL_REDUCE,
                                .redop = redop,
                                .send_dtype = dtype,
                                .recv_dtype = dtype,
                                .send_mem = TESS_MEM_HOST,
                                .recv_mem = TESS_MEM_HOST,
                                .count = count,
                                .scale = 1 };
    tess_need need = { .struct_size = sizeof need };
    CHECK(r->ops->need(r->ctx, &env, &c, &need) == TESS_OK);
    return need.device_bytes;
}

/* Sums of halves are kept wide on the way between hosts; the least and the largest are of the halves themselves, and
 * sums of other dtypes of theirs. */
static void work_needs(rank_state *r, tess_comm *comm) {
    (void)comm;
    const uint64_t count = 64 << 10;
    for (uint32_t half = TESS_F16; half <= TESS_BF16; half += TESS_BF16 - TESS_F16) {
        const uint64_t most = need_of(r, TESS_MAX, half, count);
        CHECK(most == 2 * count + NEED && need_of(r, TESS_MIN, half, count) == most);
        CHECK(need_of(r, TESS_SUM, half, count) == most + 2 * count);
        CHECK(need_of(r, TESS_SUM, TESS_F32, count) == most + 2 * count);
        CHECK(need_of(r, TESS_SUM, TESS_F64, count) == most + 6 * count);
    }
}

static void test_hosts_parts__sums_of_halves_need_room_for_wide_ones(void **state) {
    (void)state;
    rank_state ranks[RANKS] = { 0 };
    all.n = 0;
    run_ranks(ranks, 4, 2, work_needs);
}

static int32_t color_of(int way, int rank) {
    switch (way) {
    case 0: return rank % 2;           /* one of each host */
    case 1: return rank / 4;           /* two hosts of two */
    case 2: return rank / 2;           /* a host */
    case 3: return rank < 5 ? 3 : -1;  /* two hosts, and half of one */
    case 4: return rank < 3 ? 0 : 1;   /* a host and a half; a half and two hosts */
    default: return rank == 3 ? 0 : 1; /* alone */
    }
}

/* Also with the order turned round, where two steps need neighbours. */
static void work_split(rank_state *r, tess_comm *comm) {
    for (int way = 0; way < 12; way++) {
        const int32_t color = color_of(way / 2, r->rank), key = way % 2 ? -r->rank : 0;
        const tess_comm_config config = {
            .struct_size = sizeof config, .group = "s", .timeout_ns = 20000000000, .device = -1
        };
        tess_comm *child = NULL;
        int of[RANKS], n = 0, self = 0;
        for (int i = 0; i < r->n; i++) {
            const int other = way % 2 ? r->n - 1 - i : i;
            self = other == r->rank ? n : self;
            if (color_of(way / 2, other) == color)
                of[n++] = other;
        }
        CHECK(r->ops->split(comm, color, key, &config, &child, &r->error) == TESS_OK);
        CHECK(!child == (color < 0));
        if (!child)
            continue;
        tess_collective c = {
            .op = TESS_REDUCE_SCATTER, .redop = TESS_SUM, .send_dtype = TESS_F32, .recv_dtype = TESS_F32
        };
        c.scale = 1;
        c.count = 17001;
        try_call(r, child, self, n, of, c);
        c.op = TESS_ALL_GATHER;
        try_call(r, child, self, n, of, c);
        c.count = 100;
        try_call(r, child, self, n, of, c);
        CHECK(r->ops->finalize(child, 20000000000, &r->error) == TESS_OK);
        r->ops->destroy(child);
    }
}

static void test_hosts_parts__groups_split_off_have_theirs(void **state) {
    (void)state;
    rank_state ranks[RANKS] = { 0 };
    all.n = 0;
    run_ranks(ranks, 8, 2, work_split);
}

static void work_gather(rank_state *r, tess_comm *comm) {
    const uint64_t count = strcmp(fail_in, "/whole") == 0 ? 1000 : 17001;
    float *send = calloc(count, 4), *recv = calloc(count * (uint64_t)r->n, 4);
    tess_collective c = {
        .op = TESS_ALL_GATHER, .send_dtype = TESS_F32, .recv_dtype = TESS_F32, .count = count, .scale = 1
    };
    c.send = send;
    c.recv = recv;
    r->status = call(r, comm, r->n, &c);
    tess_error again = { .struct_size = sizeof again };
    CHECK(r->status == TESS_OK || r->ops->health(comm, &again) == r->status);
    free(send);
    free(recv);
}

/* Five ranks on hosts of two: rails 0 and 1, of which the last host's only rank is on both. */
static void test_hosts_parts__a_failure_names_the_rank_of_all(void **state) {
    (void)state;
    static const struct {
        const char *in;
        int rank, of_all;
        uint32_t members; /* bits: who sees it itself */
    } cases[] = {
        { "/whole", 3, 3, 0x1f }, { "/host0", 1, 1, 3 },    { "/host2", 0, 2, 0xc },  { "/host2", 1, 3, 0xc },
        { "/rail0", 1, 2, 5 },    { "/rail1", 0, 1, 0x1a }, { "/rail1", 2, 4, 0x1a }, { "/rail0", -1, -1, 5 }
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rank_state ranks[RANKS] = { 0 };
        int named = 0;
        fail_in = cases[i].in;
        fail_rank = cases[i].rank;
        may_fail = 1;
        all.n = 0;
        run_ranks(ranks, 5, 2, work_gather);
        for (int r = 0; r < 5; r++) { /* who is in the part hears of it there, or was ended by another who had */
            assert_int_not_equal(ranks[r].status, TESS_E_TIMEOUT);
            if (ranks[r].status != TESS_E_PEER)
                continue;
            assert_true(cases[i].members >> r & 1 || strcmp(cases[i].in, "/rail0") == 0);
            assert_int_equal(ranks[r].error.rank, cases[i].of_all);
            assert_non_null(strstr(ranks[r].error.message, "gone"));
            named++;
        }
        assert_true(named > 0);
    }
    fail_in = NULL;
    may_fail = 0;
}

static void work_memory(rank_state *r, tess_comm *comm) {
    tess_alloc_request ask = { .struct_size = sizeof ask, .mem = TESS_MEM_HOST, .bytes = 5000, .align = 4096 };
    tess_buffer b = { .struct_size = sizeof b };
    CHECK(r->ops->mem_alloc(comm, &ask, &b, &r->error) == TESS_OK && b.ptr);
    CHECK(b.bytes == (part_ops.mem_alloc ? 77 : 8192) && (part_ops.mem_alloc || b.mem == TESS_MEM_HOST));
    for (int i = 0; i < 5000; i++) { /* without what somebody else has left there */
        CHECK(part_ops.mem_alloc || ((char *)b.ptr)[i] == 0);
        ((char *)b.ptr)[i] = 1;
    }
    r->ops->mem_free(comm, &b);
    if (part_ops.mem_alloc)
        return;
    ask.bytes = 0;
    CHECK(r->ops->mem_alloc(comm, &ask, &b, &r->error) == TESS_OK && b.bytes == 4096);
    r->ops->mem_free(comm, &b);
    ask.align = 8192;
    CHECK(r->ops->mem_alloc(comm, &ask, &b, &r->error) == TESS_E_UNSUPPORTED);
    ask.align = 64;
    ask.mem = TESS_MEM_PINNED;
    CHECK(r->ops->mem_alloc(comm, &ask, &b, &r->error) == TESS_E_UNSUPPORTED);
    b.ptr = NULL;
    r->ops->mem_free(comm, &b);
}

/* Of the plugin within the host, which reaches it best, and of its own where that gives none. */
static void test_hosts_parts__memory_is_that_of_the_host(void **state) {
    (void)state;
    rank_state ranks[RANKS] = { 0 };
    all.n = 0;
    run_ranks(ranks, 4, 2, work_memory);
    all.n = 0;
    part_ops.mem_alloc = part_alloc;
    part_ops.mem_free = part_mem_free;
    all.n = 0;
    run_ranks(ranks, 4, 2, work_memory);
    all.n = 0;
    part_ops.mem_alloc = NULL;
    part_ops.mem_free = NULL;
}

static int opened, refused; /* refused: which of the next to open fails, or is none of the tree's order; 0: none */
static char names_opened[2][32];

static tess_status query_nothing(void *ctx, tess_comm *c, tess_comm_caps *out) {
    (void)ctx, (void)c;
    *out = (tess_comm_caps){ .struct_size = out->struct_size };
    return TESS_OK;
}

static tess_status open_counted(void *h, uint32_t kind, const char *name, const void **ops, void **ctx, void **handle,
                                tess_error *e) {
    static const tess_comm_ops none = { .struct_size = sizeof none, .query = query_nothing };
    (void)h, (void)kind, (void)e;
    snprintf(names_opened[opened % 2], 32, "%s", name);
    opened++;
    if (refused == opened)
        return TESS_E_INVALID;
    *ops = refused == -opened ? &none : &part_ops;
    *ctx = *handle = (void *)names_opened;
    return TESS_OK;
}

static void close_counted(void *h, void *handle) {
    (void)h;
    opened -= handle != NULL;
}

/* A pair of names opens two plugins. What does not go closes the one that was open. */
static void test_hosts_parts__a_pair_is_opened_whole_or_not(void **state) {
    static const struct {
        const char *args, *within, *between; /* null: refused */
    } pairs[] = { { "", "shm", "gloo" },
                  { NULL, "shm", "gloo" },
                  { "a+b", "a", "b" },
                  { "a+b+c", "a", "b+c" },
                  { "a", NULL, NULL },
                  { "+b", NULL, NULL },
                  { "a+", NULL, NULL },
                  { "a-name-of-thirty-one-characters+b", "a-name-of-thirty-one-characters", "b" },
                  { "a-name-of-thirty-two-characters!+b", NULL, NULL },
                  { "b+a-name-of-thirty-one-characters", "b", "a-name-of-thirty-one-characters" },
                  { "b+a-name-of-thirty-two-characters!", NULL, NULL } };
    const void *ops;
    void *ctx;
    tess_error e = { .struct_size = sizeof e };
    (void)state;
    host.plugin_open = open_counted;
    host.plugin_close = close_counted;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        host.args = pairs[i].args;
        opened = refused = 0;
        tess_status s = open_plugin(&host, TESS_KIND_COMM, &ops, &ctx, &e);
        assert_int_equal(s, pairs[i].within ? TESS_OK : TESS_E_INVALID);
        if (s) {
            assert_non_null(strstr(e.message, "is no pair, expected WITHIN+BETWEEN, as shm+gloo"));
            assert_int_equal(opened, 0);
            continue;
        }
        assert_string_equal(names_opened[0], pairs[i].within);
        assert_string_equal(names_opened[1], pairs[i].between);
        ((const tess_comm_ops *)ops)->close(ctx);
        assert_int_equal(opened, 0);
    }
    host.args = "a+b";
    for (int which = 1; which <= 2; which++)
        for (int sign = -1; sign <= 1; sign += 2) {
            opened = 0;
            refused = sign * which;
            assert_int_equal(open_plugin(&host, TESS_KIND_COMM, &ops, &ctx, &e),
                             sign > 0 ? TESS_E_INVALID : TESS_E_UNSUPPORTED);
            assert_int_equal(opened, sign > 0); /* the one that failed is not open */
        }
    assert_int_equal(open_plugin(&host, TESS_KIND_DEVICE, &ops, &ctx, &e), TESS_E_UNSUPPORTED);
}

static int open_hosts(void **state) {
    (void)state;
    host.plugin_open = open_part;
    host.plugin_close = close_part;
    host.args = "in+out";
    return open_library("hosts") ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_parts__every_collective_has_its_values),
        cmocka_unit_test(test_hosts_parts__sums_of_halves_need_room_for_wide_ones),
        cmocka_unit_test(test_hosts_parts__groups_split_off_have_theirs),
        cmocka_unit_test(test_hosts_parts__a_failure_names_the_rank_of_all),
        cmocka_unit_test(test_hosts_parts__memory_is_that_of_the_host),
        cmocka_unit_test(test_hosts_parts__a_pair_is_opened_whole_or_not), /* over others, from here on */
    };
    return cmocka_run_group_tests(tests, open_hosts, NULL);
}
