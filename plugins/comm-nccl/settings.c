/* SPDX-License-Identifier: BSD-3-Clause */
#include "settings.h"

#include <strings.h>

static const char *text_of(const tess_host *host, const char *key) {
    const char *text = host->option(host->host, key);
    return text ? text : "";
}

/* The core has checked that a flag is one of 0, 1, no, yes, off, on, false, true. */
static int is_on(const char *text) {
    return strcmp(text, "1") == 0 || strcasecmp(text, "yes") == 0 || strcasecmp(text, "on") == 0 ||
           strcasecmp(text, "true") == 0;
}

tess_status nccl_settings_init(struct nccl_settings *s, const tess_host *host, tess_error *e) {
    s->host = host;
    s->deterministic = is_on(text_of(host, "deterministic"));
    s->compares = strcmp(text_of(host, "nccl-compare"), "off") != 0;
    if (*host->args)
        return tess_plugin_fail(e, TESS_E_INVALID, "nccl: takes no arguments, found \"%.100s\"", host->args);
    return TESS_OK;
}
