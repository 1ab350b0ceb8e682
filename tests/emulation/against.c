/* SPDX-License-Identifier: BSD-3-Clause */
#include "against.h"

#include "kit/formulas.h"
#include "tests/doubles/races.h"
#include "tools/models/cuda/half.h"

/* The doubles' kernels tell the race detector what they touch, and may be held up. Nobody asks for either here. */
void double__describes_kernel(const char *name, double_describe_fn *fn) {
    (void)name, (void)fn;
}
void double__reads(double_access *access, const char *name, const void *at, uint64_t bytes) {
    (void)access, (void)name, (void)at, (void)bytes;
}
void double__writes(double_access *access, const char *name, const void *at, uint64_t bytes) {
    (void)access, (void)name, (void)at, (void)bytes;
}
void double__hold_up(const char *name, uint64_t *n, const char *overtaken) {
    (void)name, (void)n, (void)overtaken;
}

enum { ARRAYS = 64, LAUNCHES = 4, ARGS = 4096, KERNELS = 256 };
typedef struct {
    char *at, *memory, *before, *doubled;
    size_t bytes;
} shared_array;
static shared_array arrays[ARRAYS];
static int n_arrays, n_launches;
static struct {
    const emulated_kernel *emulated;
    const double_kernel *doubled;
    _Alignas(16) char args[ARGS];
    unsigned blocks, threads;
} launches[LAUNCHES];

/* ---- arrays --------------------------------------------------------------------------------------- */
void *array_at(size_t bytes, size_t past) {
    shared_array *a = &arrays[n_arrays++];
    assert_in_range(n_arrays, 1, ARRAYS);
    assert_int_equal(posix_memalign((void **)&a->memory, 64, bytes + past + !(bytes + past)), 0);
    a->at = a->memory + past, a->bytes = bytes;
    memset(a->at, 0xff, bytes);
    return a->at;
}
void *array(size_t bytes) {
    return array_at(bytes, 0);
}

float random_number(void) {
    static uint32_t state = 7;
    state = state * 1664525u + 1013904223u;
    return (float)((int32_t)(state >> 9) % 2001 - 1000) / 1000.0f;
}

void *factors(uint64_t n, int half, float size) {
    void *x = array(n * (half ? sizeof(uint16_t) : sizeof(float)));
    for (uint64_t i = 0; i < n; i++)
        if (half)
            ((uint16_t *)x)[i] = ops_half_of(random_number() * size);
        else
            ((float *)x)[i] = random_number() * size;
    return x;
}
float *floats(uint64_t n, float size) {
    return factors(n, 0, size);
}
uint64_t over(uint64_t n, uint64_t by) {
    return (n + by - 1) / by;
}

void forget_arrays(void) {
    for (int i = 0; i < n_arrays; i++) {
        free(arrays[i].memory);
        free(arrays[i].before);
        free(arrays[i].doubled);
    }
    memset(arrays, 0, sizeof arrays);
    n_arrays = n_launches = 0;
}

static char *copy_of(const shared_array *a) {
    char *copy = malloc(a->bytes + 1);
    assert_non_null(copy);
    return memcpy(copy, a->at, a->bytes);
}

/* ---- launches ------------------------------------------------------------------------------------- */
static const emulated_kernel *emulated_named(const char *name) {
    const emulated_kernel *const lists[] = { emulated_models, emulated_device, emulated_nccl, emulated_lion };
    for (int i = 0; i < 4; i++)
        for (const emulated_kernel *k = lists[i]; k->name; k++)
            if (!strcmp(k->name, name))
                return k;
    return NULL;
}
static const double_kernel *double_named(const char *name) {
    const double_kernel *const lists[] = { double__model_kernels(), double__device_kernels(), double__nccl_kernels(),
                                           double__lion_kernels() };
    for (int i = 0; i < 4; i++)
        for (const double_kernel *k = lists[i]; k->name; k++)
            if (!strcmp(k->name, name))
                return k;
    return NULL;
}

static const emulated_kernel *launched[KERNELS];
/* Its place in the list, or the first free one. */
static const emulated_kernel **launched_place(const emulated_kernel *kernel) {
    int i = 0;
    while (launched[i] && launched[i] != kernel)
        i++;
    assert_in_range(i, 0, KERNELS - 2);
    return &launched[i];
}

void expect_all_launched(const emulated_kernel *list, const char *but) {
    for (const emulated_kernel *k = list; k->name; k++)
        if (!*launched_place(k) && !(but && !strncmp(k->name, but, strlen(but))))
            fail_msg("%s has no case", k->name);
}

void launch(const char *name, const void *args, size_t args_bytes, uint64_t blocks, unsigned threads) {
    const emulated_kernel *emulated = emulated_named(name);
    const double_kernel *doubled = double_named(name);
    assert_true(emulated && doubled && n_launches < LAUNCHES && args_bytes <= ARGS);
    assert_int_equal(args_bytes, emulated->args_bytes);
    assert_int_equal(args_bytes, doubled->args_bytes);
    launches[n_launches].emulated = emulated, launches[n_launches].doubled = doubled;
    launches[n_launches].blocks = (unsigned)blocks, launches[n_launches].threads = threads;
    memcpy(launches[n_launches++].args, args, args_bytes);
    *launched_place(emulated) = emulated;
}

static void run_doubles(void) {
    for (int i = 0; i < n_launches; i++) {
        const unsigned grid[3] = { launches[i].blocks, 1, 1 }, block[3] = { launches[i].threads, 1, 1 };
        launches[i].doubled->run(launches[i].args, grid, block);
    }
    for (int i = 0; i < n_arrays; i++)
        arrays[i].doubled = copy_of(&arrays[i]);
}

static void expect_in_order(const char *what, emulated_order order) {
    for (int i = 0; i < n_arrays; i++)
        memcpy(arrays[i].at, arrays[i].before, arrays[i].bytes);
    for (int i = 0; i < n_launches; i++)
        emulate(launches[i].emulated, launches[i].args, launches[i].blocks, launches[i].threads, order);
    for (int i = 0; i < n_arrays; i++)
        if (memcmp(arrays[i].at, arrays[i].doubled, arrays[i].bytes) != 0) {
            size_t k = 0;
            while (arrays[i].at[k] == arrays[i].doubled[k])
                k++;
            fail_msg(
                "%s of %s: array %d differs from the double's at byte %zu of %zu (%s first, copies %s, %u blocks at "
                "once, seed %u)",
                launches[0].emulated->name, what, i, k, arrays[i].bytes, order.last_first ? "last" : "first",
                order.late ? "late" : "at once", order.resident, order.seed);
        }
}

void expect_doubles_bits(const char *what, int with_copies) {
    for (int i = 0; i < n_arrays; i++)
        arrays[i].before = copy_of(&arrays[i]);
    run_doubles();
    for (int late = 0; late <= with_copies; late++)
        for (int last_first = 0; last_first < 2; last_first++)
            expect_in_order(what, (emulated_order){ last_first, late, 1, 0 });
}

void expect_any_schedule(const char *what, unsigned resident, unsigned seeds) {
    for (unsigned seed = 0; seed < seeds; seed++)
        expect_in_order(what, (emulated_order){ seed % 2 == 1, seed / 2 % 2 == 1, resident, seed });
}

void compare(const char *what) {
    expect_doubles_bits(what, 0);
    forget_arrays();
}
