/* tessera/plugin.h: what a plugin author needs: the descriptor, the host table and the five vtables.
 *
 * This one header is enough: C11 or C++17, no dependency, no link to the core. Stability: within one major
 * version structs and tables only grow at their end; see docs/abi.md.
 *
 *  - Every struct begins with its size. Arrays are walked by the first element's struct_size, never by sizeof.
 *  - The caller sets struct_size of an out struct; the callee writes at most that much, zeroes the rest of it,
 *    and leaves struct_size alone. New fields mean "old behaviour" when zero.
 *  - A struct held by value in another has no struct_size and never grows (tess_stream: 16 bytes).
 *  - `mem` fields hold one TESS_MEM_…; `…_mask` fields hold 1u << TESS_MEM_… or 1u << dtype.
 *  - A slot marked [pure] depends on its arguments and options only, allocates nothing that outlives it, needs no
 *    instance, no device and no peers, and gives the same answer on every rank: it is what planning calls.
 *  - A slot marked [stream] returns once the work is queued behind `stream` (CPU device: when done).
 *  - Once a request or a stream-ordered call has ended, in any way but TESS_PENDING, the plugin no longer
 *    touches its buffers. TESS_E_TIMEOUT from wait is not an end. Nothing throws across the boundary.
 *  - No slot leaves the calling thread's signal mask, affinity, rounding or denormal mode changed. */
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
#ifndef TESS_ABI_MINOR
#define TESS_ABI_MINOR 0 /* append-only; a break makes new *_v2 symbols */
#endif
/* A slot can be called when the table is long enough to hold it and it is set. */
#define TESS_HAS(type, table, slot) ((table)->struct_size >= offsetof(type, slot) + sizeof((table)->slot))
#define TESS_CAN(type, table, slot) (TESS_HAS(type, table, slot) && (table)->slot)

/* ---- shared ----------------------------------------------------------------------------------- */
typedef int32_t tess_status;
enum {
    TESS_OK = 0, TESS_PENDING = 1,
    TESS_E_INVALID = -1, TESS_E_UNSUPPORTED = -2, TESS_E_NOMEM = -3, TESS_E_TIMEOUT = -4, TESS_E_ABORTED = -5,
    TESS_E_PEER = -6, TESS_E_SYSTEM = -7, TESS_E_DEVICE = -8, TESS_E_VERSION = -9, TESS_E_INTERNAL = -10,
    TESS_E_DATA = -11, TESS_E_BUDGET = -12, TESS_E_PLANNED = -13,
    TESS_E_MISMATCH = -14 /* ranks disagree about a collective: operation, count, dtype, tag */
};
enum { TESS_KIND_COMM = 1, TESS_KIND_OFFLOAD, TESS_KIND_PRECISION, TESS_KIND_WRAP, TESS_KIND_DEVICE };
enum { TESS_U8 = 1, TESS_I8, TESS_I32, TESS_I64, TESS_F16, TESS_BF16, TESS_F32, TESS_F64, TESS_F8E4M3, TESS_F8E5M2 };
enum { TESS_SUM = 1, TESS_MIN, TESS_MAX };
enum { TESS_MEM_HOST = 1, TESS_MEM_PINNED, TESS_MEM_CUDA, TESS_MEM_SHM };
enum { TESS_ALL_GATHER = 1, TESS_REDUCE_SCATTER, TESS_ALL_REDUCE, TESS_BROADCAST, TESS_ALL_TO_ALL, TESS_BARRIER };

/* Identity. No pointers: read from the file's own section before any of its code runs. 128 bytes, frozen. */
typedef struct {
    char magic[8]; /* "TESSPLG" */
    uint32_t struct_size;
    uint16_t abi_major, abi_minor, core_minor_min, reserved0;
    uint32_t kinds; /* bit (1 << TESS_KIND_…) for each vtable it offers */
    char name[32], version[24], license[16], needs[32];
} tess_plugin_note;
TESS_STATIC_ASSERT(sizeof(tess_plugin_note) == 128, "frozen");

typedef struct { /* owned by the caller */
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
TESS_STATIC_ASSERT(sizeof(tess_stream) == 16, "frozen");

typedef struct {
    uint32_t struct_size, mem;
    void *ptr;
    uint64_t bytes;
    void *reg; /* a backend's registration; says itself what kind it is */
} tess_buffer;
typedef struct tess_request tess_request;

enum { TESS_DOMAIN_DEVICE = 1, TESS_DOMAIN_HOST };
enum { /* DESIGN section 7 */
    TESS_CAT_SHARD_PARAM = 1, TESS_CAT_FULL_PARAM, TESS_CAT_SHARD_GRAD, TESS_CAT_FULL_GRAD, TESS_CAT_OPTIMIZER,
    TESS_CAT_ACTIVATION, TESS_CAT_COMM, TESS_CAT_INPUT, TESS_CAT_TEMPORARY, TESS_CAT_BUFFER, TESS_CAT_FRAGMENTATION
};

typedef struct { /* one option a plugin understands; an option set but not listed is an error of the user */
    uint32_t struct_size, type; /* 1 integer, 2 real, 3 text, 4 bytes with suffix, 5 choice "a|b|c" */
    const char *key, *fallback, *help;
} tess_option;

typedef struct { /* what the caller would have to provide; exact, not an estimate */
    uint32_t struct_size, align;
    uint64_t device_bytes, pinned_bytes, host_bytes;
    uint64_t backend_bytes; /* the plugin's own, outside the arena: an upper bound, reported apart */
} tess_need;

typedef struct { /* the run being planned; no rank number in it, on purpose */
    uint32_t struct_size, mem; /* the device's own memory kind */
    int32_t nranks, ranks_per_host;
    uint32_t in_flight, reserved;
    uint64_t device_budget_bytes, host_budget_bytes; /* 0: none */
} tess_plan_env;

typedef struct { /* what an allocator is asked for; device's and comm's */
    uint32_t struct_size, mem, flags, domain, category;
    int32_t device, numa_node; /* numa_node is a wish; -1 none */
    uint32_t reserved;
    uint64_t bytes, align;
} tess_alloc_request;
enum { TESS_ALLOC_MAY_UNPIN = 1 /* pinning refused: give pageable memory, buffer.mem says so */ };

typedef struct { /* the core's services; any thread unless said */
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void *host;
    void (*log)(void *host, int32_t level, const char *plugin, const char *message);
    const char *(*option)(void *host, const char *key); /* instead of getenv; lives as long as the process */
    tess_status (*kv_set)(void *host, const char *key, const void *value, uint64_t bytes);
    tess_status (*kv_get)(void *host, const char *key, void *value, uint64_t *bytes, int64_t timeout_ns);
    int32_t (*aborting)(void *host); /* not 0: give up what you wait for, in init and kv_get too */
    tess_status (*mem_alloc)(void *host, uint32_t domain, uint32_t category, uint64_t bytes, uint64_t align, void **out);
    void (*mem_free)(void *host, void *ptr);
    const char *args;        /* text after the colon of TESSERA_<KIND>, never null */
    const char *helper_cpus; /* "2,6-7": where a plugin's own threads belong; "" any */
    int32_t numa_node, max_helper_threads; /* nearest the device; -1 unknown */
} tess_host;

#define TESS_EXPORT __attribute__((visibility("default")))
extern TESS_EXPORT const tess_plugin_note tess_plugin_note_v1; /* in section ".tessera.plugin" */
TESS_EXPORT tess_status tess_plugin_open_v1(const tess_host *, uint32_t kind, const void **ops, void **ctx, tess_error *);

/* ---- comm: collectives ------------------------------------------------------------------------- */
typedef struct tess_comm tess_comm;
typedef struct {
    uint32_t struct_size, flags;
    int32_t rank, nranks, local_rank, device;
    const char *group; /* key-value prefix, unique to this communicator */
    int64_t timeout_ns;
} tess_comm_config;
enum {
    TESS_COMM_THREAD_MULTIPLE = 1,
    TESS_COMM_STREAM_ORDERED = 2,
    TESS_COMM_ABORT = 4,
    TESS_COMM_SPLIT = 8,
    TESS_COMM_ZERO_COPY = 16,
    TESS_COMM_BATCH = 32,
    TESS_COMM_TREE_ORDER = 64 /* reduce_scatter sums in the engine's tree order, fp32 (NUMBERS.md) */
};
typedef struct {
    uint32_t struct_size, caps, op_mask, redop_mask, dtype_mask, mem_mask, align, reserved;
    uint64_t max_bytes;
    char wire_id[64]; /* equal on ranks that can talk to each other */
} tess_comm_caps;
typedef struct {
    uint32_t struct_size, op, redop, flags; /* 1: add to recv. No AVG: `scale` after the sum is the one place */
    uint32_t send_dtype, recv_dtype;        /* bf16 in, fp32 out; accumulation is fp32 (fp64 for fp64) always */
    uint32_t send_mem, recv_mem;
    const void *send;
    void *recv;
    uint64_t count; /* all_gather, reduce_scatter, all_to_all: of one rank's block; broadcast, all_reduce: of the whole */
    double scale;
    int32_t root, reserved;
    tess_stream after;
    void *send_reg, *recv_reg; /* of the enclosing buffer; null: not registered */
    void *scratch;
    uint64_t scratch_bytes;
    uint64_t seq, tag; /* tag: hash of the program's instruction; a backend that can compares it across ranks */
} tess_collective;
typedef struct {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx); /* undoes tess_plugin_open; local; last call */
    tess_status (*options)(void *ctx, const tess_option **out, uint32_t *n);
    tess_status (*query)(void *ctx, tess_comm *or_null, tess_comm_caps *out);
    tess_status (*need)(void *ctx, const tess_plan_env *, const tess_collective *, tess_need *out); /* [pure]; UNSUPPORTED: not offered */
    tess_status (*cost)(void *ctx, const tess_plan_env *, const tess_collective *, int64_t *ns);    /* [pure], optional: for simulation */
    tess_status (*init)(void *ctx, const tess_comm_config *, tess_comm **out, tess_error *);        /* collective */
    tess_status (*split)(tess_comm *, int32_t color, int32_t key, const tess_comm_config *, tess_comm **out,
                         tess_error *);                                     /* collective; color < 0: OK and *out null */
    tess_status (*finalize)(tess_comm *, int64_t timeout_ns, tess_error *); /* collective: drain */
    void (*destroy)(tess_comm *);                                           /* local, never waits */
    tess_status (*abort)(tess_comm *, tess_status why);                     /* any thread, at once, repeatable */
    tess_status (*health)(tess_comm *, tess_error *);                       /* any thread */
    tess_status (*mem_alloc)(tess_comm *, const tess_alloc_request *, tess_buffer *out, tess_error *);
    void (*mem_free)(tess_comm *, tess_buffer *);
    tess_status (*mem_register)(tess_comm *, tess_buffer *, tess_error *);
    void (*mem_deregister)(tess_comm *, tess_buffer *);
    tess_status (*post)(tess_comm *, const tess_collective *, uint32_t n, tess_request **out, tess_error *);
    tess_status (*progress)(tess_comm *); /* null: own threads, on helper_cpus; else the core's progress thread, beside post */
    tess_status (*test)(tess_request *, tess_error *);
    tess_status (*wait)(tess_request *, int64_t timeout_ns, tess_error *);
    tess_status (*wait_stream)(tess_request *, const tess_stream *, tess_error *);
    void (*request_free)(tess_request *); /* after its end only */
} tess_comm_ops;

/* ---- device ----------------------------------------------------------------------------------- */
typedef struct tess_device tess_device;
typedef struct tess_event tess_event;
enum { TESS_STREAM_COMPUTE = 1, TESS_STREAM_GATHER, TESS_STREAM_REDUCE, TESS_STREAM_UP, TESS_STREAM_DOWN };
enum { TESS_K_CAST = 1, TESS_K_TREE_SUM, TESS_K_SCALE, TESS_K_SQUARE_SUM, TESS_K_OPTIMIZER };
enum { /* tess_kernel.flags */
    TESS_KERNEL_ADD = 1,  /* TREE_SUM, SQUARE_SUM: add to out */
    TESS_KERNEL_CHAIN = 2 /* TREE_SUM: in[0] + (in[1] + (… + in[n-1])), all but the last already of the sum's dtype */
};
enum { TESS_OPT_SGD = 1, TESS_OPT_ADAM, TESS_OPT_ADAMW, TESS_OPT_ADADELTA };

typedef struct {
    uint32_t struct_size, mem, mem_mask, align; /* mem_mask: what mem_alloc and copy take */
    uint64_t granularity_bytes, capacity_bytes; /* capacity 0: unknown before open */
    int32_t numa_node, reserved;
    uint32_t dtype_mask, kernel_mask;
    char name[64], id[48]; /* id: PCI address or the like, for hwloc and for two ranks on one device */
} tess_device_info;

typedef struct { /* one run of elements with one set of hyperparameters; ascending, disjoint */
    uint32_t struct_size, reserved;
    uint64_t first, elems; /* in this rank's shard */
    float lr, weight_decay, momentum, reserved1;
} tess_segment;
typedef struct {
    uint32_t struct_size, optimizer, flags, n_segments;
    const tess_segment *segments;
    uint64_t step; /* from 1 */
    float beta1, beta2, eps, rho, grad_scale, reserved;
} tess_optimizer;

typedef struct { /* formulas, summation order and rounding are the core's, in docs/numbers.md: same bits everywhere */
    uint32_t struct_size, kernel, in_dtype, out_dtype;
    uint32_t n_in, flags;             /* TREE_SUM: contributions; flag 1: add to out */
    const void *const *in;            /* OPTIMIZER: in[0] the gradient shard */
    void *out, *out2;                 /* OPTIMIZER: master; out2 the low-precision copy or null */
    void *state[4];
    uint64_t elems, first_elem, seed; /* first_elem: of out[0] in the group, for rounding that depends on it */
    double scale;
    const tess_optimizer *optimizer;
    void *scratch; /* as much as kernel_need asked for, from the arena */
    uint64_t scratch_bytes;
} tess_kernel;

typedef struct {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx); /* undoes tess_plugin_open; local; last call */
    tess_status (*options)(void *ctx, const tess_option **out, uint32_t *n);
    tess_status (*count)(void *ctx, int32_t *out, tess_error *);
    tess_status (*describe)(void *ctx, int32_t index_or_minus1, tess_device_info *out, tess_error *); /* -1: [pure], for plans */
    tess_status (*create)(void *ctx, int32_t index, uint64_t capacity_bytes, tess_device **out, tess_error *);
    void (*destroy)(tess_device *);
    tess_status (*health)(tess_device *, tess_error *);                      /* any thread; sticky faults end up here */
    tess_status (*mem_alloc)(tess_device *, const tess_alloc_request *, tess_buffer *out, tess_error *); /* arenas, pinned too */
    void (*mem_free)(tess_device *, tess_buffer *);
    tess_status (*mem_usage)(tess_device *, uint64_t *backend_bytes, uint64_t *free_bytes); /* optional */
    tess_status (*stream_create)(tess_device *, uint32_t role, tess_stream *out, tess_error *);
    tess_status (*stream_import)(tess_device *, void *native, tess_stream *out, tess_error *); /* the program's own */
    void (*stream_destroy)(tess_device *, tess_stream *);
    tess_status (*event_create)(tess_device *, tess_event **out, tess_error *); /* all at start; none in a step */
    void (*event_destroy)(tess_event *);
    tess_status (*event_record)(tess_event *, const tess_stream *, tess_error *);
    tess_status (*event_stream_wait)(tess_event *, const tess_stream *, tess_error *);
    tess_status (*event_wait)(tess_event *, int64_t timeout_ns, tess_error *); /* 0: test; TESS_PENDING or OK */
    tess_status (*event_elapsed_ns)(tess_event *from, tess_event *to, int64_t *out); /* optional, for timelines */
    tess_status (*copy)(tess_device *, void *dst, uint32_t dst_mem, const void *src, uint32_t src_mem, uint64_t bytes,
                        const tess_stream *, tess_error *); /* [stream] */
    tess_status (*fill)(tess_device *, void *dst, uint8_t byte, uint64_t bytes, const tess_stream *, tess_error *);
    tess_status (*kernel_need)(void *ctx, const tess_kernel *, tess_need *out); /* [pure]; UNSUPPORTED: not offered */
    tess_status (*kernel)(tess_device *, const tess_kernel *, const tess_stream *, tess_error *); /* [stream] */
} tess_device_ops;

/* ---- precision: a choice per parameter, and casts the device lacks ------------------------------ */
typedef struct tess_precision tess_precision;
typedef struct {
    uint32_t struct_size, dtype, flags, compute_mask; /* flags: 1 frozen, 2 tied; mask: what the program's kernels read */
    const char *name;
    uint64_t elems;
    const int64_t *shape;
    int32_t ndim, scope; /* scope: index in tess_model_view.modules */
    int32_t tied_to;     /* parameter index, itself when not tied */
    int32_t reserved;
} tess_param_view;
typedef struct { /* parameters of a unit with equal choices form one group */
    uint32_t struct_size, master, compute, gather, grad_local, grad_wire, accumulate, reserved;
    uint32_t block_elems; /* shards are multiples of this; 1 for plain formats */
    uint32_t block_bytes; /* encoded size of a block on the wire, scales included; 0: plain */
} tess_precision_choice; /* gather != compute costs a second buffer, which the planner adds */
typedef struct {
    uint32_t struct_size, from, to, flags; /* flag 1: `to` is the wire format with its blocks */
    const void *src;
    void *dst; /* may be this rank's slot of the gather buffer; never overlaps src */
    uint64_t elems, first_elem, step, seed;
    void *scratch;
    uint64_t scratch_bytes;
} tess_cast;
typedef struct {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx);
    tess_status (*options)(void *ctx, const tess_option **out, uint32_t *n);
    tess_status (*choose)(void *ctx, const tess_param_view *, tess_precision_choice *out, tess_error *); /* [pure] */
    tess_status (*cast_need)(void *ctx, uint32_t mem, const tess_cast *, tess_need *out); /* [pure]; null or UNSUPPORTED:
                                                                                            TESS_K_CAST of the device does it */
    tess_status (*create)(void *ctx, uint32_t mem, tess_precision **out, tess_error *);
    void (*destroy)(tess_precision *);
    tess_status (*cast)(tess_precision *, const tess_cast *, const tess_stream *, tess_error *); /* [stream] */
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
    uint32_t struct_size, n_modules, n_params, reserved;
    const tess_module_view *modules;
    const tess_param_view *params;
} tess_model_view;
typedef struct {
    uint32_t struct_size, reserved;
    uint64_t peak_device_bytes, peak_host_bytes;
    int64_t step_ns; /* simulated; -1 unknown */
} tess_plan_result;
typedef struct {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx);
    tess_status (*options)(void *ctx, const tess_option **out, uint32_t *n);
    /* unit_of_param[i]: a unit, 0 … *n_units-1, in order of first use. The core checks: every parameter once, tied
     * ones together. `plan` runs the planner on a candidate and may be called often. [pure] */
    tess_status (*assign)(void *ctx, const tess_model_view *, const tess_plan_env *, int32_t *unit_of_param, int32_t *n_units,
                          tess_status (*plan)(void *host, const int32_t *unit_of_param, int32_t n_units, tess_plan_result *),
                          void *host, tess_error *);
} tess_wrap_ops;

/* ---- offload: where things rest; moving them; the step only when memory is not addressable ------ */
typedef struct tess_offload tess_offload;
enum { TESS_REGION_MASTER = 1, TESS_REGION_LOW /* compute-dtype copy */, TESS_REGION_GRAD, TESS_REGION_STATE, TESS_REGION_ACTIVATION };
enum { TESS_REST_DEVICE = 1, TESS_REST_HOST /* a slice of the core's host arena */, TESS_REST_PLUGIN /* only fetch and flush reach it */ };
typedef struct {
    uint32_t struct_size, region, dtype, index; /* index: which state */
    int32_t unit, group;
    uint64_t elems, bytes;
} tess_region;
typedef struct {
    uint32_t struct_size, rest, align, reserved;
    uint64_t host_bytes, pinned_bytes;   /* at rest */
    uint64_t staging_bytes;              /* pinned, per transfer in flight */
    uint64_t storage_bytes;              /* files and the like, reported apart */
} tess_placement;
typedef struct { /* both ways; a cast on the way is the precision plugin's, before or after */
    uint32_t struct_size, flags; /* 1: to storage */
    const tess_region *region;
    void *ptr; /* in the arena */
    uint32_t mem, reserved;
    uint64_t offset_bytes, bytes;
    tess_stream after; /* start when this stream has come this far */
    void *staging;
    uint64_t staging_bytes;
} tess_transfer;
typedef struct {
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    void (*close)(void *ctx);
    tess_status (*options)(void *ctx, const tess_option **out, uint32_t *n);
    tess_status (*place)(void *ctx, const tess_plan_env *, const tess_region *, uint32_t n, tess_placement *out, tess_error *); /* [pure] */
    /* The rest may be null when no region rests in the plugin: the core then copies between its arenas with the
     * device's copy and steps with the cpu device's kernels on the core's host threads. */
    tess_status (*create)(void *ctx, const tess_plan_env *, int32_t rank, int32_t numa_node, const tess_buffer *host_arena,
                          tess_offload **out, tess_error *);
    void (*destroy)(tess_offload *); /* local, never waits */
    tess_status (*abort)(tess_offload *, tess_status why); /* any thread */
    tess_status (*post)(tess_offload *, const tess_transfer *, uint32_t n, tess_request **out, tess_error *);
    tess_status (*step)(tess_offload *, const tess_region *, uint32_t n, const tess_optimizer *, tess_request **out, tess_error *);
    tess_status (*progress)(tess_offload *); /* null: own threads, on helper_cpus; else from the core's progress thread,
                                                beside post */
    tess_status (*test)(tess_request *, tess_error *);
    tess_status (*wait)(tess_request *, int64_t timeout_ns, tess_error *);
    tess_status (*wait_stream)(tess_request *, const tess_stream *, tess_error *);
    void (*request_free)(tess_request *); /* after its end only */
} tess_offload_ops;

#ifdef __cplusplus
}
#endif
#endif
