/* SPDX-License-Identifier: BSD-3-Clause */
/* How the plugins without a library of their own open: of which kind they are, which settings they refuse, and that
 * one without memory says so and leaves nothing. Each is compiled here with symbols of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <tessera/plugin_helpers.h>

#include "tests/unit/plugins/failing.h"

typedef tess_status open_fn(const tess_host *, uint32_t kind, const void **out, void **ctx, tess_error *);
open_fn open_offload_cpu, open_precision_bf16, open_precision_fp16, open_precision_wire8, open_optimizer_adamw8bit,
    open_optimizer_muon;
extern const tess_plugin_note note_offload_cpu, note_precision_bf16, note_precision_fp16, note_precision_wire8,
    note_optimizer_adamw8bit, note_optimizer_muon;

static const struct {
    const char *kind_name, *name, *setting; /* one that it takes */
    uint32_t kind;
    open_fn *open;
    const tess_plugin_note *note;
} plugins[] = {
    { "offload", "cpu", "fraction=0.5", TESS_KIND_OFFLOAD, open_offload_cpu, &note_offload_cpu },
    { "precision", "bf16", "wire=fp32", TESS_KIND_PRECISION, open_precision_bf16, &note_precision_bf16 },
    { "precision", "fp16", "wire=fp32", TESS_KIND_PRECISION, open_precision_fp16, &note_precision_fp16 },
    { "precision", "wire8", "compute=bf16", TESS_KIND_PRECISION, open_precision_wire8, &note_precision_wire8 },
    { "optimizer", "adamw8bit", "least=5", TESS_KIND_OPTIMIZER, open_optimizer_adamw8bit, &note_optimizer_adamw8bit },
    { "optimizer", "muon", "steps=3", TESS_KIND_OPTIMIZER, open_optimizer_muon, &note_optimizer_muon },
};
enum { PLUGINS = sizeof plugins / sizeof *plugins };

static const void *table;
static void *ctx;
static tess_status opened(int i, uint32_t kind, const char *args) {
    const tess_host host = { .struct_size = sizeof host, .option = no_option, .args = args };
    table = ctx = NULL;
    return plugins[i].open(&host, kind, &table, &ctx, no_error());
}
static void refused(int i, tess_status s, tess_status want, const char *text) {
    if (s != want || strcmp(e.message, text) != 0)
        fail_msg("%s: status %d, \"%s\"; expected %d, \"%s\"", plugins[i].name, s, e.message, want, text);
    assert_true(e.code == want && !table && !ctx && live_memory == 0);
}

static void test_openings__offer_their_own_kind_only(void **state) {
    (void)state;
    for (int i = 0; i < PLUGINS; i++)
        for (uint32_t kind = 0; kind <= TESS_KIND_OPTIMIZER + 1; kind++) {
            char text[100];
            assert_int_equal(plugins[i].note->kinds >> kind & 1, kind == plugins[i].kind);
            tess_status s = opened(i, kind, "");
            if (kind == plugins[i].kind) {
                assert_int_equal(s, TESS_OK);
                assert_true(table && ctx && live_memory == 1);
                const tess_offload_ops *ops = table; /* all tables begin alike */
                assert_true(ops->abi_major == TESS_ABI_MAJOR && ops->abi_minor == TESS_ABI_MINOR);
                ops->close(ctx);
                assert_int_equal(live_memory, 0);
                continue;
            }
            snprintf(text, sizeof text, "plugin %s offers %s only", plugins[i].name, plugins[i].kind_name);
            refused(i, s, TESS_E_UNSUPPORTED, text);
        }
}

static void test_openings__without_memory_they_say_so(void **state) {
    (void)state;
    for (int i = 0; i < PLUGINS; i++) {
        char text[100];
        no_memory_in = 1;
        snprintf(text, sizeof text, "%s %s: no memory to open", plugins[i].kind_name, plugins[i].name);
        refused(i, opened(i, plugins[i].kind, ""), TESS_E_NOMEM, text);
    }
}

static void test_openings__settings_are_taken_or_refused_with_nothing_left(void **state) {
    (void)state;
    for (int i = 0; i < PLUGINS; i++) {
        assert_int_equal(opened(i, plugins[i].kind, plugins[i].setting), TESS_OK);
        ((const tess_offload_ops *)table)->close(ctx);
        assert_int_equal(live_memory, 0);
        tess_status s = opened(i, plugins[i].kind, "no-such=1");
        char text[100];
        snprintf(text, sizeof text, "%s %s: \"no-such=1\" is no setting, expected ", plugins[i].kind_name,
                 plugins[i].name);
        e.message[strlen(text)] = 0; /* behind it stands what this one takes */
        refused(i, s, TESS_E_INVALID, text);
    }
}

/* ---- what they answer, by rules that hold for each ---- */

enum { BF16 = 1, FP16, WIRE8 };

/* Whatever a program declares and reads, the master is what it declared, and what is computed in is what it reads. Sums
 * of floats are not narrower than fp32. Only fp32 is computed in another dtype. */
static void test_openings__precisions_keep_masters_and_compute_in_what_is_read(void **state) {
    (void)state;
    static const char *const settings[] = { "",
                                            "wire=fp32",
                                            "grad=bf16",
                                            "unreadable=keep",
                                            "sends=gradients",
                                            "sends=parameters",
                                            "rounding=stochastic",
                                            "compute=bf16",
                                            "fp8" };
    static const int takes[] = { [BF16] = 4, [FP16] = 3, [WIRE8] = 6 }; /* the others are another one's */
    for (int i = BF16; i <= WIRE8; i++) {
        int taken = 0;
        for (size_t n = 0; n < sizeof settings / sizeof *settings; n++) {
            if (opened(i, TESS_KIND_PRECISION, settings[n]))
                continue;
            taken++;
            const tess_precision_ops *ops = table;
            for (uint32_t dtype = TESS_U8; dtype <= TESS_F8E5M2; dtype++)
                for (uint32_t mask = 0; mask < 1u << 11; mask++) {
                    const tess_param_view v = {
                        .struct_size = sizeof v, .dtype = dtype, .name = "w", .elems = 1, .compute_mask = mask
                    };
                    tess_precision_choice c = { .struct_size = sizeof c };
                    const uint32_t reads = mask ? mask : 1u << dtype, half = i == BF16 ? TESS_BF16 : TESS_F16;
                    tess_status s = ops->choose(ctx, &v, &c, &(tess_error){ .struct_size = sizeof(tess_error) });
                    const uint32_t asked = dtype != TESS_F32 ? dtype : i != WIRE8 ? half : n == 7 ? TESS_BF16 : dtype;
                    int fits = reads >> asked & 1 || (i != WIRE8 && n == 3 && reads >> dtype & 1);
                    assert_int_equal(s, fits ? TESS_OK : TESS_E_UNSUPPORTED);
                    if (s)
                        continue;
                    assert_true(c.master == dtype && reads >> c.compute & 1);
                    assert_true(c.accumulate == (dtype == TESS_F16 || dtype == TESS_BF16 ? TESS_F32 : dtype));
                    if (dtype != TESS_F32) {
                        assert_true(c.compute == dtype && c.gather == dtype && c.grad_local == dtype && !c.products);
                        assert_int_equal(c.grad_wire, dtype == TESS_F64 ? TESS_F32 : dtype);
                    } else if (i != WIRE8 && reads >> half & 1)
                        assert_true(c.compute == half && c.gather == half &&
                                    c.grad_local == (n == 2 ? half : TESS_F32) &&
                                    c.grad_wire == (n == 1 ? TESS_F32 : half));
                    else if (i != WIRE8)
                        assert_true(n == 3 && c.compute == TESS_F32 && c.gather == TESS_F32 && c.grad_wire == TESS_F32);
                    else {
                        const uint32_t blocks = n == 8 ? TESS_Q8E4M3 : TESS_Q8;
                        assert_int_equal(c.compute, n == 7 ? TESS_BF16 : TESS_F32);
                        assert_int_equal(c.gather, n == 4 ? c.compute : blocks);
                        assert_int_equal(c.grad_wire, n == 5 ? TESS_F32 : blocks);
                        assert_int_equal(c.grad_local, TESS_F32);
                    }
                    assert_int_equal(c.rounding, n == 6 ? TESS_ROUND_STOCHASTIC : TESS_ROUND_NEAREST);
                }
            ops->close(ctx);
        }
        assert_int_equal(taken, takes[i]);
    }
}

/* Of the first u units, fraction · u rounded down rest on the host; regions are locked while the budget lasts. */
static void test_openings__offload_to_the_host_places_its_part_and_locks_its_budget(void **state) {
    (void)state;
    assert_int_equal(opened(0, TESS_KIND_OFFLOAD, "fraction=0.4,pinned=1000,grads,optimizer"), TESS_OK);
    const tess_offload_ops *ops = table;
    tess_region r[100];
    tess_placement p[100];
    uint64_t left = 1000;
    for (int i = 0; i < 100; i++) {
        r[i] = (tess_region){ .struct_size = sizeof *r,
                              .region = (uint32_t)(i % 4) + TESS_REGION_MASTER,
                              .unit = i % 4 == 3 ? -1 : i / 4,
                              .bytes = 90 + (uint64_t)i };
        p[i] = (tess_placement){ .struct_size = sizeof *p };
    }
    assert_int_equal(ops->place(ctx, NULL, r, 100, p, &e), TESS_OK);
    for (int i = 0; i < 100; i++) {
        int unit = i / 4, chosen = (unit + 1) * 2 / 5 > unit * 2 / 5;
        int rests = i % 4 == 3 || (chosen && i % 4 > 0);
        uint64_t locked = rests && r[i].bytes <= left ? r[i].bytes : 0;
        left -= locked;
        assert_true(p[i].rest == (rests ? TESS_REST_HOST : TESS_REST_DEVICE) && p[i].align == 64);
        assert_true(p[i].host_bytes == (rests ? r[i].bytes : 0) && p[i].pinned_bytes == locked);
    }
    assert_int_equal(ops->place(ctx, NULL, NULL, 0, NULL, &e), TESS_OK);
    ops->close(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_openings__offer_their_own_kind_only),
        cmocka_unit_test(test_openings__without_memory_they_say_so),
        cmocka_unit_test(test_openings__settings_are_taken_or_refused_with_nothing_left),
        cmocka_unit_test(test_openings__precisions_keep_masters_and_compute_in_what_is_read),
        cmocka_unit_test(test_openings__offload_to_the_host_places_its_part_and_locks_its_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
