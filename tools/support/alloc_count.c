/* SPDX-License-Identifier: BSD-3-Clause */
#include "alloc_count.h"

#include <link.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>

#include "world.h"

enum { MOST_SEGMENTS = 512, MOST_LIBRARIES = 160, NAME_CHARS = 64, MOST_MAPPINGS = 1024 };

typedef struct {
    uintptr_t first, last;
    int library;
} segment;

typedef struct {
    char name[NAME_CHARS];
    int own;
    atomic_uint_fast64_t count, bytes;
} library;

/* Library 0 counts calls from code outside every known segment. */
static library libraries[MOST_LIBRARIES] = { { .name = "unknown" } };
static segment segments[MOST_SEGMENTS];
static size_t n_segments, n_libraries = 1;
static atomic_int counting;
static int hooked, mapped;
static _Thread_local int trains, left_out; /* trains: begins windows, so is no server; left_out: is not counted */

void tool__alloc_hooked(void) {
    hooked = 1;
}

int tool_alloc_available(void) {
    return hooked;
}

/* Lists one loaded object with its executable segments. It runs under the dynamic linker's lock. */
static int add_object(struct dl_phdr_info *info, size_t size, void *user) {
    (void)size;
    (void)user;
    if (n_libraries == MOST_LIBRARIES)
        return 1;
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    library *l = &libraries[n_libraries];
    strncpy(l->name, name, NAME_CHARS - 1);
    /* The program comes first and has no name. The library and the plugins have names that begin with libtessera. */
    l->own = n_libraries == 1 || strncmp(name, "libtessera", 10) == 0;
    for (int i = 0; i < info->dlpi_phnum && n_segments < MOST_SEGMENTS; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X))
            continue;
        uintptr_t first = info->dlpi_addr + p->p_vaddr;
        segments[n_segments++] = (segment){ first, first + p->p_memsz, (int)n_libraries };
    }
    n_libraries++;
    return 0;
}

static void list_objects(void) {
    n_segments = 0;
    n_libraries = 1;
    dl_iterate_phdr(add_object, NULL);
}

void tool_alloc_window_begin(void) {
    if (!hooked)
        return;
    trains = 1;
    if (!mapped) { /* plugins are loaded by now */
        list_objects();
        mapped = 1;
    }
    atomic_store(&counting, 1);
}

void tool_alloc_leave_out_thread(void) {
    left_out = 1;
}

void tool_alloc_window_end(void) {
    atomic_store(&counting, 0);
}

static library *find(uintptr_t address) {
    for (size_t i = 0; i < n_segments; i++)
        if (address >= segments[i].first && address < segments[i].last)
            return &libraries[segments[i].library];
    return &libraries[0];
}

/* The key-value server's calls do not count, because requests of other ranks come at random times. */
static int is_server_thread(void) {
    char name[16] = "";
    if (trains)
        return 0;
    prctl(PR_GET_NAME, name);
    return tool_serves_ranks(name);
}

void tool__alloc_note(const void *caller, size_t bytes) {
    if (!atomic_load_explicit(&counting, memory_order_relaxed) || left_out || is_server_thread())
        return;
    library *l = find((uintptr_t)caller);
    atomic_fetch_add(&l->count, 1);
    atomic_fetch_add(&l->bytes, bytes);
}

/* ---- mappings ---- */

static struct {
    uintptr_t at;
    size_t bytes;
} mappings[MOST_MAPPINGS];
static uint64_t mapped_now, mapped_peak;
static atomic_flag mapping_lock = ATOMIC_FLAG_INIT;

static void lock_mappings(void) {
    while (atomic_flag_test_and_set_explicit(&mapping_lock, memory_order_acquire))
        ;
}

static void add_mapping(uintptr_t at, size_t bytes) {
    size_t i = 0;
    while (i < MOST_MAPPINGS && mappings[i].bytes)
        i++;
    if (i == MOST_MAPPINGS)
        return;
    mappings[i].at = at;
    mappings[i].bytes = bytes;
    mapped_now += bytes;
    mapped_peak = mapped_now > mapped_peak ? mapped_now : mapped_peak;
}

void tool__alloc_mapped(const void *caller, const void *at, size_t bytes) {
    lock_mappings();
    if (find((uintptr_t)caller) == &libraries[0]) /* the first call, or one from a plugin loaded since */
        list_objects();
    if (find((uintptr_t)caller)->own)
        add_mapping((uintptr_t)at, bytes);
    atomic_flag_clear_explicit(&mapping_lock, memory_order_release);
}

/* An unmapping removes a whole mapping, or the ends cut off to align one. */
void tool__alloc_unmapped(const void *at, size_t bytes) {
    uintptr_t first = (uintptr_t)at, end = first + (bytes + 4095) / 4096 * 4096;
    lock_mappings();
    for (size_t i = 0; i < MOST_MAPPINGS; i++) {
        uintptr_t from = mappings[i].at, to = from + mappings[i].bytes;
        if (!mappings[i].bytes || to <= first || end <= from)
            continue;
        mapped_now -= mappings[i].bytes;
        mappings[i].bytes = 0;
        if (from < first)
            add_mapping(from, first - from);
        if (end < to)
            add_mapping(end, to - end);
    }
    atomic_flag_clear_explicit(&mapping_lock, memory_order_release);
}

uint64_t tool_alloc_mapped(void) {
    return mapped_now;
}

uint64_t tool_alloc_mapped_peak(void) {
    return mapped_peak;
}

uint64_t tool_alloc_own(void) {
    uint64_t count = 0;
    for (size_t i = 0; i < n_libraries; i++)
        count += libraries[i].own ? atomic_load(&libraries[i].count) : 0;
    return count;
}

int tool_alloc_library_at(size_t i, tool_alloc_library *out) {
    for (size_t k = 0; k < n_libraries; k++) {
        library *l = &libraries[k];
        if (atomic_load(&l->count) == 0 || i-- > 0)
            continue;
        *out = (tool_alloc_library){ l->name, l->own, atomic_load(&l->count), atomic_load(&l->bytes) };
        return 1;
    }
    return 0;
}
