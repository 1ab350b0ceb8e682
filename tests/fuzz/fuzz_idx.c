/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as images and labels in IDX files; the first byte says how many of the rest are labels. */
#include <errno.h>
#include <sys/stat.h>

#include "fuzz_input.h"
#include "tools/train/data/idx.h"

static void write_file(const char *dir, const char *name, const uint8_t *data, size_t size) {
    char path[128];
    snprintf(path, sizeof path, "%s/train-%s-ubyte", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char dir[] = "fuzz_idx_files"; /* beside the corpus */
    tool_idx idx = { 0 };
    if (size < 1)
        return 0;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        abort();
    size_t labels = data[0] < size - 1 ? data[0] : size - 1;
    write_file(dir, "labels-idx1", data + 1, labels);
    write_file(dir, "images-idx3", data + 1 + labels, size - 1 - labels);
    uint64_t before = tess__fail_count();
    tess_status s = tool_idx_load(dir, "train", &idx);
    fuzz_check(s != TESS_OK, before);
    for (uint64_t i = 0; s == TESS_OK && i < idx.count; i++)
        if (idx.labels[i] >= TOOL_IDX_CLASSES)
            abort();
    tool_idx_free(&idx);
    return 0;
}
