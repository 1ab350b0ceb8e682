/* The conformance suite of the comm vtable. Every rank is a forked process with the plugin loaded by dlopen and a
 * minimal host: options, log, and a key-value store in shared memory. The core is not involved. */
#ifndef TESS_COMM_SUITE_H
#define TESS_COMM_SUITE_H
#include <stddef.h>
#include <stdint.h>
#include <tessera/plugin.h>

/* One rank of a scenario. */
struct comm_rank {
    int rank, nranks;
    const void *arg;
    struct comm_shared *shared;
    void *library, *ctx;
    tess_host host;
    const tess_comm_ops *ops;
    tess_comm *comm; /* of all ranks; null until comm_join */
    tess_comm_caps caps;
};
typedef void (*comm_scenario)(struct comm_rank *);

/* Runs `scenario` in `nranks` forked ranks. Returns 0, or the number of ranks that failed, with what they said on
 * standard error. A rank that has not ended after 40 s is killed and has failed. Ranks in `killed_mask` are expected
 * to die by SIGKILL. */
int comm_world(const char *plugin, int nranks, comm_scenario scenario, const void *arg, unsigned killed_mask);

/* For scenarios. All of them end the rank with a message when they fail. */
void comm_fail(struct comm_rank *, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5), noreturn));
#define COMM_CHECK(r, condition, ...)                                                                                  \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            comm_fail(r, __FILE__, __LINE__, __VA_ARGS__);                                                             \
    } while (0)
void comm_join(struct comm_rank *);  /* init of the communicator of all ranks; returns when all have it */
void comm_leave(struct comm_rank *); /* finalize and destroy */
tess_status comm_init(struct comm_rank *, const char *group, int64_t timeout_ns, tess_comm **out, tess_error *);
void comm_set_aborting(struct comm_rank *); /* host->aborting() is true from now on, on this rank */
void comm_flag_set(struct comm_rank *, int flag, int64_t value); /* flags 0 to 15 are shared by the ranks */
int64_t comm_flag_get(struct comm_rank *, int flag);
void comm_flag_wait(struct comm_rank *, int flag, int64_t at_least);
int64_t comm_now_ns(void);
void comm_sleep_ms(int ms);

/* The scenarios, in files of their own. */
extern const struct comm_case {
    const char *name;
    int nranks;
    comm_scenario scenario;
    unsigned killed_mask;
} comm_cases_values[], comm_cases_calls[], comm_cases_faults[]; /* each ends with a null name */
#endif
