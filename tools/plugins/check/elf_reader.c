/* SPDX-License-Identifier: BSD-3-Clause */
#include "elf_reader.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if UINTPTR_MAX > 0xffffffffu
#define ST_TYPE(i) ELF64_ST_TYPE(i)
#define ST_BIND(i) ELF64_ST_BIND(i)
#define ST_VISIBILITY(o) ELF64_ST_VISIBILITY(o)
#else
#define ST_TYPE(i) ELF32_ST_TYPE(i)
#define ST_BIND(i) ELF32_ST_BIND(i)
#define ST_VISIBILITY(o) ELF32_ST_VISIBILITY(o)
#endif

static int take(const check_elf *f, uint64_t offset, void *to, uint64_t bytes) {
    if (offset > f->size || bytes > f->size - offset)
        return -1;
    memcpy(to, f->bytes + offset, bytes);
    return 0;
}

int check_elf_open(const char *path, check_elf *out) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    void *p = MAP_FAILED;
    if (fstat(fd, &st) == 0 && st.st_size > 0)
        p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return -1;
    out->bytes = p;
    out->size = (uint64_t)st.st_size;
    return take(out, 0, &out->header, sizeof out->header);
}

int check_elf_section(const check_elf *f, unsigned i, ElfW(Shdr) * out) {
    if (i >= f->header.e_shnum || f->header.e_shentsize != sizeof *out)
        return -1;
    return take(f, f->header.e_shoff + (uint64_t)i * sizeof *out, out, sizeof *out);
}

int check_elf_segment(const check_elf *f, unsigned i, ElfW(Phdr) * out) {
    if (i >= f->header.e_phnum || f->header.e_phentsize != sizeof *out)
        return -1;
    return take(f, f->header.e_phoff + (uint64_t)i * sizeof *out, out, sizeof *out);
}

/* Returns a text of a string table, or null if the text does not end inside the table. */
static const char *text_at(const check_elf *f, const ElfW(Shdr) * table, uint64_t at) {
    if (table->sh_type != SHT_STRTAB || at >= table->sh_size || table->sh_offset > f->size ||
        table->sh_size > f->size - table->sh_offset)
        return NULL;
    const char *text = (const char *)f->bytes + table->sh_offset + at;
    return memchr(text, 0, table->sh_size - at) ? text : NULL;
}

const char *check_elf_section_name(const check_elf *f, const ElfW(Shdr) * section) {
    ElfW(Shdr) names;
    if (check_elf_section(f, f->header.e_shstrndx, &names) != 0)
        return "";
    const char *name = text_at(f, &names, section->sh_name);
    return name ? name : "";
}

static void symbols_of(const check_elf *f, const ElfW(Shdr) * table, void (*each)(void *, const check_symbol *),
                       void *user) {
    ElfW(Shdr) names;
    if (check_elf_section(f, table->sh_link, &names) != 0)
        return;
    for (uint64_t at = sizeof(ElfW(Sym)); at + sizeof(ElfW(Sym)) <= table->sh_size; at += sizeof(ElfW(Sym))) {
        ElfW(Sym) s;
        if (take(f, table->sh_offset + at, &s, sizeof s) != 0)
            return;
        check_symbol out = { .name = text_at(f, &names, s.st_name),
                             .type = ST_TYPE(s.st_info),
                             .binding = ST_BIND(s.st_info),
                             .visibility = ST_VISIBILITY(s.st_other),
                             .defined = s.st_shndx != SHN_UNDEF };
        if (out.name && *out.name)
            each(user, &out);
    }
}

void check_elf_symbols(const check_elf *f, uint32_t type, void (*each)(void *, const check_symbol *), void *user) {
    ElfW(Shdr) s;
    for (unsigned i = 0; check_elf_section(f, i, &s) == 0; i++)
        if (s.sh_type == type)
            symbols_of(f, &s, each, user);
}

void check_elf_dynamic(const check_elf *f, void (*each)(void *, int64_t, uint64_t, const char *), void *user) {
    ElfW(Shdr) s, names = { 0 };
    for (unsigned i = 0; check_elf_section(f, i, &s) == 0; i++) {
        if (s.sh_type != SHT_DYNAMIC)
            continue;
        check_elf_section(f, s.sh_link, &names);
        for (uint64_t at = 0; at + sizeof(ElfW(Dyn)) <= s.sh_size; at += sizeof(ElfW(Dyn))) {
            ElfW(Dyn) d;
            if (take(f, s.sh_offset + at, &d, sizeof d) != 0 || d.d_tag == DT_NULL)
                break;
            each(user, d.d_tag, d.d_un.d_val, text_at(f, &names, d.d_un.d_val));
        }
    }
}
