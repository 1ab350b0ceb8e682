#include "comm_suite.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 16, KEYS = 256, VALUE_BYTES = 4096, LIMIT_MS = 40000 };

/* What the ranks of one scenario share. A rank may be killed at any moment, so nothing here takes a lock: an entry
 * belongs to whoever gets its number, and is valid once `ready`. */
struct entry {
    atomic_int ready;
    uint64_t bytes;
    char key[128];
    unsigned char value[VALUE_BYTES];
};
struct comm_shared {
    atomic_int used, joined;
    atomic_llong flags[16];
    atomic_int aborting[RANKS];
    char said[RANKS][512];
    struct entry entries[KEYS];
};

int64_t comm_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void comm_sleep_ms(int ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

/* ---- the host table ---------------------------------------------------------------------------- */

static void host_log(void *host, int32_t level, const char *plugin, const char *message) {
    (void)host, (void)level;
    fprintf(stderr, "%s: %s\n", plugin, message);
}

static const char *host_option(void *host, const char *key) {
    (void)host, (void)key;
    return NULL;
}

static tess_status host_kv_set(void *host, const char *key, const void *value, uint64_t bytes) {
    struct comm_rank *r = host;
    int i = atomic_fetch_add(&r->shared->used, 1);
    if (i >= KEYS || bytes > VALUE_BYTES || strlen(key) >= sizeof r->shared->entries[0].key)
        return TESS_E_NOMEM;
    struct entry *e = &r->shared->entries[i];
    strcpy(e->key, key);
    memcpy(e->value, value, bytes);
    e->bytes = bytes;
    atomic_store(&e->ready, 1);
    return TESS_OK;
}

static tess_status host_kv_get(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns) {
    struct comm_rank *r = host;
    for (int64_t end = comm_now_ns() + timeout_ns;; comm_sleep_ms(1)) {
        for (int i = 0; i < KEYS; i++) {
            struct entry *e = &r->shared->entries[i];
            if (!atomic_load(&e->ready) || strcmp(e->key, key) != 0)
                continue;
            if (*bytes < e->bytes)
                return TESS_E_INVALID;
            memcpy(value, e->value, e->bytes);
            *bytes = e->bytes;
            return TESS_OK;
        }
        if (atomic_load(&r->shared->aborting[r->rank]))
            return TESS_E_ABORTED;
        if (timeout_ns >= 0 && comm_now_ns() > end)
            return TESS_E_TIMEOUT;
    }
}

static int32_t host_aborting(void *host) {
    struct comm_rank *r = host;
    return atomic_load(&r->shared->aborting[r->rank]);
}

static tess_status host_mem_alloc(void *host, uint32_t domain, uint32_t category, uint64_t bytes, uint64_t align,
                                  void **out) {
    (void)host, (void)domain, (void)category;
    return posix_memalign(out, align < sizeof(void *) ? sizeof(void *) : align, bytes) == 0 ? TESS_OK : TESS_E_NOMEM;
}

static void host_mem_free(void *host, void *ptr) {
    (void)host;
    free(ptr);
}

/* ---- for scenarios ----------------------------------------------------------------------------- */

void comm_fail(struct comm_rank *r, const char *file, int line, const char *format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *name = strrchr(file, '/');
    snprintf(r->shared->said[r->rank], sizeof r->shared->said[0], "%s:%d: %s", name ? name + 1 : file, line, text);
    _exit(1);
}

void comm_set_aborting(struct comm_rank *r) {
    atomic_store(&r->shared->aborting[r->rank], 1);
}
void comm_flag_set(struct comm_rank *r, int flag, int64_t value) {
    atomic_store(&r->shared->flags[flag], value);
}
int64_t comm_flag_get(struct comm_rank *r, int flag) {
    return atomic_load(&r->shared->flags[flag]);
}
void comm_flag_wait(struct comm_rank *r, int flag, int64_t at_least) {
    while (comm_flag_get(r, flag) < at_least)
        comm_sleep_ms(1);
}

tess_status comm_init(struct comm_rank *r, const char *group, int64_t timeout_ns, tess_comm **out, tess_error *error) {
    tess_comm_config cfg = { .struct_size = sizeof cfg,
                             .rank = r->rank,
                             .nranks = r->nranks,
                             .local_rank = r->rank,
                             .group = group,
                             .timeout_ns = timeout_ns };
    return r->ops->init(r->ctx, &cfg, out, error);
}

void comm_join(struct comm_rank *r) {
    tess_error e = { .struct_size = sizeof e };
    tess_status s = comm_init(r, "world", INT64_C(20000000000), &r->comm, &e);
    COMM_CHECK(r, s == TESS_OK, "init gave %d: %s", s, e.message);
    /* init is no barrier: a rank that is through and leaves at once may end its peers' init. */
    atomic_fetch_add(&r->shared->joined, 1);
    while (atomic_load(&r->shared->joined) < r->nranks)
        comm_sleep_ms(1);
}

void comm_leave(struct comm_rank *r) {
    tess_error e = { .struct_size = sizeof e };
    tess_status s = r->ops->finalize(r->comm, INT64_C(20000000000), &e);
    COMM_CHECK(r, s == TESS_OK, "finalize gave %d: %s", s, e.message);
    r->ops->destroy(r->comm);
    r->comm = NULL;
}

/* ---- ranks ------------------------------------------------------------------------------------- */

static void open_plugin(struct comm_rank *r, const char *path) {
    r->host = (tess_host){ .struct_size = sizeof r->host,
                           .abi_major = TESS_ABI_MAJOR,
                           .abi_minor = TESS_ABI_MINOR,
                           .host = r,
                           .log = host_log,
                           .option = host_option,
                           .kv_set = host_kv_set,
                           .kv_get = host_kv_get,
                           .aborting = host_aborting,
                           .mem_alloc = host_mem_alloc,
                           .mem_free = host_mem_free,
                           .args = "",
                           .helper_cpus = "",
                           .numa_node = -1,
                           .max_helper_threads = -1 };
    r->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    COMM_CHECK(r, r->library, "%s", dlerror());
    tess_status (*open)(const tess_host *, uint32_t, const void **, void **, tess_error *);
    *(void **)&open = dlsym(r->library, "tess_plugin_open_v1");
    const tess_plugin_note *note = dlsym(r->library, "tess_plugin_note_v1");
    COMM_CHECK(r, open && note, "descriptor or open function missing");
    COMM_CHECK(r, note->kinds & (1u << TESS_KIND_COMM), "not a comm plugin");
    tess_error e = { .struct_size = sizeof e };
    const void *ops;
    tess_status s = open(&r->host, TESS_KIND_COMM, &ops, &r->ctx, &e);
    COMM_CHECK(r, s == TESS_OK, "open gave %d: %s", s, e.message);
    r->ops = ops;
    r->caps.struct_size = sizeof r->caps;
    COMM_CHECK(r, r->ops->query(r->ctx, NULL, &r->caps) == TESS_OK, "query failed");
}

static void be_rank(struct comm_rank *r, const char *plugin, comm_scenario scenario) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* no rank outlives the test */
    open_plugin(r, plugin);
    scenario(r);
    if (r->ops->close)
        r->ops->close(r->ctx);
    exit(0); /* not _exit: the sanitizers report here */
}

static void kill_late(pid_t *pids, int n) {
    for (int i = 0; i < n; i++)
        if (pids[i] > 0)
            kill(pids[i], SIGKILL);
}

/* Whether this end of rank `i` is what the scenario asks for; says so if not. */
static int ended_well(struct comm_shared *shared, int i, int status, int killed, int late) {
    if (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !late)
        return 1;
    if (!killed && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 1;
    const char *said = shared->said[i];
    if (late)
        fprintf(stderr, "rank %d: still running after %d ms%s%s\n", i, LIMIT_MS, *said ? ": " : "", said);
    else if (*said)
        fprintf(stderr, "rank %d: %s\n", i, said);
    else
        fprintf(stderr, "rank %d: %s %d\n", i, WIFSIGNALED(status) ? "signal" : "exit code",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return 0;
}

static int reap(struct comm_shared *shared, pid_t *pids, int n, unsigned killed_mask) {
    int failed = 0, left = n, late = 0;
    for (int64_t end = comm_now_ns() + LIMIT_MS * INT64_C(1000000); left > 0;) {
        for (int i = 0; i < n; i++) {
            int status;
            if (pids[i] <= 0 || waitpid(pids[i], &status, WNOHANG) != pids[i])
                continue;
            pids[i] = 0;
            left--;
            if (!ended_well(shared, i, status, killed_mask >> i & 1, late))
                failed++;
        }
        if (!late && comm_now_ns() > end) {
            late = 1;
            kill_late(pids, n);
        }
        if (left > 0)
            comm_sleep_ms(1);
    }
    return failed;
}

int comm_world(const char *plugin, int nranks, comm_scenario scenario, const void *arg, unsigned killed_mask) {
    struct comm_shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || nranks > RANKS)
        return nranks;
    pid_t pids[RANKS] = { 0 };
    fflush(NULL);
    int started = 0;
    for (; started < nranks; started++) {
        pids[started] = fork();
        if (pids[started] < 0)
            break;
        if (pids[started] == 0) {
            struct comm_rank r = { .rank = started, .nranks = nranks, .arg = arg, .shared = shared };
            be_rank(&r, plugin, scenario);
        }
    }
    if (started < nranks)
        kill_late(pids, started);
    int failed = reap(shared, pids, started, killed_mask) + nranks - started;
    munmap(shared, sizeof *shared);
    return failed;
}
