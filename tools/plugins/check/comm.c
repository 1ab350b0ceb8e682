/* SPDX-License-Identifier: BSD-3-Clause */
#include "comm.h"

#include "comm_reference.h"
#include "suites.h"

static comm_rank the_rank; /* one rank per process */

/* Asks `need` about every operation, for few and many elements, and notes the largest backend_bytes. */
static void comm_ask_stated(comm_rank *r) {
    tess_plan_env env = { .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = r->nranks, .in_flight = 1 };
    for (uint32_t op = TESS_ALL_GATHER; op <= TESS_ALL_TO_ALL_V; op++)
        for (uint64_t count = 1; count <= 1 << 20; count <<= 10) {
            tess_need need = { .struct_size = sizeof need };
            tess_collective c = { .struct_size = sizeof c,
                                  .op = op,
                                  .redop = TESS_SUM,
                                  .send_dtype = TESS_F32,
                                  .recv_dtype = TESS_F32,
                                  .send_mem = TESS_MEM_HOST,
                                  .recv_mem = TESS_MEM_HOST,
                                  .count = op == TESS_BARRIER ? 0 : count,
                                  .scale = 1 };
            check_doing(r->c, "need");
            if ((r->caps.op_mask >> op & 1) && r->ops->need(r->ctx, &env, &c, &need) == TESS_OK)
                check_stated(r->c, need.backend_bytes);
        }
    check_doing(r->c, "");
}

comm_rank *comm_open(check *c) {
    comm_rank *r = &the_rank;
    *r = (comm_rank){ .c = c, .rank = c->rank, .nranks = c->nranks, .ops = check_open(c), .ctx = c->ctx };
    r->caps.struct_size = sizeof r->caps;
    check_doing(c, "query");
    tess_status s = r->ops->query(r->ctx, NULL, &r->caps);
    check_that(c, s == TESS_OK, "query gave %s", check_status(s));
    comm_ask_stated(r);
    r->ops = comm_staged(c, r->ops, &r->caps);
    check_doing(c, "");
    return r;
}

uint32_t comm_word(void) {
    return the_rank.caps.dtype_mask >> TESS_I32 & 1 ? TESS_I32 : TESS_F32;
}

void comm_must_claim(comm_rank *r, uint32_t cap, const char *name) {
    if (!(r->caps.caps & cap))
        check_skip(r->c, "does not claim %s", name);
}

const char *comm_op_name(uint32_t op) {
    static const char *const names[] = { "?",         "all_gather", "reduce_scatter", "all_reduce",
                                         "broadcast", "all_to_all", "barrier",        "all_to_all_v" };
    return op < sizeof names / sizeof *names ? names[op] : "?";
}

int comm_offers(comm_rank *r, uint32_t op, uint32_t dtype) {
    tess_plan_env env = { .struct_size = sizeof env, .mem = TESS_MEM_HOST, .nranks = r->nranks };
    tess_need need = { .struct_size = sizeof need };
    tess_collective c = { .struct_size = sizeof c,
                          .op = op,
                          .redop = TESS_SUM,
                          .send_dtype = dtype,
                          .recv_dtype = dtype,
                          .send_mem = TESS_MEM_HOST,
                          .recv_mem = TESS_MEM_HOST,
                          .count = 1,
                          .scale = 1 };
    check_doing(r->c, "need");
    int yes = (r->caps.op_mask >> op & 1) && r->ops->need(r->ctx, &env, &c, &need) == TESS_OK;
    check_doing(r->c, "");
    return yes;
}

void comm_must_offer(comm_rank *r, uint32_t op, uint32_t dtype) {
    if (!comm_offers(r, op, dtype))
        check_skip(r->c, "does not offer %s of %s on %d ranks", comm_op_name(op), ref_dtype_name(dtype), r->nranks);
}

tess_status comm_init(comm_rank *r, const char *group, int64_t timeout_ns, tess_comm **out, tess_error *error) {
    tess_comm_config cfg = { .struct_size = sizeof cfg,
                             .rank = r->rank,
                             .nranks = r->nranks,
                             .local_rank = r->rank,
                             .device = -1,
                             .group = group,
                             .timeout_ns = timeout_ns };
    check_doing(r->c, "init");
    tess_status s = r->ops->init(r->ctx, &cfg, out, error);
    r->c->communicators += s == TESS_OK;
    check_doing(r->c, "");
    return s;
}

/* Skips the check if the plugin offers nothing for this number of ranks. A backend may serve only small worlds. */
void comm_must_serve(comm_rank *r) {
    for (uint32_t op = TESS_ALL_GATHER; op <= TESS_ALL_TO_ALL_V; op++)
        if (comm_offers(r, op, comm_word()) || comm_offers(r, op, TESS_F32))
            return;
    check_skip(r->c, "offers nothing for %d rank%s", r->nranks, r->nranks > 1 ? "s" : "");
}

void comm_join(comm_rank *r) {
    tess_error e = { .struct_size = sizeof e };
    comm_must_serve(r);
    tess_status s = comm_init(r, "world", CHECK_LONG_NS, &r->comm, &e);
    check_that(r->c, s == TESS_OK, "init gave %s: %s", check_status(s), e.message);
    check_that(r->c, r->comm, "init gave no communicator");
    check_meet(r->c); /* init is no barrier, so a rank that left at once could fail its peers' init */
}

tess_status comm_finalize(comm_rank *r, tess_comm *comm, tess_error *e) {
    tess_status s = TESS_OK;
    check_doing(r->c, "finalize");
    if (TESS_CAN(tess_comm_ops, r->ops, finalize))
        s = r->ops->finalize(comm, CHECK_LONG_NS, e);
    else
        check_meet(r->c);
    check_doing(r->c, "");
    return s;
}

tess_status comm_health(comm_rank *r, tess_error *e) {
    return TESS_CAN(tess_comm_ops, r->ops, health) ? r->ops->health(r->comm, e) : TESS_OK;
}

void comm_leave(comm_rank *r) {
    tess_error e = { .struct_size = sizeof e };
    tess_status s = comm_finalize(r, r->comm, &e);
    check_that(r->c, s == TESS_OK, "finalize gave %s: %s", check_status(s), e.message);
    check_doing(r->c, "destroy");
    r->ops->destroy(r->comm);
    check_doing(r->c, "");
    r->comm = NULL;
}
