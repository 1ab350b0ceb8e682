/* SPDX-License-Identifier: BSD-3-Clause */
/* offload-cpu: what rests where. The core moves things and steps the optimizer on the host by itself. */
#include <tessera/plugin_helpers.h>

#include <stdlib.h>

TESS_DESCRIPTOR(1u << TESS_KIND_OFFLOAD, "cpu", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "");

enum { WHOLE = 1000000000 }; /* a fraction is counted in billionths, so that every machine rounds alike */

typedef struct {
    uint32_t regions; /* bit (1 << TESS_REGION_…) of what goes to the host */
    uint64_t fraction, pinned_bytes;
} settings;

/* ---- settings ---------------------------------------------------------------------------------- */

static int is_word(const char *text, size_t chars, const char *word) {
    return strlen(word) == chars && memcmp(text, word, chars) == 0;
}

static uint32_t region_of(const char *text, size_t chars) {
    static const struct {
        const char *word;
        uint32_t regions;
    } known[] = { { "params", 1u << TESS_REGION_MASTER },
                  { "grads", 1u << TESS_REGION_GRAD },
                  { "optimizer", 1u << TESS_REGION_STATE },
                  { "all", 1u << TESS_REGION_MASTER | 1u << TESS_REGION_GRAD | 1u << TESS_REGION_STATE } };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (is_word(text, chars, known[i].word))
            return known[i].regions;
    return 0;
}

static int shown(size_t chars) {
    return (int)(chars < 60 ? chars : 60);
}

/* "0.25" → a quarter of WHOLE. At most nine decimals; no locale has a say. */
static tess_status read_fraction(const char *text, size_t chars, settings *s, tess_error *error) {
    uint64_t value = 0, unit = WHOLE;
    int digits = 0, point = 0, bad = chars == 0;
    for (size_t i = 0; i < chars && !bad; i++) {
        if (text[i] == '.' && !point) {
            point = 1;
        } else if (text[i] >= '0' && text[i] <= '9' && (!point || unit > 1) && value <= WHOLE) {
            unit = point ? unit / 10 : unit;
            value = point ? value + (uint64_t)(text[i] - '0') * unit : value * 10 + (uint64_t)(text[i] - '0') * WHOLE;
            digits++;
        } else {
            bad = 1;
        }
    }
    if (bad || !digits || value > WHOLE)
        return tess_plugin_fail(error, TESS_E_INVALID,
                                "offload cpu: fraction is \"%.*s\", expected a number from 0 to 1", shown(chars), text);
    s->fraction = value;
    return TESS_OK;
}

/* "64KiB" → 65536 */
static tess_status read_pinned(const char *text, size_t chars, settings *s, tess_error *error) {
    static const char *const suffixes[] = { "", "KiB", "MiB", "GiB", "TiB" };
    uint64_t value = 0;
    size_t at = 0;
    unsigned shift = 0;
    while (at < chars && text[at] >= '0' && text[at] <= '9' && value < UINT64_C(1) << 56)
        value = value * 10 + (uint64_t)(text[at++] - '0');
    while (shift < 5 && !is_word(text + at, chars - at, suffixes[shift]))
        shift++;
    if (!at || shift == 5 || value >= UINT64_C(1) << 56 || value << 10 * shift >> 10 * shift != value)
        return tess_plugin_fail(error, TESS_E_INVALID,
                                "offload cpu: pinned is \"%.*s\", expected bytes such as 0, 4096, 64KiB or 2GiB",
                                shown(chars), text);
    s->pinned_bytes = value << 10 * shift;
    return TESS_OK;
}

/* "params,grads": *any is set when a word was found. */
static tess_status read_item(const char *text, size_t chars, settings *s, int *any, tess_error *error) {
    if (chars > 9 && memcmp(text, "fraction=", 9) == 0)
        return read_fraction(text + 9, chars - 9, s, error);
    if (chars > 7 && memcmp(text, "pinned=", 7) == 0)
        return read_pinned(text + 7, chars - 7, s, error);
    uint32_t regions = region_of(text, chars);
    if (!regions)
        return tess_plugin_fail(
            error, TESS_E_INVALID,
            "offload cpu: \"%.*s\" is no setting, expected params, grads, optimizer, all, fraction=NUMBER or "
            "pinned=BYTES",
            shown(chars), text);
    s->regions = *any ? s->regions | regions : regions;
    *any = 1;
    return TESS_OK;
}

static tess_status read_list(const char *text, settings *s, tess_error *error) {
    int any = 0;
    while (*text) {
        size_t chars = strcspn(text, ",");
        tess_status status = read_item(text, chars, s, &any, error);
        if (status < 0)
            return status;
        text += chars + (text[chars] == ',');
    }
    return TESS_OK;
}

/* The variables, then what stands behind the colon, which wins. */
static tess_status read_settings(const tess_host *host, settings *s, tess_error *error) {
    const char *what = host->option(host->host, "offload-what"), *text;
    tess_status status = TESS_OK;
    *s = (settings){ .regions = region_of("all", 3), .fraction = WHOLE, .pinned_bytes = UINT64_MAX };
    if (what && strchr(what, '='))
        return tess_plugin_fail(error, TESS_E_INVALID,
                                "offload cpu: TESSERA_OFFLOAD_WHAT is \"%.60s\", expected a list of "
                                "params, grads, optimizer or all",
                                what);
    if (what)
        status = read_list(what, s, error);
    if (status == TESS_OK && (text = host->option(host->host, "offload-fraction")))
        status = read_fraction(text, strlen(text), s, error);
    if (status == TESS_OK && (text = host->option(host->host, "offload-pinned")))
        status = read_pinned(text, strlen(text), s, error);
    return status == TESS_OK ? read_list(host->args, s, error) : status;
}

static tess_status cpu_options(void *ctx, const tess_option **out, uint32_t *n) {
    static const tess_option options[] = {
        { sizeof options[0], 3, "offload-what", "all",
          "what rests in host memory: a list of params, grads, optimizer" },
        { sizeof options[0], 2, "offload-fraction", "1", "part of the units whose shards rest there, 0 to 1" },
        { sizeof options[0], 4, "offload-pinned", NULL,
          "most bytes to lock in memory; unset: all, where the system lets" },
    };
    (void)ctx;
    *out = options;
    *n = sizeof options / sizeof options[0];
    return TESS_OK;
}

/* ---- place ------------------------------------------------------------------------------------- */

/* Spreads the chosen units evenly: of the first u units, fraction · u rounded down rest on the host. */
static int is_chosen(const settings *s, int32_t unit) {
    uint64_t u = unit < 0 ? 0 : (uint64_t)unit;
    return unit < 0 || (u + 1) * s->fraction / WHOLE > u * s->fraction / WHOLE;
}

/* Regions are locked in their order until the budget is used up. Activations come here only when the core has been told
 * to keep them on the host, so for them the budget is the only question. */
static tess_status cpu_place(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                             tess_placement *out, tess_error *error) {
    const settings *s = ctx;
    uint64_t left = s->pinned_bytes;
    uint32_t size = n ? out->struct_size : 0;
    (void)env, (void)error;
    for (uint32_t i = 0; i < n; i++) {
        const tess_region *r = TESS_AT(regions, i);
        tess_placement p = { .rest = TESS_REST_DEVICE, .align = 64 };
        int wanted = r->region < 32 && (s->regions >> r->region & 1u) && is_chosen(s, r->unit);
        if (wanted || r->region == TESS_REGION_ACTIVATION) {
            p.rest = TESS_REST_HOST;
            p.host_bytes = r->bytes;
            p.pinned_bytes = r->bytes <= left ? r->bytes : 0;
            left -= p.pinned_bytes;
        }
        tess_plugin_give((char *)out + (size_t)i * size, size, &p, sizeof p);
    }
    return TESS_OK;
}

static void cpu_close(void *ctx) {
    free(ctx);
}

static const tess_offload_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = cpu_close,
    .options = cpu_options,
    .place = cpu_place,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_OFFLOAD)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "plugin cpu offers offload only");
    settings *s = calloc(1, sizeof *s);
    if (!s)
        return tess_plugin_fail(error, TESS_E_NOMEM, "offload cpu: no memory to open");
    tess_status status = read_settings(host, s, error);
    if (status < 0) {
        free(s);
        return status;
    }
    *out = &ops;
    *ctx = s;
    return TESS_OK;
}
