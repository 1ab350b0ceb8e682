/* SPDX-License-Identifier: BSD-3-Clause */
/* The control plane: each rank's connection to the key-value server, rendezvous, heartbeat, and the news of a lost
 * rank (docs/launching.md). The server runs in `tessera run` when that started the ranks, else in rank 0. */
#ifndef TESS_CONTROL_H
#define TESS_CONTROL_H
#include <tessera/tessera.h>

enum { TESS__KV_VALUE_MAX = 4 << 20, TESS__KV_KEY_MAX = 255, TESS__KV_MEMBERS_MAX = 4096, TESS__DEFAULT_PORT = 29500 };

typedef struct {
    int32_t rank, nranks, local_rank, local_nranks; /* local_nranks 0: unknown */
    char address[256];                              /* of the key-value server; /PATH: a Unix socket */
    int32_t port, n_ports; /* n_ports: rank 0 listens on the first free one of so many; 0 and 1: on that one */
    int32_t launched;      /* 1: the server is in `tessera run` (TESSERA_KV), else rank 0 holds it */
    char secret[136];      /* TESSERA_SECRET; "" none */
    int32_t generation;    /* of this world: how often ranks were lost and the others went on */
    int32_t first_rank, first_nranks; /* before any were lost: the launcher knows this rank by them */
    char job[64]; /* the launcher's name of this job, so that two jobs on one port do not mix; "" unknown */
} tess__world;
/** From RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, or the variables of Open MPI, MPICH and Intel MPI (PMI)
 * or Slurm; none: one rank. TESS_E_INVALID, naming both, when two of them disagree. TESSERA_KV=address:port names a
 * server that runs already. TESS_E_INVALID for what cannot be. */
tess_status tess__world_from_env(tess__world *out);

/** The same world after so many losses: each generation has a server of its own, which says at the welcome what rank
 * this one is then, and of how many. Of one host. */
tess_status tess__world_at_generation(tess__world *, int32_t generation);

typedef struct tess__control tess__control;
/** Rendezvous: returns when every rank has connected. With one rank and no server it needs no network.
 * TESS_E_INVALID: port in use, wrong secret, another world; TESS_E_TIMEOUT: names the ranks that did not come;
 * TESS_E_PEER: a rank or the launcher ended meanwhile. */
tess_status tess__control_open(const tess__world *, tess__control **out);
/** Says goodbye when `orderly`, else just leaves (the others then learn of a lost rank). Never hangs; null is fine.
 * End with an exchange first: an exchange that has completed on one rank completes on all, goodbyes or not. */
void tess__control_close(tess__control *, int orderly);

/** The numeric address under which ranks of other hosts reach this one; null: it has no network. Fixed once open. */
const char *tess__control_address(const tess__control *);
/** This rank and how many there are, as the server said at the welcome. */
void tess__control_place(const tess__control *, int32_t *rank, int32_t *nranks);
/** Says goodbye and keeps the connection, for tess__control_return. Rank 0 waits a while for the others' goodbyes when
 * it holds the server. TESS_OK; else nobody heard it: close instead. No message. */
tess_status tess__control_park(tess__control *);
/** Takes part again; the first exchange of all ranks, under a key that begins with "open/", waits for those that are
 * still parked. Not TESS_OK: the connection has ended; without a message. */
tess_status tess__control_return(tess__control *);

/* The four below may be called from any thread, exchange by one at a time. When a rank is lost meanwhile they fail
 * with TESS_E_ABORTED and the first cause as message. */
tess_status tess__control_set(tess__control *, const char *key, const void *value, uint64_t bytes);
/** The key is gone, with its value; TESS_OK when there was none. The store's room is bounded, so who sets keys again
 * and again drops them. */
tess_status tess__control_drop(tess__control *, const char *key);
/** Waits until the key exists. *bytes: capacity in, size out. timeout_ns < 0: no limit; TESS_E_TIMEOUT when it is
 * over; TESS_E_INVALID when the value does not fit. */
tess_status tess__control_get(tess__control *, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns);
/** [C] Every rank's `bytes` bytes, in rank order, into out[nranks * bytes]. `key` is unique to this exchange.
 * TESS_E_MISMATCH, naming both sides, when ranks pass different sizes, or wait for each other under different keys;
 * TESS_E_PEER when a rank has said goodbye instead. */
tess_status tess__control_exchange(tess__control *, const char *key, const void *mine, uint64_t bytes, void *out);
/** [C] The same among some ranks, of which this is one: in the order of `members`, which all of them give alike. */
tess_status tess__control_exchange_among(tess__control *, const int32_t *members, int32_t n, const char *key,
                                         const void *mine, uint64_t bytes, void *out);

/** Called once, on the control plane's thread, when there is a first cause: a rank died, stopped, left without
 * goodbye or reported a failure, or the server is gone. Must not block. Null unregisters: no call is under way when
 * this returns, so do not call it from the callback. */
typedef void (*tess__lost_fn)(void *user, int32_t rank, const char *why);
void tess__control_on_lost(tess__control *, tess__lost_fn, void *user);
/** The first cause in the world's order (the same on every rank): TESS_OK when all is well, else TESS_E_PEER with the
 * rank (-1: the launcher) and a sentence: "rank 2 was lost (last seen in reduce_scatter of unit h.3): killed". */
tess_status tess__control_cause(tess__control *, tess_error *out);
/** The sentence whole, for which tess_error may be too short; "" when all is well. */
void tess__control_cause_text(tess__control *, char *out, size_t n);
int32_t tess__control_aborting(tess__control *); /* any thread, cheap */
/** 1: the first cause is a rank that ended or fell silent; 0: none, one that reported a failure, or the launcher. */
int32_t tess__control_was_lost(tess__control *);

/** 1 when that rank has said goodbye, which is no failure: only a rank that still waits for it fails, naming it. Any
 * thread, cheap. */
int32_t tess__control_departed(tess__control *, int32_t rank);

/** Sets this rank's activity, for messages on the other ranks: the first 159 bytes are copied (null: nothing) and
 * published within 100 ms. One thread at a time; no lock, no allocation: cheap enough for each instruction. */
void tess__control_doing(tess__control *, const char *text);
/** This rank has failed with `status`; `lost`: the rank that it could not talk to any more, -1 none. Returns when the
 * first cause is known, at most a second and two heartbeats later: ask tess__control_cause for it, it may be another
 * rank's. A report that can be the echo of another rank's death (PEER, ABORTED, TIMEOUT) becomes the cause only when no
 * death is seen within 300 ms and every rank has answered the server since. Of several the earliest in the chain of who
 * lost whom counts. TESS_E_LOST: this rank ends itself behind the call, and counts as lost for that reason. */
void tess__control_report(tess__control *, tess_status status, int32_t lost, const char *message);

/* The server, for `tessera run`. */
typedef struct tess__kv_server tess__kv_server;
typedef struct {
    const char *secret; /* what TLS proves, beyond a Unix socket; null none */
    const char *job;    /* what every hello must say; null nothing */
    int32_t launcher;   /* rank_ended will be called for each rank */
    /* The group goes on without some of a world of so many ranks: the numbers that its members began with, in the order
     * of their new ones. Null: all are members. */
    const int32_t *members;
    int32_t world;
} tess__kv_terms;
/** Listens on `address`:`port` (port 0: any, *port gets it) under TLS 1.3, or on the Unix socket whose path begins with
 * /, for this user only. */
tess_status tess__kv_server_start(const char *address, int32_t *port, int32_t nranks, const tess__kv_terms *,
                                  tess__kv_server **out);
/** Ends at once; null is fine. */
void tess__kv_server_stop(tess__kv_server *);
/* The numbers of ranks below are those that they began with. */
/** The launcher saw rank end (waitpid): the exact cause ("killed by signal 9") for the news. orderly: its exit code
 * was 0, which is no news when it had said goodbye. */
void tess__kv_server_rank_ended(tess__kv_server *, int32_t rank, int orderly, const char *why);
/** Returns when the server has read all that came before this call, also from ranks that have ended since: what it then
 * says below of an ended rank stays so. Over a Unix socket. */
void tess__kv_server_catch_up(tess__kv_server *);
/** 1 when that rank has ever joined. */
int32_t tess__kv_server_joined(tess__kv_server *, int32_t rank);
/** 1 when that rank's heartbeat has stopped, though its connection has not ended. */
int32_t tess__kv_server_silent(tess__kv_server *, int32_t rank);
/** How many ranks are connected now. */
int32_t tess__kv_server_connected(tess__kv_server *);
/** The first cause: its rank, or -1 while all is well. */
int32_t tess__kv_server_culprit(tess__kv_server *);
/** 1, and why, when that rank is the first cause and has said itself that it ends as a lost one. */
int32_t tess__kv_server_last_word(tess__kv_server *, int32_t rank, char *out, size_t n);
/** The name of the server's thread, in the launcher or in rank 0. */
#define TESS__KV_SERVER_THREAD "tess-kv-server"

/** 1 when a rank has set the key TESS__KV_READY: the group can go on without lost ranks from now on. */
int32_t tess__kv_server_ready(tess__kv_server *);
#define TESS__KV_READY "mirror/ready"
/** 1 when a rank has set it to nothing: its work is done, and a lost rank finds nobody who would go back with it. */
int32_t tess__kv_server_closing(tess__kv_server *);
/** The value of that key: ranks whose numbers in the group are equal modulo `stride` keep each other's images, or, as
 * replicas, all have the same; `fits`: with how many ranks the group could go on, the most first. */
enum { TESS__KV_FITS_MAX = 64 };
typedef struct {
    int32_t stride, replicas, n, fits[TESS__KV_FITS_MAX];
} tess__kv_fits;
/** 1: what was said; 0: nothing yet. */
int32_t tess__kv_server_fits(tess__kv_server *, tess__kv_fits *);
#endif
