/* SPDX-License-Identifier: BSD-3-Clause */
#include "settings.h"

#define OPS "any|all_gather|reduce_scatter|all_reduce|broadcast|all_to_all|barrier|all_to_all_v"
enum {
    OPTION_DELAY,
    OPTION_DROP,
    OPTION_CORRUPT,
    OPTION_KILL,
    OPTION_OP,
    OPTION_AT,
    OPTION_RANK,
    OPTION_OVER,
    N_OPTIONS
};
TESS_OPTIONS(options) = {
    { sizeof options[0], TESS_OPTION_INT, 0, INT32_MAX, "fault-delay", "", "",
      "milliseconds that the operation waits" },
    { sizeof options[0], TESS_OPTION_FLAG, 0, 0, "fault-drop", "no", "", "the operation is never posted" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "fault-corrupt", "", "data|tag",
      "what is changed: a bit of the result, or the tag" },
    { sizeof options[0], TESS_OPTION_FLAG, 0, 0, "fault-kill", "no", "", "the process ends by SIGKILL" },
    { sizeof options[0], TESS_OPTION_CHOICE, 0, 0, "fault-op", "any", OPS, "the operation" },
    { sizeof options[0], TESS_OPTION_INT, 0, INT32_MAX, "fault-at", "1", "", "which of them, from 1; 0: every one" },
    { sizeof options[0], TESS_OPTION_INT, -1, INT32_MAX, "fault-rank", "-1", "", "rank of the world; -1: every one" },
    { sizeof options[0], TESS_OPTION_TEXT, 0, 0, "fault-over", "shm", "", "the plugin below, with its arguments" },
};

const char *settings_op_name(uint32_t op) {
    static const char *const words[] = { "any",       "all_gather", "reduce_scatter", "all_reduce",
                                         "broadcast", "all_to_all", "barrier",        "all_to_all_v" };
    return op < sizeof words / sizeof words[0] ? words[op] : "?";
}

static enum fault fault_of(const kit_option *read) {
    if (read[OPTION_KILL].value.number)
        return KILL;
    if (read[OPTION_DROP].value.number)
        return DROP;
    if (read[OPTION_CORRUPT].is_set)
        return read[OPTION_CORRUPT].value.number ? CORRUPT_TAG : CORRUPT_DATA;
    return read[OPTION_DELAY].is_set ? DELAY : NO_FAULT;
}

tess_status settings_read(const tess_host *host, settings *out, tess_error *error) {
    static const kit_options readable = { "comm fault", "fault-", options, N_OPTIONS, "over" };
    kit_option read[N_OPTIONS];
    tess_status s = kit_options_read(&readable, host, read, error);
    if (s < 0)
        return s;
    *out = (settings){ .fault = fault_of(read),
                       .delay_ms = read[OPTION_DELAY].value.integer,
                       .op = (uint32_t)read[OPTION_OP].value.number,
                       .at = (uint64_t)read[OPTION_AT].value.integer,
                       .rank = (int32_t)read[OPTION_RANK].value.integer };
    memcpy(out->over, read[OPTION_OVER].text, sizeof out->over);
    return TESS_OK;
}
