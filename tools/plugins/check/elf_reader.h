/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads symbols and the dynamic section of a shared object that elf_note.c has accepted. Every offset is checked
 * against the file's size. */
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

/** Maps the file; 0, or -1 when that cannot be. Unmapped with the process. */
int check_elf_open(const char *path, check_elf *out);
/** Section number i of the file: -1 when it is not there. */
int check_elf_section(const check_elf *, unsigned i, ElfW(Shdr) * out);
const char *check_elf_section_name(const check_elf *, const ElfW(Shdr) *);
int check_elf_segment(const check_elf *, unsigned i, ElfW(Phdr) * out);
/** Calls `each` for every symbol of the sections of `type`: SHT_DYNSYM, SHT_SYMTAB. */
void check_elf_symbols(const check_elf *, uint32_t type, void (*each)(void *user, const check_symbol *), void *user);
/** Calls `each` for every entry of the dynamic section; `text` is what d_val names in its string table, or null. */
void check_elf_dynamic(const check_elf *, void (*each)(void *user, int64_t tag, uint64_t value, const char *text),
                       void *user);
#endif
