/* SPDX-License-Identifier: BSD-3-Clause */
/* offload-disk: which units' optimizer states, gradients and parameters rest in files, and the files. The core moves
 * them to memory, and uses them there. */
#include "store.h"

#include <stdlib.h>

/* clang-format off */
const tess_plugin_note tess_plugin_note_v1 __attribute__((section(".tessera.plugin"), used)) = {
    "TESSPLG", sizeof(tess_plugin_note), TESS_ABI_MAJOR, TESS_ABI_MINOR, 2 /* stores */, 1u << TESS_KIND_OFFLOAD, "disk",
    TESSERA_PLUGIN_VERSION, "BSD-3-Clause", "Linux"
};
/* clang-format on */

enum { WHOLE = 1000000000 }; /* counts a fraction in billionths, so that every machine rounds the same way */

/* ---- settings ---------------------------------------------------------------------------------- */

enum { DIR, WHAT, VERIFY, FRACTION, IO, DEPTH, THREADS, N_OPTIONS };
TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_TEXT, 0, 0, "offload-disk-dir", "", "",
      "folder for the files, on each host; also the first word behind the colon" },
    { sizeof options[0], TESS_OPTION_LIST, 0, 0, "offload-disk-what", "optimizer", "params|grads|optimizer|all",
      "what rests there" },
    { sizeof options[0], TESS_OPTION_FLAG, 0, 0, "offload-disk-verify", "1", "",
      "whether what is read is compared with a sum of what was written" },
    { sizeof options[0], TESS_OPTION_REAL, 0, 1, "offload-disk-fraction", "1", "",
      "part of the units of which it rests there" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "offload-disk-io", "auto", "auto|uring|threads",
      "io_uring, or threads where it is not to be had" },
    { sizeof options[0], TESS_OPTION_INT, 1, 256, "offload-disk-depth", "16", "",
      "blocks of 1 MiB that a rank has under way, with io_uring" },
    { sizeof options[0], TESS_OPTION_INT, 1, 64, "offload-disk-threads", "4", "",
      "threads of a rank that read and write" },
};
static const kit_options readable = { "offload disk", "offload-disk-", options, N_OPTIONS, NULL };

static uint32_t regions_of(uint64_t words) {
    static const uint32_t regions[] = { 1u << TESS_REGION_MASTER, 1u << TESS_REGION_GRAD, 1u << TESS_REGION_STATE };
    uint32_t all = 0;
    for (int i = 0; i < 3; i++)
        all |= words >> i & 1 || words >> 3 ? regions[i] : 0;
    return all;
}

typedef struct {
    disk_settings settings;
    char dir[KIT_OPTION_BYTES];
} context;

/* The folder may stand alone behind the colon, before all settings: disk:DIR,verify=0. */
static size_t leading_folder(const char *args) {
    size_t bytes = strcspn(args, ",");
    return memchr(args, '=', bytes) ? 0 : bytes;
}

static tess_status read_settings(const tess_host *host, context *c, tess_error *error) {
    kit_option read[N_OPTIONS];
    tess_host rest = *host;
    size_t folder = leading_folder(host->args);
    rest.args += folder + (host->args[folder] == ',' && folder);
    tess_status status = kit_options_read(&readable, &rest, read, error);
    if (status < 0)
        return status;
    if (folder >= sizeof c->dir)
        return tess_plugin_fail(error, TESS_E_INVALID,
                                "offload disk: the folder's name has %zu bytes, at most %zu are taken", folder,
                                sizeof c->dir - 1);
    snprintf(c->dir, sizeof c->dir, "%.*s", (int)(folder ? folder : strlen(read[DIR].text)),
             folder ? host->args : read[DIR].text);
    c->settings = (disk_settings){ .host = host,
                                   .dir = *c->dir ? c->dir : NULL,
                                   .regions = regions_of(read[WHAT].value.number),
                                   .verify = read[VERIFY].value.number != 0,
                                   .threads = (uint32_t)read[THREADS].value.integer,
                                   .depth = (uint32_t)read[DEPTH].value.integer,
                                   .io = (int)read[IO].value.number,
                                   .fraction = (uint64_t)(read[FRACTION].value.real * WHOLE + 0.5) };
    return TESS_OK;
}

/* ---- place ------------------------------------------------------------------------------------- */

/* Spreads the chosen units evenly: of the first u units, fraction · u rounded down rest on the disk. */
static int is_chosen(const disk_settings *s, int32_t unit) {
    uint64_t u = unit < 0 ? 0 : (uint64_t)unit;
    return (u + 1) * s->fraction / WHOLE > u * s->fraction / WHOLE;
}

/* Host memory: for sums of what is stored, and once for requests that lie anywhere. */
static tess_placement place_one(const disk_settings *s, const tess_region *r, int *first) {
    tess_placement p = { .rest = TESS_REST_DEVICE, .align = 64 };
    if (r->region >= 32 || !(s->regions >> r->region & 1u) || !is_chosen(s, r->unit))
        return p;
    p.rest = TESS_REST_STORE;
    p.align = DISK_ALIGN;
    p.host_bytes = (*first ? DISK_BOUNCE : 0) + (s->verify ? disk_sums_bytes(r->bytes) : 0);
    *first = 0;
    return p;
}

static tess_status disk_place(void *ctx, const tess_plan_env *env, const tess_region *regions, uint32_t n,
                              tess_placement *out, tess_error *error) {
    const context *c = ctx;
    uint32_t size = n ? out->struct_size : 0;
    int first = 1;
    (void)env;
    if (!c->settings.dir && n)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED,
                                "offload disk: no folder is given for its files: TESSERA_OFFLOAD=disk:DIR");
    for (uint32_t i = 0; i < n; i++) {
        tess_placement p = place_one(&c->settings, TESS_AT(regions, i), &first);
        tess_plugin_give((char *)out + (size_t)i * size, size, &p, sizeof p);
    }
    return TESS_OK;
}

/* ---- the table --------------------------------------------------------------------------------- */

static tess_status open_store(void *ctx, const tess_store_config *given, tess_store **out, uint64_t *obtained,
                              tess_error *error) {
    const context *c = ctx;
    tess_store_config config = { .struct_size = sizeof config };
    tess_plugin_give(&config, sizeof config, given, given->struct_size);
    return disk_store_open(&c->settings, &config, out, obtained, error);
}

static void disk_close(void *ctx) {
    free(ctx);
}

static const tess_offload_ops ops = {
    .struct_size = sizeof ops,
    .abi_major = TESS_ABI_MAJOR,
    .abi_minor = TESS_ABI_MINOR,
    .close = disk_close,
    .place = disk_place,
    .store_open = open_store,
    .store_post = disk_store_post,
    .store_wait = disk_store_wait,
    .store_close = disk_store_close,
    .store_register = disk_store_register,
    .store_deregister = disk_store_deregister,
};

tess_status tess_plugin_open_v1(const tess_host *host, uint32_t kind, const void **out, void **ctx, tess_error *error) {
    if (kind != TESS_KIND_OFFLOAD)
        return tess_plugin_fail(error, TESS_E_UNSUPPORTED, "plugin disk offers offload only");
    context *c = calloc(1, sizeof *c);
    if (!c)
        return tess_plugin_fail(error, TESS_E_NOMEM, "offload disk: no memory to open");
    tess_status status = read_settings(host, c, error);
    if (status < 0) {
        free(c);
        return status;
    }
    *out = &ops;
    *ctx = c;
    return TESS_OK;
}
