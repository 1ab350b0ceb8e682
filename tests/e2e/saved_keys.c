/* SPDX-License-Identifier: BSD-3-Clause */
/* saved_keys DIR: two ranks save three times. Rank 0 prints the keys of these saves that the launcher's key-value store
 * still has, a line for each. The verdict on the newest save stays, since a rank may yet ask for it. */
#include <stdio.h>
#include <stdlib.h>

#include "core/control/control.h"
#include "core/engine/state.h"

enum { SAVES = 3, RANKS = 2 };

static void ok(tess_status status) {
    if (status == TESS_OK)
        return;
    fprintf(stderr, "saved_keys: %s\n", tess_last_error());
    exit(tess_exit_code(status));
}

static tess *open_engine(void) {
    const int64_t shape[] = { 1000 };
    const tess_options o = { .struct_size = sizeof o, .optimizer = "adamw" };
    const tess_param_options p = {
        .struct_size = sizeof p, .dtype = TESS_F32, .name = "a.weight", .ndim = 1, .shape = shape
    };
    tess *t = NULL;
    tess_scope s;
    ok(tess_open(&o, &t));
    ok(tess_scope_add(t, "a", 0, &s));
    ok(tess_param_add(t, &p, NULL));
    ok(tess_shard(t, NULL, NULL));
    return t;
}

static void look(tess *t, const char *key, int64_t patience_ns) {
    static char value[TESS__KV_VALUE_MAX];
    uint64_t bytes = sizeof value;
    tess_status s = tess__control_get(t->comms.control, key, value, &bytes, patience_ns);
    if (s == TESS_OK)
        printf("%s\n", key);
    else if (s != TESS_E_TIMEOUT)
        ok(s);
}

static void look_at_all(tess *t) {
    const int64_t brief_ns = 200000000, long_ns = 60000000000;
    char key[64];
    for (int save = 1; save <= SAVES; save++) {
        for (int rank = 0; rank < RANKS; rank++) {
            snprintf(key, sizeof key, "checkpoint/%d/%d", save, rank);
            look(t, key, brief_ns);
        }
        snprintf(key, sizeof key, "checkpoint/%d/all", save);
        look(t, key, save == SAVES ? long_ns : brief_ns);
    }
}

int main(int argc, char **argv) {
    tess_checkpoint_info info = { .struct_size = sizeof info };
    if (argc != 2)
        return 2;
    const tess_checkpoint_options to = { .struct_size = sizeof to, .dir = argv[1], .keep = 1 };
    tess *t = open_engine();
    for (int i = 0; i < SAVES; i++) {
        ok(tess_checkpoint_save(t, &to));
        ok(tess_checkpoint_wait(t, &info));
    }
    ok(tess_barrier(t));
    if (tess_rank(t) == 0)
        look_at_all(t);
    ok(tess_barrier(t));
    ok(tess_close(t));
    return 0;
}
