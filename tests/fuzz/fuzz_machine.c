/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as a machine file, or after an e as events of an earlier run (--from). */
#include "fuzz_input.h"
#include "tools/machine/machine.h"

static void read_events(const uint8_t *data, size_t size) {
    machine_desc m = { 0 };
    uint64_t before = tess__fail_count();
    if (machine_open("laptop", &m) != TESS_OK && machine_open(machine_names()[0], &m) != TESS_OK)
        abort();
    before = tess__fail_count();
    fuzz_check(machine_add_events(&m, fuzz_file(data, size), 1) != TESS_OK, before);
    machine_close(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size && data[0] == 'e') {
        read_events(data + 1, size - 1);
        return 0;
    }
    machine_desc m = { 0 };
    char *text = fuzz_text(data, size);
    uint64_t before = tess__fail_count();
    tess_status s = machine_parse("machine.json", text, size, &m);
    fuzz_check(s != TESS_OK, before);
    if (s == TESS_OK)
        machine_close(&m);
    free(text);
    return 0;
}
