/* SPDX-License-Identifier: BSD-3-Clause */
#include "elf_note.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h> /* ElfW */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECTION ".tessera.plugin"

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

static int inside(const elf_file *f, uint64_t offset, uint64_t bytes) {
    return offset <= f->bytes && bytes <= f->bytes - offset;
}

static tess_status truncated(const elf_file *f, const char *what) {
    return REFUSE(f, "truncated: %s lies beyond the file's %llu bytes", what, (unsigned long long)f->bytes);
}

static tess_status take(const elf_file *f, uint64_t offset, void *to, size_t bytes, const char *what) {
    if (!inside(f, offset, bytes))
        return truncated(f, what);
    if (f->read_at(f->user, offset, to, bytes) != 0)
        return REFUSE(f, "%s cannot be read", what);
    return TESS_OK;
}

static tess_status read_header(const elf_file *f, ElfW(Ehdr) * h) {
    unsigned char ident[EI_NIDENT];
    if (f->bytes < SELFMAG || f->read_at(f->user, 0, ident, SELFMAG) != 0 || memcmp(ident, ELFMAG, SELFMAG) != 0)
        return REFUSE(f, "not an ELF file");
    tess_status s = take(f, 0, ident, sizeof ident, "the ELF header");
    if (s)
        return s;
    if (ident[EI_CLASS] != OUR_CLASS || ident[EI_DATA] != OUR_ORDER)
        return REFUSE(f, "for another machine: ELF class %d, byte order %d, expected %d and %d", ident[EI_CLASS],
                      ident[EI_DATA], OUR_CLASS, OUR_ORDER);
    s = take(f, 0, h, sizeof *h, "the ELF header");
    if (s)
        return s;
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

/* dlopen maps what the segments say, and a page beyond the end of the file is SIGBUS. */
static tess_status check_segments(const elf_file *f, const ElfW(Ehdr) * h) {
    if (!inside(f, h->e_phoff, (uint64_t)h->e_phnum * sizeof(ElfW(Phdr))))
        return truncated(f, "the program header table");
    for (unsigned i = 0; i < h->e_phnum; i++) {
        ElfW(Phdr) p;
        tess_status s = take(f, h->e_phoff + i * sizeof p, &p, sizeof p, "a program header");
        if (s)
            return s;
        if (!inside(f, p.p_offset, p.p_filesz))
            return truncated(f, "a segment");
    }
    return TESS_OK;
}

static tess_status read_section(const elf_file *f, const ElfW(Ehdr) * h, unsigned i, ElfW(Shdr) * out) {
    tess_status s = take(f, h->e_shoff + i * sizeof *out, out, sizeof *out, "a section header");
    if (s)
        return s;
    if (out->sh_type != SHT_NOBITS && out->sh_type != SHT_NULL && !inside(f, out->sh_offset, out->sh_size))
        return truncated(f, "a section");
    return TESS_OK;
}

static tess_status is_descriptor(const elf_file *f, const ElfW(Shdr) * names, const ElfW(Shdr) * section, int *yes) {
    char name[sizeof SECTION];
    *yes = 0;
    if (section->sh_name > names->sh_size || names->sh_size - section->sh_name < sizeof name)
        return TESS_OK; /* too near the end of the names to be this one */
    tess_status s = take(f, names->sh_offset + section->sh_name, name, sizeof name, "a section's name");
    *yes = s == TESS_OK && memcmp(name, SECTION, sizeof name) == 0;
    return s;
}

static tess_status find_section(const elf_file *f, const ElfW(Ehdr) * h, ElfW(Shdr) * out) {
    ElfW(Shdr) names, section;
    int found = 0, yes;
    if (!inside(f, h->e_shoff, (uint64_t)h->e_shnum * sizeof section))
        return truncated(f, "the section table");
    tess_status s = read_section(f, h, h->e_shstrndx, &names);
    if (s)
        return s;
    if (names.sh_type != SHT_STRTAB)
        return REFUSE(f, "the section names are in no string table");
    for (unsigned i = 0; i < h->e_shnum; i++) {
        s = read_section(f, h, i, &section);
        if (s == TESS_OK)
            s = is_descriptor(f, &names, &section, &yes);
        if (s)
            return s;
        if (yes && found++)
            return REFUSE(f, "more than one section " SECTION);
        if (yes)
            *out = section;
    }
    if (!found)
        return REFUSE(f, "no plugin: it has no section " SECTION);
    return TESS_OK;
}

tess_status tess__elf_note_read(tess__read_at_fn read_at, void *user, uint64_t file_bytes, tess_plugin_note *out,
                                char *reason, size_t reason_bytes) {
    elf_file f = { read_at, user, file_bytes, reason, reason_bytes };
    ElfW(Ehdr) header;
    ElfW(Shdr) section = { 0 };
    tess_plugin_note note;
    tess_status s = read_header(&f, &header);
    if (s == TESS_OK)
        s = check_segments(&f, &header);
    if (s == TESS_OK)
        s = find_section(&f, &header, &section);
    if (s)
        return s;
    if (section.sh_type != SHT_PROGBITS || section.sh_size < sizeof note)
        return REFUSE(&f, "section " SECTION " has %llu bytes of type %u, expected at least %zu of type %d",
                      (unsigned long long)section.sh_size, section.sh_type, sizeof note, SHT_PROGBITS);
    s = take(&f, section.sh_offset, &note, sizeof note, "the descriptor");
    if (s == TESS_OK)
        *out = note;
    return s;
}

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

tess_status tess__elf_note_file(const char *path, tess_plugin_note *out, char *reason, size_t reason_bytes) {
    elf_file f = { .reason = reason, .reason_bytes = reason_bytes };
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
    if (fd < 0)
        return REFUSE(&f, "%s", errno == ENOENT ? "no such file" : strerror(errno));
    struct stat st;
    tess_status s;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        s = REFUSE(&f, "not a regular file");
    else
        s = tess__elf_note_read(read_fd, &fd, (uint64_t)st.st_size, out, reason, reason_bytes);
    close(fd);
    return s;
}
