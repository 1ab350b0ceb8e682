/* The control plane: each rank's connection to the key-value server, rendezvous, heartbeat, and the news of a lost
 * rank (DESIGN sections 9 and 10). The server runs in `tessera run` when that started the ranks, else in rank 0. */
#ifndef TESS_CONTROL_H
#define TESS_CONTROL_H
#include <tessera/tessera.h>

typedef struct {
    int32_t rank, nranks, local_rank, local_nranks;
    char address[256]; /* of the key-value server */
    int32_t port;
} tess__world;
/** From RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, or Slurm's or Open MPI's variables; none: one rank. */
tess_status tess__world_from_env(tess__world *out);

typedef struct tess__control tess__control;
/** Rendezvous: returns when every rank has connected. With one rank and no server it needs no network. */
tess_status tess__control_open(const tess__world *, tess__control **out);
/** Says goodbye when `orderly`, else just leaves (the others then learn of a lost rank). Never hangs; null is fine. */
void tess__control_close(tess__control *, int orderly);

tess_status tess__control_set(tess__control *, const char *key, const void *value, uint64_t bytes);
/** Waits until the key exists. *bytes: capacity in, size out. TESS_E_TIMEOUT, TESS_E_ABORTED when a rank was lost. */
tess_status tess__control_get(tess__control *, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns);
/** [C] Every rank's `bytes` bytes, in rank order, into out[nranks * bytes]. `key` is unique to this exchange. */
tess_status tess__control_exchange(tess__control *, const char *key, const void *mine, uint64_t bytes, void *out);

/** Called once, on the control plane's thread, when the first rank is lost (died, stopped, or left without goodbye, or
 * left in order while this rank still runs) or some rank reported a failure. Must not block. */
typedef void (*tess__lost_fn)(void *user, int32_t rank, const char *why);
void tess__control_on_lost(tess__control *, tess__lost_fn, void *user);
/** The first cause in the world's order (the same on every rank): TESS_OK when all is well, else TESS_E_PEER with the
 * rank and a sentence: "rank 2 was lost in reduce_scatter of unit h.3: connection closed without goodbye (killed?)". */
tess_status tess__control_cause(tess__control *, tess_error *out);
int32_t tess__control_aborting(tess__control *); /* any thread, cheap */
/** What this rank is doing, for messages on the other ranks: `text` must stay valid (static or program-owned).
 * An atomic store here, published with heartbeats and pulled by the server when a rank is lost. Cheap enough for each
 * instruction. */
void tess__control_doing(tess__control *, const char *text);
/** This rank has failed with `status`; the others are told, this rank first cause. */
void tess__control_report(tess__control *, tess_status status, const char *message);

/* The server, for `tessera run`. */
typedef struct tess__kv_server tess__kv_server;
/** Listens on `address`:`port` (port 0: any, *port gets it). Secret: the text every client must present. */
tess_status tess__kv_server_start(const char *address, int32_t *port, int32_t nranks, const char *secret,
                                  tess__kv_server **out);
void tess__kv_server_stop(tess__kv_server *);
/** The launcher saw rank end (waitpid): the exact cause ("killed by signal 9") for the news. */
void tess__kv_server_rank_ended(tess__kv_server *, int32_t rank, int orderly, const char *why);
#endif
