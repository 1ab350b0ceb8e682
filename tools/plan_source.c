/* From a word and the options to a planned engine. */
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "plan.h"
#include "status.h"
#include "train.h"

static int is_model(const char *word) {
    for (size_t i = 0; train_models[i]; i++)
        if (strcmp(train_models[i], word) == 0)
            return 1;
    return 0;
}

static void close_model(void *state) {
    model_destroy(state);
}

/* The number of threads is the model's to choose, and it tells the engine by the variable. */
static tess_status open_model(const char *word, int32_t ranks, plan_source *out) {
    train_settings settings;
    model *m = NULL;
    char *threads = getenv("TESSERA_THREADS") ? strdup(getenv("TESSERA_THREADS")) : NULL;
    tess_status status = train_settings_read(word, &settings);
    if (status == TESS_OK)
        status = train_plan_open(&settings, ranks, &out->t, &m);
    if (threads)
        setenv("TESSERA_THREADS", threads, 1);
    else
        unsetenv("TESSERA_THREADS");
    free(threads);
    out->state = m;
    out->close = close_model;
    out->is_model = 1;
    out->of = settings.clip > 0 ? TESS_LEDGER_STEP_CLIPPED : TESS_LEDGER_STEP;
    return status;
}

tess_status plan_open(const char *word, int32_t ranks, plan_source *out) {
    *out = (plan_source){ .of = TESS_LEDGER_STEP };
    snprintf(out->name, sizeof out->name, "%s", word);
    tess_status status = TESS_OK;
    if (is_model(word))
        status = open_model(word, ranks, out);
    else
        status = tess__fail(TESS_E_INVALID, "'%s' is no model: there are mnist, gpt, convbn and linear", word);
    if (status != TESS_OK && status != TESS_E_BUDGET)
        plan_close(out);
    return status;
}

void plan_close(plan_source *s) {
    tess_close(s->t);
    if (s->close)
        s->close(s->state);
    *s = (plan_source){ 0 };
}
