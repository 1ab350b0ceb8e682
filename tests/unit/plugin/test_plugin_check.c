/* SPDX-License-Identifier: BSD-3-Clause */
/* Descriptors and tables as plugin.h wants them: each byte of a descriptor, and each slot of each table. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/plugin/open.h"
#include "core/plugin/plugin_check.h"

static char reason[TESS_REASON_BYTES];
static const char texts[] = "the descriptor's texts do not end, or its name is not [a-z0-9_-]+";

/* ---- the descriptor ---------------------------------------------------------------------------- */

static const tess_plugin_note good = { .magic = "TESSPLG",
                                       .struct_size = 128,
                                       .abi_major = TESS_ABI_MAJOR,
                                       .abi_minor = 250,
                                       .core_minor_min = TESS_ABI_MINOR,
                                       .kinds = 1u << TESS_KIND_DEVICE | 1u << TESS_KIND_WRAP,
                                       .name = "a-z_09",
                                       .version = "1",
                                       .license = "MIT",
                                       .needs = "" };

static void judged(const tess_plugin_note *n, uint32_t kind, tess_status want, const char *why) {
    snprintf(reason, sizeof reason, "untouched");
    assert_int_equal(tess__note_check(n, kind, reason), want);
    assert_string_equal(reason, why);
}

static void test_plugin_check__a_descriptor_is_judged_field_by_field(void **state) {
    (void)state;
    char want[TESS_REASON_BYTES];
    tess_plugin_note n = good;
    judged(&n, TESS_KIND_DEVICE, TESS_OK, "untouched");
    judged(&n, TESS_KIND_WRAP, TESS_OK, "untouched");
    judged(&n, TESS_KIND_COMM, TESS_E_INVALID, "plugin a-z_09 is not of kind comm (its kinds: 0x30)");
    for (int i = 0; i < 8; i++) {
        n = good, n.magic[i] ^= 1;
        judged(&n, TESS_KIND_DEVICE, TESS_E_INVALID, "bad magic in the descriptor, expected TESSPLG");
    }
    n = good, n.struct_size = 127;
    judged(&n, TESS_KIND_DEVICE, TESS_E_INVALID, "a descriptor of 127 bytes, expected at least 128");
    n.struct_size = 129;
    judged(&n, TESS_KIND_DEVICE, TESS_OK, "untouched");
    for (int off = -1; off <= 1; off += 2) {
        n = good, n.abi_major = (uint16_t)(TESS_ABI_MAJOR + off);
        snprintf(want, sizeof want, "plugin ABI %d.250, this is Tessera's ABI %d.%d: the major versions differ",
                 TESS_ABI_MAJOR + off, TESS_ABI_MAJOR, TESS_ABI_MINOR);
        judged(&n, TESS_KIND_DEVICE, TESS_E_VERSION, want);
    }
    n = good, n.core_minor_min = TESS_ABI_MINOR + 1;
    snprintf(want, sizeof want, "needs a core of ABI %d.%d or newer, this one has %d.%d", TESS_ABI_MAJOR,
             TESS_ABI_MINOR + 1, TESS_ABI_MAJOR, TESS_ABI_MINOR);
    judged(&n, TESS_KIND_DEVICE, TESS_E_VERSION, want);
    n = good, memset(n.version, 'v', sizeof n.version);
    judged(&n, TESS_KIND_DEVICE, TESS_E_INVALID, texts);
    n = good, memset(n.license, 'v', sizeof n.license);
    judged(&n, TESS_KIND_DEVICE, TESS_E_INVALID, texts);
    n = good, memset(n.needs, 'v', sizeof n.needs);
    judged(&n, TESS_KIND_DEVICE, TESS_E_INVALID, texts);
    n.needs[sizeof n.needs - 1] = 0; /* they may fill their room */
    n.version[sizeof n.version - 1] = n.license[sizeof n.license - 1] = 0;
    judged(&n, TESS_KIND_DEVICE, TESS_OK, "untouched");
}

static void test_plugin_check__a_name_is_of_few_characters(void **state) {
    (void)state;
    for (int c = 1; c < 256; c++) {
        const int fine = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
        tess_plugin_note n = good;
        n.name[3] = (char)c;
        judged(&n, TESS_KIND_WRAP, fine ? TESS_OK : TESS_E_INVALID, fine ? "untouched" : texts);
    }
    tess_plugin_note n = good;
    n.name[0] = 0;
    judged(&n, TESS_KIND_WRAP, TESS_E_INVALID, texts);
    memset(n.name, 'n', sizeof n.name);
    judged(&n, TESS_KIND_WRAP, TESS_E_INVALID, texts);
    n.name[31] = 0;
    judged(&n, TESS_KIND_WRAP, TESS_OK, "untouched");
}

static void test_plugin_check__kinds_have_words(void **state) {
    (void)state;
    static const char *const words[] = { NULL, "comm", "offload", "precision", "wrap", "device", "optimizer", NULL };
    for (uint32_t kind = 0; kind < 8; kind++) {
        const char *word = tess__kind_name(kind);
        assert_string_equal(word ? word : "none", words[kind] ? words[kind] : "none");
    }
    for (uint32_t kind = 8; kind < 64; kind++)
        assert_null(tess__kind_name(kind));
    assert_null(tess__kind_name(UINT32_MAX));
}

/* ---- the tables -------------------------------------------------------------------------------- */

/* All slots that plugin.h names "Required", or required beside another. */
#define SLOT(type, slot) #slot, offsetof(type, slot)
static const struct {
    uint32_t kind;
    const char *slot;
    size_t at;
    const char *beside; /* null: always */
} required[] = {
    { TESS_KIND_COMM, SLOT(tess_comm_ops, query), NULL },
    { TESS_KIND_COMM, SLOT(tess_comm_ops, need), NULL },
    { TESS_KIND_COMM, SLOT(tess_comm_ops, init), NULL },
    { TESS_KIND_COMM, SLOT(tess_comm_ops, destroy), NULL },
    { TESS_KIND_COMM, SLOT(tess_comm_ops, post), NULL },
    { TESS_KIND_COMM, SLOT(tess_comm_ops, test), NULL },
    { TESS_KIND_COMM, SLOT(tess_comm_ops, wait), NULL },
    { TESS_KIND_COMM, SLOT(tess_comm_ops, request_free), NULL },
    { TESS_KIND_COMM, SLOT(tess_comm_ops, abort), NULL },
    { TESS_KIND_COMM, SLOT(tess_comm_ops, mem_free), "mem_alloc" },
    { TESS_KIND_COMM, SLOT(tess_comm_ops, mem_deregister), "mem_register" },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, describe), NULL },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, create), NULL },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, destroy), NULL },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, mem_alloc), NULL },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, mem_free), NULL },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, copy), NULL },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, fill), NULL },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, kernel), NULL },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, kernel_need), NULL },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, stream_destroy), "stream_create" },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, event_create), "stream_create" },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, event_destroy), "event_create" },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, event_record), "event_create" },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, event_stream_wait), "event_create" },
    { TESS_KIND_DEVICE, SLOT(tess_device_ops, event_wait), "event_create" },
    { TESS_KIND_PRECISION, SLOT(tess_precision_ops, choose), NULL },
    { TESS_KIND_WRAP, SLOT(tess_wrap_ops, assign), NULL },
    { TESS_KIND_OFFLOAD, SLOT(tess_offload_ops, place), NULL },
    { TESS_KIND_OFFLOAD, SLOT(tess_offload_ops, store_post), "store_open" },
    { TESS_KIND_OFFLOAD, SLOT(tess_offload_ops, store_wait), "store_open" },
    { TESS_KIND_OFFLOAD, SLOT(tess_offload_ops, store_close), "store_open" },
    { TESS_KIND_OFFLOAD, SLOT(tess_offload_ops, store_open), "store_close" },
    { TESS_KIND_OFFLOAD, SLOT(tess_offload_ops, store_deregister), "store_register" },
    { TESS_KIND_OPTIMIZER, SLOT(tess_optimizer_ops, describe), NULL },
};
enum { N_REQUIRED = sizeof required / sizeof required[0] };

typedef union {
    tess__common_ops head;
    void (*words[96])(void);
} table;
static const size_t bytes_of[] = {
    0,
    sizeof(tess_comm_ops),
    sizeof(tess_offload_ops),
    sizeof(tess_precision_ops),
    sizeof(tess_wrap_ops),
    sizeof(tess_device_ops),
    sizeof(tess_optimizer_ops),
};
static void slot(void) {}

static table *full(uint32_t kind) {
    static table t;
    for (size_t i = 0; i < 96; i++)
        t.words[i] = slot;
    t.head.struct_size = (uint32_t)bytes_of[kind];
    t.head.abi_major = TESS_ABI_MAJOR;
    t.head.abi_minor = 0;
    return &t;
}

static void table_is(uint32_t kind, const void *t, tess_status want, const char *why) {
    snprintf(reason, sizeof reason, "untouched");
    assert_int_equal(tess__ops_check(kind, t, reason), want);
    assert_string_equal(reason, why);
}

/* The first rule of the list that a table without the slot at `at` breaks; "untouched": none. */
static const char *what_is_missing(uint32_t kind, size_t at) {
    static char text[128];
    for (int i = 0; i < N_REQUIRED; i++)
        if (required[i].kind == kind && required[i].at == at) {
            snprintf(text, sizeof text, "mandatory slot %s is missing%s%s", required[i].slot,
                     required[i].beside ? " beside " : "", required[i].beside ? required[i].beside : "");
            return text;
        }
    return "untouched";
}

static void test_plugin_check__each_slot_of_each_table_counts_as_the_header_says(void **state) {
    (void)state;
    for (uint32_t kind = TESS_KIND_COMM; kind <= TESS_KIND_OPTIMIZER; kind++) {
        table_is(kind, full(kind), TESS_OK, "untouched");
        for (size_t at = sizeof(uint64_t); at < bytes_of[kind]; at += sizeof(void *)) {
            table *t = full(kind);
            t->words[at / sizeof(void *)] = NULL;
            const char *why = what_is_missing(kind, at);
            table_is(kind, t, strcmp(why, "untouched") ? TESS_E_INVALID : TESS_OK, why);
        }
    }
}

/* A table that ends before a slot has it not, whatever lies behind. */
static void test_plugin_check__a_table_ends_where_it_says(void **state) {
    (void)state;
    static const struct {
        uint32_t kind;
        size_t ends;
        const char *why;
    } cut[] = {
        { TESS_KIND_COMM, offsetof(tess_comm_ops, query), "mandatory slot query is missing" },
        { TESS_KIND_DEVICE, offsetof(tess_device_ops, kernel), "mandatory slot kernel is missing" },
        { TESS_KIND_PRECISION, offsetof(tess_precision_ops, choose), "mandatory slot choose is missing" },
        { TESS_KIND_WRAP, offsetof(tess_wrap_ops, assign), "mandatory slot assign is missing" },
        { TESS_KIND_OPTIMIZER, offsetof(tess_optimizer_ops, describe), "mandatory slot describe is missing" },
        { TESS_KIND_OFFLOAD, offsetof(tess_offload_ops, store_deregister),
          "mandatory slot store_deregister is missing beside store_register" },
    };
    for (size_t i = 0; i < sizeof cut / sizeof cut[0]; i++)
        for (size_t more = 0; more <= sizeof(void *); more++) {
            table *t = full(cut[i].kind);
            const int whole = more == sizeof(void *);
            t->head.struct_size = (uint32_t)(cut[i].ends + more);
            if (!whole)
                table_is(cut[i].kind, t, TESS_E_INVALID, cut[i].why);
            else if (tess__ops_check(cut[i].kind, t, reason))
                assert_string_not_equal(reason, cut[i].why);
        }
    table *t = full(TESS_KIND_WRAP);
    t->head.struct_size = 500; /* of a later header */
    table_is(TESS_KIND_WRAP, t, TESS_OK, "untouched");
}

static void test_plugin_check__a_table_has_a_head(void **state) {
    (void)state;
    char want[TESS_REASON_BYTES];
    table *t = full(TESS_KIND_WRAP);
    table_is(TESS_KIND_WRAP, NULL, TESS_E_INVALID, "open gave no table");
    t->head.struct_size = 7;
    table_is(TESS_KIND_WRAP, t, TESS_E_INVALID, "a table of 7 bytes");
    t->head.struct_size = 8;
    table_is(TESS_KIND_WRAP, t, TESS_E_INVALID, "mandatory slot assign is missing");
    t = full(TESS_KIND_WRAP), t->head.abi_major++, t->head.abi_minor = 9;
    snprintf(want, sizeof want, "a table of ABI %d.9, expected %d", TESS_ABI_MAJOR + 1, TESS_ABI_MAJOR);
    table_is(TESS_KIND_WRAP, t, TESS_E_VERSION, want);
    t = full(TESS_KIND_WRAP), t->head.abi_minor = 999;
    table_is(TESS_KIND_WRAP, t, TESS_OK, "untouched");
    t = full(TESS_KIND_OFFLOAD); /* memory is registered with a store */
    t->words[offsetof(tess_offload_ops, store_open) / sizeof(void *)] = NULL;
    t->words[offsetof(tess_offload_ops, store_close) / sizeof(void *)] = NULL;
    table_is(TESS_KIND_OFFLOAD, t, TESS_E_INVALID, "mandatory slot store_open is missing beside store_register");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plugin_check__a_descriptor_is_judged_field_by_field),
        cmocka_unit_test(test_plugin_check__a_name_is_of_few_characters),
        cmocka_unit_test(test_plugin_check__kinds_have_words),
        cmocka_unit_test(test_plugin_check__each_slot_of_each_table_counts_as_the_header_says),
        cmocka_unit_test(test_plugin_check__a_table_ends_where_it_says),
        cmocka_unit_test(test_plugin_check__a_table_has_a_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
