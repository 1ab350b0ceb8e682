/* SPDX-License-Identifier: BSD-3-Clause */
/* libFuzzer: any bytes as --hosts, or after an f as a hostfile. */
#include "fuzz_input.h"
#include "tools/launch/hosts.h"

static void check(const host_list *list, int result, const char *why) {
    if (result != 0 && (!*why || strchr(why, '\n')))
        abort();
    for (int32_t i = 0; result == 0 && i < list->n; i++)
        if (!*list->all[i].name || *list->all[i].name == '-' || list->all[i].ranks < 0 ||
            list->all[i].ranks > HOST_RANKS_MAX)
            abort(); /* an agent would take it for something else */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    host_list list = { 0 };
    char why[256] = "";
    if (size && data[0] == 'f') {
        check(&list, hosts_read(fuzz_file(data + 1, size - 1), &list, why), why);
    } else {
        char *text = fuzz_text(data, size);
        check(&list, hosts_parse(text, &list, why), why);
        free(text);
    }
    hosts_free(&list);
    return 0;
}
