/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank's process finds its check, runs it and reports how it ended. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "internal.h"

static check the_check; /* one check per process */

static const check_case *case_of(const check_shared *s) {
    for (const check_suite *x = check_suites; x->name; x++)
        for (const check_case *k = x->cases; strcmp(x->name, s->suite) == 0 && k->name; k++)
            if (strcmp(k->name, s->test) == 0)
                return k;
    return NULL;
}

static void run(check *c, const check_case *k) {
    check_thread_state before;
    check_thread_look(&before);
    k->run(c);
    if (c->finish)
        c->finish(c);
    if (c->ops)
        check_close(c);
    check_book(c);
    const char *changed = check_thread_changed(&before);
    check_that(c, !changed, "leaves %s of the calling thread changed", changed);
    check_doing(c, "what runs when the process ends");
    atomic_store(&c->shared->ranks[c->rank].outcome, CHECK_DONE);
    for (int i = 0; c->launched && i < c->nranks; i++) /* a launcher may kill all ranks when one exits */
        for (int ms = 0; ms < 5000 && atomic_load(&c->shared->ranks[i].outcome) == CHECK_RUNNING; ms++)
            check_sleep_ms(1);
}

/* Finds this process's rank under a launcher, and the memory that all ranks share. */
static int find_launched(const char *text, int *rank) {
    static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK" };
    char path[64] = "";
    const char *found = NULL;
    for (size_t i = 0; !found && i < sizeof names / sizeof names[0]; i++)
        found = getenv(names[i]);
    if (!found || sscanf(text, "%63[^,]", path) != 1)
        return -1;
    *rank = atoi(found);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return open(path, O_RDWR | O_CLOEXEC);
}

int check_rank_main(const char *text) {
    check *c = &the_check;
    int fd = -1;
    if (*text == '/')
        fd = find_launched(text, &c->rank), c->launched = 1;
    else if (sscanf(text, "%d,%d", &fd, &c->rank) != 2)
        return CHECK_EXIT_LOST;
    if (fd < 0 || c->rank < 0 || c->rank >= CHECK_RANKS)
        return CHECK_EXIT_LOST;
    c->shared = mmap(NULL, sizeof *c->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (c->shared == MAP_FAILED)
        return CHECK_EXIT_LOST;
    const check_case *k = case_of(c->shared);
    if (!k)
        return CHECK_EXIT_LOST;
    c->nranks = c->shared->nranks;
    c->kind = c->shared->kind;
    c->path = c->shared->path;
    c->builtin = c->shared->builtin;
    c->args = c->shared->args;
    check_host(c);
    run(c, k);
    exit(0); /* unlike _exit, it lets the sanitizers report */
}
