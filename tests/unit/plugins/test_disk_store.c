/* SPDX-License-Identifier: BSD-3-Clause */
/* The stores of offload-disk over files that fail, come in parts or hold something else than was written. The linker
 * puts this file's functions between the plugin and the system. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugins/offload-disk/ring.h"
#include "tests/unit/plugins/failing.h"
#include "tests/unit/scratch_dir.h"

enum { PIECES = 600, BYTES = PIECES * DISK_ALIGN, POSTED = 3 };

/* ---- what lies between ---- */

static struct {
    int open, mkostemp, fallocate, fstat, fcntl; /* the system's error; 0: it works */
    int no_thread;                               /* the n-th from now does not start */
    int moves_error, moves_in;                   /* the n-th read or write from now fails; error 0: nothing is there */
    size_t most;                                 /* bytes that one read or write moves; 0: all */
    int interrupts;                              /* so many reads and writes are interrupted */
    off_t flip;                                  /* the byte at this place comes back another; -1: none */
    int opened, closed;
} sys;

int __real_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode) {
    int ours = (flags & O_TMPFILE) == O_TMPFILE;
    if (ours && sys.open) {
        errno = sys.open;
        return -1;
    }
    int fd = __real_open(path, flags, mode);
    sys.opened += ours && fd >= 0;
    return fd;
}
int __real_mkostemp(char *path, int flags);
int __wrap_mkostemp(char *path, int flags);
int __wrap_mkostemp(char *path, int flags) {
    if (sys.mkostemp) {
        errno = sys.mkostemp;
        return -1;
    }
    int fd = __real_mkostemp(path, flags);
    sys.opened += fd >= 0;
    return fd;
}
int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd) {
    sys.closed++;
    return __real_close(fd);
}
int __real_posix_fallocate(int fd, off_t at, off_t bytes);
int __wrap_posix_fallocate(int fd, off_t at, off_t bytes);
int __wrap_posix_fallocate(int fd, off_t at, off_t bytes) {
    assert_int_equal(at, 0);
    return sys.fallocate ? sys.fallocate : __real_posix_fallocate(fd, at, bytes);
}
int __real_fstat(int fd, struct stat *out);
int __wrap_fstat(int fd, struct stat *out);
int __wrap_fstat(int fd, struct stat *out) {
    errno = sys.fstat;
    return sys.fstat ? -1 : __real_fstat(fd, out);
}
int __real_fcntl(int fd, int what, int value);
int __wrap_fcntl(int fd, int what, int value);
int __wrap_fcntl(int fd, int what, int value) {
    if (what != F_SETFL)
        return __real_fcntl(fd, what, value);
    say("%s; ", value & O_DIRECT ? "direct" : "cached");
    errno = sys.fcntl;
    return sys.fcntl ? -1 : 0; /* whatever this folder knows */
}
static ssize_t moved(size_t *bytes) {
    if (sys.interrupts) {
        sys.interrupts--;
        errno = EINTR;
        return -1;
    }
    if (sys.moves_in && --sys.moves_in == 0) {
        errno = sys.moves_error ? sys.moves_error : EIO; /* which means nothing beside 0 bytes */
        return sys.moves_error ? -1 : 0;
    }
    *bytes = sys.most && *bytes > sys.most ? sys.most : *bytes;
    return 1;
}
ssize_t __real_pread(int fd, void *to, size_t bytes, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t bytes, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t bytes, off_t at) {
    ssize_t n = moved(&bytes);
    if (n <= 0)
        return n;
    n = __real_pread(fd, to, bytes, at);
    if (sys.flip >= at && sys.flip < at + n)
        ((char *)to)[sys.flip - at] ^= 1;
    return n;
}
ssize_t __real_pwrite(int fd, const void *from, size_t bytes, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t bytes, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t bytes, off_t at) {
    ssize_t n = moved(&bytes);
    return n <= 0 ? n : __real_pwrite(fd, from, bytes, at);
}
tess_status __real_kit_thread_start(pthread_t *, const tess_host *, const char *, const char *, void (*)(void *),
                                    void *, tess_error *);
tess_status __wrap_kit_thread_start(pthread_t *, const tess_host *, const char *, const char *, void (*)(void *),
                                    void *, tess_error *);
tess_status __wrap_kit_thread_start(pthread_t *out, const tess_host *host, const char *who, const char *name,
                                    void (*run)(void *), void *arg, tess_error *error) {
    if (sys.no_thread && --sys.no_thread == 0)
        return tess_plugin_fail(error, TESS_E_SYSTEM, "no thread");
    return __real_kit_thread_start(out, host, who, name, run, arg, error);
}

/* ---- a store ---- */

static scratch_dir dir;
static const tess_offload_ops *ops;
static void *plugin;
static tess_store *store;
static tess_store_config config;
static char *memory, *model, *buffer; /* the plugin's; what the store should hold; the caller's */
static uint64_t obtained;

static tess_host host = { .struct_size = sizeof host, .log = write_log, .option = no_option, .helper_cpus = "" };

static tess_status open_plugin(const char *args) {
    const void *table;
    static char text[400];
    snprintf(text, sizeof text, "%s", args);
    host.args = text;
    tess_status s = tess_plugin_open_v1(&host, TESS_KIND_OFFLOAD, &table, &plugin, no_error());
    if (!s)
        ops = table;
    return s;
}
static void reopen(const char *settings) {
    char args[300];
    ops->close(plugin);
    snprintf(args, sizeof args, "%s%s", dir.path, settings);
    if (open_plugin(args))
        fail_msg("%s", e.message);
}
static tess_status open_store(void) {
    store = NULL;
    tess_status s = ops->store_open(plugin, &config, &store, &obtained, &e);
    assert_int_equal(store == NULL, s != TESS_OK);
    return s;
}
static void close_store(void) {
    ops->store_close(store);
    assert_int_equal(sys.opened, sys.closed);
}

static int begin(void **state) {
    (void)state;
    if (scratch_dir_make(&dir))
        return -1;
    memset(&sys, 0, sizeof sys);
    sys.flip = -1;
    memory = aligned_alloc(DISK_ALIGN, DISK_BOUNCE + DISK_ALIGN);
    buffer = aligned_alloc(DISK_ALIGN, BYTES + DISK_ALIGN);
    model = __real_calloc(1, BYTES);
    config = (tess_store_config){ .struct_size = sizeof config,
                                  .most_posted = POSTED,
                                  .rank = 5,
                                  .nranks = 8,
                                  .align = DISK_ALIGN,
                                  .bytes = BYTES,
                                  .memory = memory,
                                  .memory_bytes = DISK_BOUNCE + PIECES * 4 };
    if (open_plugin(""))
        return -1;
    reopen(",io=threads,threads=2");
    said_so_far[0] = 0;
    return 0;
}
static int end(void **state) {
    (void)state;
    ops->close(plugin);
    int entries = scratch_entries(&dir);
    scratch_dir_remove(&dir);
    __real_free(memory);
    __real_free(buffer);
    __real_free(model);
    assert_int_equal(live_memory, 0);
    return entries; /* no file has a name */
}

static tess_request *post(uint32_t op, uint64_t at, uint64_t bytes, void *from) {
    const tess_store_io io = { .struct_size = sizeof io, .op = op, .at = at, .bytes = bytes, .memory = from };
    tess_request *r = NULL;
    if (ops->store_post(store, &io, &r, no_error()))
        fail_msg("%s", e.message);
    return r;
}
static tess_status move(uint32_t op, uint64_t at, uint64_t bytes, void *from) {
    return ops->store_wait(store, post(op, at, bytes, from), &e);
}
static void expect_model(void) {
    if (move(TESS_STORE_READ, 0, BYTES, buffer))
        fail_msg("%s", e.message);
    assert_memory_equal(buffer, model, BYTES);
}

static uint32_t drawn = 1;
static uint64_t draw(uint64_t below) {
    drawn = drawn * 1664525 + 1013904223;
    return (uint64_t)(drawn >> 8) % below;
}
/* Reads and writes of drawn places, some of them whole pieces; the model has the same. */
static void move_at_random(int n) {
    for (int i = 0; i < n; i++) {
        uint64_t at = draw(BYTES), bytes = draw(i % 3 ? 9000 : 500000), off = draw(100);
        if (i % 2)
            at = at / DISK_ALIGN * DISK_ALIGN, bytes = bytes / DISK_ALIGN * DISK_ALIGN, off = 0;
        bytes = bytes > BYTES - at ? BYTES - at : bytes;
        char *from = buffer + off;
        if (i % 4 < 2) {
            for (uint64_t k = 0; k < bytes; k += 7)
                from[k] = (char)draw(256);
            if (move(TESS_STORE_WRITE, at, bytes, from))
                fail_msg("%s", e.message);
            memcpy(model + at, from, bytes);
        } else {
            if (move(TESS_STORE_READ, at, bytes, from))
                fail_msg("%s", e.message);
            assert_memory_equal(from, model + at, bytes);
        }
    }
}

static void test_disk_store__holds_what_was_written_wherever_it_begins(void **state) {
    (void)state;
    for (int verify = 0; verify < 2; verify++) {
        reopen(verify ? ",io=threads,threads=2" : ",io=threads,verify=0,threads=1");
        memset(model, 0, BYTES);
        assert_int_equal(open_store(), TESS_OK);
        assert_true(obtained >= BYTES && scratch_entries(&dir) == 0);
        expect_model(); /* zeros at first */
        move_at_random(60);
        expect_model();
        close_store();
    }
}

static void test_disk_store__moves_that_come_in_parts_or_are_interrupted_go_on(void **state) {
    (void)state;
    reopen(",io=threads,threads=1"); /* which alone counts interrupts */
    assert_int_equal(open_store(), TESS_OK);
    sys.most = 3 * DISK_ALIGN;
    sys.interrupts = 20;
    move_at_random(24);
    sys.interrupts = 5;
    expect_model();
    assert_int_equal(sys.interrupts, 0);
    close_store();
}

static void test_disk_store__requests_are_done_together_and_waited_for_in_any_order(void **state) {
    (void)state;
    static const uint64_t sizes[] = { DISK_BLOCK + DISK_ALIGN, DISK_ALIGN, 2 * DISK_ALIGN };
    tess_request *r[POSTED];
    assert_int_equal(open_store(), TESS_OK);
    uint64_t at = 0;
    for (int i = 0; i < POSTED; i++) {
        for (uint64_t k = 0; k < sizes[i]; k++)
            buffer[at + k] = (char)(k / 64 + (uint64_t)i);
        r[i] = post(TESS_STORE_WRITE, at, sizes[i], buffer + at);
        at += sizes[i];
    }
    const tess_store_io more = { .struct_size = sizeof more, .op = TESS_STORE_READ, .bytes = 1, .memory = buffer };
    tess_request *none;
    EXPECT_FAILS(ops->store_post(store, &more, &none, &e), TESS_E_INVALID,
                 "more requests are under way than were announced");
    for (int i = POSTED; i-- > 0;)
        assert_int_equal(ops->store_wait(store, r[i], no_error()), TESS_OK);
    char *back = aligned_alloc(DISK_ALIGN, at);
    assert_int_equal(move(TESS_STORE_READ, 0, at, back), TESS_OK);
    assert_memory_equal(back, buffer, at);
    __real_free(back);
    close_store();
}

static void test_disk_store__requests_beyond_it_are_refused(void **state) {
    (void)state;
    static const uint64_t at[] = { BYTES, 1, 0, UINT64_MAX, 2 }, bytes[] = { 1, BYTES, BYTES + 1, 2, UINT64_MAX };
    tess_request *r;
    assert_int_equal(open_store(), TESS_OK);
    for (int i = 0; i < 5; i++) {
        char text[160];
        const tess_store_io io = {
            .struct_size = sizeof io, .op = TESS_STORE_READ, .at = at[i], .bytes = bytes[i], .memory = buffer
        };
        snprintf(text, sizeof text, "%llu bytes at offset %llu of a store of %d", (unsigned long long)bytes[i],
                 (unsigned long long)at[i], BYTES);
        EXPECT_FAILS(ops->store_post(store, &io, &r, &e), TESS_E_INVALID, text);
    }
    assert_int_equal(move(TESS_STORE_READ, BYTES, 0, buffer), TESS_OK);
    assert_int_equal(move(TESS_STORE_READ, BYTES - 1, 1, buffer), TESS_OK);
    close_store();
}

static void test_disk_store__a_failed_move_names_the_rank_the_place_and_the_reason(void **state) {
    (void)state;
    static const struct {
        uint32_t op;
        uint64_t at, bytes, place;
        int n, error;
        const char *doing;
    } cases[] = {
        { TESS_STORE_READ, 4096, 8192, 4096, 1, EIO, "reading" },
        { TESS_STORE_READ, 4096, 8192, 8192, 2, EIO, "reading" },
        { TESS_STORE_WRITE, 4096, 8192, 4096, 1, ENOSPC, "writing" },
        { TESS_STORE_READ, 4096, 8192, 4096, 1, 0, "reading" },
        { TESS_STORE_READ, 5000, 10, 4096, 1, EIO, "reading" },
        { TESS_STORE_WRITE, 5000, 10, 4096, 1, EIO, "reading" }, /* which it does first */
        { TESS_STORE_WRITE, 5000, 10, 4096, 2, EIO, "writing" },
        { TESS_STORE_READ, 100, 400000, 0x40000, 65, EIO, "reading" },
    };
    assert_int_equal(open_store(), TESS_OK);
    sys.most = DISK_ALIGN;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[240];
        sys.moves_in = cases[i].n, sys.moves_error = cases[i].error;
        snprintf(text, sizeof text, "the file of rank 5 in %s, offset %llu: %s: %s", dir.path,
                 (unsigned long long)cases[i].place, cases[i].doing,
                 cases[i].error ? strerror(cases[i].error) : "the file ends here: it was cut");
        EXPECT_FAILS(move(cases[i].op, cases[i].at, cases[i].bytes, buffer), TESS_E_DATA, text);
        assert_int_equal(move(TESS_STORE_READ, 8 * DISK_ALIGN, DISK_ALIGN, buffer),
                         TESS_OK); /* of that request alone */
    }
    close_store();
}

static void test_disk_store__a_byte_that_comes_back_another_is_found(void **state) {
    (void)state;
    static const off_t places[] = { 0, 4095, 4096, 100000, DISK_BLOCK, DISK_BLOCK + 70000 };
    assert_int_equal(open_store(), TESS_OK);
    memset(buffer, 3, BYTES / 2);
    assert_int_equal(move(TESS_STORE_WRITE, 0, BYTES / 2, buffer), TESS_OK); /* the other half was never written */
    for (int i = 0; i < 12; i++) {
        char text[200];
        off_t at = places[i % 6] + (i < 6 ? 0 : BYTES / 2);
        snprintf(text, sizeof text, "the file of rank 5 in %s, offset %lld: what is read there is not what was written",
                 dir.path, (long long)at / DISK_ALIGN * DISK_ALIGN);
        sys.flip = at;
        EXPECT_FAILS(move(TESS_STORE_READ, 0, BYTES, buffer), TESS_E_DATA, text);
        EXPECT_FAILS(move(TESS_STORE_READ, (uint64_t)at, 1, buffer), TESS_E_DATA, text);
        EXPECT_FAILS(move(TESS_STORE_WRITE, (uint64_t)at, 1, buffer), TESS_E_DATA,
                     text); /* the rest of its piece is not kept */
        sys.flip = -1;
        assert_int_equal(move(TESS_STORE_READ, (uint64_t)at, 1, buffer), TESS_OK);
    }
    close_store();
    reopen(",io=threads,verify=0");
    assert_int_equal(open_store(), TESS_OK);
    sys.flip = 5;
    assert_int_equal(move(TESS_STORE_READ, 0, DISK_ALIGN, buffer), TESS_OK);
    close_store();
}

static void test_disk_store__sums_tell_each_word_and_each_place(void **state) {
    (void)state;
    enum { N = 3 };
    uint32_t of[N], first[N];
    const disk_sums sums = { of, N };
    const disk_file file = { .rank = 1, .dir = "d" };
    disk_block b = { .op = TESS_STORE_WRITE, .at = DISK_ALIGN, .bytes = 2 * DISK_ALIGN, .memory = buffer };
    memset(buffer, 0, 2 * DISK_ALIGN);
    memset(of, 0, sizeof of);
    disk_sums_note(&sums, &b);
    assert_true(of[0] == 0 && of[1] != 0 && of[2] != 0 && of[1] != of[2]); /* the same bytes elsewhere are others */
    memcpy(first, of, sizeof of);
    for (int word = 0; word < 2 * DISK_ALIGN / 8; word++)
        for (int bit = 0; bit < 64; bit += 21) {
            buffer[8 * word + bit / 8] ^= (char)(1 << bit % 8);
            disk_sums_note(&sums, &b);
            assert_true(of[1 + word / 512] != first[1 + word / 512] && of[2 - word / 512] == first[2 - word / 512] &&
                        of[0] == 0);
            buffer[8 * word + bit / 8] ^= (char)(1 << bit % 8);
        }
    disk_sums_note(&sums, &b);
    assert_int_equal(disk_sums_check(&sums, &file, &b, no_error()), TESS_OK);
    const disk_sums none = { NULL, 0 };
    buffer[0] ^= 1;
    assert_int_equal(disk_sums_check(&none, &file, &b, no_error()), TESS_OK);
    assert_int_equal(disk_sums_check(&sums, &file, &b, no_error()), TESS_E_DATA);
    assert_true(disk_sums_bytes(0) == 0 && disk_sums_bytes(1) == 4 && disk_sums_bytes(4096) == 4 &&
                disk_sums_bytes(4097) == 8);
}

static void test_disk_store__a_file_that_cannot_be_made_is_refused_with_its_reason(void **state) {
    (void)state;
    static const struct {
        int *what, error;
        tess_status status;
        const char *text; /* behind the folder's name */
    } cases[] = {
        { &sys.open, EACCES, TESS_E_SYSTEM, ": no file can be made there for rank 5: Permission denied" },
        { &sys.fallocate, ENOSPC, TESS_E_NOMEM,
          " has no room for the 2457600 bytes of rank 5: No space left on device" },
        { &sys.fallocate, EDQUOT, TESS_E_NOMEM, " has no room for the 2457600 bytes of rank 5: Disk quota exceeded" },
        { &sys.fallocate, EFBIG, TESS_E_NOMEM, " has no room for the 2457600 bytes of rank 5: File too large" },
        { &sys.fallocate, EIO, TESS_E_SYSTEM, " has no room for the 2457600 bytes of rank 5: Input/output error" },
        { &sys.fstat, EIO, TESS_E_SYSTEM, ": the size of rank 5's file is unknown: Input/output error" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[240];
        *cases[i].what = cases[i].error;
        snprintf(text, sizeof text, "%s%s", dir.path, cases[i].text);
        EXPECT_FAILS(open_store(), cases[i].status, text);
        assert_int_equal(sys.opened, sys.closed);
        *cases[i].what = 0;
    }
}

static void test_disk_store__without_unnamed_files_the_name_goes_at_once(void **state) {
    (void)state;
    static const int errors[] = { EOPNOTSUPP, EISDIR };
    for (int i = 0; i < 2; i++) {
        sys.open = errors[i];
        assert_int_equal(open_store(), TESS_OK);
        assert_int_equal(scratch_entries(&dir), 0);
        move_at_random(4);
        close_store();
        memset(model, 0, BYTES);
        sys.mkostemp = EROFS;
        char text[200];
        snprintf(text, sizeof text, "%s: no file can be made there for rank 5: Read-only file system", dir.path);
        EXPECT_FAILS(open_store(), TESS_E_SYSTEM, text);
        sys.mkostemp = 0;
    }
}

static void test_disk_store__says_once_a_host_that_files_go_through_the_cache(void **state) {
    (void)state;
    char text[200];
    assert_int_equal(open_store(), TESS_OK);
    close_store();
    expect_said("direct; end of none; ");
    sys.fcntl = EINVAL;
    assert_int_equal(open_store(), TESS_OK);
    move_at_random(4);
    close_store();
    snprintf(text, sizeof text,
             "direct; log 1, offload disk: %s knows no O_DIRECT (Invalid argument): files go through the page cache; "
             "end of none; ",
             dir.path);
    expect_said(text);
    config.local_rank = 1;
    assert_int_equal(open_store(), TESS_OK);
    close_store();
    expect_said("direct; end of none; ");
}

static void test_disk_store__a_store_that_fails_half_made_leaves_nothing(void **state) {
    (void)state;
    static const char *const texts[] = { "no memory for a store", "no memory for 3 requests",
                                         "offload disk: no memory for a thread",
                                         "offload disk: no memory for a thread" };
    for (int n = 0; n < 4; n++) {
        no_memory_in = n + 1;
        EXPECT_FAILS(open_store(), TESS_E_NOMEM, texts[n]);
        assert_int_equal(sys.opened, sys.closed);
    }
    for (int n = 1; n <= 2; n++) {
        sys.no_thread = n;
        EXPECT_FAILS(open_store(), TESS_E_SYSTEM, "no thread");
        assert_int_equal(sys.opened, sys.closed);
    }
    assert_int_equal(sys.opened, 4);
    config.memory_bytes = DISK_BOUNCE - 1;
    EXPECT_FAILS(open_store(), TESS_E_INVALID, "a store needs 262144 bytes of memory, and 262143 are given");
    config.memory_bytes = DISK_BOUNCE + 4 * 4; /* sums of four pieces: no request reaches beyond */
    assert_int_equal(open_store(), TESS_OK);
    assert_int_equal(move(TESS_STORE_WRITE, 0, 4 * DISK_ALIGN, buffer), TESS_OK);
    const tess_store_io io = {
        .struct_size = sizeof io, .op = TESS_STORE_READ, .bytes = 4 * DISK_ALIGN + 1, .memory = buffer
    };
    tess_request *r;
    EXPECT_FAILS(ops->store_post(store, &io, &r, &e), TESS_E_INVALID, "16385 bytes at offset 0 of a store of 16384");
    close_store();
}

static void test_disk_store__registers_nothing_without_io_uring(void **state) {
    (void)state;
    assert_int_equal(open_store(), TESS_OK);
    said_so_far[0] = 0;
    EXPECT_FAILS(ops->store_register(store, buffer, BYTES, &e), TESS_E_UNSUPPORTED,
                 "the memory is not registered: Function not implemented");
    expect_said("");
    close_store();
}

static int ring_error, registers; /* 0: there is one */
static struct disk_ring { disk_queue *queue; } ring;
int disk_ring_open(disk_ring **out, disk_queue *queue, uint32_t depth) {
    say("ring of %u; ", depth);
    ring.queue = queue;
    if (!ring_error)
        *out = &ring;
    return ring_error;
}
void disk_ring_work(disk_ring *r) {
    disk_block b;
    tess_error none = { .struct_size = sizeof none };
    while (disk_block_take(r->queue, &b, 1))
        disk_block_ends(r->queue, &b, &none);
}
int disk_ring_register(disk_ring *r, void *at, uint64_t bytes) {
    assert_true(r == &ring && at == buffer && bytes == BYTES);
    return registers;
}
void disk_ring_deregister(disk_ring *r) {
    say("deregister%s; ", r ? "" : " none");
}
void disk_ring_close(disk_ring *r) {
    say("end%s; ", r ? "" : " of none");
}

static void test_disk_store__a_ring_works_where_there_is_one_and_threads_elsewhere(void **state) {
    (void)state;
    static const struct {
        const char *io, *said;
        int error, local_rank;
    } cases[] = {
        { ",depth=7", "direct; ring of 7; end; ", 0, 0 },
        { ",io=uring", "direct; ring of 16; end; ", 0, 0 },
        { ",io=threads", "direct; end of none; ", 0, 0 },
        { ",threads=3",
          "direct; ring of 16; log 2, offload disk: no io_uring here (Function not implemented): 3 threads of a rank "
          "read and write; end of none; ",
          ENOSYS, 0 },
        { ",io=uring",
          "direct; ring of 16; log 1, offload disk: no io_uring here (Function not implemented): 4 threads of a rank "
          "read and write; end of none; ",
          ENOSYS, 0 },
        { "",
          "direct; ring of 16; log 1, offload disk: no io_uring here (Operation not permitted): 4 threads of a rank "
          "read and write; end of none; ",
          EPERM, 0 },
        { "", "direct; ring of 16; end of none; ", EPERM, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reopen(cases[i].io);
        ring_error = cases[i].error, config.local_rank = cases[i].local_rank;
        assert_int_equal(open_store(), TESS_OK);
        close_store();
        expect_said(cases[i].said);
    }
    ring_error = 0, config.local_rank = 0;
    assert_int_equal(open_store(), TESS_OK);
    said_so_far[0] = 0;
    assert_int_equal(ops->store_register(store, buffer, BYTES, no_error()), TESS_OK);
    memset(buffer, 0, BYTES); /* the test's ring reads nothing, and a fresh store has zeros */
    assert_int_equal(move(TESS_STORE_READ, 0, DISK_ALIGN, buffer), TESS_OK); /* by the ring's thread */
    ops->store_deregister(store);
    expect_said("deregister; ");
    registers = ENOMEM;
    for (int twice = 0; twice < 2; twice++)
        EXPECT_FAILS(ops->store_register(store, buffer, BYTES, &e), TESS_E_UNSUPPORTED,
                     "the memory is not registered: Cannot allocate memory");
    expect_said(
        "log 2, offload disk: memory of 2457600 bytes is not registered with io_uring: Cannot allocate memory; ");
    registers = 0;
    close_store();
}

/* ---- the plugin ---- */

static void test_disk_store__opens_as_offload_with_a_folder_and_settings(void **state) {
    (void)state;
    const void *table;
    void *other;
    char args[320];
    EXPECT_FAILS(tess_plugin_open_v1(&host, TESS_KIND_COMM, &table, &other, &e), TESS_E_UNSUPPORTED,
                 "plugin disk offers offload only");
    no_memory_in = 1;
    EXPECT_FAILS(tess_plugin_open_v1(&host, TESS_KIND_OFFLOAD, &table, &other, &e), TESS_E_NOMEM,
                 "offload disk: no memory to open");
    ops->close(plugin);
    memset(args, 'x', sizeof args);
    strcpy(args + 256, ",verify=0");
    assert_int_equal(open_plugin(args), TESS_E_INVALID);
    assert_string_equal(e.message, "offload disk: the folder's name has 256 bytes, at most 255 are taken");
    strcpy(args + 255, ",verify=0");
    assert_int_equal(open_plugin(args), TESS_OK);
    ops->close(plugin);
    assert_int_equal(open_plugin("dir,depth=0"), TESS_E_INVALID);
    assert_int_equal(open_plugin("verify=0"), TESS_OK); /* a setting, no folder */
    const tess_region region = { .struct_size = sizeof region, .region = TESS_REGION_STATE, .bytes = 8192 };
    tess_placement p = { .struct_size = sizeof p };
    EXPECT_FAILS(ops->place(plugin, NULL, &region, 1, &p, &e), TESS_E_UNSUPPORTED,
                 "offload disk: no folder is given for its files: TESSERA_OFFLOAD=disk:DIR");
    assert_int_equal(ops->place(plugin, NULL, &region, 0, &p, no_error()), TESS_OK);
    ops->close(plugin);
    snprintf(args, sizeof args, "verify=0,dir=%s", dir.path);
    assert_int_equal(open_plugin(args), TESS_OK);
    assert_int_equal(ops->place(plugin, NULL, &region, 1, &p, no_error()), TESS_OK);
    assert_true(p.rest == TESS_REST_STORE && p.align == 4096 && p.host_bytes == DISK_BOUNCE);
}

static void test_disk_store__places_what_was_chosen_with_room_for_sums(void **state) {
    (void)state;
    tess_region r[4];
    tess_placement p[4];
    static const struct {
        const char *settings;
        int master, grad, state;
    } cases[] = { { "", 0, 0, 1 },       { ",params", 1, 0, 0 },
                  { ",grads", 0, 1, 0 }, { ",params,optimizer", 1, 0, 1 },
                  { ",all", 1, 1, 1 },   { ",fraction=0", 0, 0, 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reopen(cases[i].settings);
        for (int k = 0; k < 4; k++) {
            r[k] = (tess_region){ .struct_size = sizeof *r,
                                  .region = (uint32_t)(k + TESS_REGION_MASTER),
                                  .unit = k == 3 ? -1 : 0,
                                  .bytes = 8193 };
            p[k] = (tess_placement){ .struct_size = sizeof *p };
        }
        assert_int_equal(ops->place(plugin, NULL, r, 4, p, no_error()), TESS_OK);
        const int rests[] = { cases[i].master, cases[i].grad, cases[i].state, 0 };
        uint64_t bounce = DISK_BOUNCE; /* once */
        for (int k = 0; k < 4; k++) {
            assert_int_equal(p[k].rest, rests[k] ? TESS_REST_STORE : TESS_REST_DEVICE);
            assert_int_equal(p[k].align, rests[k] ? 4096 : 64);
            assert_int_equal(p[k].host_bytes, rests[k] ? bounce + 12 : 0);
            bounce = rests[k] ? 0 : bounce;
        }
    }
    reopen(",fraction=0.4"); /* of the first u units 0.4 u, rounded down */
    for (int unit = 0, chosen = 0; unit < 25; unit++) {
        tess_region one = { .struct_size = sizeof one, .region = TESS_REGION_STATE, .unit = unit, .bytes = 1 };
        p[0] = (tess_placement){ .struct_size = sizeof *p };
        assert_int_equal(ops->place(plugin, NULL, &one, 1, p, no_error()), TESS_OK);
        chosen += p[0].rest == TESS_REST_STORE;
        assert_int_equal(chosen, (unit + 1) * 2 / 5);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_disk_store__holds_what_was_written_wherever_it_begins, begin, end),
        cmocka_unit_test_setup_teardown(test_disk_store__moves_that_come_in_parts_or_are_interrupted_go_on, begin, end),
        cmocka_unit_test_setup_teardown(test_disk_store__requests_are_done_together_and_waited_for_in_any_order, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_disk_store__requests_beyond_it_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_disk_store__a_failed_move_names_the_rank_the_place_and_the_reason, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_disk_store__a_byte_that_comes_back_another_is_found, begin, end),
        cmocka_unit_test_setup_teardown(test_disk_store__sums_tell_each_word_and_each_place, begin, end),
        cmocka_unit_test_setup_teardown(test_disk_store__a_file_that_cannot_be_made_is_refused_with_its_reason, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_disk_store__without_unnamed_files_the_name_goes_at_once, begin, end),
        cmocka_unit_test_setup_teardown(test_disk_store__says_once_a_host_that_files_go_through_the_cache, begin, end),
        cmocka_unit_test_setup_teardown(test_disk_store__a_store_that_fails_half_made_leaves_nothing, begin, end),
        cmocka_unit_test_setup_teardown(test_disk_store__registers_nothing_without_io_uring, begin, end),
        cmocka_unit_test_setup_teardown(test_disk_store__a_ring_works_where_there_is_one_and_threads_elsewhere, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_disk_store__opens_as_offload_with_a_folder_and_settings, begin, end),
        cmocka_unit_test_setup_teardown(test_disk_store__places_what_was_chosen_with_room_for_sums, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
