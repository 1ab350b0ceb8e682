/* SPDX-License-Identifier: BSD-3-Clause */
/* tessera/plugin.h: what a plugin author needs: the descriptor, the host table and the six vtables.
 *
 * This one header is enough: C11 or C++17, no dependency, no link to the core. Stability: within one major version
 * structs and tables only grow at their end, and nothing is renumbered; see docs/abi.md.
 *
 * Structs
 *  - Every struct begins with its size. Arrays are walked by the first element's struct_size, never by sizeof.
 *  - The caller sets struct_size of an out struct; the callee writes at most that much, zeroes the rest of it, and
 *    leaves struct_size alone. New fields mean "old behaviour" when zero.
 *  - A struct held by value in another has no struct_size and never grows (tess_stream: 16 bytes).
 *  - A new field begins at the struct's old size, not in its padding; an out struct has no padding. A struct or table
 *    longer than one knows is never refused.
 *  - `mem` fields hold one TESS_MEM_…; `…_mask` fields hold 1u << TESS_MEM_… or 1u << dtype.
 *
 * Slots. Each comment says, in this order: purpose; blocking, asynchronous or stream-ordered; calling thread; ownership
 * and lifetime; units; statuses; required, or the default when the slot is null or beyond the table's size. Where a
 * part is not said, this holds:
 *  - Local and quick: it waits for no other rank and for no transfer.
 *  - Called on the engine's thread, one call at a time for one instance (for one ctx, where there is none yet).
 *  - What a pointer argument points to belongs to the caller and is valid during the call. What create, init or split
 *    gives out belongs to the plugin until destroy. Texts are UTF-8 and end with a zero.
 *  - Sizes are bytes when the name says bytes, else elements; times are nanoseconds; a negative timeout has no end.
 *  - TESS_OK, or a negative status and then a filled tess_error where there is one (it may be null). Outputs are
 *    written only with TESS_OK. TESS_PENDING only where it is named.
 *  - [pure]: depends on its arguments and the options only, allocates nothing that outlives it, needs no instance, no
 *    device and no peers, and gives the same answer on every rank. It is what planning calls.
 *  - [stream]: returns once the work is queued behind `stream` (CPU device: when it is done).
 * Always:
 *  - Once a request or a stream-ordered call has ended, in any way but TESS_PENDING, the plugin no longer touches its
 *    buffers. TESS_E_TIMEOUT from wait is no end: the request goes on, and may be waited for again.
 *  - A tess_error shorter than this header's is filled as far as it goes, its message cut and ended with a zero.
 *    One that has no room for a message is left alone.
 *  - Nothing allocates between the first step and the last, save where the operating system leaves no choice.
 *  - Nothing throws, exits or raises a signal across the boundary. No slot, and nothing that runs while the library is
 *    loaded, leaves the calling thread's signal mask, affinity, rounding or denormal mode changed. */
/* The tables below are laid out by hand. */
/* clang-format off */
#ifndef TESSERA_PLUGIN_H
#define TESSERA_PLUGIN_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#define TESS_STATIC_ASSERT static_assert
#else
#define TESS_STATIC_ASSERT _Static_assert
#endif

#define TESS_ABI_MAJOR 1
#define TESS_ABI_MINOR 5 /* append-only; a break makes new *_v2 symbols */
/* A slot can be called when the table is long enough to hold it and it is set. */
#define TESS_HAS(type, table, slot) ((table)->struct_size >= offsetof(type, slot) + sizeof((table)->slot))
#define TESS_CAN(type, table, slot) (TESS_HAS(type, table, slot) && (table)->slot)

/* ---- shared ----------------------------------------------------------------------------------- */
typedef int32_t tess_status; /* docs/errors.md says what each means and which exit code it leads to */
enum {
    TESS_OK = 0, TESS_PENDING = 1,
    TESS_E_INVALID = -1, TESS_E_UNSUPPORTED = -2, TESS_E_NOMEM = -3, TESS_E_TIMEOUT = -4, TESS_E_ABORTED = -5,
    TESS_E_PEER = -6, TESS_E_SYSTEM = -7, TESS_E_DEVICE = -8, TESS_E_VERSION = -9, TESS_E_INTERNAL = -10,
    TESS_E_DATA = -11, TESS_E_BUDGET = -12, TESS_E_PLANNED = -13,
    TESS_E_MISMATCH = -14, /* ranks disagree about a collective: operation, count, dtype, tag */
    TESS_E_LOST = -15, /* a rank was lost and tess_recover goes on without it; never from a plugin */
    TESS_E_NOT_FINITE = -16 /* a gradient, a parameter or a state is NaN or infinite; never from a plugin */
};
enum { TESS_KIND_COMM = 1, TESS_KIND_OFFLOAD, TESS_KIND_PRECISION, TESS_KIND_WRAP, TESS_KIND_DEVICE, TESS_KIND_OPTIMIZER };
enum { TESS_U8 = 1, TESS_I8, TESS_I32, TESS_I64, TESS_F16, TESS_BF16, TESS_F32, TESS_F64, TESS_F8E4M3, TESS_F8E5M2,
       /* Since 1.1. Blocks of TESS_Q8_BLOCK elements, the last maybe shorter: a scale in f32, then TESS_Q8_BLOCK signed bytes,
        * of which each, times the scale, is an element. It travels; nothing rests or is computed in it. Q8E4M3: the same, of
        * bytes that are e4m3 as TESS_F8E4M3 is. */
       TESS_Q8, TESS_Q8E4M3 };
enum { TESS_Q8_BLOCK = 256, TESS_Q8_BYTES = TESS_Q8_BLOCK + 4 /* of a block, a short one too */ };
enum { TESS_SUM = 1, TESS_MIN, TESS_MAX };
enum { TESS_MEM_HOST = 1, TESS_MEM_PINNED, TESS_MEM_CUDA, TESS_MEM_SHM };
enum { TESS_ALL_GATHER = 1, TESS_REDUCE_SCATTER, TESS_ALL_REDUCE, TESS_BROADCAST, TESS_ALL_TO_ALL, TESS_BARRIER,
       TESS_ALL_TO_ALL_V /* Since 1.3: parts have lengths of their own. Optional: op_mask says who offers it */ };

/* Identity. No pointers: read from the file's own section before any of its code runs. 128 bytes, frozen.
 * struct_size: 128 or more. abi_major, abi_minor: TESS_ABI_MAJOR and _MINOR of the header it was built with.
 * core_minor_min: the oldest core that will do, as a minor version; usually 0. name: [a-z0-9_-]+, as in the file's name
 * libtessera-KIND-NAME.so. version: the plugin's own. license: an SPDX name. needs: for people, such as "NCCL >= 2.18".
 * Texts end with a zero. */
typedef struct {
    char magic[8]; /* "TESSPLG" */
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    uint32_t core_minor_min, kinds; /* kinds: bit (1 << TESS_KIND_…) for each vtable it offers */
    char name[32], version[24], license[16], needs[32];
} tess_plugin_note;

/* Owned by the caller, and one line: the message names the plugin, what was found and what was expected. `native` is
 * the library's own number, 0 for none. */
typedef struct {
    uint32_t struct_size;
    tess_status code;
    int32_t native, rank; /* rank in the communicator (else in the world), -1 unknown; the core translates */
    char message[240];
} tess_error;

typedef struct { /* held by value: 16 bytes, frozen */
    uint32_t mem;
    int32_t device;
    void *handle; /* cudaStream_t on CUDA */
} tess_stream;

typedef struct { /* a piece of memory, as its allocator hands it out */
    uint32_t struct_size, mem;
    void *ptr;
    uint64_t bytes;
    void *reg; /* a backend's registration; says itself what kind it is */
} tess_buffer;
/* Work in flight, made by post. It ends once, with TESS_OK or an error that stays; then request_free. */
typedef struct tess_request tess_request;

enum { TESS_DOMAIN_DEVICE = 1, TESS_DOMAIN_HOST, TESS_DOMAIN_DISK /* Since 1.2: stores of an offload plugin */ };
enum { /* what memory is for: docs/memory.md */
    TESS_CAT_SHARD_PARAM = 1, TESS_CAT_FULL_PARAM, TESS_CAT_SHARD_GRAD, TESS_CAT_FULL_GRAD, TESS_CAT_OPTIMIZER,
    TESS_CAT_ACTIVATION, TESS_CAT_COMM, TESS_CAT_INPUT, TESS_CAT_TEMPORARY, TESS_CAT_BUFFER, TESS_CAT_FRAGMENTATION, TESS_CAT_SNAPSHOT,
    TESS_CAT_MIRROR, TESS_CAT_LOW_COPY, TESS_CAT_OPTIMIZER_SCRATCH
};

/* The types of an option's value. least and most bound the first two, unless both are 0; INFINITY is no bound. */
enum {
    TESS_OPTION_INT = 1, /* an integer */
    TESS_OPTION_REAL,    /* a finite number, with a point in every locale */
    TESS_OPTION_TEXT,    /* anything */
    TESS_OPTION_BYTES,   /* 512, 64KiB, 1.5GiB */
    TESS_OPTION_CHOICE,  /* one of the words in choices, which `|` parts */
    TESS_OPTION_FLAG,    /* 0, 1, no, yes, off, on, false, true */
    TESS_OPTION_LIST     /* words of choices, joined by commas */
};
/* One option that a plugin reads. Without pointers, as the descriptor: the plugin's section ".tessera.options"
 * holds an array of these and nothing else. The loader checks what the user set before any code of open runs, and refuses a
 * value that is not of the type. A variable with the plugin's prefix that is set and not listed is an error of the user. The
 * plugin reads the text through host->option, and applies the fallback itself (kit/plugin_base.h does both). Texts end with
 * a zero. key: begins with the plugin's name or kind and a hyphen, of [a-z0-9-]: "gloo-interface" is
 * TESSERA_GLOO_INTERFACE. fallback: a value of the type, "" for none. */
typedef struct {
    uint32_t struct_size, type; /* TESS_OPTION_… */
    double least, most;
    char key[72], fallback[48], choices[160], help[144];
} tess_option_spec;

/* Memory that the caller provides for one call; exact, not an estimate. device_bytes comes as the call's scratch,
 * in the arena of the device's domain; align is of that scratch, a power of two or 0. */
typedef struct {
    uint32_t struct_size, align;
    uint64_t device_bytes, pinned_bytes, host_bytes;
    uint64_t backend_bytes; /* the plugin's own, outside the arena: an upper bound, reported apart */
} tess_need;

typedef struct { /* the run being planned; no rank number in it, on purpose */
    uint32_t struct_size, mem; /* the device's own memory kind */
    int32_t nranks, ranks_per_host; /* nranks: of the communicator a collective is for */
    uint32_t in_flight;             /* most collectives or transfers posted at once */
    uint64_t device_budget_bytes, host_budget_bytes; /* 0: none */
} tess_plan_env;

typedef struct { /* what an allocator is asked for; device's and comm's */
    uint32_t struct_size, mem, flags, domain, category;
    int32_t device, numa_node; /* numa_node is a wish; -1 none */
    uint64_t bytes, align;
} tess_alloc_request;
enum { TESS_ALLOC_MAY_UNPIN = 1 /* pinning refused: give pageable memory, buffer.mem says so */ };

/* The core's services, each to be called with `host` in front, from any thread. The table lives until close; none of
 * its slots is null. A slot of a later minor version: look with TESS_CAN(tess_host, host, slot) first. */
typedef struct {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor; /* the core's */
    void *host;
    /* One line to standard error, with the plugin's name. level: 0 error, 1 warning, 2 information, 3 debugging. */
    void (*log)(void *host, int32_t level, const char *plugin, const char *message);
    /* The text of a variable, instead of getenv: "gloo-interface" gives that of TESSERA_GLOO_INTERFACE. Lives as long as
     * the process; null when unset or empty. */
    const char *(*option)(void *host, const char *key);
    /* The key-value store of all ranks. kv_set overwrites. kv_get waits until the key is there; *bytes holds the room in
     * `value` and then the value's size. TESS_E_TIMEOUT; TESS_E_ABORTED when the run is ending; TESS_E_PEER when a rank
     * was lost; TESS_E_INVALID when there is too little room; TESS_E_UNSUPPORTED while only planning or listing. */
    tess_status (*kv_set)(void *host, const char *key, const void *value, uint64_t bytes);
    tess_status (*kv_get)(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns);
    int32_t (*aborting)(void *host); /* not 0: give up what you wait for, in init and kv_get too */
    /* Memory of the plugin's own, booked under a domain and a TESS_CAT_…: tess_stats reports it, apart from the plan. It
     * stays within what the plugin states: backend_bytes of need for each communicator, and of kernel_need; one that states
     * nothing takes nothing. `align` is a power of two. Not within a step. The plugin frees all of it before close returns.
     * TESS_E_NOMEM; TESS_E_UNSUPPORTED for a domain that there is none of; TESS_E_INVALID for an unknown category or
     * alignment. */
    tess_status (*mem_alloc)(void *host, uint32_t domain, uint32_t category, uint64_t bytes, uint64_t align, void **out);
    void (*mem_free)(void *host, void *ptr);
    const char *args;        /* text after the colon of TESSERA_<KIND>, never null */
    const char *helper_cpus; /* "2,6-7": where a plugin's own threads belong; "" any */
    int32_t numa_node, max_helper_threads; /* nearest the device; -1 unknown */
    /* Opens another plugin, for one that stacks on it: `selection` as TESSERA_<KIND> has it. It gets this host's
     * services; *ops and *ctx are as its tess_plugin_open_v1 gave them, checked, and live until plugin_close of *handle,
     * before this plugin's own close returns. Only within open. Statuses and messages of the loader. */
    tess_status (*plugin_open)(void *host, uint32_t kind, const char *selection, const void **ops, void **ctx, void **handle,
                               tess_error *);
    void (*plugin_close)(void *host, void *handle); /* null is fine */
    const char *profiler; /* the library of a profiler that takes NVTX ranges; null: none listens */
} tess_host;

/* The two symbols of a plugin; it exports nothing else. The note lies in section ".tessera.plugin", alone. */
#define TESS_EXPORT __attribute__((visibility("default")))
extern TESS_EXPORT const tess_plugin_note tess_plugin_note_v1; /* in section ".tessera.plugin" */
/* Gives the table of `kind` and a context for its slots. Local and quick: no peers, no device memory, no threads yet;
 * also called to list plugins and to plan. It may be called more than once. `host` lives until close(ctx). *ops lives as
 * long as the process; *ctx may be null. TESS_E_UNSUPPORTED: a kind it does not offer, a machine it cannot run on;
 * TESS_E_INVALID: bad args or option; TESS_E_NOMEM, TESS_E_SYSTEM, TESS_E_DEVICE. Every table begins with the same
 * slot, described once here:
 *   close    Undoes open; after destroy of all instances; the last call with this ctx. Also when the core refuses the
 *            table after open. Default: nothing to undo. */
TESS_EXPORT tess_status tess_plugin_open_v1(const tess_host *, uint32_t kind, const void **ops, void **ctx, tess_error *);

/* ---- comm: collectives ------------------------------------------------------------------------- */
typedef struct tess_comm tess_comm;
typedef struct {
    uint32_t struct_size;
    int32_t rank, nranks, local_rank, device; /* device: index on this host, -1 for the CPU */
    const char *group; /* key-value prefix, unique to this communicator */
    int64_t timeout_ns; /* for the call it is passed to */
} tess_comm_config;
enum { /* tess_comm_caps.caps */
    TESS_COMM_THREAD_MULTIPLE = 1, /* slots of one communicator may be called from several threads at once */
    TESS_COMM_STREAM_ORDERED = 2,  /* `after` and wait_stream work; else the engine synchronises before post */
    TESS_COMM_ABORT = 4,           /* abort ends requests in flight at once; else they end by their timeout */
    TESS_COMM_SPLIT = 8,           /* split is offered */
    TESS_COMM_BATCH = 16,          /* post takes n > 1 */
    TESS_COMM_TREE_ORDER = 32,     /* reduce_scatter sums in the engine's tree order, fp32: docs/numbers.md */
    /* With TESS_COMM_STREAM_ORDERED: post takes an `after` that records (record_begin). The collective joins the
     * recording; its request has ended when post is back, and wait_stream makes a stream of the recording wait for it.
     * Ranks record and run alike. What was recorded is not compared: the engine first posts a barrier whose tag is the
     * recording's. Graphs are destroyed before finalize and destroy; abort does not wait for that. */
    TESS_COMM_RECORDS = 64,
    /* With TESS_COMM_SPLIT: two communicators of the same ranks work beside each other, where what one has been
     * given waits for nothing that the other has. The engine then splits one off for reductions, so that a gather does not
     * wait for the reduction before it. Every rank gives both their work in the same order, from one thread. A backend on a
     * device may rely on that; in the host's memory a rank may come to one of them later. Abort ends one of them only. */
    TESS_COMM_APART = 128,
    TESS_COMM_SHARES = 256 /* mem_share is offered; the same answer on every rank */
};
typedef struct {
    uint32_t struct_size, caps, op_mask, redop_mask, dtype_mask, mem_mask;
    uint64_t align;     /* of buffers; 0: any */
    uint64_t max_bytes; /* of one collective on one rank; 0: no limit */
    char wire_id[64]; /* equal on ranks that can talk to each other */
} tess_comm_caps;
/* One collective. Every rank posts the same operation, count, dtypes, reduction, root, scale and tag, in the same order.
 *   all_gather      send: count elements; recv: nranks * count, by rank.      In place: send == recv + rank * count.
 *   reduce_scatter  send: nranks * count, by rank; recv: count.               Never in place.
 *   all_reduce      send and recv: count.                                     In place: send == recv.
 *   broadcast       send: count on root; recv: count on the others.           In place: send == recv.
 *   all_to_all      send: nranks * count, by receiver; recv: by sender.       Never in place.
 *   barrier         count 0.
 *   all_to_all_v    send: the parts for rank 0, 1, …, one behind the other; recv: those of them.  Never in place.
 * In place needs send_dtype == recv_dtype; apart from that send and recv do not overlap, and post refuses it with
 * TESS_E_INVALID. Count 0 is valid and still takes
 * part. MIN and MAX have scale 1 and no add; integers have scale 1. NaN in MIN or MAX gives NaN. */
typedef struct {
    uint32_t struct_size, op, redop, flags; /* 1: add to recv. No AVG: `scale` after the sum is the one place */
    uint32_t send_dtype, recv_dtype;        /* bf16 in, fp32 out; accumulation is fp32 (fp64 for fp64) always */
    uint32_t send_mem, recv_mem;
    const void *send;
    void *recv;
    /* all_gather, reduce_scatter, all_to_all: of one rank's block; broadcast, all_reduce: of the whole; all_to_all_v: no rank
     * sends or receives more in all, and need goes by it */
    uint64_t count;
    double scale;   /* of reductions; 1 for none, never 0 */
    int32_t root;
    tess_stream after; /* start when this stream has come this far; all zero: now */
    void *send_reg, *recv_reg; /* of the enclosing buffer; null: not registered */
    void *scratch; /* device_bytes that need asked for, the call's own until its end */
    uint64_t scratch_bytes;
    uint64_t seq, tag; /* tag: hash of the program's instruction; a backend that can compares it across ranks */
    /* all_to_all_v, else null; nranks each, and valid until the request has ended: elements for each receiver, and from each
     * sender. What one rank sends another is what that one expects. */
    const uint64_t *send_parts, *recv_parts;
} tess_collective;
typedef struct {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx);                                                  /* see tess_plugin_open_v1 */
    /* Capabilities: [pure] with a null communicator, else what this one can. Required. */
    tess_status (*query)(void *ctx, tess_comm *or_null, tess_comm_caps *out);
    /* [pure] Scratch and backend memory of one collective, whose pointers and `after` are not looked at. The same whatever
     * the rank. TESS_E_UNSUPPORTED: this operation with these dtypes and memory kinds is not offered. Required. */
    tess_status (*need)(void *ctx, const tess_plan_env *, const tess_collective *, tess_need *out);
    /* [pure] Nanoseconds one collective takes, for simulation. Default: the core's own model of latency and bandwidth. */
    tess_status (*cost)(void *ctx, const tess_plan_env *, const tess_collective *, int64_t *ns);
    /* Makes a communicator. Collective: blocks until all ranks of the group have come or config->timeout_ns is over, and
     * looks at host->aborting meanwhile. TESS_E_TIMEOUT, TESS_E_PEER with the rank, TESS_E_ABORTED, TESS_E_NOMEM,
     * TESS_E_SYSTEM, TESS_E_DEVICE. Required. */
    tess_status (*init)(void *ctx, const tess_comm_config *, tess_comm **out, tess_error *);
    /* Makes a communicator of the ranks with the same color, ordered by key, then rank. Collective over the parent, blocks
     * like init. The new one outlives the parent. color < 0: TESS_OK and *out null. Statuses of init. config: of the new
     * one. Default: strategies that need groups are refused. */
    tess_status (*split)(tess_comm *, int32_t color, int32_t key, const tess_comm_config *, tess_comm **out, tess_error *);
    /* Ends in order: waits until every rank has come here and all requests have ended; then only destroy. Collective,
     * blocks. TESS_E_TIMEOUT, TESS_E_PEER, TESS_E_ABORTED. Default: a barrier. */
    tess_status (*finalize)(tess_comm *, int64_t timeout_ns, tess_error *);
    /* Gives everything back, with or without finalize, in any state; ends requests still in flight first (TESS_E_ABORTED)
     * and never waits for a peer. All its requests have been freed; null is fine. Required. */
    void (*destroy)(tess_comm *);
    /* Makes every request, present and future, end with `why`, and init, split, finalize and wait return. At once, any
     * thread, at any time before destroy, repeatable: the first `why` stays. Required. */
    tess_status (*abort)(tess_comm *, tess_status why);
    /* The communicator's sticky error: TESS_OK while all is well, else its status. Any thread. Default: TESS_OK. */
    tess_status (*health)(tess_comm *, tess_error *);
    /* Memory for an arena, which this backend reaches best, of a kind in mem_mask. The core owns it until mem_free, which
     * comes before destroy. Bytes and alignment as asked or more. TESS_E_NOMEM. Default: the device allocates. */
    tess_status (*mem_alloc)(tess_comm *, const tess_alloc_request *, tess_buffer *out, tess_error *);
    void (*mem_free)(tess_comm *, tess_buffer *); /* gives it back; required beside mem_alloc */
    /* Registers memory of another allocator (buffer->reg); local; ends at mem_deregister, before the memory is freed.
     * TESS_E_UNSUPPORTED is no failure: the buffer is used unregistered. Default: nothing is registered. */
    tess_status (*mem_register)(tess_comm *, tess_buffer *, tess_error *);
    void (*mem_deregister)(tess_comm *, tess_buffer *); /* required beside mem_register */
    /* Starts n collectives, in order, as one request (n > 1 with TESS_COMM_BATCH only); one may send what an earlier one of
     * them receives. Asynchronous: waits for no peer. Buffers and scratch are the backend's until the request has ended; the
     * array of collectives is read during the call. The request is the caller's until request_free. Up to
     * tess_plan_env.in_flight requests are in flight. TESS_E_INVALID, TESS_E_UNSUPPORTED: nothing was started; a
     * communicator's sticky error. TESS_E_MISMATCH and TESS_E_PEER rather come from test and wait. Required. */
    tess_status (*post)(tess_comm *, const tess_collective *, uint32_t n, tess_request **out, tess_error *);
    /* Whether a request has ended. Never blocks. TESS_PENDING; else its end, the same at every call. Required. */
    tess_status (*test)(tess_request *, tess_error *);
    /* Blocks until the request has ended or the time is over (0: like test). Ends: TESS_OK, TESS_E_PEER with the rank,
     * TESS_E_MISMATCH with the rank and both sides, TESS_E_ABORTED or abort's `why`, TESS_E_SYSTEM, TESS_E_DEVICE.
     * No end: TESS_E_TIMEOUT. Required. */
    tess_status (*wait)(tess_request *, int64_t timeout_ns, tess_error *);
    /* [stream] Makes what follows on the stream wait for the request; errors then show in test. Needed with
     * TESS_COMM_STREAM_ORDERED. Default: the engine calls wait. */
    tess_status (*wait_stream)(tess_request *, const tess_stream *, tess_error *);
    void (*request_free)(tess_request *); /* after its end only; null is fine. Required. */
    /* With TESS_COMM_SHARES: lets the other ranks of this communicator reach a buffer. It is of mem_alloc of a
     * communicator of this plugin, and registered with this one by that or by mem_register. Collective, blocks like split:
     * every rank gives as many bytes, in the same order, with no request in flight. From then on a collective has shared
     * memory on all ranks or on none, as far from the beginning of the buffer. Ends at mem_free or mem_deregister, which
     * stay local. TESS_OK also where nothing is gained by it; TESS_E_UNSUPPORTED on all ranks is no failure; any other
     * failure is the communicator's. Default: ranks reach registered memory alone. */
    tess_status (*mem_share)(tess_comm *, tess_buffer *, tess_error *);
} tess_comm_ops;

/* ---- device ----------------------------------------------------------------------------------- */
typedef struct tess_device tess_device;
typedef struct tess_event tess_event;
typedef struct tess_graph tess_graph;
enum { TESS_STREAM_COMPUTE = 1, TESS_STREAM_GATHER, TESS_STREAM_UP, TESS_STREAM_DOWN };
enum { TESS_K_CAST = 1, TESS_K_TREE_SUM, TESS_K_SCALE, TESS_K_SQUARE_SUM, TESS_K_OPTIMIZER, TESS_K_CLIP };
enum { /* tess_kernel.flags */
    TESS_KERNEL_ADD = 1,  /* TREE_SUM, SQUARE_SUM: add to out */
    TESS_KERNEL_CHAIN = 2, /* TREE_SUM: in[0] + (in[1] + (… + in[n-1])), all but the last already of the sum's dtype */
    TESS_KERNEL_MORE = 4, /* SQUARE_SUM, OPTIMIZER: another of its kind follows on this stream, from this thread, before
                           * any other call that works there: the device may hold this one back until then */
    TESS_KERNEL_Q8 = 8, /* TREE_SUM in f32, since 1.1: each sum of two goes through a block of q8, or of q8e4m3 */
    TESS_KERNEL_Q8E4M3 = 16
};
enum { TESS_OPT_SGD = 1, TESS_OPT_ADAM, TESS_OPT_ADAMW, TESS_OPT_ADADELTA };

typedef struct {
    uint32_t struct_size, mem, mem_mask, align; /* mem_mask: what mem_alloc and copy take */
    uint64_t granularity_bytes, capacity_bytes; /* capacity 0: unknown before open */
    int32_t numa_node;
    uint32_t dtype_mask, kernel_mask;
    char name[64], id[52]; /* id: PCI address or the like, for hwloc and for two ranks on one device */
} tess_device_info;

typedef struct { /* one run of elements with one set of hyperparameters; ascending, disjoint */
    uint32_t struct_size;
    float lr;
    uint64_t first, elems; /* in this rank's shard */
    float weight_decay, momentum;
} tess_segment;
typedef struct {
    uint32_t struct_size, optimizer, n_segments;
    float grad_scale;
    const tess_segment *segments;
    uint64_t step; /* from 1 */
    float beta1, beta2, eps, rho;
    const float *clip; /* null, or where TESS_K_CLIP left its factor: the gradient is also multiplied by it. Given only to
                        * a device that offers that kernel */
    /* Null, or the device's memory: for each segment TESS_PREPARED_BYTES, as optimizer_prepare wrote them, which the kernel
     * reads when it runs. Then step, grad_scale, the numbers from beta1 to rho and those of the segments mean nothing.
     * Given only to a device that has optimizer_prepare. */
    const void *prepared;
    /* Null, or page-locked memory in which the kernel notes a step that left a parameter or a state NaN or infinite: where 0
     * is, it writes `step`. A device may leave it alone: then such a step is not found here. */
    int64_t *not_finite;
} tess_optimizer;
enum { TESS_PREPARED_BYTES = 128 };

typedef struct { /* one parameter's elements; ascending, disjoint, each from the beginning of a block on */
    uint64_t first, elems; /* in the group's flat buffer */
    uint64_t at;           /* the number of its first element in the model: whatever the units, the strategy and the ranks */
} tess_place;
/* CAST to blocks, since 1.1: each element is rounded up or down by a draw of its own, of its number in the model, `step`
 * and `draw` (docs/kernels.md). Elements of no run are 0. in[0] begins at element `first` of the flat buffer. */
typedef struct {
    uint32_t struct_size, n_runs;
    const tess_place *runs;
    uint64_t first;
    uint32_t step, draw;
} tess_rounding;

/* Formulas, summation order and rounding are the core's, in docs/numbers.md: the same bits on every device.
 *   CAST        out = in[0] in out_dtype, round to nearest even; scale 0 or 1. To blocks from f32; from them to f32, bf16, f16
 *   TREE_SUM    out = T(in[0 … n_in-1]) * scale in the tree order; scale 0 means 1. Blocks as out: of a sum in f32, not scaled
 *   SCALE       out = in[0] * scale (null in: out in place); 0 is 0
 *   SQUARE_SUM  out: the exact sum of (in[0] * scale)² as int64 limbs; scale 0 means 1
 *   CLIP        out: the f32 factor min(1, scale / (norm + 1e-6)) of the norm whose limbs in[0] is; out may be in[0].
 *               May be missing: the norm is then read by the host
 *   OPTIMIZER   one step of `optimizer`: in[0] the gradient, out the master, out2 its low-precision copy or null, state[] the
 *               momenta (sgd: 1 or none; adam and adamw: first, second moment; adadelta: squares, deltas). The copy is the
 *               new master in bf16, as CAST rounds it: every element of every segment, and no other: gathers
 *               and kernels read nothing else */
typedef struct {
    uint32_t struct_size, kernel, in_dtype, out_dtype;
    uint32_t n_in, flags;             /* TREE_SUM: contributions; flag 1: add to out */
    const void *const *in;            /* OPTIMIZER: in[0] the gradient shard */
    void *out, *out2;                 /* OPTIMIZER: master; out2 its bf16 copy or null */
    void *state[4];
    uint64_t elems;
    double scale;
    const tess_optimizer *optimizer;
    void *scratch; /* as much as kernel_need asked for, from the arena */
    uint64_t scratch_bytes;
    const tess_rounding *rounding; /* since 1.1. null: to nearest even */
} tess_kernel;

typedef struct {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx);                                                  /* see tess_plugin_open_v1 */
    /* Describes a device: index -1 is any of them, [pure], for plans; else that one. TESS_E_INVALID: no such index. Required. */
    tess_status (*describe)(void *ctx, int32_t index_or_minus1, tess_device_info *out, tess_error *);
    /* Opens a device. capacity_bytes: mem_alloc of domain device fails beyond it; 0: no limit but the device's own.
     * TESS_E_INVALID, TESS_E_NOMEM, TESS_E_DEVICE. Required. */
    tess_status (*create)(void *ctx, int32_t index, uint64_t capacity_bytes, tess_device **out, tess_error *);
    /* Gives everything back, memory still allocated too; null is fine. After streams and events of it. Required. */
    void (*destroy)(tess_device *);
    /* Memory for an arena, of a kind in mem_mask: a few calls at start, none in a step. The core owns it until mem_free.
     * out->bytes is what was obtained: `bytes` rounded up to granularity_bytes. Contents undefined. TESS_E_NOMEM: the
     * capacity or the machine has no more; with TESS_ALLOC_MAY_UNPIN pinned memory may come out pageable. Required. */
    tess_status (*mem_alloc)(tess_device *, const tess_alloc_request *, tess_buffer *out, tess_error *);
    void (*mem_free)(tess_device *, tess_buffer *); /* gives it back; null ptr is fine. Required. */
    /* Bytes the backend itself took, and bytes free; reported apart from the plan. Any thread. Default: not reported. */
    tess_status (*mem_usage)(tess_device *, uint64_t *backend_bytes, uint64_t *free_bytes);
    /* A queue for one role (TESS_STREAM_…). All at start. The core's until stream_destroy. TESS_E_DEVICE. Default: the
     * device has no queues; every call has done its work when it returns, and streams are all zero. */
    tess_status (*stream_create)(tess_device *, uint32_t role, tess_stream *out, tess_error *);
    /* The program's own queue, as a stream; it stays the program's. null: the device's default queue. Default: not
     * offered. */
    tess_status (*stream_import)(tess_device *, void *native, tess_stream *out, tess_error *);
    void (*stream_destroy)(tess_device *, tess_stream *); /* waits for its work; required beside stream_create */
    /* Points in streams. All made at start, none in a step; recorded again and again. TESS_E_DEVICE. Required beside
     * stream_create, with the four that follow; default: none are needed. */
    tess_status (*event_create)(tess_device *, tess_event **out, tess_error *);
    void (*event_destroy)(tess_event *);
    tess_status (*event_record)(tess_event *, const tess_stream *, tess_error *);      /* [stream] here is the point */
    tess_status (*event_stream_wait)(tess_event *, const tess_stream *, tess_error *); /* [stream] what follows waits for it */
    /* Blocks until the point was passed (0: only looks). Any thread, beside other calls. TESS_OK; TESS_PENDING with 0;
     * TESS_E_TIMEOUT; TESS_E_DEVICE. */
    tess_status (*event_wait)(tess_event *, int64_t timeout_ns, tess_error *);
    /* Nanoseconds between two points passed, for timelines. TESS_PENDING. Default: not in the timeline. */
    tess_status (*event_elapsed_ns)(tess_event *from, tess_event *to, int64_t *out);
    /* [stream] Copies between any two kinds of mem_mask; no overlap. TESS_E_INVALID, TESS_E_DEVICE. Required. */
    tess_status (*copy)(tess_device *, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes,
                        const tess_stream *, tess_error *);
    /* [stream] Sets bytes of the device's own memory kind. TESS_E_DEVICE. Required. */
    tess_status (*fill)(tess_device *, void *dst, uint8_t byte, uint64_t bytes, const tess_stream *, tess_error *);
    /* [pure] Scratch of one kernel; of pointers only whether out2 is null. TESS_E_UNSUPPORTED: not with these dtypes, or
     * no step with a copy. Required. */
    tess_status (*kernel_need)(void *ctx, const tess_kernel *, tess_need *out);
    /* [stream] Runs one kernel. What tess_kernel points to is read during the call, buffers until its end in the stream.
     * TESS_E_INVALID, TESS_E_UNSUPPORTED, TESS_E_DEVICE. Required. */
    tess_status (*kernel)(tess_device *, const tess_kernel *, const tess_stream *, tess_error *);
    /* All five or none. From here on what this thread puts into the stream is recorded and does not run: by the
     * slots above, which still read at once what they read during a call, and by the program itself. A stream that waits
     * for an event of the recording joins it; this one waits for its last work before record_end. The default stream
     * cannot record. TESS_E_DEVICE. Default: nothing is ever recorded. */
    tess_status (*record_begin)(tess_device *, const tess_stream *, tess_error *);
    /* Ends the recording, on the same thread. The graph is the caller's, until graph_destroy; `out` null: it is dropped.
     * TESS_E_DEVICE: something came between that cannot be recorded; the recording is gone. */
    tess_status (*record_end)(tess_device *, const tess_stream *, tess_graph **out, tess_error *);
    /* [stream] Runs all that was recorded, with the same pointers. TESS_E_DEVICE. */
    tess_status (*graph_run)(tess_graph *, const tess_stream *, tess_error *);
    void (*graph_destroy)(tess_graph *); /* null is fine; after it has run */
    /* [pure] Writes TESS_PREPARED_BYTES for each segment to `out`, the host's memory: what step, rates and factors come to
     * in this step. TESS_E_INVALID. */
    tess_status (*optimizer_prepare)(void *ctx, const tess_optimizer *, void *out);
    /* Both or none. Names what this thread queues until the range_pop that belongs to it, for the device's
     * profiler; ranges nest. `name` is read during the call. Offered only where tess_host.profiler is set. Default: nothing is
     * named. */
    void (*range_push)(tess_device *, const char *name);
    void (*range_pop)(tess_device *);
} tess_device_ops;

/* ---- precision: a choice per parameter; the device casts ---------------------------------------- */
typedef struct {
    /* flags: 1 frozen, 2 tied; mask: what the program's kernels read, and since 1.5 with the bit of TESS_F8E4M3 that they may
     * round it to that in products. */
    uint32_t struct_size, dtype, flags, compute_mask;
    const char *name;
    uint64_t elems;
    const int64_t *shape;
    int32_t ndim, scope; /* scope: index in tess_model_view.modules; it, tied_to and flag 2 are 0 in choose */
    int32_t tied_to;     /* parameter index, itself when not tied */
    int32_t group;       /* tess_param_options.optimizer_group; 0 in wrap */
} tess_param_view;
/* Dtypes of one parameter; parameters of a unit with equal choices form one group. master: what the optimizer updates;
 * compute: what kernels read; gather: what travels in all_gather, equal to compute or blocks; grad_local: what kernels add to;
 * grad_wire: what travels to its sum; accumulate: of that sum, f32 or f64. Blocks need a master and local gradients in f32, and
 * blocks are counted from the parameter's first element: no block is parted between ranks. */
typedef struct {
    uint32_t struct_size, master, compute, gather, grad_local, grad_wire, accumulate;
    uint32_t rounding; /* since 1.1: of parameters and leaves in blocks, TESS_ROUND_… */
    uint32_t products; /* since 1.5: TESS_F8E4M3, if compute_mask has it: what the program's products round it to; 0: nothing */
} tess_precision_choice;
enum { TESS_ROUND_NEAREST, TESS_ROUND_STOCHASTIC };
/* A scale of losses, so that small gradients are no zeros in a dtype of few exponents. Numbers are powers of two: gradients
 * are unscaled exactly. A step whose gradients are not finite is left out and multiplies the scale by `backoff`; `every`
 * finite ones in a row multiply it by `growth`. At `least` such a step is what TESSERA_ON_NAN says. */
typedef struct {
    uint32_t struct_size, every;        /* every 0: it never grows */
    float init, growth, backoff, least; /* init 0: losses are not scaled; 0 < backoff < 1 < growth; least up to init */
} tess_loss_scaling;
typedef struct {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx);                                                  /* see tess_plugin_open_v1 */
    /* [pure] The dtypes of one parameter. TESS_E_UNSUPPORTED: none that its compute_mask allows; the message need not name
     * the parameter, the core does. Required. */
    tess_status (*choose)(void *ctx, const tess_param_view *, tess_precision_choice *out, tess_error *);
    /* [pure] How losses are scaled. TESS_E_INVALID. Since 1.1. Default: they are not. */
    tess_status (*loss_scaling)(void *ctx, tess_loss_scaling *out, tess_error *);
} tess_precision_ops;

/* ---- wrap: a pure function from the tree to a number per parameter ------------------------------ */
typedef struct {
    uint32_t struct_size, flags; /* 1: a declared scope or block, 2: frozen throughout */
    const char *name;            /* "" is the root */
    int32_t parent, order;       /* order: place in the forward pass, -1 unknown */
    int32_t first_param, n_params; /* direct ones; parameters are sorted by module, modules depth first */
    uint64_t own_elems, subtree_elems;
} tess_module_view;
typedef struct { /* valid during the call */
    uint32_t struct_size, n_modules, n_params;
    const tess_module_view *modules;
    const tess_param_view *params;
} tess_model_view;
typedef struct {
    uint32_t struct_size;
    uint64_t peak_device_bytes, peak_host_bytes;
    int64_t step_ns; /* simulated; -1 unknown */
} tess_plan_result;
typedef struct {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx);
    /* [pure] Gives each parameter a unit: unit_of_param[i] in 0 … *n_units - 1, numbered in order of first use. The array
     * has n_params entries. The core checks that every unit has a parameter and that tied ones are together. `plan`, called
     * with `host`, runs the planner on a candidate, during assign only and as often as wanted; it is null where no planner
     * is at hand. TESS_E_INVALID: args or model; TESS_E_BUDGET: nothing fits. Required. */
    tess_status (*assign)(void *ctx, const tess_model_view *, const tess_plan_env *, int32_t *unit_of_param, int32_t *n_units,
                          tess_status (*plan)(void *host, const int32_t *unit_of_param, int32_t n_units, tess_plan_result *),
                          void *host, tess_error *);
} tess_wrap_ops;

/* ---- offload: where things rest; the core moves them, and steps there -------------------------- */
enum { TESS_REGION_MASTER = 1, TESS_REGION_GRAD, TESS_REGION_STATE, TESS_REGION_ACTIVATION };
enum { TESS_REST_DEVICE = 1, TESS_REST_HOST /* a slice of the core's host arena */,
       TESS_REST_STORE /* Since 1.2: of its own store. Not for ACTIVATION; of a device that is the host */ };
typedef struct {
    uint32_t struct_size, region, dtype, index; /* index: which state; GRAD: from 1 partial sums; MASTER: 1 its copy */
    int32_t unit, group;                        /* -1: activations */
    uint64_t elems, bytes;
} tess_region;
typedef struct {
    uint32_t struct_size, rest;
    uint64_t align, host_bytes, pinned_bytes; /* at rest; align: of a store, see tess_store_io */
} tess_placement;
/* A store keeps a rank's bytes outside memory: in files, or where else no address reaches. It has `bytes` bytes, which are
 * zero at first. align: the most that `place` asked for. most_posted: requests that are under way at once. memory: what the
 * placements of the store's regions state as host_bytes, together; the plugin's until close, and it begins at a multiple of
 * align. */
typedef struct tess_store tess_store;
typedef struct {
    uint32_t struct_size, most_posted;
    int32_t rank, nranks, local_rank;
    uint32_t align;
    uint64_t bytes;
    void *memory;
    uint64_t memory_bytes;
} tess_store_config;
enum { TESS_STORE_READ = 1, TESS_STORE_WRITE };
/* Bytes [at, at + bytes) of a store, and host memory for them, which is the caller's until the request has ended. What a
 * step moves begins, there and in memory, at a multiple of align, and so do its lengths. Other requests, which are rare, may
 * begin and end at any byte. Of two that are under way and share bytes, both read. */
typedef struct {
    uint32_t struct_size, op; /* TESS_STORE_… */
    uint64_t at, bytes;
    void *memory;
} tess_store_io;
typedef struct {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx);
    /* [pure] Where each of n regions rests: n entries of out. One call has all regions of a run, unit by unit, so a budget
     * is the plugin's to spend; a region of a kind rests in one place with the others of its kind and group. It is locked
     * in memory when pinned_bytes reaches its bytes, else pageable. ACTIVATION comes only when the user has sent them to the
     * host: the answer says whether they are locked. The core moves what rests on the host by the device's copy, and steps
     * it with the cpu device's kernels on host threads of its own. TESS_E_UNSUPPORTED: args that this device or these
     * regions rule out; TESS_E_BUDGET. Required. */
    tess_status (*place)(void *ctx, const tess_plan_env *, const tess_region *, uint32_t n, tess_placement *out, tess_error *);
    /* These four came with 1.2: all or none. Makes this rank's store and takes room for all of it, so that no write fails later
     * for want of room. Blocking; not within a step. *obtained: the bytes that it takes where it lies, as measured there.
     * TESS_E_NOMEM: no room; TESS_E_SYSTEM, TESS_E_INVALID. Default: nothing can rest in a store. */
    tess_status (*store_open)(void *ctx, const tess_store_config *, tess_store **out, uint64_t *obtained, tess_error *);
    /* Begins to read or write. Asynchronous; any thread, several at once; no allocation. The request belongs to the plugin. */
    tess_status (*store_post)(tess_store *, const tess_store_io *, tess_request **out, tess_error *);
    /* Waits until the request has ended, and gives it back whatever its status; once for each. Blocking; any thread. TESS_E_DATA:
     * what was read is not what was written, or is gone, or it could not be read or written. The message names the file, or
     * what else it is, the offset and the system's error. */
    tess_status (*store_wait)(tess_store *, tess_request *, tess_error *);
    /* Waits for all requests under way, and gives the store's bytes back. Nothing is left of it, nor after a kill. */
    void (*store_close)(tess_store *);
    /* Since 1.4, beside those four: both or none. Says that what a step moves lies in this memory, so that the store may prepare
     * it once, as devices and kernels like. Blocking; not within a step; one memory at a time, which ends at store_deregister
     * or store_close, before the memory is freed. Requests may lie elsewhere all the same. TESS_E_UNSUPPORTED is no failure:
     * the store does without. Default: it does. */
    tess_status (*store_register)(tess_store *, void *memory, uint64_t bytes, tess_error *);
    /* Ends that; no request is under way there. Required beside store_register. */
    void (*store_deregister)(tess_store *);
} tess_offload_ops;

/* ---- optimizer: what a step makes of a parameter; the core moves, plans and times ----------------- */
/* The core cuts a parameter into pieces of whole grains: between ranks, between threads, and to keep a piece in the cache.
 * The bits of a step therefore depend on no element outside the grain.
 * A matrix is stepped in three parts. `step` comes with TESS_PHASE_BEFORE for pieces of elements, and writes of each its
 * update. The core brings the updates of a matrix together on one rank, its owner, where `matrix` changes the whole. Then each
 * rank has its elements of the result, with which `step` comes again, with TESS_PHASE_AFTER, and changes the master. */
enum {
    TESS_GRAIN_ELEMENT = 1, /* each element by itself */
    TESS_GRAIN_BLOCK,       /* `block` elements at a time, counted from the parameter's first; the last may be shorter */
    TESS_GRAIN_MATRIX,      /* `rows` times `cols` elements at a time: the parameter is one such matrix or a stack of them */
    TESS_GRAIN_ROW          /* Since 1.1. A row at a time: as many elements as the last dimension has; one where there is none */
};
enum { TESS_PHASE_WHOLE, TESS_PHASE_BEFORE, TESS_PHASE_AFTER }; /* WHOLE: of any grain but a matrix */
enum { TESS_STATES_MOST = 4, TESS_BLOCK_MOST = 8192, TESS_ROW_MOST = 65536 };
/* One state of a parameter: a value of `dtype` for `every` elements, which is 1, the block, or the length of a row: of the last
 * dimension, and of a matrix `cols`, at most TESS_ROW_MOST. Zero at first. name: [a-z0-9_]+, under which checkpoints keep it.
 * What is state number k has the same name in all parameters. Held by value: 40 bytes, frozen. */
typedef struct {
    uint32_t dtype, every;
    char name[32];
} tess_state;
/* kernel: 0, or TESS_OPT_… where the step is just what the device's kernel of that number does: then that runs, on any
 * device, and not the plugin's step. It is the same number for all parameters that have one. The states are the kernel's
 * own: fp32, one value for each element; two, but of sgd one with TESS_STEPS_MOMENTUM, else none. */
typedef struct {
    uint32_t struct_size, grain, block, kernel, n_states; /* block: a power of two; 0 with the other grains */
    tess_state state[TESS_STATES_MOST];
    /* With the grain of a matrix, else 0. whole: bit k is set where state k is one value of fp32 for each element, and `matrix`
     * reads and writes it too: it travels with the update. scratch_bytes: of `matrix`, on the owner. */
    uint32_t whole;
    uint64_t rows, cols, scratch_bytes;
} tess_grain;
/* A piece: `elems` elements of one parameter from its element `first` on. grad: the averaged gradient, scaled and clipped.
 * state[k]: from the value of `first` on. A matrix that has a state of rows comes in pieces of whole rows. Numbers are as the
 * program has written them, 0.1 and not 0.1f; lr and weight_decay are those of the parameter's group; what the program did not
 * give is 0. update: of a matrix, else null. The phase before writes all of it and leaves the master; the phase after reads what
 * `matrix` has made of it, and has no gradient (null). */
typedef struct {
    uint32_t struct_size;
    const tess_param_view *param;
    uint64_t first, elems, step; /* step: from 1 */
    double lr, weight_decay, momentum, beta1, beta2, eps, rho;
    float *master;
    const float *grad;
    void *state[TESS_STATES_MOST];
    float *update;
    uint32_t phase; /* TESS_PHASE_… */
} tess_optimizer_piece;
/* A whole matrix on its owner: number `index` of the parameter's stack. update and state[k]: rows times cols, row by row;
 * state[k] is null unless the grain's `whole` has it. scratch: scratch_bytes as `describe` stated them, with anything in it, at
 * a multiple of 64. share: calls fn for parts of 0 … n - 1, each once, on several threads at once, and returns when all have
 * ended; bits must not depend on the parts. The numbers are those of tess_optimizer_piece; lr and weight_decay, which may differ
 * within a shard, come with the phase after alone. */
typedef struct {
    uint32_t struct_size;
    const tess_param_view *param;
    uint64_t index, rows, cols, step;
    double momentum, beta1, beta2, eps, rho;
    float *update, *state[TESS_STATES_MOST];
    void *scratch;
    void (*share)(void *pool, uint64_t n, void (*fn)(void *user, uint64_t first, uint64_t n), void *user);
    void *pool; /* for share */
} tess_optimizer_matrix;
/* A piece in a device's memory, where master, grad and states lie. The gradient is averaged, and the step multiplies it by
 * grad_scale, or by the product of grad_scale and *clip unless clip is null. */
typedef struct {
    uint32_t struct_size;
    float grad_scale;
    const tess_optimizer_piece *piece;
    const float *clip;   /* the device's memory */
    int64_t *not_finite; /* as in tess_optimizer: null, or where the device notes a step whose results are not all finite */
} tess_device_piece;
/* Since 1.3. Numbers of tess_optimizer_piece that an optimizer takes, the kernels that it names included. */
enum { TESS_TAKES_LR = 1 /* and weight_decay */, TESS_TAKES_MOMENTUM = 2, TESS_TAKES_BETA1 = 4, TESS_TAKES_BETA2 = 8, TESS_TAKES_EPS = 16,
       TESS_TAKES_RHO = 32 };
enum { TESS_STEPS_MOMENTUM = 1 /* the program's steps come with a momentum (tess_options.momentum) */ };
typedef struct {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx);                                                  /* see tess_plugin_open_v1 */
    /* [pure] How a trainable parameter is stepped. flags: TESS_STEPS_…. TESS_E_UNSUPPORTED: not this parameter; the message
     * need not name it, the core does. Required. */
    tess_status (*describe)(void *ctx, const tess_param_view *, uint32_t flags, tess_grain *out, tess_error *);
    /* Steps one piece: changes master and states in place, in host memory, and nothing else. Done when it returns. Any thread,
     * several at once on other pieces, so that it only reads ctx; no allocation. A result that is NaN or infinite is no error:
     * the core looks for it. TESS_E_INVALID: a number that the program gave is out of range; then nothing was changed.
     * Default: every parameter needs a kernel. */
    tess_status (*step)(void *ctx, const tess_optimizer_piece *, tess_error *);
    /* Makes the result of one matrix: changes update and the states it has in place, in host memory, uses scratch, and changes
     * nothing else. Done when it returns. One call at a time on a rank; it only reads ctx; no allocation. Which rank calls it,
     * and how many threads share it, may not change a bit. Statuses as of step. Default: no parameter has the grain of a
     * matrix. */
    tess_status (*matrix)(void *ctx, const tess_optimizer_matrix *, tess_error *);
    /* All three or none. Takes what steps in memory of kind `mem` need, as kernels, on the engine's thread and once, before the
     * first step. They come with `stream`, whose index is the device's. stream null: [pure] takes nothing, and only says whether
     * it would. TESS_E_UNSUPPORTED: not in such memory; TESS_E_NOMEM, TESS_E_DEVICE. Default: steps run on the host. */
    tess_status (*device_open)(void *ctx, uint32_t mem, const tess_stream *stream, void **out, tess_error *);
    /* [stream] Steps one piece, with the bits of `step`. What the structs point to outside the device's memory is read during
     * the call. No allocation. TESS_E_INVALID as in step; TESS_E_DEVICE. */
    tess_status (*device_step)(void *opened, const tess_device_piece *, const tess_stream *, tess_error *);
    void (*device_close)(void *opened); /* when the stream's work is done, before close */
    uint64_t takes; /* TESS_TAKES_…: the command refuses other numbers. Default, and 0: not said, so that none is refused */
} tess_optimizer_ops;

/* ---- layout, pinned ----------------------------------------------------------------------------- */
/* A struct may grow at its end, with the minor version; where a field lies never changes. */
#if UINTPTR_MAX > 0xffffffffu
#define TESS_PIN(type, bytes, middle, middle_at, last, last_at)                            \
    TESS_STATIC_ASSERT(sizeof(type) == (bytes) && offsetof(type, middle) == (middle_at) && \
                           offsetof(type, last) == (last_at),                              \
                       "the layout of " #type " has changed")
TESS_PIN(tess_plugin_note, 128, core_minor_min, 16, needs, 96);
TESS_PIN(tess_error, 256, native, 8, message, 16);
TESS_PIN(tess_stream, 16, device, 4, handle, 8);
TESS_PIN(tess_buffer, 32, ptr, 8, reg, 24);
TESS_PIN(tess_option_spec, 448, key, 24, help, 304);
TESS_PIN(tess_need, 40, pinned_bytes, 16, backend_bytes, 32);
TESS_PIN(tess_plan_env, 40, in_flight, 16, host_budget_bytes, 32);
TESS_PIN(tess_alloc_request, 48, device, 20, align, 40);
TESS_PIN(tess_host, 120, max_helper_threads, 92, profiler, 112);
TESS_PIN(tess_comm_config, 40, local_rank, 12, timeout_ns, 32);
TESS_PIN(tess_comm_caps, 104, mem_mask, 20, wire_id, 40);
TESS_PIN(tess_collective, 152, count, 48, recv_parts, 144);
TESS_PIN(tess_comm_ops, 168, abort, 72, mem_share, 160);
TESS_PIN(tess_device_info, 160, numa_node, 32, id, 108);
TESS_PIN(tess_segment, 32, lr, 4, momentum, 28);
TESS_PIN(tess_optimizer, 72, beta1, 32, not_finite, 64);
TESS_PIN(tess_rounding, 32, runs, 8, draw, 28);
TESS_PIN(tess_kernel, 128, out2, 40, rounding, 120);
TESS_PIN(tess_device_ops, 224, stream_create, 64, range_pop, 216);
TESS_PIN(tess_param_view, 56, elems, 24, group, 52);
TESS_PIN(tess_precision_choice, 36, grad_wire, 20, products, 32);
TESS_PIN(tess_loss_scaling, 24, init, 8, least, 20);
TESS_PIN(tess_precision_ops, 32, choose, 16, loss_scaling, 24);
TESS_PIN(tess_module_view, 48, order, 20, subtree_elems, 40);
TESS_PIN(tess_model_view, 32, modules, 16, params, 24);
TESS_PIN(tess_plan_result, 32, peak_device_bytes, 8, step_ns, 24);
TESS_PIN(tess_wrap_ops, 24, close, 8, assign, 16);
TESS_PIN(tess_region, 40, unit, 16, bytes, 32);
TESS_PIN(tess_placement, 32, rest, 4, pinned_bytes, 24);
TESS_PIN(tess_offload_ops, 72, close, 8, store_deregister, 64);
TESS_PIN(tess_store_config, 48, rank, 8, memory_bytes, 40);
TESS_PIN(tess_store_io, 32, at, 8, memory, 24);
TESS_PIN(tess_state, 40, every, 4, name, 8);
TESS_PIN(tess_grain, 208, kernel, 12, scratch_bytes, 200);
TESS_PIN(tess_optimizer_piece, 160, step, 32, phase, 152);
TESS_PIN(tess_optimizer_matrix, 152, step, 40, pool, 144);
TESS_PIN(tess_device_piece, 32, piece, 8, not_finite, 24);
TESS_PIN(tess_optimizer_ops, 72, close, 8, takes, 64);
#undef TESS_PIN
#endif

#ifdef __cplusplus
}
#endif
#endif
