/* SPDX-License-Identifier: BSD-3-Clause */
/* `tessera plugins check`: what plugin.h promises of a plugin, tried out. Every check runs in processes of its own, one
 * per rank: the command itself, executed anew, so that a plugin that crashes, hangs or exits takes nothing down and is
 * told by name. The first promise that does not hold ends a check.
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
    int launched;                   /* the ranks are not the command's own children */
    void (*finish)(struct check *); /* destroys a suite's objects before close; null: none */
    uint64_t stated_bytes;          /* the most that it may take, as far as it was asked; of a communicator */
    int communicators;              /* made so far */
} check;

typedef struct {
    const char *name;
    int nranks;
    void (*run)(check *);
    unsigned killed_mask; /* ranks that are to die by SIGKILL; CHECK_APART: some never join */
    int essential;        /* the others are not tried when it fails */
} check_case;
typedef struct {
    const char *name;
    uint32_t kind; /* 0: of any */
    int needs_file;
    const check_case *cases; /* ends with a null name */
} check_suite;
extern const check_suite check_suites[]; /* ends with a null name */

/** Ends the check as failed, on all ranks; the text names the fault. Any thread. */
void check_fail(check *, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
/** Ends the check as skipped: the plugin does not claim this. */
void check_skip(check *, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
/** "TESS_E_NOMEM" of -3. */
const char *check_status(tess_status);
/** A remark for the table, beside "passed". */
void check_note(check *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** The slot about to be called (a literal), so that a crash or a hang is told with its name. */
void check_doing(check *, const char *slot);
#define check_that(c, condition, ...)                                                                                  \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            check_fail(c, __VA_ARGS__);                                                                                \
    } while (0)

typedef struct { /* the beginning that all tables have */
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx);
} check_any_ops;
typedef tess_status (*check_open_fn)(const tess_host *, uint32_t kind, const void **ops, void **ctx, tess_error *);
/** Loads the file, or finds the built-in plugin; fails the check when it cannot. Runs no code of it but what runs while
 * it is loaded. */
void check_load(check *);
/** The plugin's open function as it is, after check_load. */
tess_status check_call_open(check *, const tess_host *, uint32_t kind, const void **ops, void **ctx, tess_error *);
/** Loads and opens with c->host and judges the table; closed when the check ends. Returns the table. */
const void *check_open(check *);
void check_close(check *); /* now */
/** The plugin states that it takes as much for itself; the most of all counts. */
void check_stated(check *, uint64_t bytes);
/** An error struct of 32 bytes, which ends where memory does; and whether a slot that failed filled it as far as it
 * goes. */
tess_error *check_short_error(check *);
void check_short_error_filled(check *, const tess_error *, tess_status, const char *slot);

/* Shared by the ranks of a check. */
void check_flag_set(check *, int flag, int64_t value);
int64_t check_flag_get(check *, int flag);
void check_flag_wait(check *, int flag, int64_t at_least);
void check_meet(check *);         /* returns when all ranks have come here */
void check_set_aborting(check *); /* host->aborting() is true from now on, on this rank */

int64_t check_now_ns(void);
void check_sleep_ms(int ms);
/** Memory of `bytes` bytes that ends right before a page nobody may touch. Never freed. */
void *check_at_edge(check *, size_t bytes);
int check_threads(void); /* of this process */
int check_files(void);   /* open file descriptors */
uint64_t check_random(uint64_t *state);
float check_random_float(uint64_t *state); /* over many magnitudes, never zero by much */

/* State of the calling thread that a slot must not change. */
typedef struct {
    unsigned char mask[128], affinity[128];
    unsigned fp_mode;
    int rounding;
} check_thread_state;
void check_thread_look(check_thread_state *);
/** Null, or what differs: "the rounding mode", "the denormal mode (flush to zero)", … */
const char *check_thread_changed(const check_thread_state *before);

/* ---- the command ------------------------------------------------------------------------------- */

/** `check TARGET [OPTION…]`; argv[0] is "check". Returns the exit code. The program must hand its own
 * `plugins check …` to it: that is how the ranks are started. */
int check_main(int argc, char **argv);
#endif
