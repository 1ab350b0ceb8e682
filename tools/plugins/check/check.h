/* SPDX-License-Identifier: BSD-3-Clause */
/* `tessera plugins check` tries out what plugin.h promises of a plugin. Each check runs in processes of its own, one
 * for each rank. They execute the command anew, so that a plugin that crashes, hangs or exits ends nothing else and is
 * reported by name. The first broken promise ends a check.
 *
 *     static void copies(check *c) {
 *         const tess_device_ops *ops = check_open(c);
 *         if (!TESS_CAN(tess_device_ops, ops, event_create))
 *             check_skip(c, "has no events");
 *         check_doing(c, "copy");
 *         tess_status s = ops->copy(…);
 *         check_that(c, s == TESS_OK, "copy gave %d", s);
 *     }
 */
#ifndef TESSERA_CHECK_H
#define TESSERA_CHECK_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <tessera/plugin.h>

enum { CHECK_RANKS = 16, CHECK_KEYS = 1024, CHECK_VALUE_BYTES = 4096, CHECK_FLAGS = 16, CHECK_TEXT = 600 };
#define CHECK_APART (1u << 31)
#define CHECK_LONG_NS INT64_C(20000000000)
#define CHECK_SECOND_NS INT64_C(1000000000)

typedef struct check_shared check_shared;

/* One rank of a running check. */
typedef struct check {
    int rank, nranks;
    uint32_t kind;
    const char *path, *builtin, *args; /* path "": the built-in plugin of that name */
    check_shared *shared;
    tess_host host; /* check_open passes it; a check may change it before */
    void *library;
    const void *ops; /* null until check_open */
    void *ctx;
    int launched;                   /* a launcher started the ranks, so they are not the command's children */
    void (*finish)(struct check *); /* destroys a suite's objects before close; may be null */
    uint64_t stated_bytes;          /* the most backend_bytes that the plugin has stated, for each communicator */
    int communicators;              /* communicators made so far */
} check;

typedef struct {
    const char *name;
    int nranks;
    void (*run)(check *);
    unsigned killed_mask; /* ranks that die by SIGKILL; with CHECK_APART some never join */
    int essential;        /* if it fails, the remaining checks do not run */
} check_case;
typedef struct {
    const char *name;
    uint32_t kind; /* 0: any kind */
    int needs_file;
    const check_case *cases; /* ends with a null name */
} check_suite;
extern const check_suite check_suites[]; /* ends with a null name */

/** Ends the check as failed on all ranks. The text names the fault. Any thread may call it. */
void check_fail(check *, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
/** Ends the check as skipped, because the plugin does not claim the feature. */
void check_skip(check *, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
/** Returns the status's name, such as "TESS_E_NOMEM". */
const char *check_status(tess_status);
/** Adds a remark to the report, beside "passed". */
void check_note(check *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Names the slot about to be called, as a literal, so that reports of a crash or a hang can name it. */
void check_doing(check *, const char *slot);
#define check_that(c, condition, ...)                                                                                  \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            check_fail(c, __VA_ARGS__);                                                                                \
    } while (0)

typedef struct { /* all tables begin with these members */
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx);
} check_any_ops;
typedef tess_status (*check_open_fn)(const tess_host *, uint32_t kind, const void **ops, void **ctx, tess_error *);
/** Loads the file or finds the built-in plugin, and fails the check if it cannot. Only the plugin's constructors
 * run. */
void check_load(check *);
/** Calls the plugin's open function unchanged, after check_load. */
tess_status check_call_open(check *, const tess_host *, uint32_t kind, const void **ops, void **ctx, tess_error *);
/** Loads the plugin, opens it with c->host, and checks the table, which it returns. The end of the check closes the
 * plugin. */
const void *check_open(check *);
void check_close(check *); /* closes before the check ends */
/** Notes that the plugin states these bytes for itself. The largest statement counts. */
void check_stated(check *, uint64_t bytes);
/** Returns an error struct of 32 bytes at the end of readable memory. check_short_error_filled tests that a failed slot
 * filled all of it. */
tess_error *check_short_error(check *);
void check_short_error_filled(check *, const tess_error *, tess_status, const char *slot);

/* The ranks of a check share these flags. */
void check_flag_set(check *, int flag, int64_t value);
int64_t check_flag_get(check *, int flag);
void check_flag_wait(check *, int flag, int64_t at_least);
void check_meet(check *);         /* waits for all ranks */
void check_set_aborting(check *); /* host->aborting() returns true on this rank from now on */

int64_t check_now_ns(void);
void check_sleep_ms(int ms);
/** Returns memory that ends right before a page without access. It is never freed. */
void *check_at_edge(check *, size_t bytes);
int check_threads(void); /* threads of this process */
int check_files(void);   /* open file descriptors of this process */
uint64_t check_random(uint64_t *state);
float check_random_float(uint64_t *state); /* spans many magnitudes and is never near zero */

/* State of the calling thread that no slot may change. */
typedef struct {
    unsigned char mask[128], affinity[128];
    unsigned fp_mode;
    int rounding;
} check_thread_state;
void check_thread_look(check_thread_state *);
/** Returns null, or the name of a changed part: "the rounding mode", "the denormal mode (flush to zero)", … */
const char *check_thread_changed(const check_thread_state *before);

/* ---- the command ------------------------------------------------------------------------------- */

/** Runs `check TARGET [OPTION…]`, where argv[0] is "check", and returns the exit code. It starts the ranks as `plugins
 * check …` of the same program, so the program must pass that on to check_main. */
int check_main(int argc, char **argv);
#endif
