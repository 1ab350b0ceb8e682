/* SPDX-License-Identifier: BSD-3-Clause */
/* The built-in comm `self`: a world of one rank. Every collective is a copy, a cast or a sum with what is there, and is
 * done when post returns. */
#include "builtins.h"
#include "kernels/kernels.h"
#include <tessera/plugin_helpers.h>

#include <stdlib.h>

struct tess_request {
    int done;
};
/* All requests are this one: none is ever pending. */
static struct tess_request done_request = { 1 };

struct tess_comm {
    tess_status aborted; /* atomic; why */
};

enum {
    CAPS = TESS_COMM_THREAD_MULTIPLE | TESS_COMM_ABORT | TESS_COMM_SPLIT | TESS_COMM_BATCH | TESS_COMM_TREE_ORDER,
    OPS = 1 << TESS_ALL_GATHER | 1 << TESS_REDUCE_SCATTER | 1 << TESS_ALL_REDUCE | 1 << TESS_BROADCAST |
          1 << TESS_ALL_TO_ALL | 1 << TESS_BARRIER,
    MEMORY = 1 << TESS_MEM_HOST | 1 << TESS_MEM_PINNED | 1 << TESS_MEM_SHM,
    DTYPES = 1 << TESS_U8 | 1 << TESS_I8 | 1 << TESS_I32 | 1 << TESS_I64 | 1 << TESS_F16 | 1 << TESS_BF16 |
             1 << TESS_F32 | 1 << TESS_F64
};

static void self_close(void *ctx) {
    (void)ctx;
}

static tess_status self_query(void *ctx, tess_comm *comm, tess_comm_caps *out) {
    (void)ctx, (void)comm;
    tess_comm_caps caps = { .caps = CAPS,
                            .op_mask = OPS,
                            .redop_mask = 1u << TESS_SUM | 1u << TESS_MIN | 1u << TESS_MAX,
                            .dtype_mask = DTYPES,
                            .mem_mask = MEMORY,
                            .align = 8, /* the widest element */
                            .max_bytes = UINT64_MAX,
                            .wire_id = "self" };
    TESS_GIVE(out, &caps);
    return TESS_OK;
}

static int reduces(const tess_collective *c) {
    return c->op == TESS_REDUCE_SCATTER || c->op == TESS_ALL_REDUCE;
}

/* Turns a collective into the one kernel that it is here. A sum of one input is that input; so are MIN and MAX. */
static tess_kernel as_kernel(const tess_collective *c, const void **in) {
    int sums = reduces(c) && ((c->flags & 1) || (c->scale != 0 && c->scale != 1));
    tess_kernel k = { .struct_size = sizeof k,
                      .kernel = sums ? TESS_K_TREE_SUM : TESS_K_CAST,
                      .in_dtype = c->send_dtype,
                      .out_dtype = c->recv_dtype,
                      .n_in = 1,
                      .flags = sums && (c->flags & 1) ? TESS_KERNEL_ADD : 0,
                      .in = in,
                      .out = c->recv,
                      .elems = c->count,
                      .scale = reduces(c) ? c->scale : 1 };
    *in = c->send;
    return k;
}

static tess_status self_need(void *ctx, const tess_plan_env *env, const tess_collective *c, tess_need *out) {
    (void)ctx;
    const void *in;
    tess_kernel k = as_kernel(c, &in);
    tess_need need = { .align = 1 };
    if ((env && env->nranks > 1) || c->op < TESS_ALL_GATHER || c->op > TESS_BARRIER)
        return TESS_E_UNSUPPORTED;
    if (c->op != TESS_BARRIER && tess__kernel_need(&k, &need) < 0)
        return TESS_E_UNSUPPORTED;
    TESS_GIVE(out, &need);
    return TESS_OK;
}

static tess_status self_make(tess_comm **out, tess_error *error) {
    tess_comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return tess_plugin_fail(error, TESS_E_NOMEM, "comm self: no memory for a communicator");
    *out = comm;
    return TESS_OK;
}

static tess_status self_init(void *ctx, const tess_comm_config *config, tess_comm **out, tess_error *error) {
    (void)ctx;
    if (config->nranks != 1 || config->rank != 0)
        return tess_plugin_fail(error, TESS_E_INVALID,
                                "comm self serves one rank, this is rank %d of %d: set TESSERA_COMM to another",
                                config->rank, config->nranks);
    return self_make(out, error);
}

static tess_status self_split(tess_comm *comm, int32_t color, int32_t key, const tess_comm_config *config,
                              tess_comm **out, tess_error *error) {
    (void)comm, (void)key, (void)config;
    if (color < 0) {
        *out = NULL;
        return TESS_OK;
    }
    return self_make(out, error);
}

static tess_status self_health(tess_comm *comm, tess_error *error) {
    tess_status why = __atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE);
    return why == TESS_OK ? TESS_OK : tess_plugin_fail(error, why, "comm self was aborted");
}

static tess_status self_finalize(tess_comm *comm, int64_t timeout_ns, tess_error *error) {
    (void)timeout_ns;
    return self_health(comm, error);
}

static void self_destroy(tess_comm *comm) {
    free(comm);
}

static tess_status self_abort(tess_comm *comm, tess_status why) {
    tess_status none = TESS_OK, first = why < 0 ? why : TESS_E_ABORTED;
    __atomic_compare_exchange_n(&comm->aborted, &none, first, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    return TESS_OK;
}

static tess_status self_check(const tess_collective *c, tess_error *error) {
    if (c->op < TESS_ALL_GATHER || c->op > TESS_BARRIER)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "comm self: operation %u is unknown", c->op);
    if (c->op == TESS_BARRIER || !c->count)
        return TESS_OK;
    if (reduces(c) && (c->redop < TESS_SUM || c->redop > TESS_MAX))
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "comm self: reduction %u is unknown", c->redop);
    if (reduces(c) && c->redop != TESS_SUM && (c->flags & 1))
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "comm self: only a sum adds to what is there");
    if (c->root != 0 && c->op == TESS_BROADCAST)
        return tess_plugin_fail(error, TESS_E_INVALID, "comm self: root is %d, there is only rank 0", c->root);
    if (c->send_mem > 31 || c->recv_mem > 31 || !(MEMORY >> c->send_mem & 1) || !(MEMORY >> c->recv_mem & 1))
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "comm self cannot reach memory kinds %u and %u", c->send_mem,
                                c->recv_mem);
    return TESS_OK;
}

static tess_status self_run(const tess_collective *c, tess_error *error) {
    const void *in;
    tess_status status = self_check(c, error);
    if (status < 0 || c->op == TESS_BARRIER || !c->count)
        return status;
    tess_kernel k = as_kernel(c, &in);
    int in_place = c->send == c->recv || (c->op == TESS_BROADCAST && !c->send);
    if (in_place && c->send_dtype != c->recv_dtype)
        return tess_plugin_fail(error, TESS_E_INVALID, "comm self: cannot cast %s to %s in place",
                                tess_dtype_name(c->send_dtype), tess_dtype_name(c->recv_dtype));
    if (in_place && c->op == TESS_REDUCE_SCATTER)
        return tess_plugin_fail(error, TESS_E_INVALID, "comm self: a reduce_scatter is never in place");
    if (in_place && k.kernel == TESS_K_CAST)
        return TESS_OK;
    return tess__kernel_run(&k, NULL, error);
}

static tess_status self_post(tess_comm *comm, const tess_collective *c, uint32_t n, tess_request **out,
                             tess_error *error) {
    tess_status status = self_health(comm, error);
    for (uint32_t i = 0; i < n && status == TESS_OK; i++)
        status = self_run((const tess_collective *)((const char *)c + (size_t)i * c->struct_size), error);
    if (status == TESS_OK)
        *out = &done_request;
    return status;
}

static tess_status self_test(tess_request *request, tess_error *error) {
    (void)request, (void)error;
    return TESS_OK;
}

static tess_status self_wait(tess_request *request, int64_t timeout_ns, tess_error *error) {
    (void)request, (void)timeout_ns, (void)error;
    return TESS_OK;
}

static tess_status self_wait_stream(tess_request *request, const tess_stream *stream, tess_error *error) {
    (void)request, (void)stream, (void)error;
    return TESS_OK;
}

static void self_request_free(tess_request *request) {
    (void)request;
}

static const tess_comm_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = self_close,
    .query = self_query,
    .need = self_need,
    .init = self_init,
    .split = self_split,
    .finalize = self_finalize,
    .destroy = self_destroy,
    .abort = self_abort,
    .health = self_health,
    .post = self_post,
    .test = self_test,
    .wait = self_wait,
    .wait_stream = self_wait_stream,
    .request_free = self_request_free,
};

tess_status tess__comm_self_open(const tess_host *host, const void **out, void **ctx, tess_error *error) {
    if (host && host->args && *host->args)
        return tess_plugin_fail(error, TESS_E_INVALID, "comm self takes no arguments, found \"%s\"", host->args);
    *out = &ops;
    *ctx = NULL;
    return TESS_OK;
}
