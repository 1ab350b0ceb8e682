/* SPDX-License-Identifier: BSD-3-Clause */
/* A unit of the ledger is a scope that the program declared and that has parameters, so it is the same for every wrap
 * policy. The digests of all ranks are added up by one collective; a lane writes rank 0's lines. */
#include "proof.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "at_rest.h"
#include "chain.h"
#include "detail.h"
#include "checkpoint/json_text.h"
#include "kernels/digest.h"
#include "kernels/isa.h"
#include "kernels/kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PARAM, GRAD, STATE }; /* kinds of a unit's digests; STATE + k: of state k */

typedef struct tess__proof {
    char *words; /* of the program; null: none */
    char *from;  /* the checkpoint that was loaded last; null: none */
    uint64_t from_step;
    int is_ready; /* what follows is made */
    int32_t n_units;
    int32_t *unit_of;  /* by parameter; -1: it has no digests of its own */
    int32_t *scope_of; /* by unit */
    uint64_t *seed;    /* by parameter */
    tess__at_rest at_rest;
    tess__detail detail;
    tess__pool *pool; /* null: one thread */
    /* rank 0: */
    tess__lane *lane;     /* writes steps */
    uint64_t ticket;      /* of the line that it writes; the planned memory holds it */
    size_t line_bytes;    /* of that */
    uint64_t last;        /* highest step in the file */
    int said;             /* that the disk refused it */
    pthread_mutex_t lock; /* of what follows */
    int fd;               /* -1: not open */
    int failed;           /* errno of a write; nothing follows it */
    uint64_t chain, bytes;
} tess__proof;

static uint64_t n_kinds(const tess *t) {
    return STATE + (uint64_t)t->plan.layout.n_states;
}

static char *chunk_of(const tess *t) { /* of what rests where the host does not reach it */
    return tess__address_of(t, TESS__DIGESTS, 0);
}

static uint64_t *sums_of(const tess *t) {
    int reached = tess__one_memory(&t->plan.setup) && !t->plan.layout.store_align;
    return (uint64_t *)(void *)(chunk_of(t) + (reached ? 0 : TESS__PROOF_CHUNK));
}

static char *line_of(const tess *t) {
    return (char *)(sums_of(t) + (uint64_t)t->proof->n_units * n_kinds(t));
}

/* ---- what is digested ------------------------------------------------------------------------------ */

typedef struct { /* a run of values in memory that the host reads */
    const char *at;
    uint32_t dtype;
    int wide; /* as fp32, because strategies keep gradient sums in several dtypes */
    uint64_t first, seed, *sum;
} values;

static uint64_t digest_wide(const values *v, const char *at, uint64_t first, uint64_t n) {
    enum { PIECE = 2048 };
    float wide[PIECE];
    uint64_t sum = 0;
    for (uint64_t done = 0; done < n; done += PIECE) {
        uint64_t some = n - done < PIECE ? n - done : PIECE;
        tess__cast_find(v->dtype, TESS_F32, 0)(at + done * tess_dtype_bytes(v->dtype), wide, some);
        sum += tess__digest(wide, sizeof *wide, first + done, some, v->seed);
    }
    return sum;
}

/* Adds what one thread of the pool has digested. Lanes digest groups of one unit at the same time, too. */
static void digest_part(void *user, uint64_t first, uint64_t n) {
    const values *v = user;
    uint32_t bytes = tess_dtype_bytes(v->dtype);
    const char *at = v->at + first * bytes;
    uint64_t sum = v->wide && v->dtype != TESS_F32 ? digest_wide(v, at, v->first + first, n)
                                                   : tess__digest(at, bytes, v->first + first, n, v->seed);
    __atomic_fetch_add(v->sum, sum, __ATOMIC_RELAXED);
}

static tess_status digest_values(tess *t, values *v, uint32_t mem, uint64_t n) {
    uint64_t bytes = tess_dtype_bytes(v->dtype), most = TESS__PROOF_CHUNK / bytes;
    if (mem == TESS_MEM_HOST || mem == TESS_MEM_PINNED) {
        tess__pool_run(t->proof->pool, n, TESS__KERNEL_LEAST_ELEMS, digest_part, v);
        return TESS_OK;
    }
    const char *from = v->at;
    v->at = chunk_of(t);
    for (uint64_t done = 0; done < n; done += most, v->first += most) {
        uint64_t some = n - done < most ? n - done : most;
        TRY(tess__copy_now(t, chunk_of(t), TESS_MEM_HOST, from + done * bytes, mem, some * bytes));
        tess__pool_run(t->proof->pool, some, TESS__KERNEL_LEAST_ELEMS, digest_part, v);
    }
    return TESS_OK;
}

/* One value stands for `every` elements. Replicas of a shard divide it between them, as for a checkpoint. */
static tess_status digest_kind(tess *t, int32_t i, uint64_t kind, values v, uint32_t mem, uint64_t every) {
    const tess__param *p = &t->plan.model.params[i];
    const tess__group *g = &t->plan.layout.groups[p->group];
    tess__piece piece = tess__layout_piece(&t->plan.layout, p, t->comms.shard_rank);
    tess__span_elems part = tess__replica_part(g, t->comms.replica_rank, t->plan.setup.replicas);
    uint64_t first = piece.in_shard / every, end = first + tess__values_of(piece.elems, (uint32_t)every);
    uint64_t from = first > part.first / every ? first : part.first / every;
    uint64_t to = end < (part.first + part.elems) / every ? end : (part.first + part.elems) / every;
    if (!piece.elems || from >= to)
        return TESS_OK;
    v.at += from * tess_dtype_bytes(v.dtype);
    v.first = piece.in_param / every + from - first;
    v.seed = tess__spread(t->proof->seed[i] + kind);
    v.sum = &sums_of(t)[(uint64_t)t->proof->unit_of[i] * n_kinds(t) + kind];
    return digest_values(t, &v, mem, to - from);
}

static int is_due(const tess *t, uint64_t step) {
    return t->plan.setup.ledger_every && step % (uint64_t)t->plan.setup.ledger_every == 0;
}

tess_status tess__proof_gradient(tess *t, int32_t group, const tess__executor *on) {
    const tess__group *g = &t->plan.layout.groups[group];
    TRY(tess__at_rest_check_group(t, &t->proof->at_rest, t->proof->pool, group));
    if (!is_due(t, t->step.steps_done + 1))
        return TESS_OK;
    if (!on->lane)
        TRY(tess__streams_sync(&t->streams)); /* because this thread reads what the device has written */
    int staged = t->memory.booked[TESS__STAGED_GRAD0][group]; /* the program's own step finds it at rest */
    uint32_t mem = staged ? TESS_MEM_HOST : tess__rest_mem(t, &g->grad_rest);
    values v = { .at = tess__address_of(t, staged ? TESS__STAGED_GRAD0 : TESS__SHARD_GRAD, group),
                 .dtype = g->grad_shard,
                 .wide = 1 };
    for (int32_t k = 0; k < g->n_params; k++)
        TRY(digest_kind(t, t->plan.layout.order[g->first_param + k], GRAD, v, mem, 1));
    return TESS_OK;
}

static tess_status digest_group(tess *t, int32_t group) {
    const tess__group *g = &t->plan.layout.groups[group];
    for (int32_t k = 0; k < g->n_params; k++) {
        int32_t i = t->plan.layout.order[g->first_param + k];
        values v = { .at = tess__address_of(t, TESS__MASTER, group), .dtype = g->master };
        TRY(digest_kind(t, i, PARAM, v, tess__rest_mem(t, &g->param_rest), 1));
        for (uint32_t s = 0; s < g->step.n_states; s++) {
            uint32_t every = g->step.state[s].every;
            v = (values){ .at = tess__address_of(t, TESS__STATE0 + (int)s, group), .dtype = g->step.state[s].dtype };
            TRY(digest_kind(t, i, STATE + s, v, tess__rest_mem(t, &g->state_rest), every ? every : 1));
        }
    }
    return TESS_OK;
}

/* ---- the file -------------------------------------------------------------------------------------- */

/* Appends a line, to which it adds the chain. A line that does not go to the disk whole is taken back. */
static void append(tess__proof *p, char *line, size_t bytes) {
    pthread_mutex_lock(&p->lock);
    uint64_t chain = p->chain;
    size_t all = tess__chain_end(line, bytes, &chain), done = 0;
    while (p->fd >= 0 && !p->failed && done < all) {
        ssize_t n = write(p->fd, line + done, all - done);
        if (n < 0 && errno != EINTR)
            p->failed = errno;
        done += n > 0 ? (size_t)n : 0;
    }
    if (p->fd >= 0 && p->failed && done && ftruncate(p->fd, (off_t)p->bytes) != 0)
        p->failed = errno;
    if (p->fd >= 0 && !p->failed) {
        p->chain = chain;
        p->bytes += all;
    }
    pthread_mutex_unlock(&p->lock);
}

/* Writes a line of any length; the stream was begun with open_memstream. */
static tess_status append_stream(tess__proof *p, FILE *f, char **text, size_t *bytes) {
    fprintf(f, "%*s", TESS__CHAIN_TAIL + 1, "");
    int failed = ferror(f) | fclose(f);
    if (!failed)
        append(p, *text, *bytes - TESS__CHAIN_TAIL - 1);
    free(*text);
    return failed ? tess__fail(TESS_E_NOMEM, "no memory for a line of the ledger") : TESS_OK;
}

static void put_text(FILE *f, const char *key, const char *value) {
    fprintf(f, ",\"%s\":", key);
    tess__json_text(f, value ? value : "");
}

/* The names and sizes of parameters, whatever runs them. */
static uint64_t model_hash(const tess *t) {
    uint64_t hash = TESS__HASH_START;
    for (int32_t i = 0; i < t->plan.model.n_params; i++)
        if (t->proof->unit_of[i] >= 0)
            hash = tess__hash_u64(tess__hash_text(hash, t->plan.model.params[i].name), t->plan.model.params[i].elems);
    return hash;
}

static void put_options(FILE *f, const tess *t) {
    const tess__setup *s = &t->plan.setup;
    put_text(f, "version", TESSERA_VERSION);
    fprintf(f, ",\"ranks\":%d,\"microbatches\":%d,\"deterministic\":%d,\"threads\":%d", s->nranks, s->nranks * s->accum,
            s->deterministic, s->threads);
    put_text(f, "isa", tess__isa_name(tess__isa()));
    put_text(f, "strategy", t->settings.strategy);
    put_text(f, "optimizer", t->settings.optimizer);
    put_text(f, "device", t->selection.text[TESS_KIND_DEVICE]);
    put_text(f, "comm", t->selection.text[TESS_KIND_COMM]);
    put_text(f, "offload", t->selection.text[TESS_KIND_OFFLOAD]);
    put_text(f, "precision", t->selection.text[TESS_KIND_PRECISION]);
    put_text(f, "wrap", t->selection.text[TESS_KIND_WRAP]);
}

static tess_status write_begin(tess *t) {
    tess__proof *p = t->proof;
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f)
        return tess__fail(TESS_E_NOMEM, "no memory for a line of the ledger");
    fprintf(f, "{\"type\":\"begin\",\"format\":%d,\"step\":%" PRIu64 ",\"every\":%d,\"model\":\"%016" PRIx64 "\"",
            TESS__CHAIN_FORMAT, t->step.steps_done, t->plan.setup.ledger_every, model_hash(t));
    put_options(f, t);
    put_text(f, "words", p->words);
    if (p->from && p->from_step == t->step.steps_done)
        put_text(f, "from", p->from);
    fputs(",\"kinds\":[\"parameter\",\"gradient\"", f);
    for (int32_t s = 0; s < t->plan.layout.n_states; s++) {
        fputc(',', f);
        tess__json_text(f, t->plan.layout.state[s].name);
    }
    fputs("],\"units\":[", f);
    for (int32_t u = 0; u < p->n_units; u++) {
        fputs(u ? "," : "", f);
        tess__json_text(f, t->plan.model.scopes[p->scope_of[u]].name);
    }
    fputc(']', f);
    return append_stream(p, f, &text, &bytes);
}

typedef struct { /* what the ledger is of */
    const tess *t;
    uint64_t last;
} earlier;

/* A line of the file that the run goes on with. */
static tess_status take_line(void *user, const char *line, uint64_t number) {
    earlier *e = user;
    char words[1024], mine[512], theirs[512], model[24], own[24];
    uint64_t step = tess__chain_number(line, "step");
    if (strncmp(line, "{\"type\":\"step\"", 14) == 0 && step > e->last)
        e->last = step;
    if (strncmp(line, "{\"type\":\"begin\"", 15) != 0)
        return TESS_OK;
    snprintf(own, sizeof own, "%016" PRIx64, model_hash(e->t));
    if (tess__chain_member(line, "model", model, sizeof model) < 0 || strcmp(model, own) != 0)
        return tess__fail(TESS_E_DATA, "%s: line %" PRIu64 ": it is the ledger of another model; give another file",
                          e->t->settings.ledger, number);
    if (tess__chain_member(line, "words", words, sizeof words) > 0 && e->t->proof->words &&
        tess__chain_differ(words, e->t->proof->words, theirs, mine, sizeof mine))
        return tess__fail(TESS_E_DATA,
                          "%s: line %" PRIu64 ": it is the ledger of another run, with %s, and this one has %s; give "
                          "another file (TESSERA_LEDGER)",
                          e->t->settings.ledger, number, theirs, mine);
    return TESS_OK;
}

/* A line that a death has cut is taken away; the run says its step again. */
static tess_status go_on(tess *t, int fd) {
    tess__proof *p = t->proof;
    tess__chain_read_info r;
    earlier e = { .t = t };
    TRY(tess__chain_read(fd, t->settings.ledger, take_line, &e, &r));
    if (r.cut && ftruncate(fd, (off_t)r.bytes) != 0)
        return tess__fail(TESS_E_DATA, "%s: %s", t->settings.ledger, strerror(errno));
    p->chain = r.chain;
    p->bytes = r.bytes;
    p->last = e.last;
    return TESS_OK;
}

static tess_status open_file(tess *t) {
    tess__proof *p = t->proof;
    int fd = open(t->settings.ledger, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        const char *why = fd < 0 ? strerror(errno) : "it is no file that can be read again";
        if (fd >= 0)
            close(fd);
        return tess__fail(TESS_E_DATA, "TESSERA_LEDGER=%s: %s", t->settings.ledger, why);
    }
    tess_status s = flock(fd, LOCK_EX | LOCK_NB) == 0
                        ? go_on(t, fd)
                        : tess__fail(TESS_E_DATA, "TESSERA_LEDGER=%s: another run writes it", t->settings.ledger);
    if (!s && !p->lane)
        s = tess__lane_create(t->selection.host.helper_cpus, &p->lane);
    if (s) {
        close(fd);
        return s;
    }
    pthread_mutex_lock(&p->lock);
    p->fd = fd;
    pthread_mutex_unlock(&p->lock);
    return write_begin(t);
}

/* ---- steps ----------------------------------------------------------------------------------------- */

static tess_status write_line(void *user, const tess__job *job) {
    (void)job;
    tess *t = user;
    append(t->proof, line_of(t), t->proof->line_bytes);
    return TESS_OK;
}

static uint64_t root_of(const uint64_t *sums, uint64_t n) {
    uint64_t root = 0;
    for (uint64_t i = 0; i < n; i++)
        root = tess__spread(root + sums[i] + UINT64_C(0x9e3779b97f4a7c15));
    return root;
}

static size_t format_step(const tess *t, char *out) {
    static const char digits[] = "0123456789abcdef";
    const uint64_t *sums = sums_of(t), kinds = n_kinds(t), n = (uint64_t)t->proof->n_units * kinds;
    uint64_t step = t->step.steps_done;
    char *at =
        out + sprintf(out, "{\"type\":\"step\",\"step\":%" PRIu64 "%s%s,\"root\":\"%016" PRIx64 "\",\"digests\":[",
                      step, step <= t->proof->last ? ",\"again\":true" : "", t->step.skips ? ",\"skipped\":true" : "",
                      root_of(sums, n));
    for (uint64_t i = 0; i < n; i++) {
        if (i % kinds == 0)
            *at++ = '"';
        for (int shift = 60; shift >= 0; shift -= 4)
            *at++ = digits[sums[i] >> shift & 15];
        if (i % kinds == kinds - 1) {
            *at++ = '"';
            *at++ = ',';
        }
    }
    at[-1] = ']';
    return (size_t)(at - out);
}

static tess_status write_step(tess *t) {
    tess__proof *p = t->proof;
    TRY(tess__lane_wait(p->lane, p->ticket)); /* the line before is in the file */
    pthread_mutex_lock(&p->lock);
    int failed = p->failed;
    pthread_mutex_unlock(&p->lock);
    if (failed && !p->said++)
        tess__log(TESS_LOG_WARNING, "TESSERA_LEDGER=%s: %s; it ends with step %" PRIu64 ", and the run goes on",
                  t->settings.ledger, strerror(failed), p->last);
    if (failed)
        return TESS_OK;
    p->line_bytes = format_step(t, line_of(t));
    p->last = t->step.steps_done > p->last ? t->step.steps_done : p->last;
    p->ticket = tess__lane_post(p->lane, write_line, t, &(tess__job){ .op = 0 });
    return TESS_OK;
}

static tess_status digest_step(tess *t) {
    uint64_t n = (uint64_t)t->proof->n_units * n_kinds(t);
    if (!n || !is_due(t, t->step.steps_done))
        return TESS_OK;
    TRY(tess__streams_sync(&t->streams));
    for (int32_t g = 0; g < t->plan.layout.n_groups; g++)
        TRY(digest_group(t, g));
    TRY(tess_all_reduce(t, sums_of(t), n, TESS_I64, TESS_SUM));
    return t->comms.world.rank == 0 ? write_step(t) : TESS_OK;
}

tess_status tess__proof_step(tess *t) {
    TRY(digest_step(t));
    return t->settings.digests_rest ? tess__at_rest_take(t, &t->proof->at_rest, t->proof->pool) : TESS_OK;
}

void tess__proof_saved(tess__proof *p, const char *dir, uint64_t step) {
    char real[PATH_MAX], *text = NULL;
    size_t bytes = 0;
    FILE *f = p ? open_memstream(&text, &bytes) : NULL;
    if (!f)
        return;
    fprintf(f, "{\"type\":\"checkpoint\",\"step\":%" PRIu64, step);
    put_text(f, "path", realpath(dir, real) ? real : dir);
    (void)append_stream(p, f, &text, &bytes);
}

/* ---- its life -------------------------------------------------------------------------------------- */

static tess_status proof_of(tess *t) {
    if (t->proof)
        return TESS_OK;
    tess__proof *p = calloc(1, sizeof *p);
    if (!p)
        return tess__fail(TESS_E_NOMEM, "no memory for the ledger of digests");
    p->fd = -1;
    pthread_mutex_init(&p->lock, NULL);
    t->proof = p;
    return TESS_OK;
}

tess_status tess__proof_loaded(tess *t, const char *dir, uint64_t step) {
    char real[PATH_MAX];
    if (!t->plan.setup.ledger_every || t->comms.world.rank != 0)
        return TESS_OK;
    TRY(proof_of(t));
    free(t->proof->from);
    t->proof->from = strdup(realpath(dir, real) ? real : dir);
    t->proof->from_step = step;
    return t->proof->from ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for the ledger of digests");
}

static int has_digests(const tess *t, int32_t i) {
    const tess__param *p = &t->plan.model.params[i];
    return p->tied_to == i && !(p->flags & TESS_BUFFER); /* each rank has buffers of its own */
}

static tess_status make_tables(tess *t) {
    tess__proof *p = t->proof;
    const tess__model *m = &t->plan.model;
    p->unit_of = calloc((size_t)m->n_params + 1, sizeof *p->unit_of);
    p->seed = calloc((size_t)m->n_params + 1, sizeof *p->seed);
    p->scope_of = calloc((size_t)m->n_scopes + 1, sizeof *p->scope_of);
    int32_t *unit = calloc((size_t)m->n_scopes + 1, sizeof *unit); /* of each scope, from 1 */
    tess_status s = p->unit_of && p->seed && p->scope_of && unit
                        ? TESS_OK
                        : tess__fail(TESS_E_NOMEM, "no memory for the ledger of digests");
    for (int32_t i = 0; !s && i < m->n_params; i++)
        unit[m->params[i].scope] |= has_digests(t, i);
    for (int32_t k = 0; !s && k < m->n_scopes; k++)
        if (unit[k]) {
            p->scope_of[p->n_units] = k;
            unit[k] = ++p->n_units;
        }
    for (int32_t i = 0; !s && i < m->n_params; i++) {
        p->unit_of[i] = has_digests(t, i) ? unit[m->params[i].scope] - 1 : -1;
        p->seed[i] = tess__spread(tess__hash_text(TESS__HASH_START, m->params[i].name));
    }
    free(unit);
    return s;
}

static tess_status make_ready(tess *t) {
    tess_error e = { .struct_size = sizeof e };
    TRY(proof_of(t));
    if (t->proof->is_ready)
        return TESS_OK;
    if (t->settings.digests_rest && !tess__one_memory(&t->plan.setup))
        return tess__fail(TESS_E_UNSUPPORTED,
                          "TESSERA_AT_REST_DIGESTS=1: device %s has memory that the host does not read",
                          t->device.plugin->name);
    TRY(make_tables(t));
    tess_status s =
        t->plan.setup.threads > 1 ? tess__pool_create(t->plan.setup.threads, "", &t->proof->pool, &e) : TESS_OK;
    t->proof->is_ready = !s;
    return s ? tess__fail(s, "%s", e.message) : TESS_OK;
}

tess_status tess__proof_pass(tess *t, uint32_t pass_kind) {
    if (!t->plan.setup.ledger_every && !t->settings.digests_rest && !t->settings.detail)
        return TESS_OK;
    TRY(make_ready(t));
    TRY(tess__detail_pass(t, &t->proof->detail, pass_kind));
    if (t->settings.digests_rest) {
        TRY(tess__at_rest_check(t, &t->proof->at_rest, t->proof->pool, 0));
        TRY(tess__at_rest_check_pass(t, &t->proof->at_rest, t->proof->pool));
    }
    if (!t->plan.setup.ledger_every || (pass_kind & 15) != TESS_PASS_TRAIN || t->pass.microbatch)
        return TESS_OK;
    if (t->comms.world.rank == 0 && t->proof->fd < 0)
        TRY(open_file(t));
    memset(sums_of(t), 0, (uint64_t)t->proof->n_units * n_kinds(t) * sizeof(uint64_t));
    return TESS_OK;
}

tess_status tess__proof_pass_end(tess *t) {
    return t->settings.digests_rest ? tess__at_rest_take_pass(t, &t->proof->at_rest, t->proof->pool) : TESS_OK;
}

tess_status tess__proof_rest(tess *t) {
    return t->proof && t->settings.digests_rest ? tess__at_rest_check(t, &t->proof->at_rest, t->proof->pool, 1)
                                                : TESS_OK;
}

tess_status tess__proof_instr(tess *t, const tess__instr *in) {
    return tess__detail_instr(t, &t->proof->detail, in);
}

tess_status tess__proof_event(tess *t, const tess__event *e) {
    return tess__detail_event(t, &t->proof->detail, e);
}

static tess_status take_words(tess *t, const char *words) {
    if (!t->plan.setup.ledger_every || t->settings.plan_only)
        return TESS_OK;
    TRY(proof_of(t));
    free(t->proof->words);
    t->proof->words = strdup(words ? words : "");
    return t->proof->words ? TESS_OK : tess__fail(TESS_E_NOMEM, "no memory for the ledger of digests");
}

tess_status tess_proof_words(tess *t, const char *words) {
    TESS__PUBLIC(t, take_words(t, words));
}

static void write_end(tess__proof *p, uint64_t step) {
    char line[64 + TESS__CHAIN_TAIL + 1];
    append(p, line, (size_t)snprintf(line, 64, "{\"type\":\"end\",\"step\":%" PRIu64, step));
}

void tess__proof_end(tess *t) {
    tess__proof *p = t->proof;
    if (!p)
        return;
    tess__lane_destroy(p->lane);
    if (p->fd >= 0 && !t->error)
        write_end(p, t->step.steps_done);
    if (p->fd >= 0)
        close(p->fd);
    tess__at_rest_free(&p->at_rest);
    tess__detail_end(&p->detail);
    tess__pool_destroy(p->pool);
    pthread_mutex_destroy(&p->lock);
    free(p->words);
    free(p->from);
    free(p->unit_of);
    free(p->scope_of);
    free(p->seed);
    free(p);
    t->proof = NULL;
}
