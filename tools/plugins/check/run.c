/* SPDX-License-Identifier: BSD-3-Clause */
/* Starts the ranks of one check and judges how they end. It leaves none of their processes running. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal.h"

enum { GRACE_MS = 1500 }; /* time for the other ranks after one has failed */

typedef struct {
    check_shared *shared;
    const check_case *test;
    const char *launch; /* a launcher's command line; null: the ranks are our own children */
    int fd, output, n, n_processes, left;
    pid_t pids[CHECK_RANKS], group;
    int status[CHECK_RANKS], ended[CHECK_RANKS];
    int64_t end_ns, limit_ns;
    int late, strays;
} world;

/* ---- starting ---------------------------------------------------------------------------------- */

static void set_rank(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* Splits "mpirun -n %d" into words, puts in the number of ranks, and appends our own command. */
static void split_words(const world *w, char *text, char **argv, int most) {
    static char number[16], self[4096], child[64];
    static char *own[] = { self, "plugins", "check", child, NULL };
    int n = 0;
    snprintf(number, sizeof number, "%d", w->n);
    snprintf(child, sizeof child, "--child=/proc/%d/fd/%d,-1", (int)getppid(), w->fd);
    ssize_t got = readlink("/proc/self/exe", self, sizeof self - 1);
    self[got > 0 ? got : 0] = 0;
    for (char *word = strtok(text, " "); word && n < most - 6; word = strtok(NULL, " "))
        argv[n++] = strcmp(word, "%d") == 0 ? number : word;
    memcpy(&argv[n], own, sizeof own);
}

static void become_launcher(const world *w) {
    char text[1024], *argv[64];
    snprintf(text, sizeof text, "%s", w->launch);
    split_words(w, text, argv, 64);
    execvp(argv[0], argv);
    dprintf(2, "%s: %s\n", argv[0], strerror(errno));
    _exit(CHECK_EXIT_LOST);
}

static void become(const world *w, int rank, pid_t parent) {
    char child[48];
    char *argv[] = { "tessera", "plugins", "check", child, NULL };
    snprintf(child, sizeof child, "--child=%d,%d", w->fd, rank);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the kernel ends this rank when the command ends */
    setpgid(0, w->group);
    if (getppid() != parent)
        _exit(CHECK_EXIT_LOST);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(w->output, 1);
    dup2(w->output, 2);
    if (w->launch)
        become_launcher(w);
    fcntl(w->fd, F_SETFD, 0);
    set_rank("RANK", rank); /* set as launchers set it, to show that a plugin does not depend on it */
    set_rank("LOCAL_RANK", rank);
    set_rank("WORLD_SIZE", w->n);
    execv("/proc/self/exe", argv);
    _exit(CHECK_EXIT_LOST);
}

static int start(world *w) {
    pid_t parent = getpid();
    fflush(NULL);
    for (int rank = 0; rank < w->n_processes; rank++) {
        pid_t pid = fork();
        if (pid == 0)
            become(w, rank, parent);
        if (pid < 0)
            return -1;
        w->group = w->group ? w->group : pid;
        setpgid(pid, w->group);
        w->pids[rank] = pid;
        w->left++;
    }
    return 0;
}

/* ---- ending ------------------------------------------------------------------------------------ */

static int is_killed(const world *w, int rank) {
    return w->test->killed_mask >> rank & 1;
}

static int one_skipped(const world *w) {
    int skipped = 0;
    for (int i = 0; i < w->n; i++)
        skipped |= atomic_load(&w->shared->ranks[i].outcome) == CHECK_SKIPPED;
    return skipped;
}

/* Judges a rank by its own report and by how its process ended. */
static int outcome_of(const world *w, int rank) {
    int said = atomic_load(&w->shared->ranks[rank].outcome), status = w->status[rank];
    if (w->launch) /* only the launcher knows how a rank's process ended, and it ends all when one skips */
        return said != CHECK_RUNNING ? said : one_skipped(w) ? CHECK_SKIPPED : CHECK_FAILED;
    if (!w->ended[rank])
        return CHECK_FAILED;
    if (is_killed(w, rank) && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return CHECK_DONE;
    if (said == CHECK_DONE && !is_killed(w, rank) && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return CHECK_DONE;
    if (said == CHECK_SKIPPED && WIFEXITED(status) && WEXITSTATUS(status) == CHECK_EXIT_SKIPPED)
        return CHECK_SKIPPED;
    return CHECK_FAILED;
}

/* A child's pid stays valid until waitpid, so it cannot belong to another process. */
static int reap(world *w) {
    int bad = 0;
    for (int i = 0; w->launch && i < w->n; i++)
        bad |= atomic_load(&w->shared->ranks[i].outcome) == CHECK_FAILED;
    for (int i = 0; i < w->n_processes; i++) {
        if (w->ended[i] || waitpid(w->pids[i], &w->status[i], WNOHANG) != w->pids[i])
            continue;
        w->ended[i] = 1;
        w->left--;
        bad |= !w->launch && outcome_of(w, i) != CHECK_DONE;
    }
    return bad;
}

static void kill_rest(world *w) {
    if (w->launch && w->pids[0] > 0 && !w->ended[0]) { /* a launcher ends its ranks on SIGTERM */
        kill(w->pids[0], SIGTERM);
        check_sleep_ms(500);
    }
    for (int i = 0; i < w->n_processes; i++)
        if (w->pids[i] > 0 && !w->ended[i])
            kill(w->pids[i], SIGKILL);
}

static void wait_for_all(world *w) {
    while (w->left > 0) {
        if (reap(w) && w->end_ns > check_now_ns() + GRACE_MS * INT64_C(1000000))
            w->end_ns = check_now_ns() + GRACE_MS * INT64_C(1000000);
        if (!w->late && check_now_ns() > w->end_ns) {
            w->late = 1;
            reap(w);
            int said[CHECK_RANKS];
            memcpy(said, w->ended, sizeof said);
            kill_rest(w);
            for (int i = 0; i < w->n_processes; i++)
                if (!said[i] && waitpid(w->pids[i], &w->status[i], 0) > 0)
                    w->left--;
        }
        if (w->left > 0)
            check_sleep_ms(1);
    }
}

/* We are the subreaper of processes that the plugin started, so they become our children when their parent ends. */
static int kill_strays(world *w) {
    int found = 0;
    for (int round = 0; round < 100; round++) {
        int status;
        pid_t pid;
        char path[64], text[512] = "";
        snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
        FILE *f = fopen(path, "r");
        size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
        if (f)
            fclose(f);
        text[n] = 0;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            ;
        if (pid < 0) /* no children are left */
            break;
        for (char *at = text, *next; *at; at = next) {
            long number = strtol(at, &next, 10);
            if (next == at)
                break;
            if (number > 1 && kill((pid_t)number, SIGKILL) == 0)
                found++;
        }
        check_sleep_ms(2);
    }
    (void)w;
    return found > 0;
}

/* ---- judging ----------------------------------------------------------------------------------- */

static const char *doing(const world *w, int rank, char out[48]) {
    uint64_t words[4];
    char text[33] = "";
    for (int i = 0; i < 4; i++)
        words[i] = atomic_load_explicit(&w->shared->ranks[rank].doing[i], memory_order_relaxed);
    memcpy(text, words, sizeof words);
    snprintf(out, 48, "%s%s", *text ? ", in " : "", text);
    return out;
}

static void describe(const world *w, int rank, char *out, size_t bytes) {
    const check_rank_report *r = &w->shared->ranks[rank];
    int status = w->status[rank], said = atomic_load(&r->outcome);
    char where[48], who[24] = "";
    doing(w, rank, where);
    if (w->n > 1)
        snprintf(who, sizeof who, "rank %d: ", rank);
    if (w->launch && said == CHECK_RUNNING && !w->late)
        snprintf(out, bytes, "%sended without a word%s", who, where);
    else if (w->launch && said != CHECK_RUNNING)
        snprintf(out, bytes, "%s%s", said == CHECK_FAILED ? who : "", r->said);
    else if (!w->ended[rank] || w->launch)
        snprintf(out, bytes, "%sdid not end within %.3g s%s", who, (double)w->limit_ns / 1e9, where);
    else if (WIFSIGNALED(status))
        snprintf(out, bytes, "%skilled by signal %d (%s)%s", who, WTERMSIG(status), strsignal(WTERMSIG(status)), where);
    else if (said == CHECK_FAILED || said == CHECK_SKIPPED)
        snprintf(out, bytes, "%s%s", said == CHECK_FAILED ? who : "", r->said);
    else if (WEXITSTATUS(status) == CHECK_EXIT_LOST)
        snprintf(out, bytes, "%scould not be started", who);
    else
        snprintf(out, bytes, "%sthe plugin ended the process, with exit code %d%s", who, WEXITSTATUS(status), where);
}

/* Returns the rank to blame: one that crashed or exited, else the first to report a failure, else one that hung. */
static int culprit(const world *w) {
    int best = -1, best_class = 4;
    for (int i = 0; i < w->n; i++) {
        const check_rank_report *r = &w->shared->ranks[i];
        if (outcome_of(w, i) != CHECK_FAILED)
            continue;
        int said = atomic_load(&r->outcome) == CHECK_FAILED;
        int class = said ? 1 : w->ended[i] && !w->launch ? 0 : 2;
        if (class < best_class || (class == best_class && class == 1 && r->said_ns < w->shared->ranks[best].said_ns)) {
            best = i;
            best_class = class;
        }
    }
    return best;
}

static void judge(const world *w, check_outcome *out) {
    int first = culprit(w);
    out->outcome = CHECK_DONE;
    snprintf(out->message, sizeof out->message, "%s", w->shared->ranks[0].note);
    for (int i = 0; i < w->n && first < 0; i++)
        if (atomic_load(&w->shared->ranks[i].outcome) == CHECK_SKIPPED) {
            out->outcome = CHECK_SKIPPED;
            describe(w, i, out->message, sizeof out->message);
            return;
        }
    if (first >= 0) {
        out->outcome = CHECK_FAILED;
        describe(w, first, out->message, sizeof out->message);
    } else if (w->strays && !w->launch) {
        out->outcome = CHECK_FAILED;
        snprintf(out->message, sizeof out->message, "the plugin left a process running");
    }
}

static void take_output(const world *w, check_outcome *out) {
    off_t size = lseek(w->output, 0, SEEK_END), room = sizeof out->output - 1;
    ssize_t n = pread(w->output, out->output, (size_t)room, size > room ? size - room : 0);
    out->output[n > 0 ? n : 0] = 0;
}

static int prepare(world *w, const check_target *t, uint32_t kind, const check_suite *suite) {
    w->fd = memfd_create("tessera-check", MFD_CLOEXEC);
    w->output = memfd_create("tessera-check-output", MFD_CLOEXEC);
    if (w->fd < 0 || w->output < 0 || ftruncate(w->fd, sizeof *w->shared) != 0)
        return -1;
    fcntl(w->output, F_SETFL, O_APPEND);
    w->shared = mmap(NULL, sizeof *w->shared, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd, 0);
    if (w->shared == MAP_FAILED)
        return -1;
    memcpy(w->shared->path, t->path, sizeof w->shared->path);
    memcpy(w->shared->builtin, t->builtin, sizeof w->shared->builtin);
    memcpy(w->shared->args, t->args, sizeof w->shared->args);
    snprintf(w->shared->suite, sizeof w->shared->suite, "%s", suite->name);
    snprintf(w->shared->test, sizeof w->shared->test, "%s", w->test->name);
    w->shared->kind = kind;
    w->shared->nranks = w->n;
    return 0;
}

void check_run_case(const check_target *t, uint32_t kind, const check_suite *suite, const check_case *test,
                    int64_t limit_ns, const char *launch, check_outcome *out) {
    world w = { .test = test, .n = test->nranks, .limit_ns = limit_ns, .fd = -1, .output = -1, .shared = MAP_FAILED };
    int64_t begin = check_now_ns();
    memset(out, 0, sizeof *out);
    if (launch && test->killed_mask) {
        out->outcome = CHECK_SKIPPED;
        snprintf(out->message, sizeof out->message,
                 test->killed_mask == CHECK_APART ? "under a launcher all ranks start together"
                                                  : "the launcher ends all ranks when one is killed");
        return;
    }
    w.launch = suite->kind == TESS_KIND_COMM ? launch : NULL;
    w.n_processes = w.launch ? 1 : w.n;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    w.end_ns = begin + limit_ns;
    if (prepare(&w, t, kind, suite) != 0 || start(&w) != 0) {
        kill_rest(&w);
        out->outcome = CHECK_FAILED;
        snprintf(out->message, sizeof out->message, "no process for the check: %s", strerror(errno));
        w.n_processes = w.shared == MAP_FAILED ? 0 : w.n_processes;
    }
    wait_for_all(&w);
    w.strays = kill_strays(&w);
    if (out->outcome == CHECK_RUNNING)
        judge(&w, out);
    if (out->outcome == CHECK_FAILED && w.output >= 0)
        take_output(&w, out);
    out->seconds = (double)(check_now_ns() - begin) / 1e9;
    if (w.shared != MAP_FAILED)
        munmap(w.shared, sizeof *w.shared);
    close(w.fd);
    close(w.output);
}
