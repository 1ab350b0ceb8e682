/* SPDX-License-Identifier: BSD-3-Clause */
#include "sim_disk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NODES = 512, MOST_OPEN = 64, PATH = 160 };

typedef enum { OP_CREATE, OP_TRUNCATE, OP_WRITE, OP_RENAME, OP_REMOVE, OP_MAKE_DIR } op_kind;
typedef struct {
    op_kind kind;
    int node, synced; /* node: of CREATE, TRUNCATE and WRITE */
    char path[PATH], to[PATH];
    uint64_t offset, bytes;
    char *data;
} op;

typedef struct {
    char path[PATH]; /* "": none */
    int node;        /* -1: a directory */
} entry;

struct sim_disk {
    tess__disk table;
    op *log;
    int n_log, capacity;
    entry entries[MOST_NODES];
    int n_entries; /* those from here on have never been used */
    struct {
        char *data;
        uint64_t bytes;
    } nodes[MOST_NODES];
    int n_nodes;
    int open[MOST_OPEN]; /* entry node; -1: free; -2 - i: directory with the path of open_path */
    char open_path[MOST_OPEN][PATH];
    int operations, crash_after, crashed, syncs, fail_sync;
    sim_direct direct;
    int is_direct[MOST_OPEN], direct_writes;
};

/* ---- names and nodes --------------------------------------------------------------------------------- */
static entry *find(sim_disk *d, const char *path) {
    for (int i = 0; i < d->n_entries; i++)
        if (d->entries[i].path[0] && strcmp(d->entries[i].path, path) == 0)
            return &d->entries[i];
    return NULL;
}

static void put(sim_disk *d, const char *path, int node) {
    entry *e = find(d, path);
    for (int i = 0; !e && i < d->n_entries; i++)
        if (!d->entries[i].path[0])
            e = &d->entries[i];
    if (!e && d->n_entries == MOST_NODES)
        abort();
    if (!e)
        e = &d->entries[d->n_entries++];
    strcpy(e->path, path);
    e->node = node;
}

static int is_child(const char *path, const char *dir) {
    const char *slash = strrchr(path, '/');
    return slash && (size_t)(slash - path) == strlen(dir) && strncmp(path, dir, strlen(dir)) == 0;
}

static void rename_children(sim_disk *d, const char *from, const char *to) {
    for (int i = 0; i < d->n_entries; i++) {
        char *path = d->entries[i].path, name[PATH];
        if (!path[0] || !is_child(path, from))
            continue;
        strcpy(name, strrchr(path, '/'));
        if ((size_t)snprintf(path, PATH, "%s%s", to, name) >= PATH)
            abort();
    }
}

static void set_bytes(sim_disk *d, int node, uint64_t bytes) {
    if (bytes <= d->nodes[node].bytes) {
        d->nodes[node].bytes = bytes;
        return;
    }
    d->nodes[node].data = realloc(d->nodes[node].data, bytes);
    memset(d->nodes[node].data + d->nodes[node].bytes, 0, bytes - d->nodes[node].bytes);
    d->nodes[node].bytes = bytes;
}

/* ---- the log: operations in order, applied to a state ------------------------------------------------ */
static void apply(sim_disk *d, const op *o, uint64_t bytes) {
    entry *e;
    switch (o->kind) {
    case OP_CREATE: put(d, o->path, o->node); break;
    case OP_TRUNCATE: set_bytes(d, o->node, 0); break;
    case OP_WRITE:
        if (d->nodes[o->node].bytes < o->offset + bytes)
            set_bytes(d, o->node, o->offset + bytes);
        memcpy(d->nodes[o->node].data + o->offset, o->data, bytes);
        break;
    case OP_RENAME:
        if ((e = find(d, o->path))) {
            int node = e->node;
            e->path[0] = 0;
            put(d, o->to, node);
            rename_children(d, o->path, o->to);
        }
        break;
    case OP_REMOVE:
        if ((e = find(d, o->path)))
            e->path[0] = 0;
        break;
    case OP_MAKE_DIR: put(d, o->path, -1); break;
    }
}

static int change(sim_disk *d, op o, const void *data) {
    if (d->crashed)
        return -EIO;
    if (d->n_log == d->capacity) {
        d->capacity = d->capacity ? 2 * d->capacity : 64;
        d->log = realloc(d->log, (size_t)d->capacity * sizeof *d->log);
    }
    if (data) {
        o.data = malloc(o.bytes + 1);
        memcpy(o.data, data, o.bytes);
    }
    d->log[d->n_log++] = o;
    apply(d, &o, o.bytes);
    d->operations++;
    if (d->crash_after && d->operations >= d->crash_after)
        d->crashed = 1;
    return 0;
}

static op of_path(op_kind kind, const char *path) {
    op o = { .kind = kind, .node = -1 };
    strcpy(o.path, path);
    return o;
}

/* ---- the table --------------------------------------------------------------------------------------- */
static int sim_open(void *self, const char *path, int how) {
    sim_disk *d = self;
    int slot = 0, failed = 0;
    entry *e = find(d, path);
    while (slot < MOST_OPEN && d->open[slot] != -1)
        slot++;
    if (d->crashed || slot == MOST_OPEN)
        return -EIO;
    if (how == TESS__DISK_DIR) {
        if (!e || e->node >= 0)
            return e ? -ENOTDIR : -ENOENT;
        d->open[slot] = -2;
        strcpy(d->open_path[slot], path);
        return slot;
    }
    if (e && e->node < 0)
        return -EISDIR;
    if (how == TESS__DISK_READ && !e)
        return -ENOENT;
    if (how == TESS__DISK_CREATE) {
        op o = of_path(e ? OP_TRUNCATE : OP_CREATE, path);
        o.node = e ? e->node : d->n_nodes++;
        if (o.node >= MOST_NODES)
            abort();
        failed = change(d, o, NULL);
    }
    if (failed)
        return failed;
    d->open[slot] = find(d, path)->node;
    d->is_direct[slot] = 0;
    return slot;
}

static void sim_close(void *self, int file) {
    ((sim_disk *)self)->open[file] = -1;
}

static int64_t sim_read(void *self, int file, void *into, uint64_t bytes, uint64_t offset) {
    sim_disk *d = self;
    int node = d->open[file];
    uint64_t size = d->nodes[node].bytes, n = offset >= size ? 0 : size - offset < bytes ? size - offset : bytes;
    memcpy(into, d->nodes[node].data + offset, n);
    return (int64_t)n;
}

static int sim_set_direct(void *self, int file, int on) {
    sim_disk *d = self;
    if (d->direct == SIM_NO_DIRECT)
        return -EINVAL;
    d->is_direct[file] = on;
    return 0;
}

/* How much of a write is done: never much, so that writers must go on; -EINVAL: not past the cache. */
static int64_t length_of(sim_disk *d, int file, const void *data, uint64_t bytes, uint64_t offset) {
    if (!d->is_direct[file])
        return bytes > 3000 ? 3000 : (int64_t)bytes;
    if (d->direct == SIM_REFUSES_DIRECT || ((uint64_t)(uintptr_t)data | bytes | offset) % TESS__DISK_BLOCK != 0)
        return -EINVAL;
    int is_odd = d->direct == SIM_ODD_DIRECT && d->direct_writes % 3 == 2;
    return is_odd ? TESS__DISK_BLOCK / 8 : TESS__DISK_BLOCK;
}

static int64_t sim_write(void *self, int file, const void *data, uint64_t bytes, uint64_t offset) {
    sim_disk *d = self;
    int64_t length = length_of(d, file, data, bytes, offset);
    if (length < 0)
        return length;
    uint64_t n = (uint64_t)length;
    d->direct_writes += d->is_direct[file];
    op o = { .kind = OP_WRITE, .node = d->open[file], .offset = offset, .bytes = n };
    int failed = change(d, o, data);
    return failed ? failed : (int64_t)n;
}

static int64_t sim_size(void *self, int file) {
    sim_disk *d = self;
    return (int64_t)d->nodes[d->open[file]].bytes;
}

static int belongs(const sim_disk *d, const op *o, int file) {
    int node = d->open[file];
    if (node >= 0)
        return (o->kind == OP_WRITE || o->kind == OP_TRUNCATE) && o->node == node;
    return o->kind != OP_WRITE && o->kind != OP_TRUNCATE && is_child(o->path, d->open_path[file]);
}

static int sim_sync(void *self, int file) {
    sim_disk *d = self;
    if (d->crashed)
        return -EIO;
    if (d->fail_sync && ++d->syncs == d->fail_sync)
        return -EIO;
    for (int i = 0; i < d->n_log; i++)
        if (belongs(d, &d->log[i], file))
            d->log[i].synced = 1;
    return 0;
}

static int sim_rename(void *self, const char *from, const char *to) {
    op o = of_path(OP_RENAME, from);
    strcpy(o.to, to);
    return find(self, from) ? change(self, o, NULL) : -ENOENT;
}

static int sim_remove(void *self, const char *path) {
    sim_disk *d = self;
    if (!find(d, path))
        return -ENOENT;
    for (int i = 0; i < d->n_entries; i++)
        if (d->entries[i].path[0] && is_child(d->entries[i].path, path))
            return -ENOTEMPTY;
    return change(d, of_path(OP_REMOVE, path), NULL);
}

static int sim_make_dir(void *self, const char *path) {
    return find(self, path) ? -EEXIST : change(self, of_path(OP_MAKE_DIR, path), NULL);
}

static int sim_list(void *self, const char *path, tess__disk_name_fn fn, void *user) {
    sim_disk *d = self;
    if (d->crashed || !find(d, path))
        return d->crashed ? -EIO : -ENOENT;
    for (int i = 0; i < d->n_entries; i++)
        if (d->entries[i].path[0] && is_child(d->entries[i].path, path))
            fn(user, strrchr(d->entries[i].path, '/') + 1);
    return 0;
}

static int sim_lock(void *self, int dir) {
    (void)self, (void)dir;
    return 0;
}

sim_disk *sim_disk_create(void) {
    sim_disk *d = calloc(1, sizeof *d);
    d->table = (tess__disk){ .self = d,
                             .open = sim_open,
                             .close = sim_close,
                             .read = sim_read,
                             .write = sim_write,
                             .direct = sim_set_direct,
                             .size = sim_size,
                             .sync = sim_sync,
                             .rename = sim_rename,
                             .remove = sim_remove,
                             .make_dir = sim_make_dir,
                             .list = sim_list,
                             .lock = sim_lock };
    for (int i = 0; i < MOST_OPEN; i++)
        d->open[i] = -1;
    put(d, "/d", -1); /* stands since ever */
    return d;
}

void sim_disk_destroy(sim_disk *d) {
    for (int i = 0; i < d->n_log; i++)
        free(d->log[i].data);
    for (int i = 0; i < MOST_NODES; i++)
        free(d->nodes[i].data);
    free(d->log);
    free(d);
}

const tess__disk *sim_disk_table(sim_disk *d) {
    return &d->table;
}

void sim_disk_crash_after(sim_disk *d, int operations) {
    d->crash_after = operations ? d->operations + operations : 0;
}

int sim_disk_operations(const sim_disk *d) {
    return d->operations;
}

int sim_disk_unsynced(const sim_disk *d) {
    int n = 0;
    for (int i = 0; i < d->n_log; i++)
        n += !d->log[i].synced;
    return n;
}

void sim_disk_set_direct(sim_disk *d, sim_direct direct) {
    d->direct = direct;
}

int sim_disk_direct_writes(const sim_disk *d) {
    return d->direct_writes;
}

void sim_disk_fail_sync(sim_disk *d, int k) {
    d->fail_sync = k ? d->syncs + k : 0;
}

/* ---- after a crash ----------------------------------------------------------------------------------- */
/* What lies in a directory that was lost is lost with it. */
static void drop_orphans(sim_disk *d) {
    char dir[PATH];
    for (int i = 0; i < d->n_entries; i++) {
        strcpy(dir, d->entries[i].path);
        char *slash = strrchr(dir, '/');
        if (!slash || slash == dir)
            continue;
        *slash = 0;
        if (!find(d, dir))
            d->entries[i].path[0] = 0;
    }
}

sim_disk *sim_disk_after(const sim_disk *before, sim_fate_fn fate, void *user) {
    sim_disk *d = sim_disk_create();
    int unsynced = 0;
    d->n_nodes = before->n_nodes;
    for (int i = 0; i < before->n_log; i++) {
        const op *o = &before->log[i];
        sim_fate f = o->synced ? SIM_KEEP : fate(user, unsynced++);
        if (f == SIM_KEEP || (f == SIM_TEAR && o->kind == OP_WRITE))
            apply(d, o, f == SIM_TEAR ? o->bytes / 2 : o->bytes);
    }
    drop_orphans(d);
    return d;
}

int sim_disk_flip(sim_disk *d, const char *path, uint64_t bit) {
    entry *e = find(d, path);
    if (!e || e->node < 0 || bit / 8 >= d->nodes[e->node].bytes)
        return -1;
    d->nodes[e->node].data[bit / 8] = (char)(d->nodes[e->node].data[bit / 8] ^ 1 << bit % 8);
    return 0;
}

int sim_disk_truncate(sim_disk *d, const char *path, uint64_t bytes) {
    entry *e = find(d, path);
    if (!e || e->node < 0 || bytes >= d->nodes[e->node].bytes)
        return -1;
    set_bytes(d, e->node, bytes);
    return 0;
}

int sim_disk_files(const sim_disk *d) {
    int n = 0;
    for (int i = 0; i < d->n_entries; i++)
        n += d->entries[i].path[0] && d->entries[i].node >= 0;
    return n;
}
