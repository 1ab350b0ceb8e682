/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/unit/kernels/kernel_fixture.h"
#include "tools/bench/bench.h"
#include "tools/commands.h"
#include <stdlib.h>

static int run(const char *what, int json, char *text, size_t room) {
    FILE *out = fmemopen(text, room, "w");
    tool_bench_options options = { .out = out, .json = json, .threads = 2, .bytes = 1 << 20, .rounds = 1 };
    int code = tool_bench_kernels(what, &options);
    fclose(out);
    return code;
}

static void test_bench_kernels__cast_prints_one_object_per_case(void **state) {
    (void)state;
    char text[8192] = "";
    assert_int_equal(run("cast", 1, text, sizeof text), TOOL_OK);
    int lines = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        double bytes, seconds, bandwidth, memory, ratio;
        assert_ptr_equal(strstr(line, "{\"event\":\"bench\",\"what\":\"cast "), line);
        const char *numbers = strstr(line, "\"bytes\":");
        assert_non_null(numbers);
        assert_int_equal(
            sscanf(numbers, "\"bytes\":%lf,\"seconds\":%lf,\"bandwidth\":%lf,\"memory_bandwidth\":%lf,\"ratio\":%lf}",
                   &bytes, &seconds, &bandwidth, &memory, &ratio),
            5);
        int blocks = strstr(line, " q8") != NULL; /* of which 256 elements have 260 bytes */
        assert_true(bytes == (blocks ? (1 << 18) * 4 + (1 << 10) * 260 : (1 << 18) * 6) && seconds > 0 && memory > 0);
        assert_true(fabs(bandwidth * seconds / bytes - 1) < 1e-9 && fabs(ratio * memory / bandwidth - 1) < 1e-9);
    }
    assert_int_equal(lines, 7);
}

static void test_bench_kernels__every_subject_runs(void **state) {
    (void)state;
    char text[4096] = "";
    assert_int_equal(run(NULL, 0, text, sizeof text), TOOL_OK);
    assert_non_null(strstr(text, "adamw "));
    assert_non_null(strstr(text, "square sum"));
}

static void test_bench_kernels__an_unknown_subject_is_a_usage_error(void **state) {
    (void)state;
    char text[64] = "";
    assert_int_equal(run("toast", 0, text, sizeof text), TOOL_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bench_kernels__cast_prints_one_object_per_case),
        cmocka_unit_test(test_bench_kernels__every_subject_runs),
        cmocka_unit_test(test_bench_kernels__an_unknown_subject_is_a_usage_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
