#include "try_change.h"

#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "plan_time.h"
#include "status.h"

/* One variable as it was. */
typedef struct {
    char name[80], *text; /* text null: it was not set */
} kept;

static int set(kept *k, const char *key, const char *value) {
    const char *old;
    if (!tess__option_variable(key, k->name))
        return 0;
    old = getenv(k->name);
    k->text = old ? strdup(old) : NULL;
    return (!old || k->text) && (!value || setenv(k->name, value, 1) == 0);
}

static void put_back(kept *k) {
    if (k->text)
        setenv(k->name, k->text, 1);
    else if (k->name[0])
        unsetenv(k->name);
    free(k->text);
}

/* A time that cannot be told is none, not a failure. */
static void predict(const tool_planner *p, tess *t, void *state, double *seconds) {
    const tess__machine *machine = plan_time_in_use();
    plan_source source = { .t = t, .of = p->of, .is_model = p->is_model, .state = state };
    tess__timeline line = { .seconds = -1 };
    if (!machine || plan_time(&source, machine, &line) != TESS_OK)
        return;
    *seconds = line.seconds;
    tess__timeline_free(&line);
}

static tess_status measure(const tool_planner *p, int32_t ranks, uint64_t bytes[3], double *seconds) {
    tess *t = NULL;
    void *state = NULL;
    tess_stats stats = { .struct_size = sizeof stats };
    tess_status status = p->open(p->user, ranks, &t, &state);
    if (status != TESS_OK && status != TESS_E_BUDGET)
        return status;
    status = tess_stats_get(t, &stats);
    for (int d = 1; status == TESS_OK && d < 3; d++)
        bytes[d] = stats.planned_peak_bytes[d];
    if (status == TESS_OK)
        predict(p, t, state, seconds);
    p->close(t, state);
    return status;
}

tess_status tool_try_change(void *user, const tess__change *c, uint64_t bytes[3], double *seconds) {
    const tool_planner *p = user;
    const char *ranks = tess__change_value(c, "ranks");
    kept before[TESS__MOST_SETTINGS + 1] = { { "", NULL } };
    int ok = set(&before[0], "threads", NULL); /* a planner may choose them */
    for (int32_t i = 0; ok && i < c->n; i++)
        ok = strcmp(c->set[i].key, "ranks") == 0 || set(&before[1 + i], c->set[i].key, c->set[i].value);
    tess_status status = ok ? measure(p, ranks ? (int32_t)strtol(ranks, NULL, 10) : p->ranks, bytes, seconds)
                            : tess__fail(TESS_E_NOMEM, "no memory to plan an alternative");
    for (int32_t i = 0; i <= c->n; i++)
        put_back(&before[i]);
    return status;
}
