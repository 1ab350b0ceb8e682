/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/switch/capture.h"
#include "tests/support/switch/fabric.h"
#include "tests/unit/scratch_dir.h"

enum { FRAME = 1000 };
#define MS INT64_C(1000000)

static switch_fabric fabric;

static int set_up(void **state) {
    (void)state;
    switch_fabric_init(&fabric, 3);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    switch_fabric_clear(&fabric);
    return 0;
}

static void order(const char *text, int result, const char *expected) {
    char copy[256], answer[256] = "";
    snprintf(copy, sizeof copy, "%s", text);
    assert_int_equal(switch_fabric_order(&fabric, copy, answer, sizeof answer), result);
    if (expected)
        assert_string_equal(answer, expected);
}

/* A frame whose thirteenth byte is its number; to -1: to all. */
static void enter(int from, int to, int64_t now_ns, int number) {
    unsigned char frame[FRAME] = { 0 };
    memset(frame, 0xff, SWITCH_ADDRESS);
    if (to >= 0)
        switch_fabric_address(to, frame);
    switch_fabric_address(from, frame + SWITCH_ADDRESS);
    frame[2 * SWITCH_ADDRESS] = (unsigned char)number;
    switch_fabric_take(&fabric, from, now_ns, frame, sizeof frame);
}

static void leaves(int64_t now_ns, int port, int number) {
    switch_frame *frame = switch_queue_take(&fabric.queue, now_ns);
    assert_non_null(frame);
    assert_int_equal(frame->port, port);
    assert_int_equal(frame->bytes, FRAME);
    assert_int_equal(frame->data[2 * SWITCH_ADDRESS], number);
    free(frame);
}

static void test_switch__without_rules_frames_reach_their_port_in_order(void **state) {
    (void)state;
    enter(0, 2, 5 * MS, 1);
    enter(1, 2, 5 * MS, 2);
    enter(2, 0, 5 * MS, 3);
    leaves(5 * MS, 2, 1);
    leaves(5 * MS, 2, 2);
    leaves(5 * MS, 0, 3);
    assert_null(switch_queue_take(&fabric.queue, INT64_MAX));
    enter(1, 1, 6 * MS, 4); /* to itself: nowhere */
    assert_null(switch_queue_take(&fabric.queue, INT64_MAX));
}

static void test_switch__group_address_goes_to_all_others(void **state) {
    (void)state;
    enter(1, -1, 0, 9);
    leaves(0, 0, 9);
    leaves(0, 2, 9);
    assert_int_equal(switch_queue_due(&fabric.queue), INT64_MAX);
}

static void test_switch__delay_holds_one_direction_of_one_pair(void **state) {
    (void)state;
    order("link 0 1 delay_us=7000", 0, "ok");
    enter(0, 1, 0, 1);
    enter(1, 0, 0, 2);
    enter(0, 2, 0, 3);
    leaves(0, 0, 2);
    leaves(0, 2, 3);
    assert_int_equal(switch_queue_due(&fabric.queue), 7 * MS);
    assert_null(switch_queue_take(&fabric.queue, 7 * MS - 1));
    leaves(7 * MS, 1, 1);
}

static void test_switch__cut_loses_one_direction_until_it_is_mended(void **state) {
    (void)state;
    order("link 2 all cut=1", 0, "ok");
    enter(2, 0, 0, 1);
    enter(2, 1, 0, 2);
    enter(0, 2, 0, 3);
    leaves(0, 2, 3);
    assert_null(switch_queue_take(&fabric.queue, INT64_MAX));
    order("count 2 all", 0, "2 2000 2");
    order("count 0 2", 0, "1 1000 0");
    order("link 2 0 cut=0", 0, "ok");
    enter(2, 0, 0, 4);
    leaves(0, 0, 4);
}

static void test_switch__rate_spaces_frames_and_a_full_queue_loses_them(void **state) {
    (void)state;
    order("link 0 1 rate_kbit=1000 queue_bytes=3000", 0, "ok"); /* 8 ms a frame */
    for (int i = 0; i < 6; i++)
        enter(0, 1, 0, i);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(switch_queue_due(&fabric.queue), (i + 1) * 8 * MS);
        leaves((i + 1) * 8 * MS, 1, i);
    }
    order("count 0 1", 0, "6 6000 2");
    enter(0, 1, 100 * MS, 7); /* an idle line is no credit */
    assert_int_equal(switch_queue_due(&fabric.queue), 108 * MS);
}

static void test_switch__loss_is_of_its_size_and_the_same_in_every_run(void **state) {
    (void)state;
    char first[64], again[64], copy[32];
    for (int run = 0; run < 2; run++) {
        switch_fabric_clear(&fabric);
        switch_fabric_init(&fabric, 3);
        order("link 0 1 loss_ppm=20000", 0, "ok");
        for (int i = 0; i < 10000; i++)
            enter(0, 1, 0, 0);
        strcpy(copy, "count 0 1");
        switch_fabric_order(&fabric, copy, run ? again : first, sizeof first);
    }
    assert_string_equal(first, again);
    /* 200 expected, standard deviation 14 */
    assert_in_range(fabric.links[0][1].lost, 140, 260);
}

static void test_switch__reordered_frames_are_overtaken(void **state) {
    (void)state;
    int overtaken = 0, last = -1;
    order("link 0 1 reorder_ppm=100000 reorder_us=3000", 0, "ok");
    for (int i = 0; i < 100; i++)
        enter(0, 1, i * MS, i);
    for (int i = 0; i < 100; i++) {
        switch_frame *frame = switch_queue_take(&fabric.queue, INT64_MAX);
        int number = frame->data[2 * SWITCH_ADDRESS];
        overtaken += number < last;
        last = number;
        free(frame);
    }
    assert_in_range(overtaken, 3, 25);
    assert_int_equal(fabric.links[0][1].lost, 0);
}

static void test_switch__orders_that_are_none_are_refused(void **state) {
    (void)state;
    order("", -1, "nothing: expected link, count or capture");
    order("destroy 0 1", -1, "destroy: expected link, count or capture");
    order("link 0 3 cut=1", -1, "link FROM TO: each a port from 0 to 2, or all");
    order("link 0", -1, "link FROM TO: each a port from 0 to 2, or all");
    order("link 0 1 cut=2", -1, "cut=2: no number in its range");
    order("link 0 1 delay_us=-1", -1, "delay_us=-1: no number in its range");
    order("link 0 1 delay_us=1x", -1, "delay_us=1x: no number in its range");
    order("link 0 1 latency=1", -1, "latency=1: no such rule");
    order("capture", -1, "capture FILE, or off");
    order("capture /no/such/folder/file", -1, "No such file or directory");
}

static void test_switch__capture_holds_what_came_in_even_if_it_is_lost(void **state) {
    (void)state;
    scratch_dir dir;
    unsigned char bytes[4 * FRAME];
    uint32_t words[6 + 4];
    assert_int_equal(scratch_dir_make(&dir), 0);
    char text[300];
    snprintf(text, sizeof text, "capture %s", scratch_path(&dir, "file"));
    order("link 0 1 cut=1", 0, "ok");
    order(text, 0, "ok");
    enter(0, 1, 0, 77);
    order("capture off", 0, "ok");
    enter(0, 1, 0, 78);
    FILE *f = fopen(scratch_path(&dir, "file"), "rb");
    assert_non_null(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    assert_int_equal(n, sizeof words + FRAME);
    memcpy(words, bytes, sizeof words);
    assert_int_equal(words[0], 0xa1b23c4d); /* times in nanoseconds */
    assert_int_equal(words[5], 1);          /* Ethernet */
    assert_int_equal(words[8], FRAME);
    assert_int_equal(words[9], FRAME);
    assert_int_equal(bytes[sizeof words + 2 * SWITCH_ADDRESS], 77);
    scratch_dir_remove(&dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_switch__without_rules_frames_reach_their_port_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_switch__group_address_goes_to_all_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_switch__delay_holds_one_direction_of_one_pair, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_switch__cut_loses_one_direction_until_it_is_mended, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_switch__rate_spaces_frames_and_a_full_queue_loses_them, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_switch__loss_is_of_its_size_and_the_same_in_every_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_switch__reordered_frames_are_overtaken, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_switch__orders_that_are_none_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_switch__capture_holds_what_came_in_even_if_it_is_lost, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
