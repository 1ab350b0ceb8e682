/* SPDX-License-Identifier: BSD-3-Clause */
/* The memory that ranks of comm-shm share, in one process: where pieces begin and what is refused, what of a piece is
 * found, what another rank may map of it, tables, and signs of life. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>

#include "plugins/comm-shm/group.c"

static struct shm_group *made(int rank, int size) {
    struct shm_group *g = NULL;
    assert_int_equal(shm_group_create(rank, size, &g, NULL), TESS_OK);
    assert_true(g->rank == rank && g->size == size);
    return g;
}

static void *piece(struct shm_group *g, uint64_t bytes, uint64_t align) {
    void *at = NULL;
    tess_error e = { .struct_size = sizeof e };
    if (shm_arena_alloc(g, bytes, align, &at, &e))
        fail_msg("%s", e.message);
    return at;
}

static off_t size_of(int fd) {
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return st.st_size;
}

static void test_shm_group__pieces_begin_on_pages_and_large_ones_on_huge_pages(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes, align, offset, whole, address; /* address: what it is a multiple of */
    } cases[] = { { 1, 1, 4096, 4096, 4096 },
                  { 4096, 64, 8192, 4096, 4096 },
                  { 4097, 0, 12288, 8192, 4096 },
                  { 10, 16384, 32768, 4096, 16384 },
                  { HUGE_PAGE - 4096, 1, 36864, HUGE_PAGE - 4096, 4096 },
                  { HUGE_PAGE, 1, 2 * HUGE_PAGE, HUGE_PAGE, HUGE_PAGE },
                  { HUGE_PAGE - 1, 1, 3 * HUGE_PAGE, HUGE_PAGE, HUGE_PAGE },
                  { 1, 1, 4 * HUGE_PAGE, 4096, 4096 },
                  { HUGE_PAGE + 1, 4 * HUGE_PAGE, 8 * HUGE_PAGE, HUGE_PAGE + 4096, 4 * HUGE_PAGE } };
    struct shm_group *g = made(0, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct shm_region r = { 0, 0 };
        uint64_t offset = 0;
        char *at = piece(g, cases[i].bytes, cases[i].align);
        assert_int_equal((uintptr_t)at % cases[i].address, 0);
        assert_true(shm_arena_find(g, at, 1, &r, &offset));
        assert_int_equal(r.offset, cases[i].offset);
        assert_int_equal(r.bytes, cases[i].whole);
        assert_int_equal(offset, r.offset);
        assert_int_equal(size_of(g->ranks[0].arena_fd), r.offset + r.bytes);
        at[0] = at[cases[i].whole - 1] = 7; /* all of it is there */
    }
    shm_group_drop(g);
}

static void test_shm_group__what_is_no_piece_is_refused(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes, align;
    } bad[] = { { 0, 1 }, { (UINT64_C(1) << 46) + 1, 1 }, { 1, 3 }, { 1, 6 }, { 1, UINT64_C(1) << 31 } };
    struct shm_group *g = made(0, 1);
    void *at = NULL;
    tess_error e = { .struct_size = sizeof e };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char want[128];
        assert_int_equal(shm_arena_alloc(g, bad[i].bytes, bad[i].align, &at, &e), TESS_E_INVALID);
        snprintf(want, sizeof want, "shm: %llu bytes with alignment %llu asked for", (unsigned long long)bad[i].bytes,
                 (unsigned long long)bad[i].align);
        assert_string_equal(e.message, want);
        assert_null(at);
    }
    for (int i = 0; i < SHM_OWN_REGIONS; i++)
        (void)piece(g, 1, 1);
    assert_int_equal(shm_arena_alloc(g, 1, 1, &at, &e), TESS_E_NOMEM);
    assert_string_equal(e.message, "shm: more than 256 pieces of memory");
    assert_null(at);
    void *first = g->own[7].at;
    shm_arena_free(g, first);
    assert_null(g->own[7].at);
    (void)piece(g, 1, 1); /* there is room for one again, behind the others: no offset is used twice */
    assert_int_equal(g->own[7].region.offset, 4096u * (SHM_OWN_REGIONS + 1));
    shm_group_drop(g);
}

static void test_shm_group__a_file_ends_where_the_limit_says(void **state) {
    (void)state;
    struct rlimit before, less;
    struct shm_group *g = made(0, 1);
    tess_error e = { .struct_size = sizeof e };
    void *at = NULL;
    uint64_t offset = 0;
    getrlimit(RLIMIT_FSIZE, &before);
    less = before;
    less.rlim_cur = 3 * 4096;
    setrlimit(RLIMIT_FSIZE, &less);
    tess_status fits = shm_arena_alloc(g, 2 * 4096, 1, &at, &e), more = shm_arena_alloc(g, 1, 1, &at, &e);
    tess_status table = shm_table_reserve(g, 3 * 4096 + 1, &offset, NULL);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(fits, TESS_OK);
    assert_int_equal(more, TESS_E_NOMEM);
    assert_string_equal(e.message, "shm: 16384 bytes of shared memory, ulimit -f allows 12288");
    assert_int_equal(table, TESS_E_NOMEM);
    assert_int_equal(g->table_end, 0);
    shm_group_drop(g);
}

/* Any part of a piece is found, and nothing that reaches beyond it. */
static void test_shm_group__parts_of_pieces_are_found(void **state) {
    (void)state;
    struct shm_group *g = made(0, 1);
    char *one = piece(g, 8192, 1), *two = piece(g, 4096, 1);
    struct shm_region r = { 0, 0 };
    uint64_t offset = 0;
    for (uint64_t from = 0; from <= 8192; from += 1024)
        for (uint64_t bytes = 0; bytes <= 9216; bytes += 1024) {
            const int there = from + bytes <= 8192;
            const int found = shm_arena_find(g, one + from, bytes, &r, &offset);
            if (!there)
                assert_true(!found || one + from == two);
            else {
                assert_true(found);
                assert_true(one + from == two || offset == 4096 + from);
            }
        }
    assert_true(shm_arena_find(g, two + 4095, 1, &r, &offset));
    assert_int_equal(offset, 4096 + 8192 + 4095);
    assert_false(shm_arena_find(g, two + 4095, 2, &r, &offset));
    assert_false(shm_arena_find(g, &offset, 1, &r, &offset));
    shm_arena_free(g, NULL);
    shm_arena_free(g, two + 1); /* none begins there */
    assert_true(shm_arena_find(g, two, 1, &r, &offset));
    shm_arena_free(g, two);
    assert_false(shm_arena_find(g, two, 1, &r, &offset));
    assert_true(shm_arena_find(g, one, 8192, &r, &offset));
    shm_group_drop(g);
}

/* Two ranks of one process, whose files are the same descriptors. */
static struct shm_group *peer_of(struct shm_group *g) {
    struct shm_group *p = made(1 - g->rank, 2);
    p->ranks[g->rank].arena_fd = dup(g->ranks[g->rank].arena_fd);
    p->ranks[g->rank].table_fd = dup(g->ranks[g->rank].table_fd);
    return p;
}

static void test_shm_group__what_another_rank_says_is_checked_against_its_file(void **state) {
    (void)state;
    struct shm_group *g = made(0, 2), *p = peer_of(g);
    char *at = piece(g, 8192, 1);
    struct shm_region r = { 0, 0 };
    uint64_t offset = 0;
    for (int i = 0; i < 8192; i++)
        at[i] = (char)(i * 7);
    assert_true(shm_arena_find(g, at, 8192, &r, &offset));
    const char *seen = shm_arena_at(p, 0, &r, r.offset, r.bytes);
    assert_non_null(seen);
    assert_memory_equal(seen, at, 8192);
    assert_ptr_equal(shm_arena_at(p, 0, &r, r.offset + 100, 8092), seen + 100); /* mapped once */
    assert_int_equal(p->ranks[0].n_regions, 1);
    assert_null(shm_arena_at(p, 0, &r, r.offset + 100, 8093));
    assert_null(shm_arena_at(p, 0, &r, r.offset - 1, 8));
    assert_null(shm_arena_at(p, 0, &r, r.offset, 8193));
    const struct shm_region beyond = { r.offset, r.bytes + 1 }, far = { UINT64_MAX - 4095, 4096 },
                            behind = { r.offset + 8192, 1 };
    assert_null(shm_arena_at(p, 0, &beyond, r.offset, 1));
    assert_null(shm_arena_at(p, 0, &far, far.offset, 1));
    assert_null(shm_arena_at(p, 0, &behind, behind.offset, 1));
    assert_int_equal(p->ranks[0].n_regions, 1);
    for (uint64_t i = 0; i < 20; i++) { /* more than there is room for at first */
        char *more = piece(g, 4096, 1);
        more[5] = (char)i;
        assert_true(shm_arena_find(g, more, 1, &r, &offset));
        const char *there = shm_arena_at(p, 0, &r, offset + 5, 1);
        assert_true(there && *there == (char)i);
        assert_int_equal(p->ranks[0].n_regions, 2 + i);
    }
    shm_arena_free(g, at); /* what is freed is zero for whoever has it mapped still */
    assert_int_equal(seen[1], 0);
    shm_group_drop(p);
    shm_group_drop(g);
}

static void test_shm_group__tables_lie_behind_each_other_and_are_zero(void **state) {
    (void)state;
    struct shm_group *g = made(0, 2), *p = peer_of(g);
    uint64_t first = 9, second = 9;
    char *own = NULL, *theirs = NULL;
    assert_int_equal(shm_table_reserve(g, 4096, &first, NULL), TESS_OK);
    assert_int_equal(shm_table_reserve(g, 8192, &second, NULL), TESS_OK);
    assert_true(first == 0 && second == 4096);
    assert_int_equal(size_of(g->ranks[0].table_fd), 12288);
    assert_int_equal(shm_table_map(g, 0, second, 8192, (void **)&own, NULL), TESS_OK);
    assert_int_equal(shm_table_map(p, 0, second, 8192, (void **)&theirs, NULL), TESS_OK);
    for (int i = 0; i < 8192; i++)
        assert_int_equal(theirs[i], 0);
    own[8191] = 5;
    assert_int_equal(theirs[8191], 5);
    tess_error e = { .struct_size = sizeof e };
    void *none = NULL;
    assert_int_equal(shm_table_map(p, 0, 1, 4096, &none, &e), TESS_E_NOMEM); /* at no page */
    assert_string_equal(e.message, "shm: cannot map 4096 bytes of a table: Invalid argument");
    assert_null(none);
    munmap(own, 8192);
    munmap(theirs, 8192);
    shm_group_drop(p);
    shm_group_drop(g);
}

/* Nobody may shrink what another reads; a process shows that it lives until it ends, however it ends. */
static void test_shm_group__files_are_sealed_and_show_a_life(void **state) {
    (void)state;
    struct shm_group *g = made(0, 2), *p = peer_of(g);
    (void)piece(g, 4096, 1);
    assert_int_equal(ftruncate(g->ranks[0].arena_fd, 4096), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(shm_table_reserve(g, 4096, &(uint64_t){ 0 }, NULL), TESS_OK);
    assert_int_equal(ftruncate(g->ranks[0].table_fd, 0), -1);
    int at[2];
    char word = 0;
    assert_int_equal(pipe(at), 0);
    assert_false(shm_group_alive(p, 0));
    pid_t child = fork();
    if (!child) {
        const tess_status s = shm_group_show_life(g, NULL);
        (void)!write(at[1], &(char){ s ? 'n' : 'y' }, 1);
        pause();
        _exit(0);
    }
    assert_int_equal(read(at[0], &word, 1), 1);
    assert_int_equal(word, 'y');
    assert_true(shm_group_alive(p, 0));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_false(shm_group_alive(p, 0));
    close(at[0]);
    close(at[1]);
    assert_true(shm_this_process() != 0 && shm_this_process() == shm_this_process());
    shm_group_drop(p);
    shm_group_drop(g);
}

static int open_fds(void) {
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void test_shm_group__the_last_to_drop_it_closes_all(void **state) {
    (void)state;
    const int before = open_fds();
    struct shm_group *g = made(1, 3);
    assert_int_equal(open_fds(), before + 2);
    assert_int_equal(g->ranks[0].arena_fd, -1);
    assert_true(fcntl(g->ranks[1].arena_fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(g->ranks[1].table_fd, F_GETFD) & FD_CLOEXEC);
    shm_group_keep(g);
    shm_group_drop(g);
    assert_int_equal(open_fds(), before + 2);
    (void)piece(g, 4096, 1);
    shm_group_drop(g);
    assert_int_equal(open_fds(), before);
    shm_group_drop(NULL);
}

int main(void) {
    signal(SIGXFSZ, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shm_group__pieces_begin_on_pages_and_large_ones_on_huge_pages),
        cmocka_unit_test(test_shm_group__what_is_no_piece_is_refused),
        cmocka_unit_test(test_shm_group__a_file_ends_where_the_limit_says),
        cmocka_unit_test(test_shm_group__parts_of_pieces_are_found),
        cmocka_unit_test(test_shm_group__what_another_rank_says_is_checked_against_its_file),
        cmocka_unit_test(test_shm_group__tables_lie_behind_each_other_and_are_zero),
        cmocka_unit_test(test_shm_group__files_are_sealed_and_show_a_life),
        cmocka_unit_test(test_shm_group__the_last_to_drop_it_closes_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
