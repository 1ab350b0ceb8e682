/* SPDX-License-Identifier: BSD-3-Clause */
/* Which options of a file count for a plugin: all but those of another kind that the file offers too. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/options.h"
#include "core/base/status.h"
#include "core/plugin/elf_note.h"
#include "core/plugin/plugin_options.h"
#include "tests/unit/said.h"

static struct {
    tess_option_spec in_file[8];
    uint32_t n;
    tess_status read, known;
} world;

static tess_status read_options(const char *path, tess_option_spec **out, uint32_t *n, char *reason, size_t bytes) {
    assert_int_equal(bytes, TESS_REASON_BYTES);
    assert_string_equal(path, "/real/f.so");
    if (world.read) {
        snprintf(reason, bytes, "truncated");
        return world.read;
    }
    *n = world.n;
    *out = malloc(sizeof world.in_file);
    memcpy(*out, world.in_file, sizeof world.in_file);
    return TESS_OK;
}
static tess_status know(const char *kind, const char *plugin, const tess_option_spec *list, uint32_t n) {
    say("%s %s:", kind, plugin);
    for (uint32_t i = 0; i < n; i++)
        say(" %.72s %u", list[i].key, list[i].type);
    return world.known ? tess__fail(world.known, "it is set wrongly") : TESS_OK;
}
#define tess__elf_options_file read_options
#define tess__options_register know
#include "core/plugin/plugin_options.c"

enum { OFFERS = 1u << TESS_KIND_DEVICE | 1u << TESS_KIND_OPTIMIZER | 1u << TESS_KIND_COMM };
static char reason[TESS_REASON_BYTES];

static tess__plugin plugin_of(uint32_t kind) {
    return (tess__plugin){ .kind = kind, .name = "made", .path = "/real/f.so" };
}

static tess_status read_as(uint32_t kind, uint32_t kinds, uint16_t minor) {
    tess__plugin p = plugin_of(kind);
    const tess_plugin_note note = { .kinds = kinds, .abi_minor = minor };
    snprintf(reason, sizeof reason, "untouched");
    const tess_status s = tess__plugin_options(&p, &note, reason);
    free(p.options);
    return s;
}

static void key(const char *text, uint32_t type) {
    snprintf(world.in_file[world.n].key, sizeof world.in_file[0].key, "%s", text);
    world.in_file[world.n++].type = type;
}

static int begin(void **state) {
    (void)state;
    memset(&world, 0, sizeof world);
    said_so_far[0] = 0;
    return 0;
}

static void test_option_lists__those_of_another_kind_are_left_out(void **state) {
    (void)state;
    key("made-a", 1), key("comm-b", 2), key("device-c", 3), key("optimizer-d", 4), key("wrap-e", 5), key("other", 6);
    key("devices-g", 1);
    assert_int_equal(read_as(TESS_KIND_DEVICE, OFFERS, 0), TESS_OK);
    expect_said("device made: made-a 1 device-c 3 wrap-e 5 other 6 devices-g 1");
    assert_int_equal(read_as(TESS_KIND_COMM, OFFERS, 0), TESS_OK);
    expect_said("comm made: made-a 1 comm-b 2 wrap-e 5 other 6 devices-g 1");
    assert_int_equal(read_as(TESS_KIND_OPTIMIZER, 1u << TESS_KIND_OPTIMIZER, 0), TESS_OK); /* none else is offered */
    expect_said("optimizer made: made-a 1 comm-b 2 device-c 3 optimizer-d 4 wrap-e 5 other 6 devices-g 1");
    assert_string_equal(reason, "untouched");
    memset(world.in_file[0].key, 'k', sizeof world.in_file[0].key); /* ends nowhere, which is the registrar's to say */
    world.n = 1;
    assert_int_equal(read_as(TESS_KIND_WRAP, OFFERS, 0), TESS_OK);
    assert_non_null(strstr(said_so_far, "wrap made: kkkkkkkk"));
}

/* A plugin whose name is the word of another kind keeps its own. */
static void test_option_lists__a_name_comes_before_a_kind(void **state) {
    (void)state;
    const tess_plugin_note note = { .kinds = OFFERS };
    tess__plugin p = plugin_of(TESS_KIND_COMM);
    strcpy(p.name, "device");
    key("device-a", 1), key("optimizer-b", 1), key("comm-c", 1);
    assert_int_equal(tess__plugin_options(&p, &note, reason), TESS_OK);
    expect_said("comm device: device-a 1 comm-c 1");
    assert_int_equal(p.n_options, 2);
    assert_string_equal(p.options[1].key, "comm-c");
    free(p.options);
}

/* A type that this core does not know is a text to it, when the plugin's header is newer; else the plugin errs. */
static void test_option_lists__a_later_headers_type_is_a_text(void **state) {
    (void)state;
    key("made-a", TESS_OPTION_LIST), key("made-b", TESS_OPTION_LIST + 1), key("made-c", 99);
    assert_int_equal(read_as(TESS_KIND_WRAP, 1u << TESS_KIND_WRAP, TESS_ABI_MINOR + 1), TESS_OK);
    char want[128];
    snprintf(want, sizeof want, "wrap made: made-a %d made-b %d made-c %d", TESS_OPTION_LIST, TESS_OPTION_TEXT,
             TESS_OPTION_TEXT);
    expect_said(want);
    assert_int_equal(read_as(TESS_KIND_WRAP, 1u << TESS_KIND_WRAP, TESS_ABI_MINOR), TESS_OK);
    snprintf(want, sizeof want, "wrap made: made-a %d made-b %d made-c 99", TESS_OPTION_LIST, TESS_OPTION_LIST + 1);
    expect_said(want);
}

static void test_option_lists__failures_are_handed_on(void **state) {
    (void)state;
    world.known = TESS_E_INVALID;
    assert_int_equal(read_as(TESS_KIND_WRAP, 0, 0), TESS_E_INVALID);
    assert_string_equal(reason, "it is set wrongly");
    said_so_far[0] = 0;
    world.read = TESS_E_NOMEM;
    assert_int_equal(read_as(TESS_KIND_WRAP, 0, 0), TESS_E_NOMEM);
    assert_string_equal(reason, "truncated");
    expect_said("");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_option_lists__those_of_another_kind_are_left_out, begin),
        cmocka_unit_test_setup(test_option_lists__a_name_comes_before_a_kind, begin),
        cmocka_unit_test_setup(test_option_lists__a_later_headers_type_is_a_text, begin),
        cmocka_unit_test_setup(test_option_lists__failures_are_handed_on, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
