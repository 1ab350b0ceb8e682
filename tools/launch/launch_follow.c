/* SPDX-License-Identifier: BSD-3-Clause */
/* The messages of `tessera run --hosts` to the command that its agent started on this host, over standard input: a line
 * with the secret, then a line with the number of each signal. The end of it is the end of who said it. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tools/support/say.h"
#include "launch_internal.h"
#include "tools/commands.h"

/* One byte at a time: what follows the line is for later. -1: it ended, or has no end. */
static int read_line(char *out, size_t room) {
    for (size_t n = 0; n < room; n++) {
        ssize_t got;
        do
            got = read(STDIN_FILENO, out + n, 1);
        while (got < 0 && errno == EINTR);
        if (got != 1)
            return -1;
        if (out[n] == '\n') {
            out[n] = 0;
            return 0;
        }
    }
    return -1;
}

int launch_follow_secret(launch *l) {
    if (!l->options->follow)
        return 0;
    l->orders_fd = STDIN_FILENO;
    if (read_line(l->secret, sizeof l->secret) == 0)
        return 0;
    tool_say(SAY_ERROR, "no secret on standard input: `tessera run --hosts` starts this");
    return TOOL_PEER;
}

int launch_follow_order(launch *l) {
    char line[16];
    int signal = 0;
    if (read_line(line, sizeof line) != 0) {
        l->orders_fd = -1;
        return SIGTERM;
    }
    for (const char *at = line; *at >= '0' && *at <= '9' && signal <= SIGRTMAX; at++)
        signal = 10 * signal + (*at - '0');
    return signal >= 1 && signal <= SIGRTMAX ? signal : 0;
}
