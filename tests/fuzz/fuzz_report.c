/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as what --json wrote, read for a report and put in order. */
#include "fuzz_input.h"
#include "tools/report/report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    report_run run = { 0 };
    report_order order = { 0 };
    FILE *in = size ? fmemopen((void *)(uintptr_t)data, size, "r") : NULL;
    if (!in)
        return 0;
    uint64_t before = tess__fail_count();
    tess_status s = report_read(in, "run.json", &run);
    fuzz_check(s != TESS_OK, before);
    if (s == TESS_OK && report_order_make(&run, &order) == TESS_OK)
        report_order_free(&order);
    report_run_free(&run);
    fclose(in);
    return 0;
}
