/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as the text of an option, of the type that the first byte says: the core's own, and as plugins
 * declare them. */
#include <tessera/plugin_options.h>

#include "core/base/options.h"
#include "fuzz_input.h"

static tess_status read_own(uint8_t kind, const char *text) {
    static const char *const keys[] = { "threads", "timeout", "device-memory", "deterministic", "sync" };
    const tess_setting setting = { keys[kind % 5], text };
    const tess__given given = { .list = &setting, .n = 1, .wins = 1 };
    const tess__given *before = tess__given_use(&given);
    int64_t integer = 1;
    double real;
    uint64_t bytes;
    int flag;
    const char *choice;
    tess_status s = kind % 5 == 0   ? tess__option_int(setting.key, 1, 1024, &integer)
                    : kind % 5 == 1 ? tess__option_real(setting.key, &real)
                    : kind % 5 == 2 ? tess__option_bytes(setting.key, &bytes)
                    : kind % 5 == 3 ? tess__option_flag(setting.key, &flag)
                                    : tess__option_choice(setting.key, &choice);
    if (integer < 1 || integer > 1024)
        abort();
    tess__given_use(before);
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2)
        return 0;
    char *text = fuzz_text(data + 1, size - 1);
    tess_option_spec spec = { .key = "x", .type = data[0] % 8 };
    uint64_t number, before = tess__fail_count();
    fuzz_check(read_own(data[0], text) != TESS_OK, before);
    tess_option_value value = { 0, 0, 0 };
    tess_option_parse(&spec, text, &value);
    if (tess_option_parse_list(text, "one|two|three", &number) && number >> 3)
        abort();
    free(text);
    return 0;
}
