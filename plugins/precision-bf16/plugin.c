/* SPDX-License-Identifier: BSD-3-Clause */
/* precision-bf16: a choice of dtypes per parameter. The casts are the device's. */
#include <tessera/plugin_helpers.h>

#include <stdlib.h>

TESS_DESCRIPTOR(1u << TESS_KIND_PRECISION, "bf16", TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "");

typedef struct {
    uint32_t wire, grad; /* dtypes of gradients: what travels, and what kernels add to */
    int keep;            /* what the program cannot read in bf16 stays as declared */
} settings;

/* The settings: keys without "bf16-" may stand behind the colon of TESSERA_PRECISION. The first choice is the default.
 */
static const struct {
    const char *key, *choices, *words[2];
} choices[] = {
    { "bf16-wire", "bf16|fp32", { "bf16", "fp32" } },
    { "bf16-grad", "fp32|bf16", { "fp32", "bf16" } },
    { "bf16-unreadable", "refuse|keep", { "refuse", "keep" } },
};
enum { WIRE, GRAD, UNREADABLE, N_CHOICES, KEY_PREFIX = 5 /* "bf16-" */ };

static int is_word(const char *text, size_t bytes, const char *word) {
    return strlen(word) == bytes && memcmp(text, word, bytes) == 0;
}

/* Takes the word `text` for choice `i`: 0 or 1 into *out. */
static tess_status take(int i, const char *text, size_t bytes, int *out, tess_error *error) {
    for (int w = 0; w < 2; w++) {
        if (is_word(text, bytes, choices[i].words[w])) {
            *out = w;
            return TESS_OK;
        }
    }
    return tess_plugin_fail(error, TESS_E_INVALID, "precision bf16: %s is \"%.*s\", expected %s",
                            choices[i].key + KEY_PREFIX, (int)(bytes < 80 ? bytes : 80), text, choices[i].choices);
}

/* "wire=fp32,grad=bf16" */
static tess_status read_args(const char *args, int *picked, tess_error *error) {
    while (*args) {
        size_t bytes = strcspn(args, ","), key = strcspn(args, "=,");
        int i = 0;
        while (i < N_CHOICES && !is_word(args, key, choices[i].key + KEY_PREFIX))
            i++;
        if (i == N_CHOICES || key == bytes)
            return tess_plugin_fail(
                error, TESS_E_INVALID,
                "precision bf16: \"%.*s\" is no setting, expected wire=bf16|fp32, grad=fp32|bf16 or "
                "unreadable=refuse|keep",
                (int)(bytes < 80 ? bytes : 80), args);
        tess_status status = take(i, args + key + 1, bytes - key - 1, &picked[i], error);
        if (status < 0)
            return status;
        args += bytes + (args[bytes] == ',');
    }
    return TESS_OK;
}

static tess_status read_settings(const tess_host *host, settings *out, tess_error *error) {
    int picked[N_CHOICES] = { 0 };
    for (int i = 0; i < N_CHOICES; i++) {
        const char *text = host->option(host->host, choices[i].key);
        tess_status status = text ? take(i, text, strlen(text), &picked[i], error) : TESS_OK;
        if (status < 0)
            return status;
    }
    tess_status status = read_args(host->args, picked, error);
    if (status < 0)
        return status;
    out->wire = picked[WIRE] ? TESS_F32 : TESS_BF16;
    out->grad = picked[GRAD] ? TESS_BF16 : TESS_F32;
    out->keep = picked[UNREADABLE];
    return TESS_OK;
}

static void bf16_close(void *ctx) {
    free(ctx);
}

static tess_status bf16_options(void *ctx, const tess_option **out, uint32_t *n) {
    static const tess_option options[] = {
        { sizeof options[0], 5, "bf16-wire", "bf16|fp32", "dtype of gradients between ranks" },
        { sizeof options[0], 5, "bf16-grad", "fp32|bf16", "dtype that a rank adds its gradients up in" },
        { sizeof options[0], 5, "bf16-unreadable", "refuse|keep",
          "fp32 parameters that the program cannot read in bf16: an error, or left in fp32" },
    };
    (void)ctx;
    *out = options;
    *n = sizeof options / sizeof options[0];
    return TESS_OK;
}

static tess_status bf16_choose(void *ctx, const tess_param_view *param, tess_precision_choice *out, tess_error *error) {
    const settings *s = ctx;
    uint32_t dtype = param->dtype, readable = param->compute_mask ? param->compute_mask : 1u << dtype;
    int sixteen = dtype == TESS_F16 || dtype == TESS_BF16;
    tess_precision_choice choice = { .master = dtype,
                                     .compute = dtype,
                                     .gather = dtype,
                                     .grad_local = dtype,
                                     .grad_wire = dtype == TESS_F64 ? TESS_F32 : dtype,
                                     .accumulate = sixteen ? TESS_F32 : dtype,
                                     .block_elems = 1 };
    if (dtype == TESS_F32 && (readable >> TESS_BF16 & 1u)) {
        choice.compute = choice.gather = TESS_BF16;
        choice.grad_local = s->grad;
        choice.grad_wire = s->wire;
    } else if (dtype == TESS_F32 && !s->keep) {
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED,
                                "the program does not read it in bf16, which TESSERA_PRECISION=bf16 needs "
                                "(TESSERA_BF16_UNREADABLE=keep leaves such parameters in fp32)");
    } else if (dtype < 32 && !(readable >> dtype & 1u)) {
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "the program does not read its own dtype %u", dtype);
    }
    TESS_GIVE(out, &choice);
    return TESS_OK;
}

static const tess_precision_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = bf16_close,
    .options = bf16_options,
    .choose = bf16_choose,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_PRECISION)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "plugin bf16 offers precision only");
    settings *s = calloc(1, sizeof *s);
    if (!s)
        return tess_plugin_fail(error, TESS_E_NOMEM, "precision bf16: no memory to open");
    tess_status status = read_settings(host, s, error);
    if (status < 0) {
        free(s);
        return status;
    }
    *out = &ops;
    *ctx = s;
    return TESS_OK;
}
