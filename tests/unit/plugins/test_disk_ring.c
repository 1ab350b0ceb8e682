/* SPDX-License-Identifier: BSD-3-Clause */
/* io_uring as offload-disk uses it, over a ring of the test's own: what is asked for, and what becomes of results that
 * come in parts, in another order, or not at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

#include "tests/unit/said.h"

enum { ENTRIES = 64, FD = 77 };
static struct {
    struct io_uring_sqe asked[ENTRIES];
    struct io_uring_cqe result;
    int n, answered, submits; /* asked for; of these, what all_done has answered; calls */
    int init, files, buffers, no_memory;
    struct iovec piece[4];
    unsigned n_pieces;
    void (*complete)(void); /* on submit: makes results */
    struct {
        uint64_t slot;
        int result;
    } results[ENTRIES];
    int n_results, first_result;
} uring;

static int ring_init(unsigned depth, struct io_uring *r, unsigned flags) {
    (void)r;
    assert_int_equal(flags, 0);
    say("ring of %u; ", depth);
    return uring.init;
}
static void ring_exit(struct io_uring *r) {
    (void)r;
    say("exit; ");
}
static int ring_files(struct io_uring *r, const int *fd, unsigned n) {
    (void)r;
    assert_true(*fd == FD && n == 1);
    return uring.files;
}
static int ring_buffers(struct io_uring *r, const struct iovec *piece, unsigned n) {
    (void)r;
    memcpy(uring.piece, piece, (n < 4 ? n : 4) * sizeof *piece);
    uring.n_pieces = n;
    return uring.buffers;
}
static int ring_no_buffers(struct io_uring *r) {
    (void)r;
    say("unregister; ");
    return 0;
}
static struct io_uring_sqe *ring_sqe(struct io_uring *r) {
    (void)r;
    assert_true(uring.n < ENTRIES);
    memset(&uring.asked[uring.n], 0, sizeof *uring.asked);
    return &uring.asked[uring.n++];
}
static int ring_submit(struct io_uring *r, unsigned wait) {
    (void)r;
    assert_int_equal(wait, 1);
    say("submit; ");
    uring.complete();
    return 1;
}
static int ring_peek(struct io_uring *r, struct io_uring_cqe **out) {
    (void)r;
    if (uring.first_result == uring.n_results)
        return -EAGAIN;
    uring.result.user_data = uring.results[uring.first_result].slot;
    uring.result.res = uring.results[uring.first_result].result;
    *out = &uring.result;
    return 0;
}
static void ring_seen(struct io_uring *r, struct io_uring_cqe *c) {
    (void)r;
    assert_ptr_equal(c, &uring.result);
    uring.first_result++;
}
static void *get_memory(size_t n, size_t bytes) {
    return uring.no_memory && --uring.no_memory == 0 ? NULL : calloc(n, bytes);
}
#define io_uring_queue_init ring_init
#define io_uring_queue_exit ring_exit
#define io_uring_register_files ring_files
#define io_uring_register_buffers ring_buffers
#define io_uring_unregister_buffers ring_no_buffers
#define io_uring_get_sqe ring_sqe
#define io_uring_submit_and_wait ring_submit
#define io_uring_peek_cqe ring_peek
#define io_uring_cqe_seen ring_seen
#define calloc get_memory
#include "plugins/offload-disk/ring.c"
#undef calloc

static disk_queue queue;
static disk_file file = { .fd = FD, .rank = 2, .dir = "d" };
static disk_sums sums;
static disk_ring *ring;
static tess_error e;
static char *memory;

static void give_result(uint64_t slot, int result) {
    uring.results[uring.n_results].slot = slot;
    uring.results[uring.n_results++].result = result;
}
static void ask_anew(void) {
    uring.n = uring.answered = uring.n_results = uring.first_result = 0;
}

static int begin_test(void **state) {
    (void)state;
    memset(&uring, 0, sizeof uring);
    memory = aligned_alloc(DISK_ALIGN, 8 << 20);
    queue = (disk_queue){ .file = &file, .sums = &sums };
    assert_int_equal(disk_queue_init(&queue, 8, &e), TESS_OK);
    assert_int_equal(disk_ring_open(&ring, &queue, 3), 0);
    said_so_far[0] = 0;
    return 0;
}
static int end_test(void **state) {
    (void)state;
    disk_ring_close(ring);
    disk_queue_finish(&queue);
    free(memory);
    return 0;
}
static tess_request *add(uint32_t op, uint64_t at, uint64_t bytes, char *from) {
    const tess_store_io io = { .struct_size = sizeof io, .op = op, .at = at, .bytes = bytes, .memory = from };
    tess_request *r = disk_request_take(&queue, &io);
    disk_request_append(&queue, r);
    return r;
}
static void run(void (*complete)(void)) {
    uring.complete = complete;
    disk_queue_stop(&queue);
    disk_ring_work(ring);
    queue.stop = 0;
    assert_int_equal(ring->in_flight, 0);
}

static void all_done(void) {
    for (; uring.answered < uring.n; uring.answered++)
        give_result(uring.asked[uring.answered].user_data, (int)uring.asked[uring.answered].len);
}

static void test_disk_ring__blocks_go_as_they_are_needed_and_no_more_than_are_under_way(void **state) {
    (void)state;
    tess_request *r[2] = { add(TESS_STORE_WRITE, 4096, 4 * DISK_BLOCK + 8192, memory),
                           add(TESS_STORE_READ, 0, 4096, memory + (7 << 20)) };
    run(all_done);
    assert_int_equal(uring.n, 6);
    for (int i = 0; i < 6; i++) {
        const struct io_uring_sqe *a = &uring.asked[i];
        assert_int_equal(a->opcode, i < 5 ? IORING_OP_WRITE : IORING_OP_READ);
        assert_int_equal(a->off, i < 5 ? 4096 + i * DISK_BLOCK : 0);
        assert_int_equal(a->len, i < 4 ? DISK_BLOCK : i == 4 ? 8192 : 4096);
        assert_int_equal(a->addr, (uintptr_t)(i < 5 ? memory + i * DISK_BLOCK : memory + (7 << 20)));
        assert_true(a->fd == 0 && a->flags == IOSQE_FIXED_FILE && a->user_data < 3);
    }
    expect_said("submit; submit; "); /* three at once */
    for (int i = 0; i < 2; i++)
        assert_int_equal(disk_request_wait(&queue, r[i], &e), TESS_OK);
}

static int part;
static void come_in_parts(void) {
    static const int results[] = { 4096, -EINTR, -EAGAIN, 8192, 4096 };
    give_result(uring.asked[uring.n - 1].user_data, results[part++]);
}

static void test_disk_ring__a_block_goes_on_where_it_came_to(void **state) {
    (void)state;
    static const int at[] = { 0, 4096, 4096, 4096, 12288 };
    tess_request *r = add(TESS_STORE_READ, 8192, 16384, memory);
    part = 0;
    run(come_in_parts);
    assert_int_equal(uring.n, 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(uring.asked[i].off, 8192 + at[i]);
        assert_int_equal(uring.asked[i].len, 16384 - at[i]);
        assert_int_equal(uring.asked[i].addr, (uintptr_t)memory + (uintptr_t)at[i]);
    }
    assert_int_equal(disk_request_wait(&queue, r, &e), TESS_OK);
}

static int fault;
static void fail_behind_a_part(void) {
    give_result(uring.asked[uring.n - 1].user_data, part++ ? fault : 4096);
}

static void test_disk_ring__a_failure_names_the_place_and_ends_its_request_alone(void **state) {
    (void)state;
    static const struct {
        uint32_t op;
        int fault;
        const char *text;
    } cases[] = {
        { TESS_STORE_READ, -EIO, "the file of rank 2 in d, offset 12288: reading: Input/output error" },
        { TESS_STORE_WRITE, -ENOSPC, "the file of rank 2 in d, offset 12288: writing: No space left on device" },
        { TESS_STORE_READ, 0, "the file of rank 2 in d, offset 12288: reading: the file ends here: it was cut" }
    };
    for (int i = 0; i < 3; i++) {
        tess_request *r = add(cases[i].op, 8192, 16384, memory);
        part = 0, fault = cases[i].fault;
        run(fail_behind_a_part);
        e = (tess_error){ .struct_size = sizeof e };
        assert_int_equal(disk_request_wait(&queue, r, &e), TESS_E_DATA);
        assert_string_equal(e.message, cases[i].text);
        ask_anew();
        r = add(cases[i].op, 8192, 16384, memory);
        run(all_done);
        assert_int_equal(disk_request_wait(&queue, r, &e), TESS_OK);
        ask_anew();
    }
}

static void last_first(void) {
    if (uring.submits++ == 0) {
        assert_int_equal(uring.n, 3);
        give_result(uring.asked[2].user_data, -EIO);
        give_result(uring.asked[0].user_data, DISK_BLOCK);
        return;
    }
    if (uring.submits == 2) { /* the two that are free were given out again, the one under way was not */
        assert_int_equal(uring.n, 5);
        uint64_t used = uring.asked[1].user_data;
        assert_true(uring.asked[3].user_data != used && uring.asked[4].user_data != used &&
                    uring.asked[3].user_data != uring.asked[4].user_data);
        give_result(used, DISK_BLOCK);
        for (int i = 3; i < 5; i++)
            give_result(uring.asked[i].user_data, DISK_BLOCK);
    }
}

static void test_disk_ring__slots_are_used_again_in_whatever_order_results_come(void **state) {
    (void)state;
    tess_request *r[5];
    for (int i = 0; i < 5; i++)
        r[i] = add(TESS_STORE_READ, (uint64_t)i * DISK_BLOCK, DISK_BLOCK, memory + i * DISK_BLOCK);
    run(last_first);
    for (int i = 0; i < 5; i++)
        assert_int_equal(disk_request_wait(&queue, r[i], &e), i == 2 ? TESS_E_DATA : TESS_OK);
}

static void test_disk_ring__what_is_written_and_read_is_summed(void **state) {
    (void)state;
    static uint32_t of[4];
    sums = (disk_sums){ of, 4 };
    memset(of, 0, sizeof of);
    memset(memory, 7, 2 * DISK_ALIGN);
    tess_request *r = add(TESS_STORE_WRITE, DISK_ALIGN, DISK_ALIGN, memory);
    run(all_done);
    assert_int_equal(disk_request_wait(&queue, r, &e), TESS_OK);
    assert_true(of[0] == 0 && of[1] != 0);
    memory[100] = 8; /* as if it were what came back */
    r = add(TESS_STORE_READ, DISK_ALIGN, DISK_ALIGN, memory);
    run(all_done);
    assert_int_equal(disk_request_wait(&queue, r, &e), TESS_E_DATA);
    sums = (disk_sums){ NULL, 0 };
}

static void test_disk_ring__registered_memory_is_named_by_its_piece(void **state) {
    (void)state;
    enum { HALF_GIB = 1 << 29 };
    char *const known = (char *)((uintptr_t)1 << 40); /* nobody touches it */
    assert_int_equal(disk_ring_register(ring, known, (uint64_t)2 * HALF_GIB + 4096), 0);
    assert_int_equal(uring.n_pieces, 3);
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(uring.piece[i].iov_base, known + (uint64_t)i * HALF_GIB);
        assert_int_equal(uring.piece[i].iov_len, i < 2 ? HALF_GIB : 4096);
    }
    static const struct {
        int64_t at;
        uint64_t bytes;
        int piece;
    } cases[] = { { 0, 1, 0 },
                  { HALF_GIB - 4096, 4096, 0 },
                  { HALF_GIB - 4096, 4097, -1 },
                  { HALF_GIB, 4096, 1 },
                  { (int64_t)2 * HALF_GIB, 4096, 2 },
                  { (int64_t)2 * HALF_GIB, 4097, -1 },
                  { (int64_t)2 * HALF_GIB + 4096, 1, -1 },
                  { -1, 1, -1 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(piece_of(ring, known + cases[i].at, cases[i].bytes), cases[i].piece);
    for (int write = 0; write < 2; write++) {
        tess_request *r = add(write ? TESS_STORE_WRITE : TESS_STORE_READ, 0, 4096, known + HALF_GIB);
        run(all_done);
        assert_int_equal(disk_request_wait(&queue, r, &e), TESS_OK);
        const struct io_uring_sqe *a = &uring.asked[uring.n - 1];
        assert_true(a->opcode == (write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED) && a->buf_index == 1 &&
                    a->flags == IOSQE_FIXED_FILE);
    }
    for (int write = 0; write < 2; write++) { /* and where it goes on */
        ask_anew();
        tess_request *r = add(write ? TESS_STORE_WRITE : TESS_STORE_READ, 8192, 16384, known);
        part = 0;
        run(come_in_parts);
        assert_int_equal(disk_request_wait(&queue, r, &e), TESS_OK);
        assert_true(uring.asked[4].off == 8192 + 12288 && uring.asked[4].len == 4096 && uring.asked[4].buf_index == 0);
    }
    disk_ring_deregister(ring);
    expect_said_among("unregister; ");
    assert_int_equal(piece_of(ring, known, 1), -1);
    disk_ring_deregister(NULL);
}

static void test_disk_ring__memory_that_cannot_be_registered_stays_unknown(void **state) {
    (void)state;
    assert_int_equal(disk_ring_register(ring, memory, 0), EOVERFLOW);
    assert_int_equal(disk_ring_register(ring, memory, (UINT64_C(1024) << 29) + 1), EOVERFLOW);
    assert_int_equal(disk_ring_register(ring, memory, UINT64_C(1024) << 29), 0);
    disk_ring_deregister(ring);
    uring.no_memory = 1;
    assert_int_equal(disk_ring_register(ring, memory, 4096), ENOMEM);
    uring.buffers = -ENOMEM;
    assert_int_equal(disk_ring_register(ring, memory, 4096), ENOMEM);
    assert_int_equal(piece_of(ring, memory, 1), -1);
}

static void test_disk_ring__a_ring_that_cannot_be_made_says_why(void **state) {
    (void)state;
    disk_ring *none = NULL;
    uring.no_memory = 1;
    assert_int_equal(disk_ring_open(&none, &queue, 3), ENOMEM);
    uring.init = -EPERM;
    assert_int_equal(disk_ring_open(&none, &queue, 3), EPERM);
    assert_null(none);
    uring.init = 0, uring.files = -EINVAL; /* then the file is named by its own number */
    said_so_far[0] = 0;
    disk_ring *kept = ring;
    assert_int_equal(disk_ring_open(&ring, &queue, 9), 0);
    tess_request *r = add(TESS_STORE_READ, 0, 4096, memory);
    run(all_done);
    assert_int_equal(disk_request_wait(&queue, r, &e), TESS_OK);
    assert_true(uring.asked[0].fd == FD && uring.asked[0].flags == 0);
    disk_ring_close(ring);
    expect_said("ring of 9; submit; exit; ");
    disk_ring_close(NULL);
    expect_said("");
    ring = kept;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_disk_ring__blocks_go_as_they_are_needed_and_no_more_than_are_under_way,
                                        begin_test, end_test),
        cmocka_unit_test_setup_teardown(test_disk_ring__a_block_goes_on_where_it_came_to, begin_test, end_test),
        cmocka_unit_test_setup_teardown(test_disk_ring__a_failure_names_the_place_and_ends_its_request_alone,
                                        begin_test, end_test),
        cmocka_unit_test_setup_teardown(test_disk_ring__slots_are_used_again_in_whatever_order_results_come, begin_test,
                                        end_test),
        cmocka_unit_test_setup_teardown(test_disk_ring__what_is_written_and_read_is_summed, begin_test, end_test),
        cmocka_unit_test_setup_teardown(test_disk_ring__registered_memory_is_named_by_its_piece, begin_test, end_test),
        cmocka_unit_test_setup_teardown(test_disk_ring__memory_that_cannot_be_registered_stays_unknown, begin_test,
                                        end_test),
        cmocka_unit_test_setup_teardown(test_disk_ring__a_ring_that_cannot_be_made_says_why, begin_test, end_test),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
