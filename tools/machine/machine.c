/* SPDX-License-Identifier: BSD-3-Clause */
#include "machine.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/json_out.h"
#include "tools/support/json_in.h"
#include "tools/support/options.h"
#include <tessera/plugin_options.h>
#include "tools/support/json_file.h"
#include "tools/support/say.h"
#include <tessera/tessera.h>

enum { MOST_BYTES = 16 << 20, MOST_ROWS = 1 << 16 };

/* ---- rows -------------------------------------------------------------------------------------- */
static tess_status grow(void **rows, int32_t n, size_t size) {
    if (n & (n - 1))
        return TESS_OK;
    void *more = n < MOST_ROWS ? realloc(*rows, (size_t)(n ? 2 * n : 1) * size) : NULL;
    if (!more)
        return tess_fail(TESS_E_NOMEM, "no memory for %d measured times", n);
    *rows = more;
    return TESS_OK;
}

static int later(const machine_collective *a, const machine_collective *b) {
    int comm = strcmp(a->comm, b->comm);
    if (comm)
        return comm > 0;
    if (a->op != b->op)
        return a->op > b->op;
    return a->ranks != b->ranks ? a->ranks > b->ranks : a->bytes > b->bytes;
}

tess_status machine_add_collective(machine_desc *m, const machine_collective *c) {
    TRY(grow((void **)&m->collectives, m->n_collectives, sizeof *c));
    int32_t at = m->n_collectives++;
    for (; at > 0 && later(&m->collectives[at - 1], c); at--)
        m->collectives[at] = m->collectives[at - 1];
    m->collectives[at] = *c;
    return TESS_OK;
}

tess_status machine_add_block(machine_desc *m, const machine_block *b) {
    for (int32_t i = 0; i < m->n_blocks; i++)
        if (strcmp(m->blocks[i].model, b->model) == 0 && strcmp(m->blocks[i].name, b->name) == 0) {
            m->blocks[i] = *b;
            return TESS_OK;
        }
    TRY(grow((void **)&m->blocks, m->n_blocks, sizeof *b));
    m->blocks[m->n_blocks++] = *b;
    return TESS_OK;
}

/* "h" of "h.12": blocks that differ in their number alone do the same. */
static size_t kind_of(const char *name) {
    size_t n = strlen(name);
    while (n > 0 && name[n - 1] >= '0' && name[n - 1] <= '9')
        n--;
    return n > 0 && name[n - 1] == '.' && name[n] ? n : strlen(name) + 1;
}

const machine_block *machine_find_block(const machine_desc *m, const char *model_key, const char *block) {
    const machine_block *alike = NULL;
    for (int32_t i = 0; i < m->n_blocks; i++) {
        const machine_block *b = &m->blocks[i];
        if (strcmp(b->model, model_key) != 0)
            continue;
        if (strcmp(b->name, block) == 0)
            return b;
        size_t n = kind_of(block);
        if (n == kind_of(b->name) && strncmp(b->name, block, n) == 0)
            alike = b;
    }
    return alike;
}

/* ---- reading ----------------------------------------------------------------------------------- */
enum { REAL, SHARE, WHOLE, BYTES, TEXT, ONE_OF };
typedef struct {
    const char *key;
    uint32_t type, size; /* size of a text's array */
    size_t offset;
    const char *words; /* of ONE_OF, which becomes the word's number: "ring|tree|direct" */
} member;

static int fail(json_in *s, const char *expected) {
    if (!s->expected)
        s->expected = expected;
    return 0;
}

static int read_real(json_in *s, double *out) {
    char text[64];
    size_t n = 0;
    while (s->at < s->bytes && strchr(" \t\r\n", s->text[s->at]) && s->text[s->at])
        s->at++;
    while (s->at + n < s->bytes && n < sizeof text - 1 && s->text[s->at + n] &&
           strchr("+-.0123456789eE", s->text[s->at + n]))
        n++;
    memcpy(text, s->text + s->at, n);
    text[n] = '\0';
    if (!n || !tess_option_parse_real(text, out))
        return fail(s, "a number");
    s->at += n;
    return 1;
}

static int word_number(const char *words, const char *word, int32_t *out) {
    size_t n = strlen(word);
    for (int32_t i = 0; words; i++) {
        if (strcspn(words, "|") == n && strncmp(words, word, n) == 0) {
            *out = i;
            return 1;
        }
        words = strchr(words, '|') ? strchr(words, '|') + 1 : NULL;
    }
    return 0;
}

static int read_member(json_in *s, const member *f, char *base) {
    char word[32];
    uint64_t whole;
    double *real = (double *)(void *)(base + f->offset);
    switch (f->type) {
    case REAL:
    case SHARE:
        if (!read_real(s, real))
            return 0;
        if (*real < 0 || (f->type == SHARE && !(*real > 0 && *real <= 1)))
            return fail(s, f->type == SHARE ? "a share above 0 and up to 1" : "a number that is not negative");
        return 1;
    case WHOLE:
        if (!json_in_uint(s, &whole))
            return 0;
        *(int32_t *)(void *)(base + f->offset) = (int32_t)whole;
        return whole <= 1 << 24 ? 1 : fail(s, "a smaller number");
    case BYTES: return json_in_uint(s, (uint64_t *)(void *)(base + f->offset));
    case TEXT: return json_in_string(s, base + f->offset, f->size);
    default:
        if (!json_in_string(s, word, sizeof word))
            return 0;
        return word_number(f->words, word, (int32_t *)(void *)(base + f->offset)) ? 1 : fail(s, f->words);
    }
}

/* After '{' or ',': one name and ':'. */
static int read_name(json_in *s, char name[48]) {
    return json_in_string(s, name, 48) && json_in_char(s, ':');
}

static const member *find_member(const member *fields, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(fields[i].key, name) == 0)
            return &fields[i];
    return NULL;
}

/* An object of nothing but these members. */
static int read_object(json_in *s, const member *fields, size_t n, void *base) {
    char name[48];
    if (!json_in_char(s, '{'))
        return 0;
    if (json_in_if(s, '}'))
        return 1;
    do {
        size_t start = s->at;
        if (!read_name(s, name))
            return 0;
        const member *f = find_member(fields, n, name);
        if (!f) {
            s->at = start;
            return fail(s, "a member that docs/machine.md knows");
        }
        if (!read_member(s, f, base))
            return 0;
    } while (json_in_if(s, ','));
    return json_in_char(s, '}');
}

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define OF(type, field) offsetof(type, field)

typedef struct { /* members of a description beside the machine's own fields */
    machine_desc machine;
    double flops_share, memory_share, link_share;
    int32_t device; /* the number of its word */
    char said[256]; /* storage that a json_in's `expected` may point to */
} reading;

#define TOP(field) OF(reading, machine.field)
static const member top[] = {
    { "name", TEXT, 64, TOP(name), NULL },
    { "source", TEXT, 256, TOP(source), NULL },
    { "device", ONE_OF, 0, OF(reading, device), "unsaid|gpu|cpu" },
    { "ranks_per_node", WHOLE, 0, TOP(ranks_per_node), NULL },
    { "algorithm", ONE_OF, 0, TOP(algorithm), "ring|tree|direct" },
    { "cores", REAL, 0, TOP(cores), NULL },
    { "device_memory_bytes", BYTES, 0, TOP(device_memory_bytes), NULL },
    { "memory_bytes_per_second", REAL, 0, TOP(memory_bytes_per_second), NULL },
    { "copy_bytes_per_second", REAL, 0, TOP(rate_bytes_per_second[MACHINE_RATE_COPY]), NULL },
    { "sum_bytes_per_second", REAL, 0, TOP(rate_bytes_per_second[MACHINE_RATE_SUM]), NULL },
    { "optimizer_bytes_per_second", REAL, 0, TOP(rate_bytes_per_second[MACHINE_RATE_OPTIMIZER]), NULL },
    { "norm_bytes_per_second", REAL, 0, TOP(rate_bytes_per_second[MACHINE_RATE_NORM]), NULL },
    { "kernel_seconds", REAL, 0, TOP(kernel_seconds), NULL },
    { "collective_seconds", REAL, 0, TOP(collective_seconds), NULL },
    { "up_bytes_per_second", REAL, 0, TOP(up_bytes_per_second), NULL },
    { "down_bytes_per_second", REAL, 0, TOP(down_bytes_per_second), NULL },
    { "host_bytes_per_second", REAL, 0, TOP(host_bytes_per_second), NULL },
    { "disk_bytes_per_second", REAL, 0, TOP(disk_bytes_per_second), NULL },
    { "flops_share", SHARE, 0, OF(reading, flops_share), NULL },
    { "memory_share", SHARE, 0, OF(reading, memory_share), NULL },
    { "link_share", SHARE, 0, OF(reading, link_share), NULL },
};
static const member flops[] = {
    { "f32", REAL, 0, TOP(flops_per_second[TESS_F32]), NULL },
    { "f16", REAL, 0, TOP(flops_per_second[TESS_F16]), NULL },
    { "bf16", REAL, 0, TOP(flops_per_second[TESS_BF16]), NULL },
    { "f64", REAL, 0, TOP(flops_per_second[TESS_F64]), NULL },
    { "f8e4m3", REAL, 0, TOP(flops_per_second[TESS_F8E4M3]), NULL },
};
static const member link_members[] = {
    { "latency_seconds", REAL, 0, OF(machine_link, latency_seconds), NULL },
    { "bytes_per_second", REAL, 0, OF(machine_link, bytes_per_second), NULL },
};
#define OPS "none|all_gather|reduce_scatter|all_reduce|broadcast|all_to_all|barrier|all_to_all_v"
static const member collective_members[] = {
    { "comm", TEXT, 16, OF(machine_collective, comm), NULL },
    { "op", ONE_OF, 0, OF(machine_collective, op), OPS },
    { "ranks", WHOLE, 0, OF(machine_collective, ranks), NULL },
    { "bytes", BYTES, 0, OF(machine_collective, bytes), NULL },
    { "seconds", REAL, 0, OF(machine_collective, seconds), NULL },
    { "cpu_seconds", REAL, 0, OF(machine_collective, cpu_seconds), NULL },
};
static const member block_members[] = {
    { "model", TEXT, 96, OF(machine_block, model), NULL },
    { "name", TEXT, 48, OF(machine_block, name), NULL },
    { "forward_seconds", REAL, 0, OF(machine_block, forward_seconds), NULL },
    { "backward_seconds", REAL, 0, OF(machine_block, backward_seconds), NULL },
};

static int read_rows(json_in *s, reading *r, int collectives) {
    if (!json_in_char(s, '['))
        return 0;
    if (json_in_if(s, ']'))
        return 1;
    do {
        machine_collective c = { .ranks = 0 };
        machine_block b = { .forward_seconds = 0 };
        int fine = collectives ? read_object(s, collective_members, COUNT(collective_members), &c)
                               : read_object(s, block_members, COUNT(block_members), &b);
        if (fine && (collectives ? c.ranks < 2 || c.op == 0 : !b.name[0]))
            return fail(s, collectives ? "an op of 2 or more ranks" : "a block's name");
        if (!fine)
            return 0;
        if (collectives ? machine_add_collective(&r->machine, &c) : machine_add_block(&r->machine, &b))
            return fail(s, "fewer measured times");
    } while (json_in_if(s, ','));
    return json_in_char(s, ']');
}

/* A slip of the pen is named. */
static int unknown_member(json_in *s, reading *r, const char *name) {
    const char *names[COUNT(top) + 5] = { "flops_per_second", "within", "across", "collectives", "blocks" };
    for (size_t i = 0; i < COUNT(top); i++)
        names[i + 5] = top[i].key;
    const char *near = tool_nearest(name, names, COUNT(names));
    snprintf(r->said, sizeof r->said, "a member that docs/machine.md knows, not \"%s\"", name);
    if (near)
        snprintf(r->said, sizeof r->said, "\"%s\" where there is \"%s\" (docs/machine.md)", near, name);
    return fail(s, r->said);
}

static int read_top(json_in *s, reading *r, const char *name) {
    if (strcmp(name, "flops_per_second") == 0)
        return read_object(s, flops, COUNT(flops), r);
    if (strcmp(name, "within") == 0)
        return read_object(s, link_members, COUNT(link_members), &r->machine.within);
    if (strcmp(name, "across") == 0)
        return read_object(s, link_members, COUNT(link_members), &r->machine.across);
    if (strcmp(name, "collectives") == 0 || strcmp(name, "blocks") == 0)
        return read_rows(s, r, name[0] == 'c');
    const member *f = find_member(top, COUNT(top), name);
    return f ? read_member(s, f, (char *)r) : unknown_member(s, r, name);
}

static int read_machine(json_in *s, reading *r) {
    char name[48];
    if (!json_in_char(s, '{'))
        return 0;
    if (json_in_if(s, '}'))
        return fail(s, "a machine's members");
    do {
        size_t start = s->at;
        if (!read_name(s, name))
            return 0;
        if (!read_top(s, r, name)) {
            if (s->expected && strstr(s->expected, "docs/machine.md"))
                s->at = start;
            return 0;
        }
    } while (json_in_if(s, ','));
    return json_in_char(s, '}') && json_in_end(s);
}

/* A data sheet's figures are more than programs reach: shares say how much of them counts. */
static void apply_shares(reading *r) {
    machine_desc *m = &r->machine;
    m->is_gpu = r->device == 1;
    m->is_cpu = r->device == 2;
    for (int i = 0; i < 16; i++)
        m->flops_per_second[i] *= r->flops_share;
    m->memory_bytes_per_second *= r->memory_share;
    for (int i = 0; i < MACHINE_N_RATES; i++)
        m->rate_bytes_per_second[i] *= r->memory_share;
    m->host_bytes_per_second *= r->memory_share;
    m->within.bytes_per_second *= r->link_share;
    m->across.bytes_per_second *= r->link_share;
    m->up_bytes_per_second *= r->link_share;
    m->down_bytes_per_second *= r->link_share;
}

tess_status machine_parse(const char *path, const char *text, size_t bytes, machine_desc *out) {
    json_in s = { .text = text, .bytes = bytes };
    reading r = { .flops_share = 1, .memory_share = 1, .link_share = 1 };
    tess_status status = TESS_OK;
    if (!read_machine(&s, &r))
        status = json_file_bad(path, &s);
    else if (!(r.machine.memory_bytes_per_second > 0))
        status = tess_fail(TESS_E_DATA, "%s: memory_bytes_per_second is missing or 0", path);
    if (status != TESS_OK) {
        machine_close(&r.machine);
        return status;
    }
    apply_shares(&r);
    *out = r.machine;
    return TESS_OK;
}

static tess_status unknown(const char *word) {
    const char *const *names = machine_names();
    size_t n = 0;
    while (names[n])
        n++;
    const char *near = tool_nearest(word, names, n);
    char all[256] = "";
    for (size_t i = 0; i < n; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", names[i]);
    return tess_fail(TESS_E_INVALID, "machine '%s' is unknown%s%s%s; there are %s, or a file by its path", word,
                     near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "", all);
}

tess_status machine_open(const char *word, machine_desc *out) {
    const char *named = machine_text(word);
    char *text = NULL;
    size_t bytes = 0;
    if (named)
        return machine_parse(word, named, strlen(named), out);
    if (!strpbrk(word, "/."))
        return unknown(word);
    tess_status status = json_file_read(word, MOST_BYTES, &text, &bytes);
    if (status == TESS_OK)
        status = machine_parse(word, text, bytes, out);
    free(text);
    return status;
}

void machine_close(machine_desc *m) {
    free(m->collectives);
    free(m->blocks);
    *m = (machine_desc){ .name = "" };
}

/* ---- events of earlier runs -------------------------------------------------------------------- */
typedef struct {
    char event[32];
    machine_collective collective;
    machine_block block;
} event;

static int read_event(json_in *s, event *e) {
    static const member event_name[] = { { "event", TEXT, 32, 0, NULL } };
    char name[48];
    if (!json_in_char(s, '{'))
        return 0;
    do {
        size_t value;
        if (!read_name(s, name))
            return 0;
        value = s->at;
        const member *f = find_member(event_name, 1, name);
        char *base = (char *)e;
        if (!f && (f = find_member(collective_members, COUNT(collective_members), name)) &&
            strcmp(e->event, "bench") == 0)
            base = (char *)&e->collective;
        else if (strcmp(e->event, "block") == 0 && (f = find_member(block_members, COUNT(block_members), name)))
            base = (char *)&e->block;
        else if (strcmp(name, "event") != 0)
            f = NULL;
        if (!f || !read_member(s, f, base)) {
            s->at = value;
            s->expected = NULL;
            if (!json_in_skip(s))
                return 0;
        }
    } while (json_in_if(s, ','));
    return json_in_char(s, '}');
}

static tess_status take_event(machine_desc *m, const event *e, int collectives, int *taken) {
    const machine_collective *c = &e->collective;
    if (strcmp(e->event, "block") == 0 && e->block.name[0]) {
        ++*taken;
        return machine_add_block(m, &e->block);
    }
    if (!collectives || strcmp(e->event, "bench") != 0 || !c->op || c->ranks < 2 || !c->bytes)
        return TESS_OK;
    ++*taken;
    return machine_add_collective(m, c);
}

tess_status machine_add_events(machine_desc *m, const char *path, int collectives) {
    char *text = NULL;
    size_t bytes = 0, line = 1;
    int taken = 0;
    tess_status status = json_file_read(path, (uint64_t)1 << 30, &text, &bytes);
    for (char *at = text; status == TESS_OK && at < text + bytes; line++) {
        char *end = memchr(at, '\n', (size_t)(text + bytes - at));
        size_t n = end ? (size_t)(end - at) : (size_t)(text + bytes - at);
        json_in s = { .text = at, .bytes = n };
        event e = { .event = "" };
        if (n && !read_event(&s, &e))
            status = tess_fail(TESS_E_DATA, "%s: line %zu, byte %zu: expected %s", path, line, s.at,
                               s.expected ? s.expected : "an event");
        else if (n)
            status = take_event(m, &e, collectives, &taken);
        at += n + 1;
    }
    free(text);
    if (status == TESS_OK && !taken)
        status = tess_fail(TESS_E_DATA, "%s: no measured times in it; expected what --json=FILE wrote", path);
    return status;
}

/* ---- writing ----------------------------------------------------------------------------------- */
static void put_link(json_out *j, const char *key, const machine_link *l) {
    json_object_begin(j, key);
    json_double(j, "latency_seconds", l->latency_seconds);
    json_double(j, "bytes_per_second", l->bytes_per_second);
    json_object_end(j);
}

static void put_word(json_out *j, const char *key, const char *words, int32_t n) {
    char word[32];
    for (; n > 0; n--)
        words = strchr(words, '|') + 1;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(words, "|"), words);
    json_string(j, key, word);
}

static void put_member(json_out *j, const member *f, const char *base) {
    const char *at = base + f->offset;
    switch (f->type) {
    case REAL: json_double(j, f->key, *(const double *)(const void *)at); return;
    case WHOLE: json_int(j, f->key, *(const int32_t *)(const void *)at); return;
    case BYTES: json_uint(j, f->key, *(const uint64_t *)(const void *)at); return;
    case TEXT: json_string(j, f->key, at); return;
    case ONE_OF: put_word(j, f->key, f->words, *(const int32_t *)(const void *)at); return;
    default: return; /* shares are in the figures already */
    }
}

static void put_row(json_out *j, const member *fields, size_t n, const void *row) {
    json_object_begin(j, NULL);
    for (size_t i = 0; i < n; i++)
        put_member(j, &fields[i], row);
    json_object_end(j);
}

int machine_write(const machine_desc *m, FILE *out) {
    reading r = { .machine = *m };
    json_out j;
    json_init(&j, out);
    json_object_begin(&j, NULL);
    for (size_t i = 0; i < COUNT(top); i++)
        put_member(&j, &top[i], (const char *)&r);
    json_object_begin(&j, "flops_per_second");
    for (size_t i = 0; i < COUNT(flops); i++)
        put_member(&j, &flops[i], (const char *)&r);
    json_object_end(&j);
    put_link(&j, "within", &m->within);
    put_link(&j, "across", &m->across);
    json_array_begin(&j, "collectives");
    for (int32_t i = 0; i < m->n_collectives; i++)
        put_row(&j, collective_members, COUNT(collective_members), &m->collectives[i]);
    json_array_end(&j);
    json_array_begin(&j, "blocks");
    for (int32_t i = 0; i < m->n_blocks; i++)
        put_row(&j, block_members, COUNT(block_members), &m->blocks[i]);
    json_array_end(&j);
    json_object_end(&j);
    return json_line(&j);
}
