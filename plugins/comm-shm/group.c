/* SPDX-License-Identifier: BSD-3-Clause */
#include "group.h"

#include "plugin_base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif
#define PAGE UINT64_C(4096)
#define HUGE_PAGE (UINT64_C(2) << 20)

static uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

/* ---- files ---------------------------------------------------------------------------------------- */

/* Sealed against shrinking: no rank can take pages away under another's feet. */
static int make_file(const char *name) {
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* kernels before Linux 6.3 do not know MFD_NOEXEC_SEAL */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0)
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    return fd;
}

/* Growing past RLIMIT_FSIZE would raise a signal, so it is looked at first. */
static tess_status grow_file(int fd, uint64_t bytes, tess_error *e) {
    struct rlimit limit = { 0 };
    getrlimit(RLIMIT_FSIZE, &limit);
    if (limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
        return tess_plugin_fail(e, TESS_E_NOMEM, "shm: %llu bytes of shared memory, ulimit -f allows %llu",
                                (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
    if (ftruncate(fd, (off_t)bytes) == 0)
        return TESS_OK;
    return tess_plugin_fail(e, TESS_E_NOMEM, "shm: the system refuses %llu bytes of shared memory: %s",
                            (unsigned long long)bytes, strerror(errno));
}

tess_status shm_group_create(int rank, int size, struct shm_group **out, tess_error *e) {
    struct shm_group *g = calloc(1, sizeof *g);
    if (!g)
        return tess_plugin_fail(e, TESS_E_NOMEM, "shm: no memory for a group of %d ranks", size);
    for (int i = 0; i < SHM_RANKS_MAX; i++)
        g->ranks[i].arena_fd = g->ranks[i].table_fd = -1;
    atomic_init(&g->references, 1);
    pthread_mutex_init(&g->lock, NULL);
    g->rank = rank;
    g->size = size;
    g->arena_end = PAGE; /* the first byte is what shows this process's life */
    g->ranks[rank].arena_fd = make_file("tessera-arena");
    g->ranks[rank].table_fd = make_file("tessera-shm");
    if (g->ranks[rank].arena_fd < 0 || g->ranks[rank].table_fd < 0) {
        tess_plugin_fail(e, TESS_E_SYSTEM, "shm: memfd_create: %s", strerror(errno));
        shm_group_drop(g);
        return TESS_E_SYSTEM;
    }
    *out = g;
    return TESS_OK;
}

void shm_group_keep(struct shm_group *g) {
    atomic_fetch_add(&g->references, 1);
}

static void close_fd(int fd) {
    if (fd >= 0)
        close(fd);
}

void shm_group_drop(struct shm_group *g) {
    if (!g || atomic_fetch_sub(&g->references, 1) != 1)
        return;
    for (int i = 0; i < SHM_OWN_REGIONS; i++)
        if (g->own[i].at)
            munmap(g->own[i].at, g->own[i].region.bytes);
    for (int rank = 0; rank < g->size; rank++) {
        for (uint32_t i = 0; i < g->ranks[rank].n_regions; i++)
            munmap((void *)g->ranks[rank].regions[i].at, g->ranks[rank].regions[i].region.bytes);
        free(g->ranks[rank].regions);
        close_fd(g->ranks[rank].arena_fd);
        close_fd(g->ranks[rank].table_fd);
    }
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* ---- life ----------------------------------------------------------------------------------------- */

/* A record lock is the process's own: the kernel takes it away when the process ends, however it ends. */
tess_status shm_group_show_life(struct shm_group *g, tess_error *e) {
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1 };
    if (fcntl(g->ranks[g->rank].arena_fd, F_SETLK, &lock) == 0)
        return TESS_OK;
    return tess_plugin_fail(e, TESS_E_SYSTEM, "shm: cannot lock a byte of a memfd: %s", strerror(errno));
}

static uint64_t process_number;
static void choose_number(void) {
    if (getrandom(&process_number, sizeof process_number, 0) != (ssize_t)sizeof process_number)
        process_number = (uint64_t)kit_now_ns() << 20 ^ (uint64_t)getpid();
}
uint64_t shm_this_process(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose_number);
    return process_number;
}

int shm_group_alive(const struct shm_group *g, int rank) {
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1 };
    return fcntl(g->ranks[rank].arena_fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* ---- arenas --------------------------------------------------------------------------------------- */

/* Maps at a multiple of `align`: reserves more addresses than needed and gives back what sticks out. */
static void *map_at(int fd, uint64_t offset, uint64_t bytes, uint64_t align, int protection) {
    uint64_t extra = align > PAGE ? align : 0;
    char *base = mmap(NULL, bytes + extra, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    uint64_t head = extra ? round_up((uintptr_t)base, align) - (uintptr_t)base : 0;
    if (head)
        munmap(base, head);
    if (extra > head)
        munmap(base + head + bytes, extra - head);
    base += head;
    if (mmap(base, bytes, protection, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) != MAP_FAILED)
        return base;
    munmap(base, bytes);
    return NULL;
}

/* Pages are obtained now, so that there being none is an error here and no signal later. */
static tess_status back_region(struct shm_group *g, struct shm_region r, uint64_t align, void **out, tess_error *e) {
    int fd = g->ranks[g->rank].arena_fd;
    tess_status s = grow_file(fd, r.offset + r.bytes, e);
    if (s)
        return s;
    while (fallocate(fd, 0, (off_t)r.offset, (off_t)r.bytes) != 0)
        if (errno != EINTR)
            return tess_plugin_fail(e, TESS_E_NOMEM, "shm: the system refuses %llu bytes of shared memory: %s",
                                    (unsigned long long)r.bytes, strerror(errno));
    *out = map_at(fd, r.offset, r.bytes, align, PROT_READ | PROT_WRITE);
    if (!*out)
        return tess_plugin_fail(e, TESS_E_NOMEM, "shm: cannot map %llu bytes: %s", (unsigned long long)r.bytes,
                                strerror(errno));
    if (r.bytes >= HUGE_PAGE)
        madvise(*out, r.bytes, MADV_HUGEPAGE); /* harmless when refused */
    return TESS_OK;
}

static struct shm_own_region *unused_region(struct shm_group *g) {
    for (int i = 0; i < SHM_OWN_REGIONS; i++)
        if (!g->own[i].at)
            return &g->own[i];
    return NULL;
}

tess_status shm_arena_alloc(struct shm_group *g, uint64_t bytes, uint64_t align, void **out, tess_error *e) {
    void *at = NULL;
    if (bytes == 0 || bytes > UINT64_C(1) << 46 || (align & (align - 1)) || align > UINT64_C(1) << 30)
        return tess_plugin_fail(e, TESS_E_INVALID, "shm: %llu bytes with alignment %llu asked for",
                                (unsigned long long)bytes, (unsigned long long)align);
    bytes = round_up(bytes, PAGE);
    align = align < PAGE ? PAGE : align;
    align = bytes >= HUGE_PAGE && align < HUGE_PAGE ? HUGE_PAGE : align;
    pthread_mutex_lock(&g->lock);
    struct shm_own_region *slot = unused_region(g);
    struct shm_region r = { round_up(g->arena_end, align), bytes };
    tess_status s = slot ? back_region(g, r, align, &at, e)
                         : tess_plugin_fail(e, TESS_E_NOMEM, "shm: more than %d pieces of memory", SHM_OWN_REGIONS);
    if (s == TESS_OK) {
        *slot = (struct shm_own_region){ r, at };
        g->arena_end = r.offset + bytes;
        *out = at;
    }
    pthread_mutex_unlock(&g->lock);
    return s;
}

void shm_arena_free(struct shm_group *g, void *ptr) {
    pthread_mutex_lock(&g->lock);
    for (int i = 0; ptr && i < SHM_OWN_REGIONS; i++) {
        struct shm_own_region *own = &g->own[i];
        if (own->at != ptr)
            continue;
        munmap(ptr, own->region.bytes);
        fallocate(g->ranks[g->rank].arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)own->region.offset,
                  (off_t)own->region.bytes);
        *own = (struct shm_own_region){ { 0, 0 }, NULL };
    }
    pthread_mutex_unlock(&g->lock);
}

int shm_arena_find(struct shm_group *g, const void *ptr, uint64_t bytes, struct shm_region *region, uint64_t *offset) {
    const unsigned char *p = ptr;
    int found = 0;
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < SHM_OWN_REGIONS && !found; i++) {
        const struct shm_own_region *own = &g->own[i];
        if (!own->at || p < own->at || bytes > own->region.bytes || (uint64_t)(p - own->at) > own->region.bytes - bytes)
            continue;
        *region = own->region;
        *offset = own->region.offset + (uint64_t)(p - own->at);
        found = 1;
    }
    pthread_mutex_unlock(&g->lock);
    return found;
}

static int lies_within(uint64_t offset, uint64_t bytes, uint64_t begin, uint64_t room) {
    return offset >= begin && bytes <= room && offset - begin <= room - bytes;
}

static int is_in_file(int fd, struct shm_region region) {
    struct stat file;
    return fstat(fd, &file) == 0 && lies_within(region.offset, region.bytes, 0, (uint64_t)file.st_size);
}

/* Behind the lock. A failed mapping is tried again at the next use. */
static const unsigned char *map_peer(struct shm_group *g, int rank, struct shm_region region) {
    if (!is_in_file(g->ranks[rank].arena_fd, region))
        return NULL;
    if (g->ranks[rank].n_regions == g->ranks[rank].room) {
        uint32_t room = g->ranks[rank].room ? 2 * g->ranks[rank].room : 8;
        void *more = realloc(g->ranks[rank].regions, room * sizeof *g->ranks[rank].regions);
        if (!more)
            return NULL;
        g->ranks[rank].regions = more;
        g->ranks[rank].room = room;
    }
    uint64_t align = region.bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    const unsigned char *at = map_at(g->ranks[rank].arena_fd, region.offset, region.bytes, align, PROT_READ);
    if (at)
        g->ranks[rank].regions[g->ranks[rank].n_regions++] = (struct shm_peer_region){ region, at };
    return at;
}

const void *shm_arena_at(struct shm_group *g, int rank, const struct shm_region *region, uint64_t offset,
                         uint64_t bytes) {
    const unsigned char *at = NULL;
    if (!lies_within(offset, bytes, region->offset, region->bytes))
        return NULL;
    pthread_mutex_lock(&g->lock);
    for (uint32_t i = 0; i < g->ranks[rank].n_regions && !at; i++)
        if (memcmp(&g->ranks[rank].regions[i].region, region, sizeof *region) == 0)
            at = g->ranks[rank].regions[i].at;
    if (!at)
        at = map_peer(g, rank, *region);
    pthread_mutex_unlock(&g->lock);
    return at ? at + (offset - region->offset) : NULL;
}

/* ---- tables --------------------------------------------------------------------------------------- */

tess_status shm_table_reserve(struct shm_group *g, uint64_t bytes, uint64_t *offset, tess_error *e) {
    pthread_mutex_lock(&g->lock);
    tess_status s = grow_file(g->ranks[g->rank].table_fd, g->table_end + bytes, e);
    if (s == TESS_OK) {
        *offset = g->table_end;
        g->table_end += bytes;
    }
    pthread_mutex_unlock(&g->lock);
    return s;
}

tess_status shm_table_map(struct shm_group *g, int rank, uint64_t offset, uint64_t bytes, void **out, tess_error *e) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, g->ranks[rank].table_fd, (off_t)offset);
    if (at == MAP_FAILED)
        return tess_plugin_fail(e, TESS_E_NOMEM, "shm: cannot map %llu bytes of a table: %s", (unsigned long long)bytes,
                                strerror(errno));
    *out = at;
    return TESS_OK;
}
