/* SPDX-License-Identifier: BSD-3-Clause */
#include "output.h"

#include <errno.h>
#include <string.h>

#include "tools/commands.h"

tess_status proof_output_open(const char *json, proof_output *o) {
    *o = (proof_output){ .text = stdout };
    if (!json)
        return TESS_OK;
    o->file = strcmp(json, "1") == 0 ? stdout : fopen(json, "we");
    if (!o->file)
        return tess_fail(TESS_E_DATA, "--json=%s: cannot be written: %s", json, strerror(errno));
    o->text = o->file == stdout ? NULL : stdout;
    json_init(&o->json, o->file);
    return TESS_OK;
}

void proof_output_close(proof_output *o) {
    if (o->file && o->file != stdout)
        fclose(o->file);
    o->file = NULL;
}

void proof_json_begin(proof_output *o, const char *event, const proof_finding *f) {
    if (!o->file)
        return;
    json_object_begin(&o->json, NULL);
    json_string(&o->json, "event", event);
    json_bool(&o->json, "equal", !f->differs);
    json_uint(&o->json, "steps", f->n);
    json_uint(&o->json, "first", f->first);
    json_uint(&o->json, "last", f->last);
    json_string(&o->json, "unit", f->unit);
    json_string(&o->json, "kind", f->kind);
}

tess_status proof_json_end(proof_output *o) {
    if (!o->file)
        return TESS_OK;
    json_object_end(&o->json);
    return json_line(&o->json) == 0 ? TESS_OK : tess_fail(TESS_E_DATA, "--json: %s", strerror(errno));
}

int proof_say(const proof_output *o, const proof_finding *f, const proof_ledger *l) {
    if (o->text && !f->differs)
        fprintf(o->text, "equal: %llu step%s, %llu to %llu\n", (unsigned long long)f->n, f->n == 1 ? "" : "s",
                (unsigned long long)f->first, (unsigned long long)f->last);
    if (o->text && f->differs)
        proof_print(o->text, f, l);
    return f->differs ? TOOL_FAILED : TOOL_OK;
}
