/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that are threads write a checkpoint on a real disk, and meet through a store of keys of the test's own: what
 * lies in the files, what the manifest says, what each rank is told of whose failure, and which keys are left. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>

#include "core/checkpoint/data_writer.h"
#include "core/checkpoint/saved.h"
#include "core/saving/saver.h"
#include "tests/unit/scratch_dir.h"

enum { RANKS = 3, PIECES = 4, KEYS = 32, BIG = 65536 * 8 + 400 /* bytes: more than is copied at once */ };

static struct { /* the keys that are set */
    pthread_mutex_t lock;
    pthread_cond_t set;
    struct {
        char key[64];
        char *value;
        uint64_t bytes;
    } keys[KEYS];
    int n, sets, fail_set; /* fail_set: of the rank with that number less one */
} store = { .lock = PTHREAD_MUTEX_INITIALIZER, .set = PTHREAD_COND_INITIALIZER };

typedef struct {
    tess t;
    tess__saver s;
    int fail_copy, named; /* the n-th copy from the device fails; times that the ledger names the checkpoint */
    uint64_t most_copied;
    char *data[PIECES], *image;
    struct tess__proof *proof; /* its place stands for a ledger */
} member;
static member all[RANKS];
static int32_t n_ranks;
static _Thread_local int32_t self;
static scratch_dir dir;

/* ---- what stands in for the engine ---- */

static int find_key(const char *key) {
    for (int i = 0; i < store.n; i++)
        if (!strcmp(store.keys[i].key, key))
            return i;
    return -1;
}

static tess_status set_key(tess__control *c, const char *key, const void *value, uint64_t bytes) {
    if ((void *)c != &store || bytes > TESS__KV_VALUE_MAX || store.fail_set == self + 1)
        return tess__fail(TESS_E_ABORTED, "rank 1 was lost");
    pthread_mutex_lock(&store.lock);
    int i = find_key(key);
    if (i < 0 && (i = store.n++) < KEYS)
        snprintf(store.keys[i].key, sizeof store.keys[i].key, "%s", key);
    store.keys[i].value = realloc(store.keys[i].value, bytes);
    memcpy(store.keys[i].value, value, bytes);
    store.keys[i].bytes = bytes;
    store.sets++;
    pthread_cond_broadcast(&store.set);
    pthread_mutex_unlock(&store.lock);
    return TESS_OK;
}

static tess_status drop_key(tess__control *c, const char *key) {
    (void)c;
    pthread_mutex_lock(&store.lock);
    int i = find_key(key);
    if (i >= 0) {
        free(store.keys[i].value);
        store.keys[i] = store.keys[--store.n];
        store.keys[store.n].value = NULL;
    }
    pthread_mutex_unlock(&store.lock);
    return TESS_OK;
}

static tess_status get_key(tess__control *c, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 4;
    pthread_mutex_lock(&store.lock);
    int i, late = 0;
    while ((i = find_key(key)) < 0 && !late)
        late = pthread_cond_timedwait(&store.set, &store.lock, &until) != 0;
    tess_status s = TESS_E_TIMEOUT;
    if (i >= 0 && (void *)c == &store && timeout_ns < 0 && store.keys[i].bytes <= *bytes) {
        memcpy(value, store.keys[i].value, *bytes = store.keys[i].bytes);
        s = TESS_OK;
    }
    pthread_mutex_unlock(&store.lock);
    return s ? tess__fail(s, "nobody set %s", key) : TESS_OK;
}

static tess_status copy_piece(tess *t, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes) {
    member *m = (member *)((char *)t - offsetof(member, t));
    if (dst_mem != TESS_MEM_HOST || src_mem != TESS_MEM_CUDA)
        return tess__fail(TESS_E_INTERNAL, "another kind of memory");
    if (m->fail_copy && --m->fail_copy == 0)
        return tess__fail(TESS_E_DEVICE, "rank %d cannot copy", t->comms.world.rank);
    m->most_copied = bytes > m->most_copied ? bytes : m->most_copied;
    memcpy(dst, src, bytes);
    return TESS_OK;
}

static void name_checkpoint(struct tess__proof *p, const char *path, uint64_t step) {
    member *m = (member *)((char *)p - offsetof(member, proof));
    char want[128];
    snprintf(want, sizeof want, "%s/step-%06d", dir.path, (int)step);
    m->named += !strcmp(path, want) ? 1 : 100;
}

static int writes;
static tess_status count_write(tess__data_writer *w, const void *data, uint64_t bytes) {
    writes++;
    return tess__data_write(w, data, bytes);
}

#define TESSERA_VERSION "9.8.7" /* of the sources below alone */
#define tess__data_write count_write
#define tess__control_set set_key
#define tess__control_get get_key
#define tess__control_drop drop_key
#define tess__copy_now copy_piece
#define tess__proof_saved name_checkpoint
#include "core/saving/saver_write.c"

/* ---- ranks, and what they have to save ---- */

static char a_name[] = "m.a", tied_name[] = "m.tied", mean_name[] = "m.mean", frozen_name[] = "m.frozen";
static char sgd[] = "sgd", full[] = "full", bf16[] = "bf16";
static tess__param params[] = {
    { .name = a_name, .dtype = TESS_F32, .ndim = 2, .shape = { 3, 7 }, .tied_to = 0, .group = 0 },
    { .name = tied_name, .dtype = TESS_F32, .ndim = 2, .shape = { 3, 7 }, .tied_to = 0, .group = 0 },
    { .name = mean_name,
      .dtype = TESS_F64,
      .ndim = 1,
      .shape = { 5 },
      .flags = TESS_BUFFER,
      .tied_to = 2,
      .group = -1 },
    { .name = frozen_name, .dtype = TESS_F32, .ndim = 1, .shape = { 9 }, .tied_to = 3, .group = 1 },
};
static tess__group groups[] = { { .trainable = 1, .master = TESS_F32 }, { .master = TESS_BF16 } };

static float value_of(int32_t rank, int piece, uint64_t i) {
    return (float)(rank + 1) * 0.5f + (float)piece * 3 + (float)(i % 8191) / 64;
}

static const uint64_t piece_bytes[PIECES] = { 4096, BIG, 400, 4 };

static void make_piece(member *m, int32_t rank, int i, uint32_t mem, int stays) {
    tess__tensor *x = &m->s.pieces.tensors[i];
    m->data[i] = m->data[i] ? m->data[i] : malloc(BIG);
    for (uint64_t k = 0; k < piece_bytes[i] / 4; k++)
        ((float *)(void *)m->data[i])[k] = value_of(rank, i, k);
    *x = (tess__tensor){ .dtype = TESS_F32, .ndim = 1, .shape = { (int64_t)piece_bytes[i] / 4 } };
    snprintf(x->name, sizeof x->name, "param/m.%c@%d", 'a' + i, (int)rank);
    m->s.pieces.pieces[i] =
        (tess__shard_piece){ .at = m->data[i], .bytes = piece_bytes[i], .mem = mem, .stays = stays };
}

static void make_ranks(int32_t n) {
    n_ranks = n;
    for (int32_t r = 0; r < n; r++) {
        member *m = &all[r];
        tess__shard_pieces kept = m->s.pieces;
        char *image = m->image ? m->image : malloc(2 * BIG);
        tess *t = &m->t;
        memset(t, 0, sizeof *t);
        memset(&m->s, 0, sizeof m->s);
        m->image = image;
        m->fail_copy = m->named = 0;
        m->most_copied = 0;
        t->comms.world.rank = r;
        t->comms.world.nranks = n;
        t->comms.control = (tess__control *)&store;
        t->plan.setup.accum = 5;
        t->plan.model.params = params;
        t->plan.model.n_params = 4;
        t->plan.layout.groups = groups;
        t->plan.layout.n_states = 2;
        t->settings.optimizer = sgd;
        t->settings.strategy = full;
        t->selection.text[TESS_KIND_PRECISION] = bf16;
        t->past.of = (tess__lineage){ .n = 1, .runs = { { .id = 99, .until = INT64_MAX } } };
        m->s.t = t;
        m->s.pieces = kept;
        m->s.pieces.tensors = kept.tensors ? kept.tensors : calloc(PIECES, sizeof *kept.tensors);
        m->s.pieces.pieces = kept.pieces ? kept.pieces : calloc(PIECES, sizeof *kept.pieces);
        m->s.pieces.n = PIECES;
        for (int i = 0; i < PIECES; i++)
            make_piece(m, r, i, i % 3 == 0 ? TESS_MEM_HOST : i == 1 ? TESS_MEM_CUDA : TESS_MEM_PINNED, 0);
        m->s.pieces.bytes = tess__safetensors_arrange(m->s.pieces.tensors, PIECES);
        m->s.proof = (struct tess__proof *)(void *)&m->proof;
        m->s.sequence = 7;
        m->s.step = 20;
        m->s.score = 0.25;
        m->s.has_score = 1;
        m->s.loss_scale = (tess__loss_scale){ .scale = 1024, .good = 3, .skipped = 2 };
        snprintf(m->s.dir, sizeof m->s.dir, "%s", dir.path);
    }
    tess__past past = all[0].t.past;
    assert_int_equal(tess__store_open(&tess__disk_real, dir.path, &all[0].s.store), TESS_OK);
    assert_int_equal(tess__store_settle(&all[0].s.store, &past, 1), TESS_OK);
    assert_int_equal(tess__store_begin(&all[0].s.store, 20, &all[0].s.generation), TESS_OK);
    for (int32_t r = 1; r < n; r++)
        all[r].s.generation = all[0].s.generation;
    while (store.n)
        (void)drop_key(NULL, store.keys[0].key);
    store.sets = store.fail_set = 0;
    (void)set_key((tess__control *)&store, "checkpoint/6/all", "", 1); /* of the save before */
}

static void *write_rank(void *arg) {
    member *m = arg;
    self = m->t.comms.world.rank;
    tess__saver_write(&m->s);
    return NULL;
}

static void write_all(void) {
    pthread_t thread[RANKS];
    for (int32_t r = 0; r < n_ranks; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, write_rank, &all[r]), 0);
    for (int32_t r = 0; r < n_ranks; r++)
        pthread_join(thread[r], NULL);
    tess__store_close(&all[0].s.store);
}

static void step_path(char out[128]) {
    snprintf(out, 128, "%s/step-000020", dir.path);
}

static void open_saved(tess__saved *saved) {
    char path[128];
    step_path(path);
    assert_int_equal(tess__saved_open(&tess__disk_real, path, saved), TESS_OK);
}

/* Every file holds its rank's pieces, and all sums are theirs. */
static void expect_files(const tess__saved *saved) {
    float *got = malloc(BIG);
    assert_int_equal(saved->manifest.n_files, n_ranks);
    for (int32_t r = 0; r < n_ranks; r++) {
        tess__saved_file *f = NULL;
        uint64_t n = 0;
        char name[64];
        snprintf(name, sizeof name, "data-%d-%05d-of-%05d.safetensors", (int)all[r].s.generation, (int)r, (int)n_ranks);
        assert_string_equal(saved->manifest.files[r].name, name);
        assert_int_equal(saved->manifest.files[r].bytes, all[r].s.info.bytes);
        assert_int_equal(tess__saved_file_open(saved, (uint64_t)r, &f), TESS_OK);
        assert_int_equal(tess__saved_file_verify(f), TESS_OK);
        const tess__tensor *list = tess__saved_file_list(f, &n);
        assert_int_equal(n, PIECES);
        for (int i = 0; i < PIECES; i++) {
            assert_int_equal(list[i].bytes, piece_bytes[i]);
            assert_int_equal(tess__saved_file_read(f, &list[i], 0, list[i].elems, got), TESS_OK);
            assert_memory_equal(got, all[r].data[i], piece_bytes[i]);
        }
        tess__saved_file_close(f);
    }
    free(got);
}

/* ---- the tests ---- */

static void test_save_ranks__files_hold_each_ranks_pieces_and_the_manifest_says_whose(void **state) {
    (void)state;
    for (int32_t n = 1; n <= RANKS; n++) {
        tess__saved saved;
        make_ranks(n);
        write_all();
        for (int32_t r = 0; r < n; r++) {
            assert_int_equal(all[r].s.status, TESS_OK);
            assert_string_equal(all[r].s.message, "");
            assert_true(all[r].s.info.write_seconds > 0 && all[r].s.info.write_seconds < 60);
            assert_int_equal(all[r].named, r == 0); /* the ledger of the leader */
            assert_int_equal(all[r].most_copied, 65536 * 8);
        }
        assert_int_equal(store.n, 1); /* the server keeps the last verdict, and nothing else */
        assert_string_equal(store.keys[0].key, "checkpoint/7/all");
        assert_int_equal(store.sets, 1 + n);
        open_saved(&saved);
        expect_files(&saved);
        const tess__manifest *m = &saved.manifest;
        assert_true(m->step == 20 && m->ranks == (uint64_t)n && m->microbatches == 5u * (uint64_t)n);
        assert_true(m->generation == all[0].s.generation && m->lineage.n == 1 && m->lineage.runs[0].id == 99);
        assert_true(m->has_score && m->score == 0.25 && !m->not_finite && m->n_states == 2 && !m->n_base);
        assert_true(m->loss_scale.scale == 1024 && m->loss_scale.good == 3 && m->loss_scale.skipped == 2);
        assert_string_equal(m->writer, "tessera 9.8.7");
        assert_string_equal(m->optimizer, "sgd");
        assert_string_equal(m->strategy, "full");
        assert_string_equal(m->precision, "bf16");
        assert_int_equal(m->n_params, 3); /* a tied one is no other */
        static const struct {
            const char *name;
            uint32_t dtype;
            int ndim, is_buffer;
            int64_t first, second;
        } want[] = { { "m.a", TESS_F32, 2, 0, 3, 7 },
                     { "m.mean", TESS_F64, 1, 1, 5, 0 },
                     { "m.frozen", TESS_BF16, 1, 0, 9, 0 } };
        for (int i = 0; i < 3; i++) {
            const tess__tensor *x = &m->params[i];
            assert_string_equal(x->name, want[i].name);
            assert_int_equal(x->dtype, want[i].dtype);
            assert_int_equal(x->ndim, want[i].ndim);
            assert_int_equal(x->shape[0], want[i].first);
            assert_int_equal(x->shape[1], want[i].second);
            assert_int_equal(m->is_buffer[i], want[i].is_buffer);
            assert_false(tess__manifest_in_base(m, (uint64_t)i));
        }
        tess__saved_close(&saved);
    }
}

static void test_save_ranks__one_rank_needs_no_control_plane(void **state) {
    (void)state;
    tess__saved saved;
    make_ranks(1);
    all[0].t.comms.control = NULL;
    all[0].s.has_score = 0;
    all[0].s.proof = NULL;
    write_all();
    assert_int_equal(all[0].s.status, TESS_OK);
    assert_int_equal(all[0].named, 0);
    assert_int_equal(store.sets, 1);
    open_saved(&saved);
    expect_files(&saved);
    assert_false(saved.manifest.has_score);
    tess__saved_close(&saved);
}

/* What stays where it is lies between what was copied: each choice of four. */
static void test_save_ranks__a_snapshot_and_what_stays_come_in_their_order(void **state) {
    (void)state;
    for (int stays = 0; stays < 1 << PIECES; stays++) {
        tess__saved saved;
        make_ranks(1);
        member *m = &all[0];
        char *at = m->image;
        for (int i = 0; i < PIECES; i++) {
            make_piece(m, 0, i, TESS_MEM_HOST, stays >> i & 1);
            if (!(stays >> i & 1)) {
                memcpy(at, m->data[i], piece_bytes[i]);
                at += piece_bytes[i];
                m->s.pieces.pieces[i].at = NULL; /* training goes on there */
            }
        }
        (void)tess__safetensors_arrange(m->s.pieces.tensors, PIECES);
        m->s.image = m->image;
        int runs = 0; /* copied pieces that lie one behind another are one write */
        for (int i = 0; i < PIECES; i++)
            runs += (stays >> i & 1) || i + 1 == PIECES || (stays >> (i + 1) & 1);
        writes = 0;
        write_all();
        assert_int_equal(writes, runs);
        assert_int_equal(m->s.status, TESS_OK);
        open_saved(&saved);
        assert_false(saved.manifest.not_finite);
        expect_files(&saved);
        tess__saved_close(&saved);
    }
}

/* The first or the last value of any piece of any rank, wherever it lies. */
static void test_save_ranks__one_value_that_is_not_finite_is_noted(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) /* where they lie, in a snapshot, beside it */
        for (int i = 0; i < PIECES; i++)
            for (int32_t r = 0; r < 2; r++) {
                tess__saved saved;
                make_ranks(2);
                member *m = &all[r];
                float *data = (float *)(void *)m->data[i];
                data[(r + i) % 2 ? 0 : piece_bytes[i] / 4 - 1] = how % 2 ? INFINITY : NAN;
                char *at = m->image;
                for (int k = 0; how && k < PIECES; k++) {
                    m->s.pieces.pieces[k].stays = how == 2;
                    memcpy(at, m->data[k], piece_bytes[k]);
                    at += piece_bytes[k];
                    m->s.image = m->image;
                }
                write_all();
                assert_int_equal(m->s.status, TESS_OK);
                open_saved(&saved);
                assert_true(saved.manifest.not_finite);
                tess__saved_close(&saved);
            }
}

static void expect_failure(tess_status status, const char *message) {
    char path[128];
    step_path(path);
    for (int32_t r = 0; r < n_ranks; r++) {
        assert_int_equal(all[r].s.status, status);
        assert_string_equal(all[r].s.message, message);
        assert_int_equal(all[r].named, 0);
    }
    assert_int_not_equal(access(path, F_OK), 0); /* nothing of it is left */
    assert_int_equal(store.n, 1);
}

static void remove_step(void) {
    assert_int_equal(tess__store_remove(&tess__disk_real, dir.path, 20), TESS_OK);
}

/* The leader's own failure counts, else that of the lowest rank; no rank writes any more when it is told. */
static void test_save_ranks__all_ranks_are_told_the_first_failure(void **state) {
    (void)state;
    char path[128];
    step_path(path);
    if (!access(path, F_OK))
        remove_step();
    for (int who = 1; who < 1 << RANKS; who++) {
        make_ranks(RANKS);
        for (int32_t r = 0; r < RANKS; r++)
            all[r].fail_copy = who >> r & 1 ? 1 + r % 2 : 0;
        write_all();
        expect_failure(TESS_E_DEVICE, who & 1   ? "rank 0 cannot copy"
                                      : who & 2 ? "rank 1 cannot copy"
                                                : "rank 2 cannot copy");
    }
    make_ranks(RANKS);
    write_all(); /* and the next one is whole */
    assert_int_equal(all[2].s.status, TESS_OK);
    make_ranks(RANKS); /* which a failure of the same step leaves as it is */
    all[1].fail_copy = 1;
    write_all();
    assert_int_equal(all[0].s.status, TESS_E_DEVICE);
    tess__saved saved;
    open_saved(&saved);
    assert_int_equal(saved.manifest.generation, all[0].s.generation - 1);
    tess__saved_close(&saved);
    remove_step();
}

static void test_save_ranks__a_cancelled_save_is_given_up(void **state) {
    (void)state;
    make_ranks(2);
    all[1].s.cancel = 1;
    write_all();
    assert_int_not_equal(all[0].s.status, TESS_OK);
    assert_string_equal(all[0].s.message, all[1].s.message);
    expect_failure(all[1].s.status, all[1].s.message);
}

static void test_save_ranks__a_name_that_is_too_long_is_said(void **state) {
    (void)state;
    static char name[TESS__TENSOR_NAME + 1];
    char want[128];
    memset(name, 'x', TESS__TENSOR_NAME - 1);
    params[3].name = name;
    make_ranks(2);
    write_all();
    assert_int_equal(all[1].s.status, TESS_OK); /* as long as can be */
    name[TESS__TENSOR_NAME - 1] = 'x';
    make_ranks(2);
    write_all();
    params[3].name = frozen_name;
    snprintf(want, sizeof want, "parameter %.60s…: its name is longer than a checkpoint holds", name);
    for (int32_t r = 0; r < 2; r++) {
        assert_int_equal(all[r].s.status, TESS_E_INVALID);
        assert_string_equal(all[r].s.message, want);
        assert_int_equal(all[r].named, 0);
    }
}

/* A rank that cannot reach the server says so itself, and waits for no verdict. */
static void test_save_ranks__a_rank_without_the_server_fails_alone(void **state) {
    (void)state;
    make_ranks(1);
    store.fail_set = 1;
    write_all();
    assert_int_equal(all[0].s.status, TESS_E_ABORTED); /* the leader's verdict reaches nobody */
    assert_string_equal(all[0].s.message, "rank 1 was lost");
    make_ranks(2);
    tess__store_close(&all[0].s.store);
    store.fail_set = 2;
    const int sets = store.sets;
    (void)write_rank(&all[1]);
    assert_int_equal(all[1].s.status, TESS_E_ABORTED);
    assert_string_equal(all[1].s.message, "rank 1 was lost");
    assert_int_equal(store.sets, sets);
}

/* A report holds as many sums as a value has room for. */
static void test_save_ranks__more_checksums_than_a_value_holds_are_refused(void **state) {
    (void)state;
    enum { MOST = (TESS__KV_VALUE_MAX - sizeof(save_report)) / TESS__SUM_BYTES };
    tess__data_file file = { .bytes = 1ull << 40, .n_sums = MOST };
    file.sums = calloc(MOST + 1, TESS__SUM_BYTES);
    file.sums[MOST - 1][15] = 77;
    char *room = malloc(TESS__KV_VALUE_MAX);
    make_ranks(2);
    self = 1;
    for (uint64_t more = 0; more < 2; more++) {
        tess__data_file got = { 0 };
        file.n_sums = MOST + more;
        assert_int_equal(tell_leader(&all[1].s, TESS_OK, &file), TESS_OK);
        tess_status s = receive_report(&all[0].s, 1, room, &got);
        assert_int_equal(s, more ? TESS_E_UNSUPPORTED : TESS_OK);
        if (more) {
            char want[256];
            snprintf(want, sizeof want, "%s: a file of 1099511627776 bytes has more checksums than ranks can exchange",
                     dir.path);
            assert_string_equal(tess_last_error(), want);
        } else {
            assert_int_equal(got.n_sums, MOST);
            assert_int_equal(got.bytes, 1ull << 40);
            assert_memory_equal(got.sums, file.sums, (size_t)MOST * TESS__SUM_BYTES);
        }
        free(got.sums);
    }
    free(room);
    free(file.sums);
    tess__store_close(&all[0].s.store);
}

static void test_save_ranks__a_base_is_named_and_what_lies_in_it_marked(void **state) {
    (void)state;
    static uint8_t sum[1][TESS__SUM_BYTES] = { { 1, 2, 3 } };
    static tess__data_file base = { .name = "model.safetensors", .bytes = 5, .n_sums = 1, .sums = sum };
    for (int apart = 0; apart < 2; apart++) {
        tess__saved saved;
        make_ranks(1);
        all[0].s.base = (tess__base_files){ .n = 1, .files = &base };
        all[0].s.base_apart = apart;
        write_all();
        assert_int_equal(all[0].s.status, TESS_OK);
        open_saved(&saved);
        assert_int_equal(saved.manifest.n_base, apart);
        for (uint64_t i = 0; i < 3; i++)
            assert_int_equal(tess__manifest_in_base(&saved.manifest, i), apart && i == 2);
        tess__saved_close(&saved);
    }
}

static int make_dir(void **state) {
    (void)state;
    return scratch_dir_make(&dir);
}

static int remove_dir(void **state) {
    (void)state;
    return scratch_tree_remove(&dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_ranks__files_hold_each_ranks_pieces_and_the_manifest_says_whose),
        cmocka_unit_test(test_save_ranks__one_rank_needs_no_control_plane),
        cmocka_unit_test(test_save_ranks__a_snapshot_and_what_stays_come_in_their_order),
        cmocka_unit_test(test_save_ranks__one_value_that_is_not_finite_is_noted),
        cmocka_unit_test(test_save_ranks__all_ranks_are_told_the_first_failure),
        cmocka_unit_test(test_save_ranks__a_cancelled_save_is_given_up),
        cmocka_unit_test(test_save_ranks__a_name_that_is_too_long_is_said),
        cmocka_unit_test(test_save_ranks__a_rank_without_the_server_fails_alone),
        cmocka_unit_test(test_save_ranks__more_checksums_than_a_value_holds_are_refused),
        cmocka_unit_test(test_save_ranks__a_base_is_named_and_what_lies_in_it_marked),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
