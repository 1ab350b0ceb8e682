/* SPDX-License-Identifier: BSD-3-Clause */
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabric.h"

static int failed(const char *what, const char *name) {
    fprintf(stderr, "net_switch: %s %s: %s\n", what, name, strerror(errno));
    return -1;
}

static int enter(int fd, const char *name) {
    return fd >= 0 && setns(fd, CLONE_NEWNET) == 0 ? 0 : failed("namespace", name);
}

/* A fixed address per port: the switch learns nothing. */
static int give_address(int port) {
    struct ifreq request = { .ifr_name = "eth0" };
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
    switch_fabric_address(port, (unsigned char *)request.ifr_hwaddr.sa_data);
    int set = fd >= 0 ? ioctl(fd, SIOCSIFHWADDR, &request) : -1;
    if (fd >= 0)
        close(fd);
    return set;
}

/* In the namespace where this thread is. */
static int make(const char *name, int port) {
    struct ifreq request = { .ifr_name = "eth0", .ifr_flags = IFF_TAP | IFF_NO_PI };
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return failed("/dev/net/tun in", name);
    if (ioctl(fd, TUNSETIFF, &request) == 0 && give_address(port) == 0)
        return fd;
    failed("eth0 of", name);
    close(fd);
    return -1;
}

/* Back in its own namespace at the end: who lists a host's processes must not find the switch. */
int switch_tap_open(const char *namespace_name, int port) {
    char path[256];
    snprintf(path, sizeof path, "/run/netns/%.200s", namespace_name);
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), to = open(path, O_RDONLY | O_CLOEXEC);
    int fd = enter(to, path) == 0 ? make(namespace_name, port) : -1;
    if (to >= 0)
        close(to);
    if (enter(own, "own") != 0)
        fd = -1;
    close(own);
    return fd;
}
