/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as a token file. Its name decides little here: a path of /proc/self/fd has no ending, so that
 * the first byte says whether it is called .bin. */
#include "fuzz_input.h"
#include "tools/support/options.h"
#include "tools/train/data/tokens.h"

enum { CONTEXT = 4, VOCABULARY = 50257 };

static void read_windows(tool_tokens *t) {
    int32_t window[CONTEXT + 1];
    for (int valid = 0; valid < 2; valid++)
        for (uint64_t n = tool_tokens_windows(t, valid), i = 0; i < n && i < 64; i++)
            tool_tokens_window(t, valid, n - 1 - i, window);
    tool_tokens_check(t, VOCABULARY, 0, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char link[64];
    tool_tokens *t = NULL;
    if (size < 1)
        return 0;
    if (!*link)
        tool_options_start();
    if (!*link)
        snprintf(link, sizeof link, "/tmp/fuzz_tokens-%d.bin", (int)getpid());
    const char *path = fuzz_file(data + 1, size - 1);
    int is_bin = data[0] != 't';
    unlink(link);
    if (is_bin && symlink(path, link) != 0)
        abort();
    uint64_t before = tess__fail_count();
    tess_status s = tool_tokens_open(
        &(tool_tokens_options){ .path = is_bin ? link : path, .context = CONTEXT, .vocabulary = VOCABULARY }, &t);
    fuzz_check(s != TESS_OK, before);
    if (s == TESS_OK)
        read_windows(t);
    tool_tokens_close(t);
    unlink(link);
    return 0;
}
