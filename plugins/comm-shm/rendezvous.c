/* SPDX-License-Identifier: BSD-3-Clause */
/* Each rank publishes a record in the key-value store: which host it is on. When all are on one, rank 0 collects every
 * rank's descriptors over a Unix socket and sends all of them to all. The socket's address is abstract, chosen by the
 * kernel: no name in any directory, nothing left behind. Both sides check the other's user and that it has read the
 * record. */
#include "rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { VERSION = 3, SLICE_MS = 20, TRIES = 5, FDS_MAX = 2 * SHM_RANKS_MAX };

struct rank_record {
    char host[64], boot[40]; /* boot: the running kernel's own random number */
    unsigned char address[16];
    uint32_t version, address_bytes;
    /* A message to rank 0 begins with the first, its answer with the other: who listens in its place without the record
     * learns the first alone. */
    uint64_t secrets[2];
};
struct fd_message {
    uint64_t secret;
    int32_t rank, reserved;
};

struct rendezvous {
    kit_joining joining;
    struct shm_group *group;
    tess_error *error;
    struct rank_record first;
    int sockets[SHM_RANKS_MAX]; /* rank 0 has one for every rank; the others use [0] */
    int listener;
};

/* If no descriptors are left, this process is at fault, not the peer. */
static tess_status fail_broken(struct rendezvous *m, int rank, const char *what) {
    if (errno == EMFILE || errno == ENFILE)
        return tess_plugin_fail(m->error, TESS_E_SYSTEM, "shm: %s rank %d: %s (ulimit -n)", what, rank,
                                strerror(errno));
    return tess_plugin_fail_of(m->error, TESS_E_PEER, rank, "shm: %s rank %d: %s", what, rank, strerror(errno));
}

/* ---- cards ---------------------------------------------------------------------------------------- */

static void read_boot(char *out, size_t room) {
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, out, room - 1) : 0;
    out[got > 0 ? got : 0] = 0;
    out[strcspn(out, "\n")] = 0;
    if (fd >= 0)
        close(fd);
}

static tess_status listen_anywhere(struct rendezvous *m, struct rank_record *own) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    socklen_t bytes = sizeof at;
    m->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (m->listener < 0 || bind(m->listener, (struct sockaddr *)&at, sizeof at.sun_family) != 0 ||
        listen(m->listener, m->group->size) != 0 || getsockname(m->listener, (struct sockaddr *)&at, &bytes) != 0 ||
        bytes - offsetof(struct sockaddr_un, sun_path) > sizeof own->address)
        return tess_plugin_fail(m->error, TESS_E_SYSTEM, "shm: cannot listen on a Unix socket: %s", strerror(errno));
    own->address_bytes = (uint32_t)(bytes - offsetof(struct sockaddr_un, sun_path));
    memcpy(own->address, at.sun_path, own->address_bytes);
    return TESS_OK;
}

static tess_status publish_record(struct rendezvous *m, struct rank_record *own) {
    memset(own, 0, sizeof *own);
    own->version = VERSION;
    gethostname(own->host, sizeof own->host - 1);
    read_boot(own->boot, sizeof own->boot);
    if (m->group->rank == 0) {
        if (getrandom(own->secrets, sizeof own->secrets, 0) != (ssize_t)sizeof own->secrets)
            return tess_plugin_fail(m->error, TESS_E_SYSTEM, "shm: no random number: %s", strerror(errno));
        tess_status s = listen_anywhere(m, own);
        if (s)
            return s;
    }
    return kit_joining_set(&m->joining, "shm", m->group->rank, own, sizeof *own, m->error);
}

static tess_status read_record(struct rendezvous *m, int rank, struct rank_record *out) {
    tess_status s = kit_joining_get(&m->joining, "shm", rank, out, sizeof *out, m->error);
    if (s)
        return s;
    out->host[sizeof out->host - 1] = out->boot[sizeof out->boot - 1] = 0;
    return out->version == VERSION && out->address_bytes <= sizeof out->address
               ? TESS_OK
               : tess_plugin_fail_of(m->error, TESS_E_VERSION, rank, "shm: rank %d speaks version %u, this one %d",
                                     rank, out->version, VERSION);
}

static tess_status read_records(struct rendezvous *m, const struct rank_record *mine) {
    for (int rank = 0; rank < m->group->size; rank++) {
        struct rank_record theirs;
        tess_status s = read_record(m, rank, &theirs);
        if (s)
            return s;
        int known = mine->boot[0] && theirs.boot[0];
        if (known ? strcmp(mine->boot, theirs.boot) != 0 : strcmp(mine->host, theirs.host) != 0)
            return tess_plugin_fail_of(
                m->error, TESS_E_UNSUPPORTED, rank,
                "shm: rank %d is on host %.40s, rank %d on host %.40s; comm shm serves the ranks of one "
                "host: set TESSERA_COMM to another",
                m->group->rank, mine->host, rank, theirs.host);
        if (rank == 0)
            m->first = theirs;
    }
    return TESS_OK;
}

/* ---- descriptors ---------------------------------------------------------------------------------- */

/* Whether the other end of a socket is a process of this user. */
static int is_own_user(int fd) {
    struct ucred who;
    socklen_t bytes = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == geteuid();
}

static int send_fds(struct rendezvous *m, int fd, const int *fds, int n) {
    struct fd_message p = { .secret = m->first.secrets[m->group->rank == 0], .rank = m->group->rank };
    union {
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec io = { &p, sizeof p };
    struct msghdr message = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE((size_t)n * sizeof(int))
    };
    memset(&control, 0, sizeof control);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
    memcpy(CMSG_DATA(c), fds, (size_t)n * sizeof(int));
    ssize_t sent;
    do
        sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof p;
}

/* A message with exactly n descriptors: 1; else 0 with errno, and what came is closed. */
static int receive_fds(struct rendezvous *m, int fd, int *rank, int *fds, int n) {
    struct fd_message p = { 0 };
    union {
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec io = { &p, sizeof p };
    struct msghdr message = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    ssize_t got;
    do
        got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return 0;
    int here = 0, all[FDS_MAX];
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        here = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(all, CMSG_DATA(c), (size_t)here * sizeof(int));
    }
    int known = got == (ssize_t)sizeof p && p.secret == m->first.secrets[m->group->rank != 0];
    errno = got == 0 ? ECONNRESET : known && here < n ? EMFILE : EPROTO;
    if (known && here == n) {
        memcpy(fds, all, (size_t)n * sizeof(int));
        *rank = p.rank;
        return 1;
    }
    for (int i = 0; i < here; i++)
        close(all[i]);
    return 0;
}

static int wait_readable(int fd) {
    struct pollfd p = { .fd = fd, .events = POLLIN };
    return poll(&p, 1, SLICE_MS) > 0;
}

/* Rank 0: one connection, if it is of a rank that is still missing. Negative: there is no descriptor for it. */
static int accept_one(struct rendezvous *m) {
    int rank, fds[2], fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return errno == EMFILE || errno == ENFILE ? -1 : 0;
    struct timeval brief = { .tv_sec = 1 }; /* a rank sends as soon as it has connected */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief);
    int own = is_own_user(fd);
    if (!own || !receive_fds(m, fd, &rank, fds, 2)) {
        int full = own && errno == EMFILE;
        close(fd);
        errno = EMFILE;
        return full ? -1 : 0;
    }
    if (rank < 1 || rank >= m->group->size || m->sockets[rank] >= 0) {
        close(fds[0]);
        close(fds[1]);
        close(fd);
        return 0;
    }
    m->group->ranks[rank].arena_fd = fds[0];
    m->group->ranks[rank].table_fd = fds[1];
    m->sockets[rank] = fd;
    return 1;
}

static void list_fds(const struct shm_group *g, int *fds) {
    for (int rank = 0; rank < g->size; rank++) {
        fds[2 * rank] = g->ranks[rank].arena_fd;
        fds[2 * rank + 1] = g->ranks[rank].table_fd;
    }
}

static tess_status collect_and_hand_out(struct rendezvous *m) {
    int fds[FDS_MAX], missing = 1;
    for (int came = 1, one; came < m->group->size; came += one) {
        while (missing < m->group->size && m->sockets[missing] >= 0)
            missing++;
        tess_status s = kit_joining_check(&m->joining, missing, m->error);
        if (s)
            return s;
        wait_readable(m->listener);
        if ((one = accept_one(m)) < 0)
            return fail_broken(m, missing, "cannot take the descriptors of");
    }
    list_fds(m->group, fds);
    for (int rank = 1; rank < m->group->size; rank++)
        if (!send_fds(m, m->sockets[rank], fds, 2 * m->group->size))
            return fail_broken(m, rank, "cannot hand the descriptors to");
    return TESS_OK;
}

static tess_status connect_to_first(struct rendezvous *m) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + m->first.address_bytes);
    memcpy(at.sun_path, m->first.address, m->first.address_bytes);
    int fd = m->sockets[0] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return tess_plugin_fail(m->error, TESS_E_SYSTEM, "shm: no socket: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&at, bytes) != 0)
        return fail_broken(m, 0, "cannot reach (is it in another network namespace?)");
    if (is_own_user(fd))
        return TESS_OK;
    return tess_plugin_fail_of(m->error, TESS_E_PEER, 0,
                               "shm: the process that answers for rank 0 belongs to another user");
}

/* Sends this rank's descriptors, and waits for those of all. 0 with errno, or with the group's status in *s. Nothing is
 * read before there is something: Linux looks for a message first and for the end then, so a read of an empty socket
 * tells the end when rank 0 sends and closes in between. */
static int exchange_fds(struct rendezvous *m, int *fds, tess_status *s) {
    const struct shm_group *g = m->group;
    const int own[2] = { g->ranks[g->rank].arena_fd, g->ranks[g->rank].table_fd };
    int rank;
    if (!send_fds(m, m->sockets[0], own, 2))
        return 0;
    while (!wait_readable(m->sockets[0]))
        if ((*s = kit_joining_check(&m->joining, 0, m->error)))
            return 0;
    return receive_fds(m, m->sockets[0], &rank, fds, 2 * g->size);
}

/* Rank 0 hangs up on who is silent for a second, as a rank may be on a busy machine: such a one comes again. */
static int come_again(struct rendezvous *m) {
    if (errno != ECONNRESET && errno != EPIPE)
        return 0;
    close(m->sockets[0]);
    int there = connect_to_first(m) == TESS_OK;
    errno = ECONNRESET;
    return there;
}

static tess_status hand_over_and_receive(struct rendezvous *m) {
    struct shm_group *g = m->group;
    int fds[FDS_MAX], rank, tries = 1;
    tess_status s = connect_to_first(m);
    if (s)
        return s;
    while (!exchange_fds(m, fds, &s)) {
        if (s)
            return s;
        if (tries++ == TRIES || !come_again(m))
            return fail_broken(m, 0, "no descriptors came from");
    }
    for (rank = 0; rank < g->size; rank++) {
        if (rank == g->rank) { /* rank 0 also sent copies of this rank's own descriptors */
            close(fds[2 * rank]);
            close(fds[2 * rank + 1]);
            continue;
        }
        g->ranks[rank].arena_fd = fds[2 * rank];
        g->ranks[rank].table_fd = fds[2 * rank + 1];
    }
    return TESS_OK;
}

tess_status shm_meet(const tess_host *host, const tess_comm_config *config, struct shm_group *group, tess_error *e) {
    struct rendezvous m = { .joining = kit_joining_begin(host, "shm", config->group, config->timeout_ns),
                            .group = group,
                            .error = e,
                            .listener = -1 };
    struct rank_record own;
    for (int i = 0; i < SHM_RANKS_MAX; i++)
        m.sockets[i] = -1;
    tess_status s = group->size > 1 ? publish_record(&m, &own) : TESS_OK;
    if (s == TESS_OK && group->size > 1)
        s = read_records(&m, &own);
    if (s == TESS_OK && group->size > 1)
        s = group->rank == 0 ? collect_and_hand_out(&m) : hand_over_and_receive(&m);
    if (s == TESS_OK)
        s = shm_group_show_life(group, e);
    for (int i = 0; i < SHM_RANKS_MAX; i++)
        if (m.sockets[i] >= 0)
            close(m.sockets[i]);
    if (m.listener >= 0)
        close(m.listener);
    return s;
}
