/* SPDX-License-Identifier: BSD-3-Clause */
/* Saves of a small checkpoint, whose values say which save and whose part they are. */
#ifndef TEST_SAVE_FIXTURE_H
#define TEST_SAVE_FIXTURE_H
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/data_writer.h"
#include "core/checkpoint/saved.h"
#include "core/checkpoint/store.h"
#include "tests/support/sim_disk.h"

#define DIR_OF_ALL "/d/run"
enum { ELEMS = 2500 }; /* of one writer: two blocks of the disk, and what is left over */
static uint64_t keep = 2;
static tess__lineage line = { .n = 1, .runs = { { 1, INT64_MAX } } }; /* of the run that saves */

static inline float value(int save, int writer, int i) {
    return (float)(save * 100000 + writer * 10000 + i);
}

static inline tess__tensor piece(int writer) {
    tess__tensor t = { .dtype = TESS_F32, .ndim = 1, .shape = { ELEMS } };
    tess__piece_name name = { .kind = TESS__PIECE_PARAM, .first = (uint64_t)writer * ELEMS, .name = "h.0.weight" };
    assert_int_equal(tess__piece_name_write(&name, t.name), TESS_OK);
    return t;
}

/* One writer's part of save number `save`. */
static inline tess_status write_part(const tess__store *store, uint64_t step, uint64_t generation, int save, int writer,
                                     int writers, tess__data_file *out) {
    char dir[PATH_MAX], name[TESS__FILE_NAME];
    static _Alignas(TESS__DISK_BLOCK) float room[ELEMS + 1];
    float *data = room + writer % 2; /* as a snapshot lies in memory, and as a shard does */
    tess__tensor t = piece(writer);
    tess__data_writer w;
    tess__safetensors_arrange(&t, 1);
    for (int i = 0; i < ELEMS; i++)
        data[i] = value(save, writer, i);
    tess__step_dir(store->dir, step, dir);
    tess__data_file_name(generation, (uint64_t)writer, (uint64_t)writers, name);
    tess_status s = tess__data_create(store->disk, dir, name, &t, 1, &w);
    if (s)
        return s;
    if ((s = tess__data_write(&w, data, ELEMS * sizeof *data))) {
        tess__data_drop(&w);
        return s;
    }
    return tess__data_finish(&w, out);
}

static inline tess_status save_step(tess__store *store, uint64_t step, int save, int writers) {
    tess__data_file files[8] = { 0 };
    tess__tensor param = { .name = "h.0.weight", .dtype = TESS_F32, .ndim = 1, .shape = { ELEMS * writers } };
    uint8_t is_buffer = 0;
    tess__manifest m = { .step = step,
                         .chunk_bytes = TESS__CHUNK_BYTES,
                         .ranks = (uint64_t)writers,
                         .microbatches = (uint64_t)save,
                         .has_sums = tess__sum_known(),
                         .lineage = line,
                         .writer = "test",
                         .optimizer = "sgd",
                         .n_files = (uint64_t)writers,
                         .n_params = 1,
                         .files = files,
                         .params = &param,
                         .is_buffer = &is_buffer };
    tess_status s = tess__store_begin(store, step, &m.generation);
    for (int w = 0; !s && w < writers; w++)
        s = write_part(store, step, m.generation, save, w, writers, &files[w]);
    if (!s)
        s = tess__store_commit(store, &m, keep);
    else
        tess__store_abandon(store, step, m.generation);
    for (int w = 0; w < writers; w++)
        free(files[w].sums);
    return s;
}

/* One of them twice; at the end one below what is there, by a run that went back to 20. */
static const uint64_t steps_saved[] = { 10, 20, 20, 30, 40, 25 };
static const tess__lineage first_run = { .n = 1, .runs = { { 1, INT64_MAX } } };
static const tess__lineage second_run = { .n = 2, .runs = { { 1, 20 }, { 2, INT64_MAX } } };
enum { N_SAVES = 6 };

/* Runs all saves, as far as the disk lasts. Returns how many were complete; *leftovers: what the next start removes. */
static inline int run_saves(sim_disk *disk, int writers) {
    tess__store store;
    int done = 0;
    if (tess__store_open(sim_disk_table(disk), DIR_OF_ALL, &store) != TESS_OK)
        return 0;
    for (; done < N_SAVES; done++) {
        line = done + 1 < N_SAVES ? first_run : second_run;
        if (save_step(&store, steps_saved[done], done, writers) != TESS_OK)
            break;
    }
    tess__store_close(&store);
    return done;
}

/* Which save a checkpoint holds, all of it verified; -1: none that verifies. */
static inline int save_in(const tess__disk *d, uint64_t step) {
    char path[PATH_MAX];
    tess__saved s;
    float data[ELEMS];
    tess__step_dir(DIR_OF_ALL, step, path);
    if (tess__saved_open(d, path, &s) != TESS_OK)
        return -1;
    int save = (int)s.manifest.microbatches;
    for (uint64_t w = 0; save >= 0 && w < s.manifest.n_files; w++) {
        tess__saved_file *f = NULL;
        uint64_t n = 0;
        if (tess__saved_file_open(&s, w, &f) != TESS_OK || tess__saved_file_verify(f) != TESS_OK)
            save = -1;
        const tess__tensor *t = f ? tess__saved_file_list(f, &n) : NULL;
        if (save >= 0 && (n != 1 || tess__saved_file_read(f, &t[0], 0, ELEMS, data) != TESS_OK))
            save = -1;
        for (int i = 0; save >= 0 && i < ELEMS; i++)
            assert_true(data[i] == value(save, (int)w, i)); /* verified, so it must be right */
        tess__saved_file_close(f);
    }
    tess__saved_close(&s);
    return save;
}

static inline int newest(const tess__disk *d) {
    uint64_t *list = NULL, n = 0;
    int found = -1;
    if (tess__store_line(d, DIR_OF_ALL, &list, &n) != TESS_OK)
        return -1;
    while (found < 0 && n)
        found = save_in(d, list[--n]);
    free(list);
    return found;
}
#endif
