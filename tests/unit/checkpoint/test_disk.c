/* SPDX-License-Identifier: BSD-3-Clause */
/* Disks that do less than they were asked for, and what is said of them. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/checkpoint/data_writer.h"
#include "core/checkpoint/disk.h"

enum { ROOM = 20 << 20, MIB = 1 << 20 };

typedef struct {
    char data[ROOM];
    uint64_t most, largest, end; /* of one operation; the largest that was asked for; where the file ends */
    int64_t then;                /* what an operation says beyond the end */
    int calls, failed_open, failed_sync, open;
} odd_disk;

static odd_disk disk;

static int64_t odd_read(void *self, int file, void *into, uint64_t bytes, uint64_t offset) {
    odd_disk *d = self;
    (void)file;
    d->calls++;
    d->largest = bytes > d->largest ? bytes : d->largest;
    if (offset >= d->end)
        return d->then;
    uint64_t n = bytes < d->most ? bytes : d->most;
    n = n < d->end - offset ? n : d->end - offset;
    memcpy(into, d->data + offset, n);
    return (int64_t)n;
}

static int64_t odd_write(void *self, int file, const void *data, uint64_t bytes, uint64_t offset) {
    odd_disk *d = self;
    (void)file;
    d->calls++;
    d->largest = bytes > d->largest ? bytes : d->largest;
    if (offset >= d->end)
        return d->then;
    uint64_t n = bytes < d->most ? bytes : d->most;
    n = n < d->end - offset ? n : d->end - offset;
    memcpy(d->data + offset, data, n);
    return (int64_t)n;
}

static int odd_open(void *self, const char *path, int how) {
    odd_disk *d = self;
    (void)path, (void)how;
    if (d->failed_open)
        return d->failed_open;
    d->open++;
    return 3;
}

static void odd_close(void *self, int file) {
    odd_disk *d = self;
    assert_int_equal(file, 3);
    d->open--;
}

static int odd_sync(void *self, int file) {
    assert_int_equal(file, 3);
    return ((odd_disk *)self)->failed_sync;
}

static int odd_direct(void *self, int file, int on) {
    (void)self, (void)file;
    return on ? -EINVAL : 0;
}

static const tess__disk table = { .self = &disk,
                                  .open = odd_open,
                                  .close = odd_close,
                                  .read = odd_read,
                                  .write = odd_write,
                                  .direct = odd_direct,
                                  .sync = odd_sync };

static void reset(uint64_t most, uint64_t end, int64_t then) {
    memset(&disk, 0, sizeof disk);
    disk.most = most;
    disk.end = end;
    disk.then = then;
}

static char *pattern(void) {
    char *data = malloc(ROOM);
    assert_non_null(data);
    for (uint64_t i = 0; i < ROOM; i++)
        data[i] = (char)(i * 31 + (i >> 12));
    return data;
}

static void test_disk__all_is_written_however_little_goes_at_once(void **state) {
    (void)state;
    char *data = pattern();
    static const uint64_t most[] = { 1, 7, ROOM };
    for (int i = 0; i < 3; i++) {
        reset(most[i], ROOM, 0);
        assert_int_equal(tess__disk_write_all(&table, 3, data, 100, 5), 0);
        assert_memory_equal(disk.data + 5, data, 100);
        assert_int_equal(disk.data[4] | disk.data[105], 0);
        assert_int_equal(disk.calls, i == 0 ? 100 : i == 1 ? 15 : 1);
    }
    reset(ROOM, ROOM, 0);
    assert_int_equal(tess__disk_write_all(&table, 3, data, 17 * MIB, MIB), 0);
    assert_memory_equal(disk.data + MIB, data, 17 * MIB);
    assert_int_equal(disk.largest, 8 * MIB); /* so that it is soon cancelled */
    assert_int_equal(disk.calls, 3);
    assert_int_equal(tess__disk_write_all(&table, 3, data, 0, 0), 0);
    assert_int_equal(disk.calls, 3);
    reset(ROOM, 50, 0);
    assert_int_equal(tess__disk_write_all(&table, 3, data, 51, 0), -ENOSPC);
    reset(ROOM, 50, -EIO);
    assert_int_equal(tess__disk_write_all(&table, 3, data, 51, 0), -EIO);
    free(data);
}

static void test_disk__all_is_read_or_it_is_said_that_there_is_no_more(void **state) {
    (void)state;
    char got[100], *data = pattern();
    static const uint64_t most[] = { 1, 7, ROOM };
    for (int i = 0; i < 3; i++) {
        reset(most[i], ROOM, 0);
        memcpy(disk.data, data, ROOM);
        memset(got, 0, sizeof got);
        assert_int_equal(tess__disk_read_all(&table, 3, got, 99, 5), 0);
        assert_memory_equal(got, data + 5, 99);
        assert_int_equal(got[99], 0);
        assert_int_equal(disk.calls, i == 0 ? 99 : i == 1 ? 15 : 1);
    }
    reset(ROOM, 50, 0);
    assert_int_equal(tess__disk_read_all(&table, 3, got, 50, 0), 0);
    assert_int_equal(tess__disk_read_all(&table, 3, got, 51, 0), -ENODATA);
    reset(ROOM, 50, -EIO);
    assert_int_equal(tess__disk_read_all(&table, 3, got, 51, 0), -EIO);
    free(data);
}

static void test_disk__a_directory_without_sync_is_fine(void **state) {
    (void)state;
    static const int said[] = { 0, -EINVAL, -EIO }, expected[] = { 0, 0, -EIO };
    for (int i = 0; i < 3; i++) {
        reset(ROOM, ROOM, 0);
        disk.failed_sync = said[i];
        assert_int_equal(tess__disk_sync_dir(&table, "d"), expected[i]);
        assert_int_equal(disk.open, 0);
    }
    disk.failed_open = -ENOENT;
    assert_int_equal(tess__disk_sync_dir(&table, "d"), -ENOENT);
    assert_int_equal(disk.open, 0);
}

/* One tensor of 9 MiB, onto a disk that ends within it: nothing or an error comes of the next write. */
static void test_disk__a_file_that_does_not_fit_is_given_up(void **state) {
    (void)state;
    static const int64_t said[] = { 0, -EDQUOT };
    static const char *const names[] = { "No space left on device", "Disk quota exceeded" };
    const uint64_t bytes = 9 * MIB;
    char *data = pattern(), text[128];
    for (int i = 0; i < 2; i++)
        for (int fits = 0; fits < 2; fits++) {
            tess__tensor t = { .name = "a", .dtype = TESS_U8, .ndim = 1, .shape = { (int64_t)bytes } };
            tess__data_writer w;
            tess__data_file file = { .bytes = 0 };
            tess__safetensors_arrange(&t, 1);
            reset(ROOM, fits ? ROOM : 5 * MIB, said[i]);
            assert_int_equal(tess__data_create(&table, "d", "f", &t, 1, &w), TESS_OK);
            uint64_t head = w.at;
            assert_int_equal(head % TESS__DISK_BLOCK, 0);
            tess_status s = tess__data_write(&w, data, bytes);
            if (fits) {
                assert_int_equal(s, TESS_OK);
                assert_int_equal(tess__data_finish(&w, &file), TESS_OK);
                assert_int_equal(file.bytes, head + bytes);
                assert_int_equal(file.n_sums, 3);
                assert_string_equal(file.name, "f");
                assert_memory_equal(disk.data + head, data, bytes);
                free(file.sums);
            } else {
                assert_int_equal(s, TESS_E_DATA);
                snprintf(text, sizeof text, "d/f: cannot write at offset %llu: %s", (unsigned long long)head, names[i]);
                assert_string_equal(tess_last_error(), text);
                tess__data_drop(&w);
            }
            assert_int_equal(disk.open, 0);
        }
    free(data);
}

static void test_disk__a_cancelled_file_ends_at_once(void **state) {
    (void)state;
    tess__tensor t = { .name = "a", .dtype = TESS_U8, .ndim = 1, .shape = { 9 } };
    tess__data_writer w;
    atomic_int cancel = 0;
    reset(ROOM, ROOM, 0);
    tess__safetensors_arrange(&t, 1);
    assert_int_equal(tess__data_create(&table, "d", "f", &t, 1, &w), TESS_OK);
    w.cancel = &cancel;
    assert_int_equal(tess__data_write(&w, "12345", 5), TESS_OK);
    cancel = 1;
    assert_int_equal(tess__data_write(&w, "6789", 4), TESS_E_ABORTED);
    assert_string_equal(tess_last_error(), "d/f: the run ends before it is written");
    tess__data_drop(&w);
    assert_int_equal(disk.open, 0);
    disk.failed_open = -EROFS;
    assert_int_equal(tess__data_create(&table, "d", "f", &t, 1, &w), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "d/f: cannot be written: Read-only file system");
    assert_int_equal(disk.open, 0);
}

static void test_disk__the_real_one_says_why(void **state) {
    (void)state;
    const tess__disk *d = &tess__disk_real;
    char dir[] = "/tmp/tessera-test-XXXXXX", path[64], other[64], text[4];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/f", dir);
    snprintf(other, sizeof other, "%s/g", dir);
    assert_int_equal(d->open(NULL, path, TESS__DISK_READ), -ENOENT);
    assert_int_equal(d->open(NULL, dir, TESS__DISK_READ), -EISDIR);
    assert_int_equal(d->open(NULL, "/dev/null", TESS__DISK_READ), -EINVAL);
    assert_int_equal(d->open(NULL, path, TESS__DISK_DIR), -ENOENT);
    assert_int_equal(d->remove(NULL, path), -ENOENT);
    assert_int_equal(d->list(NULL, path, NULL, NULL), -ENOENT);
    assert_int_equal(d->rename(NULL, path, other), -ENOENT);
    assert_int_equal(d->make_dir(NULL, dir), -EEXIST);
    int file = d->open(NULL, path, TESS__DISK_CREATE);
    assert_true(file >= 0);
    assert_int_equal(fcntl(file, F_GETFD), FD_CLOEXEC);
    assert_int_equal(d->write(NULL, file, "abc", 3, 2), 3);
    assert_int_equal(d->size(NULL, file), 5);
    assert_int_equal(d->read(NULL, file, text, 3, 0), -EBADF);
    assert_int_equal(d->sync(NULL, file), 0);
    assert_int_equal(d->direct(NULL, file, 0), 0);
    d->close(NULL, file);
    assert_int_equal(fcntl(file, F_GETFD), -1);
    assert_int_equal(d->open(NULL, path, TESS__DISK_DIR), -ENOTDIR);
    file = d->open(NULL, path, TESS__DISK_READ);
    assert_true(file >= 0);
    assert_int_equal(d->read(NULL, file, text, 4, 3), 2);
    assert_memory_equal(text, "bc", 2);
    assert_int_equal(d->read(NULL, file, text, 4, 5), 0);
    assert_int_equal(d->write(NULL, file, "abc", 3, 2), -EBADF);
    d->close(NULL, file);
    assert_int_equal(d->size(NULL, file), -EBADF);
    assert_int_equal(d->sync(NULL, file), -EBADF);
    assert_int_equal(d->direct(NULL, file, 1), -EBADF);
    assert_int_equal(d->lock(NULL, file), -EBADF);
    assert_int_equal(d->remove(NULL, path), 0);
    assert_int_equal(d->remove(NULL, dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_disk__all_is_written_however_little_goes_at_once),
        cmocka_unit_test(test_disk__all_is_read_or_it_is_said_that_there_is_no_more),
        cmocka_unit_test(test_disk__a_directory_without_sync_is_fine),
        cmocka_unit_test(test_disk__a_file_that_does_not_fit_is_given_up),
        cmocka_unit_test(test_disk__a_cancelled_file_ends_at_once),
        cmocka_unit_test(test_disk__the_real_one_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
