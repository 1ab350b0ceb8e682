/* SPDX-License-Identifier: BSD-3-Clause */
#include "mesh.h"

#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/status.h"
#include "control.h"

enum { RANKS_MAX = 1 << 20 };

static int32_t find(const tess__mesh *m, const char *name, size_t length) {
    for (int32_t d = 0; d < m->n; d++)
        if (strlen(m->of[d].name) == length && memcmp(m->of[d].name, name, length) == 0)
            return d;
    return -1;
}

/* Reads "dp=4" up to the comma, and moves on. 0: it is a dimension. */
static int read_dimension(const char **at, tess__mesh *m) {
    size_t name = strspn(*at, "abcdefghijklmnopqrstuvwxyz0123456789");
    const char *digits = *at + name + 1;
    char *end;
    if (!name || name >= TESS__MESH_NAME || (*at)[name] != '=' || *digits < '1' || *digits > '9' ||
        m->n == TESS__MESH_DIMENSIONS || find(m, *at, name) >= 0)
        return -1;
    long size = strtol(digits, &end, 10);
    if ((*end && *end != ',') || size > RANKS_MAX || (int64_t)m->ranks * size > RANKS_MAX)
        return -1;
    memcpy(m->of[m->n].name, *at, name);
    m->of[m->n++].size = (int32_t)size;
    m->ranks *= (int32_t)size;
    *at = *end == ',' && end[1] ? end + 1 : end;
    return 0;
}

tess_status tess__mesh_parse(const char *setting, const char *text, tess__mesh *out) {
    tess__mesh m = { .ranks = 1 };
    const char *at = text;
    do {
        if (read_dimension(&at, &m) != 0)
            return tess__fail(TESS_E_INVALID,
                              "%s is '%.100s', expected up to %d dimensions as in dp=4,tp=2, the innermost last",
                              setting, text, TESS__MESH_DIMENSIONS);
    } while (*at && *at != ',');
    if (*at)
        return tess__fail(TESS_E_INVALID, "%s is '%.100s', which ends with a comma", setting, text);
    *out = m;
    return TESS_OK;
}

/* This process's rank, and of how many; of a plan the first one. */
static tess_status read_place(int32_t *rank, int32_t *nranks) {
    tess__world w;
    int64_t planned = 1;
    *rank = 0;
    if (tess__option_text("plan")) {
        tess_status s = tess__option_int("plan", 1, INT32_MAX, &planned);
        *nranks = (int32_t)planned;
        return s;
    }
    tess_status s = tess__world_from_env(&w);
    if (!s) {
        *rank = w.rank;
        *nranks = w.nranks;
    }
    return s;
}

static tess_status read_mesh(int32_t nranks, tess__mesh *m) {
    const char *text = tess__option_text("mesh");
    *m = (tess__mesh){ .n = 1, .ranks = nranks, .of = { { "dp", nranks } } };
    tess_status s = text ? tess__mesh_parse("TESSERA_MESH", text, m) : TESS_OK;
    if (!s && m->ranks != nranks)
        return tess__fail(TESS_E_INVALID, "TESSERA_MESH=%.100s is a mesh of %d ranks, here %s %d", text, (int)m->ranks,
                          nranks == 1 ? "is" : "are", (int)nranks);
    return s;
}

static int32_t stride_of(const tess__mesh *m, int32_t dimension) {
    int32_t stride = 1;
    for (int32_t inner = dimension + 1; inner < m->n; inner++)
        stride *= m->of[inner].size;
    return stride;
}

tess_status tess__mesh_stride(const char *dimensions, int32_t *out) {
    const char *text = tess__option_text("mesh");
    tess__mesh m = { .n = 0 };
    tess_status s = text ? tess__mesh_parse("TESSERA_MESH", text, &m) : TESS_OK;
    int32_t stride = 1;
    for (const char *at = dimensions; !s && *at; at += strspn(at, ",")) {
        int32_t d = find(&m, at, strcspn(at, ","));
        stride = d < 0 ? stride : stride_of(&m, d);
        at += strcspn(at, ",");
    }
    *out = stride;
    return s;
}

tess_status tess_mesh_group(const char *dimensions, tess_group_options *out) {
    tess__mesh m;
    int32_t rank, nranks;
    if (!dimensions || !*dimensions || !out || out->struct_size < sizeof *out)
        return tess__fail(TESS_E_INVALID, "tess_mesh_group needs a dimension, and options with struct_size set");
    tess_status s = read_place(&rank, &nranks);
    if (!s)
        s = read_mesh(nranks, &m);
    if (s)
        return s;
    tess_group_options o = { .struct_size = out->struct_size, .color = rank, .ranks = 1, .name = dimensions };
    for (const char *at = dimensions; *at; at += strspn(at, ",")) {
        size_t length = strcspn(at, ",");
        int32_t d = find(&m, at, length);
        at += length;
        if (d < 0)
            continue; /* a mesh without it has one rank there */
        int32_t stride = stride_of(&m, d), index = rank / stride % m.of[d].size;
        o.color -= index * stride;
        o.key = o.key * m.of[d].size + index;
        o.ranks *= m.of[d].size;
    }
    memcpy(out, &o, sizeof o);
    return TESS_OK;
}
