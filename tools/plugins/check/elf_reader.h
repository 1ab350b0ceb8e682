/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads symbols and the dynamic section of a shared object that elf_note.c has accepted. It checks every offset against
 * the file's size. */
#ifndef TESSERA_CHECK_ELF_READER_H
#define TESSERA_CHECK_ELF_READER_H
#include <elf.h>
#include <link.h>
#include <stdint.h>

typedef struct {
    const unsigned char *bytes;
    uint64_t size;
    ElfW(Ehdr) header;
} check_elf;
typedef struct {
    const char *name;
    int type, binding, visibility, defined;
} check_symbol;

/** Maps the file and returns 0, or -1 if it cannot. The mapping lasts until the process ends. */
int check_elf_open(const char *path, check_elf *out);
/** Reads the header of section number i. Returns -1 if there is none. */
int check_elf_section(const check_elf *, unsigned i, ElfW(Shdr) * out);
const char *check_elf_section_name(const check_elf *, const ElfW(Shdr) *);
int check_elf_segment(const check_elf *, unsigned i, ElfW(Phdr) * out);
/** Calls `each` for every symbol of the sections of `type`, SHT_DYNSYM or SHT_SYMTAB. */
void check_elf_symbols(const check_elf *, uint32_t type, void (*each)(void *user, const check_symbol *), void *user);
/** Calls `each` for every entry of the dynamic section. `text` is the string that d_val refers to, or null. */
void check_elf_dynamic(const check_elf *, void (*each)(void *user, int64_t tag, uint64_t value, const char *text),
                       void *user);
#endif
