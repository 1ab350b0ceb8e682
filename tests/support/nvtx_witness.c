/* SPDX-License-Identifier: BSD-3-Clause */
/* A profiler's part of NVTX, for tests: NVTX_INJECTION64_PATH names this library, RANGES the file that gets a line for
 * each range: process, depth, name. A pop without a push, or what is left open at the end, is a line "process
 * unbalanced". */
#include <nvtx3/nvToolsExt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static FILE *out;
static _Thread_local int depth;

static int push(const char *name) {
    fprintf(out, "%d %d %s\n", (int)getpid(), depth++, name);
    return depth - 1;
}

static int pop(void) {
    if (depth == 0)
        fprintf(out, "%d unbalanced\n", (int)getpid());
    else
        depth--;
    return depth;
}

__attribute__((destructor)) static void at_end(void) {
    if (out && depth)
        fprintf(out, "%d unbalanced\n", (int)getpid());
    if (out)
        fclose(out);
}

static void put(NvtxFunctionTable table, unsigned slot, const void *function) {
    memcpy(table[slot], function, sizeof *table[slot]);
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table);
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table) {
    const NvtxExportTableCallbacks *callbacks = export_table(NVTX_ETID_CALLBACKS);
    nvtxRangePushA_impl_fntype on_push = push;
    nvtxRangePop_impl_fntype on_pop = pop;
    NvtxFunctionTable table;
    unsigned n = 0;
    const char *path = getenv("RANGES");
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &n) ||
        n <= NVTX_CBID_CORE_RangePop)
        return 0;
    out = path ? fopen(path, "a") : NULL;
    if (!out)
        return 0;
    setvbuf(out, NULL, _IOLBF, BUFSIZ); /* ranks append to one file */
    put(table, NVTX_CBID_CORE_RangePushA, &on_push);
    put(table, NVTX_CBID_CORE_RangePop, &on_pop);
    return 1;
}
