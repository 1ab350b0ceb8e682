/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks the system: cores, memory, limits, names in memory, sockets. */
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/kernels/isa.h"
#include "doctor.h"

#define MIB 1048576.0
enum { LEAST_FILES = 256, LEAST_LOCKED_MIB = 64, LEAST_SHM_MIB = 64 };

static void processor(doctor *d) {
    cpu_set_t set;
    CPU_ZERO(&set);
    long cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    int isa = tess__isa();
    doctor_row(d, isa >= TESS_ISA_AVX2 ? DOCTOR_OK : DOCTOR_NOTE, "processor",
               "without AVX2 the kernels are slower; the bits are the same", "%ld cores, kernels for %s", cores,
               tess__isa_name(isa));
}

/* A line "Name:   1234 kB" of /proc/meminfo, in bytes; 0: there is none. */
static double meminfo(const char *name) {
    char line[128];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), ": %llu", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return 1024.0 * (double)kib;
}

static void memory(doctor *d) {
    double available = meminfo("MemAvailable");
    doctor_row(d, available >= 512 * MIB ? DOCTOR_OK : DOCTOR_NOTE, "memory",
               "end other programs; --device-memory makes a plan refuse what does not fit", "%.1f GiB, %.1f available",
               meminfo("MemTotal") / MIB / 1024, available / MIB / 1024);
}

/* The kernel shows its choices with brackets around the one that holds: "always [madvise] never". */
static void huge_pages(doctor *d) {
    char line[128] = "", *begin, *end;
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (f && !fgets(line, sizeof line, f))
        line[0] = 0;
    if (f)
        fclose(f);
    begin = strchr(line, '[');
    end = begin ? strchr(begin, ']') : NULL;
    if (end)
        *end = 0;
    int off = !end || strcmp(begin + 1, "never") == 0;
    doctor_row(d, off ? DOCTOR_NOTE : DOCTOR_OK, "huge pages",
               "as root: echo madvise >/sys/kernel/mm/transparent_hugepage/enabled", "transparent huge pages: %s",
               end ? begin + 1 : "not there");
}

static void limit(doctor *d, int which, double least, double unit, const char *what, const char *unit_word,
                  const char *repair) {
    struct rlimit r;
    if (getrlimit(which, &r) != 0)
        return;
    if (r.rlim_cur == RLIM_INFINITY)
        doctor_row(d, DOCTOR_OK, what, NULL, "unlimited");
    else
        doctor_row(d, (double)r.rlim_cur >= least ? DOCTOR_OK : DOCTOR_NOTE, what, repair, "%.0f%s",
                   (double)r.rlim_cur / unit, unit_word);
}

static void shared_memory(doctor *d) {
    struct statvfs fs;
    static const char repair[] =
        "mount -o remount,size=1G /dev/shm, or docker run --shm-size=1g: NCCL lays its buffers "
        "there, comm-shm does not";
    if (statvfs("/dev/shm", &fs) != 0) {
        doctor_row(d, DOCTOR_NOTE, "/dev/shm", repair, "%s", strerror(errno));
        return;
    }
    double room = (double)fs.f_bavail * (double)fs.f_frsize / MIB;
    doctor_row(d, room >= LEAST_SHM_MIB ? DOCTOR_OK : DOCTOR_NOTE, "/dev/shm", repair, "%.0f MiB free", room);
}

/* Connects to a port of its own on 127.0.0.1, as ranks do. */
static int loopback_works(void) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
        client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int works = server >= 0 && client >= 0 && bind(server, (void *)&at, sizeof at) == 0 && listen(server, 1) == 0 &&
                getsockname(server, (void *)&at, &size) == 0 && connect(client, (void *)&at, sizeof at) == 0;
    int error = errno;
    if (client >= 0)
        close(client);
    if (server >= 0)
        close(server);
    errno = error;
    return works;
}

static void loopback(doctor *d) {
    if (loopback_works())
        doctor_row(d, DOCTOR_OK, "loopback", NULL, "127.0.0.1 takes connections");
    else
        doctor_row(d, DOCTOR_NOTE, "loopback",
                   "ip link set lo up; comm-gloo and programs without `tessera run` need it", "127.0.0.1: %s",
                   strerror(errno));
}

void doctor_machine(doctor *d) {
    processor(d);
    memory(d);
    huge_pages(d);
    limit(d, RLIMIT_MEMLOCK, LEAST_LOCKED_MIB * MIB, 1024, "locked memory", " KiB",
          "ulimit -l unlimited: offloading to pinned memory is slower without, and a GPU's driver may refuse");
    limit(d, RLIMIT_NOFILE, LEAST_FILES, 1, "open files", "", "ulimit -n 4096: ranks hold several for each other");
    shared_memory(d);
    loopback(d);
}
