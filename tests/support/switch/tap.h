/* SPDX-License-Identifier: BSD-3-Clause */
/* An Ethernet device eth0 in a network namespace, whose cable ends in a file descriptor. */
#ifndef SWITCH_TAP_H
#define SWITCH_TAP_H

/** The descriptor, not blocking, or -1 with a line on stderr. */
int switch_tap_open(const char *namespace_name, int port);
#endif
