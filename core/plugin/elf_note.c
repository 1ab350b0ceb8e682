/* SPDX-License-Identifier: BSD-3-Clause */
#include "elf_note.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h> /* ElfW */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

#define SECTION ".tessera.plugin"
#define OPTIONS ".tessera.options"

#if defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OUR_MACHINE EM_AARCH64
#elif defined(__i386__)
#define OUR_MACHINE EM_386
#elif defined(__arm__)
#define OUR_MACHINE EM_ARM
#elif defined(__riscv)
#define OUR_MACHINE EM_RISCV
#elif defined(__powerpc64__)
#define OUR_MACHINE EM_PPC64
#elif defined(__s390x__)
#define OUR_MACHINE EM_S390
#else
#error "name this machine's ELF number here"
#endif

enum {
    OUR_CLASS = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32,
    OUR_ORDER = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB,
};

typedef struct {
    tess__read_at_fn read_at;
    void *user;
    uint64_t bytes;
    char *reason;
    size_t reason_bytes;
} elf_file;

#define REFUSE(f, ...) (snprintf((f)->reason, (f)->reason_bytes, __VA_ARGS__), TESS_E_INVALID)

static int is_inside(const elf_file *f, uint64_t offset, uint64_t bytes) {
    return offset <= f->bytes && bytes <= f->bytes - offset;
}

static tess_status refuse_truncated(const elf_file *f, const char *what) {
    return REFUSE(f, "truncated: %s lies beyond the file's %llu bytes", what, (unsigned long long)f->bytes);
}

static tess_status take_bytes(const elf_file *f, uint64_t offset, void *to, size_t bytes, const char *what) {
    if (!is_inside(f, offset, bytes))
        return refuse_truncated(f, what);
    if (f->read_at(f->user, offset, to, bytes) != 0)
        return REFUSE(f, "%s cannot be read", what);
    return TESS_OK;
}

static tess_status read_header(const elf_file *f, ElfW(Ehdr) * h) {
    unsigned char ident[EI_NIDENT];
    if (f->bytes < SELFMAG || f->read_at(f->user, 0, ident, SELFMAG) != 0 || memcmp(ident, ELFMAG, SELFMAG) != 0)
        return REFUSE(f, "not an ELF file");
    TRY(take_bytes(f, 0, ident, sizeof ident, "the ELF header"));
    if (ident[EI_CLASS] != OUR_CLASS || ident[EI_DATA] != OUR_ORDER)
        return REFUSE(f, "for another machine: ELF class %d, byte order %d, expected %d and %d", ident[EI_CLASS],
                      ident[EI_DATA], OUR_CLASS, OUR_ORDER);
    TRY(take_bytes(f, 0, h, sizeof *h, "the ELF header"));
    if (h->e_machine != OUR_MACHINE)
        return REFUSE(f, "for another machine: ELF machine %d, expected %d", h->e_machine, OUR_MACHINE);
    if (h->e_type != ET_DYN)
        return REFUSE(f, "not a shared object: ELF type %d, expected %d", h->e_type, ET_DYN);
    if (h->e_phnum == 0 || h->e_phentsize != sizeof(ElfW(Phdr)))
        return REFUSE(f, "%d program headers of %d bytes, expected some of %zu", h->e_phnum, h->e_phentsize,
                      sizeof(ElfW(Phdr)));
    if (h->e_shnum == 0 || h->e_shentsize != sizeof(ElfW(Shdr)) || h->e_shstrndx >= h->e_shnum)
        return REFUSE(f, "no usable section table, so no descriptor (%d sections of %d bytes, names in %d)", h->e_shnum,
                      h->e_shentsize, h->e_shstrndx);
    return TESS_OK;
}

/* Checks that segments lie in the file: dlopen maps what they say, and a page beyond the end of the file is SIGBUS. */
static tess_status check_segments(const elf_file *f, const ElfW(Ehdr) * h) {
    if (!is_inside(f, h->e_phoff, (uint64_t)h->e_phnum * sizeof(ElfW(Phdr))))
        return refuse_truncated(f, "the program header table");
    for (unsigned i = 0; i < h->e_phnum; i++) {
        ElfW(Phdr) p;
        TRY(take_bytes(f, h->e_phoff + i * sizeof p, &p, sizeof p, "a program header"));
        if (!is_inside(f, p.p_offset, p.p_filesz))
            return refuse_truncated(f, "a segment");
    }
    return TESS_OK;
}

static tess_status read_section(const elf_file *f, const ElfW(Ehdr) * h, unsigned i, ElfW(Shdr) * out) {
    TRY(take_bytes(f, h->e_shoff + i * sizeof *out, out, sizeof *out, "a section header"));
    if (out->sh_type != SHT_NOBITS && out->sh_type != SHT_NULL && !is_inside(f, out->sh_offset, out->sh_size))
        return refuse_truncated(f, "a section");
    return TESS_OK;
}

/* Tells whether a section has that name, of `bytes` bytes with its zero. */
static tess_status is_named(const elf_file *f, const ElfW(Shdr) * names, const ElfW(Shdr) * section, const char *wanted,
                            size_t bytes, int *yes) {
    char name[32];
    *yes = 0;
    if (section->sh_name > names->sh_size || names->sh_size - section->sh_name < bytes)
        return TESS_OK; /* too near the end of the names to be this one */
    tess_status s = take_bytes(f, names->sh_offset + section->sh_name, name, bytes, "a section's name");
    *yes = s == TESS_OK && memcmp(name, wanted, bytes) == 0;
    return s;
}

/* Finds the section of that name; *found 0: there is none. */
static tess_status find_section(const elf_file *f, const ElfW(Ehdr) * h, const char *wanted, ElfW(Shdr) * out,
                                int *found) {
    ElfW(Shdr) names, section;
    int yes;
    *found = 0;
    if (!is_inside(f, h->e_shoff, (uint64_t)h->e_shnum * sizeof section))
        return refuse_truncated(f, "the section table");
    TRY(read_section(f, h, h->e_shstrndx, &names));
    if (names.sh_type != SHT_STRTAB)
        return REFUSE(f, "the section names are in no string table");
    for (unsigned i = 0; i < h->e_shnum; i++) {
        TRY(read_section(f, h, i, &section));
        TRY(is_named(f, &names, &section, wanted, strlen(wanted) + 1, &yes));
        if (yes && (*found)++)
            return REFUSE(f, "more than one section %s", wanted);
        if (yes)
            *out = section;
    }
    return TESS_OK;
}

static tess_status open_section(const elf_file *f, const char *wanted, ElfW(Shdr) * out, int *found) {
    ElfW(Ehdr) header;
    tess_status s = read_header(f, &header);
    if (s == TESS_OK)
        s = check_segments(f, &header);
    return s ? s : find_section(f, &header, wanted, out, found);
}

static tess_status read_note(const elf_file *f, tess_plugin_note *out) {
    ElfW(Shdr) section = { 0 };
    tess_plugin_note note;
    int found;
    TRY(open_section(f, SECTION, &section, &found));
    if (!found)
        return REFUSE(f, "no plugin: it has no section " SECTION);
    if (section.sh_type != SHT_PROGBITS || section.sh_size < sizeof note)
        return REFUSE(f, "section " SECTION " has %llu bytes of type %u, expected at least %zu of type %d",
                      (unsigned long long)section.sh_size, section.sh_type, sizeof note, SHT_PROGBITS);
    TRY(take_bytes(f, section.sh_offset, &note, sizeof note, "the descriptor"));
    *out = note;
    return TESS_OK;
}

tess_status tess__elf_note_read(tess__read_at_fn read_at, void *user, uint64_t file_bytes, tess_plugin_note *out,
                                char *reason, size_t reason_bytes) {
    const elf_file f = { read_at, user, file_bytes, reason, reason_bytes };
    return read_note(&f, out);
}

/* ---- options ----------------------------------------------------------------------------------- */

/* Reads the size of one option from the first; the section holds a whole number of them. */
static tess_status option_bytes(const elf_file *f, const ElfW(Shdr) * section, uint32_t *out) {
    uint32_t bytes = 0;
    if (section->sh_type == SHT_PROGBITS && section->sh_size >= sizeof bytes)
        TRY(take_bytes(f, section->sh_offset, &bytes, sizeof bytes, "an option"));
    if (bytes < sizeof(tess_option_spec) || section->sh_size % bytes || section->sh_size / bytes > TESS_OPTIONS_MAX)
        return REFUSE(f,
                      "section " OPTIONS " has %llu bytes of type %u, in options of %u; expected at least %zu for "
                      "each, and at most %d",
                      (unsigned long long)section->sh_size, section->sh_type, bytes, sizeof(tess_option_spec),
                      TESS_OPTIONS_MAX);
    *out = bytes;
    return TESS_OK;
}

static tess_status read_options(const elf_file *f, tess_option_spec **out, uint32_t *n) {
    ElfW(Shdr) section = { 0 };
    uint32_t bytes = 0;
    int found;
    *out = NULL;
    *n = 0;
    tess_status s = open_section(f, OPTIONS, &section, &found);
    if (s == TESS_OK && found)
        s = option_bytes(f, &section, &bytes);
    if (s || !found)
        return s;
    uint32_t count = (uint32_t)(section.sh_size / bytes);
    tess_option_spec *list = calloc(count, sizeof *list);
    if (!list) {
        (void)REFUSE(f, "no memory");
        return TESS_E_NOMEM;
    }
    for (uint32_t i = 0; i < count && s == TESS_OK; i++)
        s = take_bytes(f, section.sh_offset + (uint64_t)i * bytes, &list[i], sizeof *list, "an option");
    if (s) {
        free(list);
        return s;
    }
    *out = list;
    *n = count;
    return TESS_OK;
}

tess_status tess__elf_options_read(tess__read_at_fn read_at, void *user, uint64_t file_bytes, tess_option_spec **out,
                                   uint32_t *n, char *reason, size_t reason_bytes) {
    const elf_file f = { read_at, user, file_bytes, reason, reason_bytes };
    return read_options(&f, out, n);
}

/* ---- files ------------------------------------------------------------------------------------- */

static int read_fd(void *user, uint64_t offset, void *to, size_t bytes) {
    char *p = to;
    while (bytes) {
        ssize_t n = pread(*(int *)user, p, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        p += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* Opens the file for reading; -1 with a reason. */
static int open_file(const char *path, elf_file *f) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
    struct stat st;
    if (fd < 0) {
        (void)REFUSE(f, "%s", errno == ENOENT ? "no such file" : strerror(errno));
        return -1;
    }
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        f->bytes = (uint64_t)st.st_size;
        return fd;
    }
    (void)REFUSE(f, "not a regular file");
    close(fd);
    return -1;
}

tess_status tess__elf_note_file(const char *path, tess_plugin_note *out, char *reason, size_t reason_bytes) {
    elf_file f = { .read_at = read_fd, .reason = reason, .reason_bytes = reason_bytes };
    int fd = open_file(path, &f);
    if (fd < 0)
        return TESS_E_INVALID;
    f.user = &fd;
    tess_status s = read_note(&f, out);
    close(fd);
    return s;
}

tess_status tess__elf_options_file(const char *path, tess_option_spec **out, uint32_t *n, char *reason,
                                   size_t reason_bytes) {
    elf_file f = { .read_at = read_fd, .reason = reason, .reason_bytes = reason_bytes };
    int fd = open_file(path, &f);
    if (fd < 0)
        return TESS_E_INVALID;
    f.user = &fd;
    tess_status s = read_options(&f, out, n);
    close(fd);
    return s;
}
