/* SPDX-License-Identifier: BSD-3-Clause */
/* Who waits for the thread that writes a checkpoint: a load, the next save, a write of the program's, the end. The disk
 * is held back meanwhile, so that the thread cannot have ended by itself. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tessera/tessera.h>

#include "core/runtime/side_thread.h"

/* ---- a disk that can be held back ---------------------------------------------------------------------- */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static int held;
static int n_beside, n_reached; /* calls on a thread beside the program's, and those that a signal could reach */

/* Takes the place of the C library's in this program. */
int fsync(int file) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    pthread_mutex_lock(&lock);
    n_beside += gettid() != getpid();
    n_reached += gettid() != getpid() && !sigismember(&blocked, SIGUSR1);
    while (held)
        pthread_cond_wait(&let_go, &lock);
    pthread_mutex_unlock(&lock);
    return (int)syscall(SYS_fsync, file);
}

static void hold(int on) {
    pthread_mutex_lock(&lock);
    held = on;
    pthread_cond_broadcast(&let_go);
    pthread_mutex_unlock(&lock);
}

static void *let_go_soon(void *unused) {
    const struct timespec a_while = { .tv_nsec = 100 * 1000 * 1000 };
    nanosleep(&a_while, NULL);
    hold(0);
    return unused;
}

/* ---- one parameter, all of whose elements are alike ----------------------------------------------------- */
enum { ELEMS = 4096 };
typedef struct {
    char folder[40];
    tess *t;
    tess_scope scope;
    tess_checkpoint_options to;
} run;

static tess_status set_all(void *user, const tess_range *r, void *data) {
    for (uint64_t i = 0; i < r->elems; i++)
        ((float *)data)[i] = *(const float *)user;
    return TESS_OK;
}

static tess_status take_first(void *user, const tess_range *r, void *data) {
    (void)r;
    *(float *)user = *(const float *)data;
    return TESS_OK;
}

static float value_of(tess *t) {
    float got = 0;
    assert_int_equal(tess_each_owned(t, TESS_OF_PARAM, take_first, &got), TESS_OK);
    return got;
}

static tess_status update_all(void *user, const tess_range *r, void *param, const float *grad, float *const *state) {
    (void)grad, (void)state;
    return set_all(user, r, param);
}

/* One step, after which all elements are `value`. */
static void step_to(run *r, float value) {
    float *param, *grad;
    assert_int_equal(tess_pass(r->t, TESS_PASS_TRAIN), TESS_OK);
    assert_int_equal(tess_forward_begin(r->t, r->scope, &param, 1), TESS_OK);
    assert_int_equal(tess_forward_end(r->t, r->scope), TESS_OK);
    assert_int_equal(tess_backward_begin(r->t, r->scope, &param, &grad, 1), TESS_OK);
    assert_int_equal(tess_backward_end(r->t, r->scope), TESS_OK);
    assert_int_equal(tess_update(r->t, update_all, &value), TESS_OK);
}

static void open_run(run *r, uint32_t flags) {
    static const int64_t shape[] = { ELEMS };
    tess_options o = { .struct_size = sizeof o, .optimizer = "own", .checkpoint = 1 };
    tess_param_options p = { .struct_size = sizeof p, .dtype = TESS_F32, .ndim = 1, .shape = shape, .flags = flags };
    float first = 0;
    *r = (run){ .folder = "/tmp/tessera-side-thread-XXXXXX", .to = { .struct_size = sizeof r->to } };
    assert_non_null(mkdtemp(r->folder));
    r->to.dir = r->folder;
    assert_int_equal(tess_open(&o, &r->t), TESS_OK);
    assert_int_equal(tess_scope_add(r->t, "a", 0, &r->scope), TESS_OK);
    p.name = "a.weight";
    assert_int_equal(tess_param_add(r->t, &p, NULL), TESS_OK);
    assert_int_equal(tess_shard(r->t, set_all, &first), TESS_OK);
}

static void remove_folder(const run *r) {
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", r->folder);
    assert_int_equal(system(command), 0);
}

static void close_run(run *r) {
    assert_int_equal(tess_close(r->t), TESS_OK);
    remove_folder(r);
}

/* Begins a save that cannot end. */
static void save_held(run *r) {
    hold(1);
    assert_int_equal(tess_checkpoint_save(r->t, &r->to), TESS_OK);
}

static void let_go_later(pthread_t *helper) {
    assert_int_equal(pthread_create(helper, NULL, let_go_soon, NULL), 0);
}

static tess_status add_step(void *user, const char *path, const tess_checkpoint_info *info) {
    (void)path;
    *(uint64_t *)user = *(uint64_t *)user * 10 + info->step; /* steps 1 and 2: 12 */
    return TESS_OK;
}

static uint64_t steps_in(const run *r) {
    uint64_t steps = 0;
    assert_int_equal(tess_checkpoint_list(r->folder, add_step, &steps), TESS_OK);
    return steps;
}

/* ---- who waits ------------------------------------------------------------------------------------------ */
static void test_side_thread__a_load_waits_for_the_save_before(void **state) {
    (void)state;
    pthread_t helper;
    run r;
    open_run(&r, 0);
    tess_checkpoint_load_options from = { .struct_size = sizeof from, .path = r.folder };
    tess_checkpoint_info info = { .struct_size = sizeof info };
    step_to(&r, 1);
    save_held(&r);
    step_to(&r, 2); /* what is written is a copy of what was */
    let_go_later(&helper);
    assert_int_equal(tess_checkpoint_load(r.t, &from, &info), TESS_OK);
    assert_int_equal(pthread_join(helper, NULL), 0);
    assert_int_equal(info.step, 1);
    assert_true(value_of(r.t) == 1);
    close_run(&r);
}

static void test_side_thread__a_second_save_waits_for_the_first(void **state) {
    (void)state;
    pthread_t helper;
    run r;
    open_run(&r, 0);
    step_to(&r, 1);
    save_held(&r);
    step_to(&r, 2);
    let_go_later(&helper);
    assert_int_equal(tess_checkpoint_save(r.t, &r.to), TESS_OK);
    uint64_t steps = steps_in(&r);
    assert_true(steps == 1 || steps == 12); /* the first stands when the second begins */
    assert_int_equal(pthread_join(helper, NULL), 0);
    assert_int_equal(tess_checkpoint_wait(r.t, NULL), TESS_OK);
    assert_int_equal(steps_in(&r), 12);
    for (int i = 1; i <= 2; i++) {
        char path[64];
        tess_checkpoint_load_options from = { .struct_size = sizeof from, .path = path };
        snprintf(path, sizeof path, "%s/step-00000%d", r.folder, i);
        assert_int_equal(tess_checkpoint_load(r.t, &from, NULL), TESS_OK);
        assert_true(value_of(r.t) == (float)i);
    }
    close_run(&r);
}

static void test_side_thread__a_save_that_may_be_skipped_is_skipped_only_meanwhile(void **state) {
    (void)state;
    tess_checkpoint_info info = { .struct_size = sizeof info };
    run r;
    open_run(&r, 0);
    r.to.flags = TESS_CHECKPOINT_SKIP;
    step_to(&r, 1);
    save_held(&r);
    step_to(&r, 2);
    assert_int_equal(tess_checkpoint_save(r.t, &r.to), TESS_OK); /* comes back while the first is held */
    hold(0);
    assert_int_equal(tess_checkpoint_wait(r.t, &info), TESS_OK);
    assert_int_equal(info.step, 1);
    assert_int_equal(steps_in(&r), 1);
    assert_int_equal(tess_checkpoint_save(r.t, &r.to), TESS_OK);
    assert_int_equal(tess_checkpoint_wait(r.t, &info), TESS_OK);
    assert_int_equal(info.step, 2);
    assert_int_equal(steps_in(&r), 12);
    close_run(&r);
}

static void test_side_thread__the_end_waits(void **state) {
    (void)state;
    pthread_t helper;
    run r;
    open_run(&r, 0);
    step_to(&r, 1);
    save_held(&r);
    let_go_later(&helper);
    assert_int_equal(tess_close(r.t), TESS_OK);
    assert_int_equal(steps_in(&r), 1);
    assert_int_equal(pthread_join(helper, NULL), 0);
    remove_folder(&r);
}

/* Frozen parameters are written from where they lie. */
static void test_side_thread__a_write_to_what_is_read_in_place_waits(void **state) {
    (void)state;
    float later = 2;
    pthread_t helper;
    run r;
    open_run(&r, TESS_FROZEN);
    assert_int_equal(tess_steps_set(r.t, 1), TESS_OK);
    save_held(&r);
    let_go_later(&helper);
    assert_int_equal(tess_each_owned(r.t, TESS_OF_PARAM | TESS_OF_WRITE, set_all, &later), TESS_OK);
    assert_int_equal(steps_in(&r), 1);
    assert_int_equal(pthread_join(helper, NULL), 0);
    close_run(&r);
}

/* What the parent's threads hold is lost in a child, which is no leak. LeakSanitizer asks by this name. */
static int is_forked;
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) {
    return is_forked;
}

/* The thread sanitizer has no threads in a child of fork. */
static void skip_after_fork(void) {
#if defined(__SANITIZE_THREAD__)
    skip();
#endif
}

/* A program that returns from main, or calls exit, without tess_close. */
static void test_side_thread__the_end_of_the_program_waits(void **state) {
    (void)state;
    pthread_t helper;
    int status = -1;
    static run r; /* so that the child has lost nothing when it ends */
    skip_after_fork();
    open_run(&r, 0);
    step_to(&r, 1);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        is_forked = 1;
        save_held(&r);
        let_go_later(&helper);
        exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(steps_in(&r), 1);
    close_run(&r);
}

static atomic_int ended, left_alone;

static void end_after(void *ms) {
    nanosleep(&(struct timespec){ .tv_nsec = 1000000L * *(int *)ms }, NULL);
    atomic_fetch_add(&ended, 1);
}

static void note_left(void *ms) {
    (void)ms;
    if (atomic_fetch_add(&left_alone, 1) == 2)
        _exit(atomic_load(&ended) == 3 ? 7 : 8);
}

/* Of several engines, too, whichever began or ends first; who is joined is not waited for. */
static void test_side_thread__the_end_of_the_program_waits_for_all(void **state) {
    (void)state;
    static int ms[] = { 60, 1, 30, 1 };
    static tess__side_thread threads[4];
    int status = -1;
    skip_after_fork();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        is_forked = 1;
        for (int i = 0; i < 4; i++)
            if (tess__side_thread_start(&threads[i], end_after, note_left, &ms[i]))
                _exit(9);
        tess__side_thread_join(&threads[1]);
        atomic_fetch_sub(&ended, 1);
        exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
}

/* It has no thread to wait for. */
static void test_side_thread__a_child_of_fork_ends_at_once(void **state) {
    (void)state;
    int status = -1;
    static run r; /* so that the child has lost nothing when it ends */
    skip_after_fork();
    open_run(&r, 0);
    step_to(&r, 1);
    save_held(&r);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        is_forked = 1;
        alarm(10);
        exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    hold(0);
    close_run(&r);
}

/* All saves of the tests before were on it. */
static void test_side_thread__signals_do_not_reach_it(void **state) {
    (void)state;
    assert_true(n_beside > 0);
    assert_int_equal(n_reached, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_side_thread__a_load_waits_for_the_save_before),
        cmocka_unit_test(test_side_thread__a_second_save_waits_for_the_first),
        cmocka_unit_test(test_side_thread__a_save_that_may_be_skipped_is_skipped_only_meanwhile),
        cmocka_unit_test(test_side_thread__the_end_waits),
        cmocka_unit_test(test_side_thread__the_end_of_the_program_waits),
        cmocka_unit_test(test_side_thread__the_end_of_the_program_waits_for_all),
        cmocka_unit_test(test_side_thread__a_child_of_fork_ends_at_once),
        cmocka_unit_test(test_side_thread__a_write_to_what_is_read_in_place_waits),
        cmocka_unit_test(test_side_thread__signals_do_not_reach_it),
    };
    return cmocka_run_group_tests_name("side_thread", tests, NULL, NULL);
}
