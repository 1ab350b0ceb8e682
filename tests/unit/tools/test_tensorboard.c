/* SPDX-License-Identifier: BSD-3-Clause */
/* Event files: decoded here by the words of TFRecord and protobuf, checksums held, values to the bit. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "tools/train/tensorboard.h"

/* By a table over reflected nibbles: another way than the writer's. */
static uint32_t crc_of(const uint8_t *data, size_t bytes) {
    uint32_t table[16], crc = 0xffffffffu;
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t c = i;
        for (int k = 0; k < 4; k++)
            c = c & 1 ? 0x82f63b78u ^ c >> 1 : c >> 1;
        table[i] = c;
    }
    for (size_t i = 0; i < bytes; i++) {
        crc = table[(crc ^ data[i]) & 15] ^ crc >> 4;
        crc = table[(crc ^ data[i] >> 4) & 15] ^ crc >> 4;
    }
    return crc ^ 0xffffffffu;
}

static uint64_t little(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    while (bytes--)
        value = value << 8 | at[bytes];
    return value;
}

static void assert_masked(const uint8_t *data, size_t bytes, const uint8_t *found) {
    uint32_t crc = crc_of(data, bytes);
    assert_int_equal((uint32_t)little(found, 4), (uint32_t)(((crc >> 15) | (crc << 17)) + 0xa282ead8u));
}

typedef struct {
    const uint8_t *at;
    size_t n;
} span;

static uint64_t take_varint(span *s) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(s->n > 0);
        uint8_t byte = *s->at++;
        s->n--;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return value;
    }
}

/* The next field: its number; *out: its bytes, or of a varint the value in *number. */
static uint32_t take_field(span *s, span *out, uint64_t *number) {
    uint64_t key = take_varint(s);
    uint32_t type = key & 7;
    if (type == 0) {
        *number = take_varint(s);
        return (uint32_t)(key >> 3);
    }
    size_t bytes = type == 2 ? take_varint(s) : type == 1 ? 8 : 4;
    assert_true(type == 1 || type == 2 || type == 5);
    assert_true(bytes <= s->n);
    *out = (span){ s->at, bytes };
    s->at += bytes;
    s->n -= bytes;
    return (uint32_t)(key >> 3);
}

/* "tag=value " of each value behind "step: ", of all events; file_version and session starts by name. */
static void tell_value(span value, char *out) {
    char tag[64] = "", text[128] = "";
    float number = NAN;
    uint64_t ignored;
    span field;
    while (value.n) {
        uint32_t key = take_field(&value, &field, &ignored);
        if (key == 1)
            snprintf(tag, sizeof tag, "%.*s", (int)field.n, (const char *)field.at);
        else if (key == 2)
            memcpy(&number, field.at, sizeof number);
        else if (key == 8) /* of the tensor its last field, the string */
            while (field.n) {
                span part;
                if (take_field(&field, &part, &ignored) == 8)
                    snprintf(text, sizeof text, "%.*s", (int)part.n, (const char *)part.at);
            }
    }
    sprintf(out + strlen(out), *text ? "%s='%s' " : "%s=", tag, text);
    if (!*text)
        sprintf(out + strlen(out), "%a ", (double)number);
}

static void tell_event(span event, char *out) {
    uint64_t step = 0, ignored = 0;
    double wall = 0;
    span field;
    char rest[1024] = "";
    while (event.n) {
        uint32_t key = take_field(&event, &field, &step); /* of numbers there is the step alone */
        if (key == 1)
            memcpy(&wall, field.at, sizeof wall);
        else if (key == 3)
            sprintf(rest + strlen(rest), "version %.*s ", (int)field.n, (const char *)field.at);
        else if (key == 7)
            sprintf(rest + strlen(rest), "session %02x%02x ", field.at[0], field.at[1]);
        else if (key == 5)
            while (field.n) {
                span value;
                assert_int_equal(take_field(&field, &value, &ignored), 1);
                tell_value(value, rest);
            }
    }
    assert_true(wall > 1.6e9 && wall < 1e10);
    sprintf(out + strlen(out), "%llu: %s\n", (unsigned long long)step, rest);
}

/* The kernel may cut a killed process's last write where a page of the file ends. */
static void tell_file(const char *dir, int killed, char *out) {
    static uint8_t all[1 << 16];
    char path[512] = "";
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, "events.out.tfevents.", 20) == 0)
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
    closedir(d);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(all, 1, sizeof all, f), at = 0;
    fclose(f);
    unlink(path);
    rmdir(dir);
    *out = 0;
    while (at < n) {
        if (killed && (n - at < 16 || little(all + at, 8) > n - at - 16)) {
            assert_int_equal(n % 4096, 0);
            break;
        }
        assert_true(n - at >= 16);
        uint64_t bytes = little(all + at, 8);
        assert_masked(all + at, 8, all + at + 8);
        assert_true(bytes <= n - at - 16);
        assert_masked(all + at + 12, bytes, all + at + 12 + bytes);
        tell_event((span){ all + at + 12, bytes }, out);
        at += 16 + bytes;
    }
}

static void test_tensorboard__file_has_what_was_written(void **state) {
    (void)state;
    char told[4096];
    tensorboard b;
    assert_int_equal(crc_of((const uint8_t *)"123456789", 9), 0xe3069283); /* the check value of CRC-32C */
    assert_int_equal(tensorboard_open(&b, "board"), TESS_OK);
    tensorboard_text(&b, "run", "model=gpt");
    tensorboard_begin(&b, 301);
    tensorboard_scalars(&b, 301, (tensorboard_scalar[]){ { "train/loss", 2.5 }, { "norm", NAN }, { "lr", 0.1 } }, 3);
    tensorboard_scalars(&b, UINT64_C(1) << 40, (tensorboard_scalar[]){ { "train/loss", -INFINITY } }, 1);
    assert_int_equal(tensorboard_close(&b), TESS_OK);
    tell_file("board", 0, told);
    char want[512];
    snprintf(want, sizeof want,
             "0: version brain.Event:2 \n0: run='model=gpt' \n301: session 0801 \n301: train/loss=0x1.4p+1 lr=%a \n"
             "1099511627776: train/loss=-inf \n",
             (double)0.1f);
    assert_string_equal(told, want);
}

static void test_tensorboard__long_text_is_cut(void **state) {
    (void)state;
    static char text[9000], told[4096];
    tensorboard b;
    memset(text, 'x', sizeof text - 1);
    assert_int_equal(tensorboard_open(&b, "board"), TESS_OK);
    tensorboard_text(&b, "run", text);
    tensorboard_scalars(&b, 1, (tensorboard_scalar[]){ { "a", 1 } }, 1);
    assert_int_equal(tensorboard_close(&b), TESS_OK);
    tell_file("board", 0, told); /* checksums and lengths hold */
    assert_non_null(strstr(told, "1: a=0x1p+0 \n"));
}

static void test_tensorboard__what_cannot_be_written_is_said(void **state) {
    (void)state;
    tensorboard b;
    assert_int_equal(tensorboard_open(&b, "none/such"), TESS_E_DATA);
    assert_string_equal(tess_last_error(), "--tensorboard=none/such: No such file or directory");
    assert_int_equal(tensorboard_close(&b), TESS_OK);
    assert_int_equal(tensorboard_open(&b, "board"), TESS_OK);
    struct rlimit was, least = { .rlim_cur = 64, .rlim_max = RLIM_INFINITY };
    getrlimit(RLIMIT_FSIZE, &was);
    least.rlim_max = was.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &least);
    for (uint64_t i = 0; i < 8; i++)
        tensorboard_scalars(&b, i, (tensorboard_scalar[]){ { "train/loss", 2.5 } }, 1);
    setrlimit(RLIMIT_FSIZE, &was);
    assert_int_equal(tensorboard_close(&b), TESS_E_SYSTEM);
    assert_non_null(strstr(tess_last_error(), "--tensorboard=board: not everything could be written: "));
    assert_int_equal(system("rm -r board"), 0);
}

/* A record is written at once, so that a killed run leaves whole ones, each behind the one of the step before. */
static void test_tensorboard__killed_writer_leaves_whole_records(void **state) {
    (void)state;
    static char told[1 << 16];
    for (int round = 0; round < 20; round++) {
        char last[64];
        tensorboard b;
        int ready[2];
        assert_int_equal(pipe(ready), 0);
        assert_int_equal(tensorboard_open(&b, "board"), TESS_OK);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            for (uint64_t i = 1; i <= 1000; i++) {
                tensorboard_scalars(&b, i, (tensorboard_scalar[]){ { "a", 1 } }, 1);
                if (i == 1 && write(ready[1], "", 1) != 1)
                    _exit(1);
            }
            pause();
            _exit(1);
        }
        assert_int_equal(read(ready[0], last, 1), 1);
        usleep((useconds_t)round * 100);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        close(ready[0]);
        close(ready[1]);
        assert_int_equal(tensorboard_close(&b), TESS_OK);
        tell_file("board", 1, told); /* lengths and checksums hold to the end of the file */
        int lines = 0;
        for (const char *at = told; (at = strchr(at, '\n')); at++)
            lines++;
        assert_in_range(lines, 2, 1001);
        snprintf(last, sizeof last, "\n%d: a=0x1p+0 \n", lines - 1); /* behind the version */
        assert_string_equal(told + strlen(told) - strlen(last), last);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensorboard__file_has_what_was_written),
        cmocka_unit_test(test_tensorboard__long_text_is_cut),
        cmocka_unit_test(test_tensorboard__what_cannot_be_written_is_said),
        cmocka_unit_test(test_tensorboard__killed_writer_leaves_whole_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
