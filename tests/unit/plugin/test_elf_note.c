/* SPDX-License-Identifier: BSD-3-Clause */
/* The reader of descriptors against files made here, byte by byte; a byte more or less is a message, never a crash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/plugin/elf_note.h"
#include "tests/unit/counted.h"

/* ---- files that are hard to read --------------------------------------------------------------- */

static struct {
    size_t most;    /* bytes that one read gives; 0: all */
    uint64_t bytes; /* where the file ends by now; 0: where it ended when it was opened */
    int interrupts, error, no_stat, open_error, open;
} files;

static int fake_open(const char *path, int flags) {
    assert_int_equal(flags, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const int fd = files.open_error ? -1 : open(path, flags);
    errno = files.open_error ? files.open_error : errno;
    files.open += fd >= 0;
    return fd;
}
static int fake_close(int fd) {
    files.open--;
    return close(fd);
}
static int fake_stat(int fd, struct stat *s) {
    return fstat(fd, s) || files.no_stat ? -1 : 0;
}
static ssize_t fake_read(int fd, void *to, size_t bytes, off_t at) {
    errno = files.interrupts > 0 ? EINTR : files.error;
    if (errno) {
        files.interrupts--;
        return -1;
    }
    if (files.most && bytes > files.most)
        bytes = files.most;
    if (files.bytes && (uint64_t)at + bytes > files.bytes)
        bytes = files.bytes > (uint64_t)at ? (size_t)(files.bytes - (uint64_t)at) : 0;
    return pread(fd, to, bytes, at);
}
#define open(path, flags) fake_open(path, flags)
#define close(fd) fake_close(fd)
#define fstat(fd, s) fake_stat(fd, s)
#define pread(fd, to, bytes, at) fake_read(fd, to, bytes, at)
#include "core/plugin/elf_note.c"
#undef close

/* A shared object of the least: header, one segment, the descriptor, two options, names, four sections. */
typedef struct {
    ElfW(Ehdr) header;
    ElfW(Phdr) segment, another; /* a second one where a test counts it */
    tess_plugin_note note;
    tess_option_spec options[2];
    char names[48];
    ElfW(Shdr) sections[4];
} image;
static image good;

typedef struct {
    const unsigned char *bytes;
    uint64_t size;
} memory;

/* Fails the test when the reader asks for what is not there. */
static int read_memory(void *user, uint64_t offset, void *to, size_t bytes) {
    const memory *m = user;
    assert_true(offset <= m->size && bytes <= m->size - offset);
    memcpy(to, m->bytes + offset, bytes);
    return 0;
}

static char reason[256];
static tess_plugin_note note;
static tess_status read_image(const void *bytes, uint64_t size) {
    memory m = { bytes, size };
    memset(reason, 0, sizeof reason);
    memset(&note, 0x55, sizeof note);
    return tess__elf_note_read(read_memory, &m, size, &note, reason, sizeof reason);
}

static int setup(void **state) {
    (void)state;
    memset(&good, 0, sizeof good);
    memcpy(good.header.e_ident, ELFMAG, SELFMAG);
    good.header.e_ident[EI_CLASS] = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
    good.header.e_ident[EI_DATA] = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
    good.header.e_ident[EI_VERSION] = EV_CURRENT;
    good.header.e_type = ET_DYN;
    /* This machine's number, from a file that runs on it. */
    FILE *self = fopen("/proc/self/exe", "rb");
    ElfW(Ehdr) own;
    if (!self || fread(&own, sizeof own, 1, self) != 1)
        return -1;
    fclose(self);
    good.header.e_machine = own.e_machine;
    good.header.e_version = EV_CURRENT;
    good.header.e_phoff = offsetof(image, segment);
    good.header.e_phentsize = sizeof(ElfW(Phdr));
    good.header.e_phnum = 1;
    good.header.e_shoff = offsetof(image, sections);
    good.header.e_shentsize = sizeof(ElfW(Shdr));
    good.header.e_shnum = 4;
    good.header.e_shstrndx = 2;
    good.segment.p_type = PT_LOAD;
    good.segment.p_filesz = good.segment.p_memsz = sizeof good;
    memcpy(good.note.magic, "TESSPLG", 8);
    memcpy(good.note.name, "made", 5);
    for (int i = 0; i < 2; i++) {
        good.options[i].struct_size = sizeof good.options[i];
        good.options[i].type = TESS_OPTION_TEXT;
        snprintf(good.options[i].key, sizeof good.options[i].key, "made-%d", i);
    }
    memcpy(good.names, "\0.tessera.plugin\0.shstrtab\0.tessera.options", 44);
    good.sections[1].sh_name = 1;
    good.sections[1].sh_type = SHT_PROGBITS;
    good.sections[1].sh_offset = offsetof(image, note);
    good.sections[1].sh_size = sizeof good.note;
    good.sections[2].sh_name = 17;
    good.sections[2].sh_type = SHT_STRTAB;
    good.sections[2].sh_offset = offsetof(image, names);
    good.sections[2].sh_size = sizeof good.names;
    good.sections[3].sh_name = 27;
    good.sections[3].sh_type = SHT_PROGBITS;
    good.sections[3].sh_offset = offsetof(image, options);
    good.sections[3].sh_size = sizeof good.options;
    return 0;
}

static void accepted(const image *i) {
    if (read_image(i, sizeof *i))
        fail_msg("%s", reason);
    assert_memory_equal(&note, &i->note, sizeof note);
}

static void refused(const image *i, const char *words) {
    assert_int_equal(read_image(i, sizeof *i), TESS_E_INVALID);
    if (!strstr(reason, words))
        print_error("'%s' is not in: %s\n", words, reason);
    assert_non_null(strstr(reason, words));
    for (size_t b = 0; b < sizeof note; b++)
        assert_int_equal(((unsigned char *)&note)[b], 0x55);
}

static void test_elf_note__descriptor_is_copied(void **state) {
    (void)state;
    assert_int_equal(read_image(&good, sizeof good), TESS_OK);
    assert_memory_equal(&note, &good.note, sizeof note);
    assert_string_equal(reason, "");
}

static void test_elf_note__every_shorter_file_is_refused(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof good; n++) {
        unsigned char *exact = malloc(n ? n : 1); /* so that a sanitizer sees a byte too far */
        memcpy(exact, &good, n);
        assert_int_equal(read_image(exact, n), TESS_E_INVALID);
        assert_string_not_equal(reason, "");
        free(exact);
    }
}

static void test_elf_note__header_faults_are_named(void **state) {
    (void)state;
    image i = good;
    i.header.e_ident[0] = 'M';
    refused(&i, "not an ELF file");
    i = good;
    i.header.e_ident[EI_CLASS] = 3;
    refused(&i, "for another machine: ELF class 3");
    i = good;
    i.header.e_ident[EI_DATA] ^= 3;
    refused(&i, "for another machine");
    i = good;
    i.header.e_machine = 9999;
    refused(&i, "for another machine: ELF machine 9999");
    i = good;
    i.header.e_type = ET_EXEC;
    refused(&i, "not a shared object: ELF type 2, expected 3");
    i = good;
    i.header.e_phnum = 0;
    refused(&i, "0 program headers");
    i = good;
    i.header.e_phentsize = 8;
    refused(&i, "1 program headers of 8 bytes");
    i = good;
    i.header.e_shnum = 0;
    refused(&i, "no usable section table");
    i = good;
    i.header.e_shentsize = 65535;
    refused(&i, "no usable section table");
    i = good;
    i.header.e_shstrndx = 4;
    refused(&i, "no usable section table");
}

static void test_elf_note__offsets_outside_the_file_are_truncation(void **state) {
    (void)state;
    static const uint64_t far[] = { sizeof(image), sizeof(image) - 1, UINT64_MAX, UINT64_MAX - 40, UINT64_C(1) << 63 };
    for (size_t f = 0; f < sizeof far / sizeof far[0]; f++) {
        image i = good;
        i.header.e_phoff = (ElfW(Off))far[f];
        refused(&i, "truncated: the program header table");
        i = good;
        i.header.e_shoff = (ElfW(Off))far[f];
        refused(&i, "truncated: the section table");
        i = good;
        i.segment.p_offset = (ElfW(Off))far[f];
        refused(&i, "truncated: a segment");
        i = good;
        i.segment.p_offset = 2;
        i.segment.p_filesz = (ElfW(Xword))far[f];
        refused(&i, "truncated: a segment");
        for (int s = 1; s <= 2; s++) {
            i = good;
            i.sections[s].sh_offset = (ElfW(Off))far[f];
            refused(&i, "truncated: a section");
            i = good;
            i.sections[s].sh_size = (ElfW(Xword))far[f];
            refused(&i, "truncated: a section");
        }
    }
}

static void test_elf_note__each_segment_lies_in_the_file(void **state) {
    (void)state;
    image i = good;
    i.header.e_phnum = 2;
    i.another = i.segment;
    accepted(&i);
    i.another.p_filesz++;
    refused(&i, "truncated: a segment");
    i.another.p_filesz = 0; /* nothing, up to the end of the file */
    i.another.p_offset = sizeof i;
    accepted(&i);
    i.another.p_offset++;
    refused(&i, "truncated: a segment");
    read_image(&good, SELFMAG);
    assert_non_null(strstr(reason, "truncated: the ELF header lies beyond the file's 4 bytes"));
}

static void test_elf_note__names_are_whole_and_within_their_table(void **state) {
    (void)state;
    static const char missing[] = "no plugin: it has no section .tessera.plugin";
    image i = good;
    i.names[16] = 'x'; /* its end */
    refused(&i, missing);
    i = good;
    i.sections[2].sh_size = 17;
    accepted(&i);
    i.sections[2].sh_size = 16;
    refused(&i, missing);
    i.sections[2].sh_size = 0;
    refused(&i, missing);
    i = good;
    i.sections[2].sh_name = sizeof i.names - 3; /* behind the one that is found */
    accepted(&i);
    i = good;
    i.header.e_shstrndx = 3; /* the last section */
    i.sections[3] = i.sections[2];
    i.sections[2] = good.sections[3];
    accepted(&i);
    i = good;
    i.header.e_shnum = 1;
    i.header.e_shstrndx = 0;
    i.sections[0] = i.sections[2];
    refused(&i, missing);
}

static void test_elf_note__sections_without_bytes_may_say_any_place(void **state) {
    (void)state;
    static const uint32_t without[] = { SHT_NOBITS, SHT_NULL };
    for (int w = 0; w < 2; w++) {
        image i = good;
        i.sections[3].sh_type = without[w];
        i.sections[3].sh_offset = UINT32_MAX;
        accepted(&i);
        i.sections[3].sh_type = SHT_PROGBITS;
        refused(&i, "truncated: a section");
    }
}

static void test_elf_note__section_faults_are_named(void **state) {
    (void)state;
    image i = good;
    i.sections[2].sh_type = SHT_PROGBITS;
    refused(&i, "the section names are in no string table");
    i = good;
    i.names[1] = 'x';
    refused(&i, "no plugin: it has no section .tessera.plugin");
    i = good;
    i.sections[1].sh_name = UINT32_MAX;
    refused(&i, "no plugin: it has no section .tessera.plugin");
    i = good;
    i.sections[1].sh_name = sizeof i.names - 3;
    refused(&i, "no plugin: it has no section .tessera.plugin");
    i = good;
    i.sections[1].sh_size = 127;
    refused(&i, "section .tessera.plugin has 127 bytes of type 1, expected at least 128 of type 1");
    i = good;
    i.sections[1].sh_type = SHT_NOBITS;
    refused(&i, "section .tessera.plugin has 128 bytes of type 8");
    i = good;
    i.sections[0] = i.sections[1];
    refused(&i, "more than one section .tessera.plugin");
}

static tess_option_spec *options;
static uint32_t n_options;
static tess_status read_image_options(const void *bytes, uint64_t size) {
    memory m = { bytes, size };
    memset(reason, 0, sizeof reason);
    options = (void *)1, n_options = 77;
    return tess__elf_options_read(read_memory, &m, size, &options, &n_options, reason, sizeof reason);
}

static void options_refused(const image *i, const char *words) {
    assert_int_equal(read_image_options(i, sizeof *i), TESS_E_INVALID);
    if (!strstr(reason, words))
        print_error("'%s' is not in: %s\n", words, reason);
    assert_non_null(strstr(reason, words));
    assert_null(options);
    assert_int_equal(n_options, 0);
}

static void test_elf_note__options_are_copied_as_far_as_they_are_known(void **state) {
    (void)state;
    assert_int_equal(read_image_options(&good, sizeof good), TESS_OK);
    assert_int_equal(n_options, 2);
    assert_memory_equal(options, good.options, sizeof good.options);
    free(options);
    image i = good;
    i.sections[3].sh_size = i.options[0].struct_size = sizeof i.options; /* one of a later header */
    assert_int_equal(read_image_options(&i, sizeof i), TESS_OK);
    assert_int_equal(n_options, 1);
    assert_string_equal(options->key, "made-0");
    free(options);
    i = good;
    i.names[28] = 'x';
    assert_int_equal(read_image_options(&i, sizeof i), TESS_OK);
    assert_null(options);
    assert_int_equal(n_options, 0);
}

static void test_elf_note__faults_of_the_options_are_named(void **state) {
    (void)state;
    image i = good;
    i.options[0].struct_size = 447;
    options_refused(&i, "896 bytes of type 1, in options of 447; expected at least 448 for each, and at most 64");
    i.options[0].struct_size = 0;
    options_refused(&i, "in options of 0");
    i = good;
    i.sections[3].sh_size = 449;
    options_refused(&i, "449 bytes of type 1");
    i = good;
    i.sections[3].sh_size = 2;
    options_refused(&i, "2 bytes of type 1, in options of 0;");
    i = good;
    i.sections[3].sh_type = SHT_NOBITS;
    options_refused(&i, "of type 8, in options of 0;");
    i = good;
    i.sections[0] = i.sections[3];
    options_refused(&i, "more than one section .tessera.options");
    i = good;
    i.sections[3].sh_offset = sizeof i;
    options_refused(&i, "truncated: a section");
}

static void test_elf_note__options_are_whole_ones_and_64_at_most(void **state) {
    (void)state;
    image i = good;
    i.sections[3].sh_size = 4;
    options_refused(&i, "4 bytes of type 1, in options of 448;");
    i.sections[3].sh_size = 3;
    options_refused(&i, "3 bytes of type 1, in options of 0;");
    i.sections[3].sh_size = i.options[0].struct_size = 447;
    options_refused(&i, "447 bytes of type 1, in options of 447;");
    struct {
        image i;
        tess_option_spec options[65];
    } *many = calloc(1, sizeof *many);
    many->i = good;
    for (int k = 0; k < 65; k++)
        many->options[k] = good.options[k % 2];
    many->i.sections[3].sh_offset = offsetof(__typeof__(*many), options);
    many->i.sections[3].sh_size = 64 * sizeof many->options[0];
    assert_int_equal(read_image_options(many, sizeof *many), TESS_OK);
    assert_int_equal(n_options, 64);
    assert_memory_equal(options, many->options, 64 * sizeof *options);
    free(options);
    many->i.sections[3].sh_size = 65 * sizeof many->options[0];
    assert_int_equal(read_image_options(many, sizeof *many), TESS_E_INVALID);
    assert_null(options);
    free(many);
}

static void test_elf_note__any_single_wrong_byte_is_survived(void **state) {
    (void)state;
    image *i = malloc(sizeof *i);
    int accepted = 0;
    for (size_t at = 0; at < sizeof good; at++)
        for (int bit = 0; bit < 8; bit++) {
            *i = good;
            ((unsigned char *)i)[at] ^= (unsigned char)(1 << bit);
            tess_status s = read_image(i, sizeof *i);
            assert_true(s == TESS_OK || (s == TESS_E_INVALID && *reason));
            accepted += s == TESS_OK;
            s = read_image_options(i, sizeof *i);
            assert_true(s == TESS_OK || (s == TESS_E_INVALID && *reason));
            free(options);
        }
    assert_true(accepted >= 8 * 128); /* the descriptor's own bytes are not judged here */
    free(i);
}

/* ---- reads that fail ---------------------------------------------------------------------------- */

typedef struct {
    memory of;
    int left; /* reads that go well */
} failing;

static int read_some(void *user, uint64_t offset, void *to, size_t bytes) {
    failing *f = user;
    return f->left-- > 0 ? read_memory(&f->of, offset, to, bytes) : -1;
}

static void test_elf_note__each_read_that_fails_is_an_error(void **state) {
    (void)state;
    static const char *const first[] = { "not an ELF file",
                                         "the ELF header cannot be read",
                                         "the ELF header cannot be read",
                                         "a program header cannot be read",
                                         "a section header cannot be read",
                                         "a section header cannot be read",
                                         "a section's name cannot be read" };
    tess_status s = TESS_E_INVALID;
    int n = 0;
    for (; s; n++) {
        failing f = { { (const unsigned char *)&good, sizeof good }, n };
        memset(&note, 0x55, sizeof note);
        s = tess__elf_note_read(read_some, &f, sizeof good, &note, reason, sizeof reason);
        assert_true(s == TESS_OK || (s == TESS_E_INVALID && strstr(reason, n ? "cannot be read" : "not an ELF file")));
        if (n < 7)
            assert_string_equal(reason, first[n]);
        for (size_t b = 0; s && b < sizeof note; b++)
            assert_int_equal(((unsigned char *)&note)[b], 0x55);
    }
    assert_string_equal(reason, "the descriptor cannot be read");
    for (s = TESS_E_INVALID, n = 0; s; n++) {
        failing f = { { (const unsigned char *)&good, sizeof good }, n };
        options = (void *)1, n_options = 77;
        s = tess__elf_options_read(read_some, &f, sizeof good, &options, &n_options, reason, sizeof reason);
        assert_true(s == TESS_OK ? n_options == 2 && options : s == TESS_E_INVALID && !options && !n_options);
        assert_int_equal(counted.live, !s);
    }
    assert_string_equal(reason, "an option cannot be read");
    free(options);
    counted.refuse = 1;
    assert_int_equal(read_image_options(&good, sizeof good), TESS_E_NOMEM);
    assert_string_equal(reason, "no memory");
    assert_null(options);
}

static char scratch[] = "/tmp/tessera-elf-XXXXXX";

static tess_status read_file(void) {
    memset(&note, 0x55, sizeof note);
    options = (void *)1, n_options = 77;
    memset(reason, 0, sizeof reason);
    tess_status s = tess__elf_options_file(scratch, &options, &n_options, reason, sizeof reason);
    if (s == TESS_OK) {
        assert_memory_equal(options, good.options, sizeof good.options);
        free(options);
    }
    const tess_status again = tess__elf_note_file(scratch, &note, reason, sizeof reason);
    if (again == TESS_OK)
        assert_memory_equal(&note, &good.note, sizeof note);
    assert_int_equal(again, s);
    assert_int_equal(files.open, 0);
    assert_int_equal(counted.live, 0);
    return s;
}

static void test_elf_note__a_file_is_read_in_as_many_pieces_as_it_comes(void **state) {
    (void)state;
    int fd = mkstemp(scratch);
    assert_int_equal(write(fd, &good, sizeof good), sizeof good);
    close(fd);
    for (files.most = 0; files.most < 200; files.most += 1 + files.most / 8) {
        files.interrupts = (int)files.most % 5;
        assert_int_equal(read_file(), TESS_OK);
    }
    files.most = 0;
    files.bytes = sizeof good - 1; /* it has become shorter */
    assert_int_equal(read_file(), TESS_E_INVALID);
    assert_non_null(strstr(reason, "cannot be read"));
    files.bytes = 0;
    files.error = EIO;
    assert_int_equal(read_file(), TESS_E_INVALID);
    assert_string_equal(reason, "not an ELF file");
    files.error = 0;
    files.no_stat = 1;
    assert_int_equal(read_file(), TESS_E_INVALID);
    assert_string_equal(reason, "not a regular file");
    files.no_stat = 0;
    files.open_error = EACCES;
    assert_int_equal(read_file(), TESS_E_INVALID);
    assert_string_equal(reason, "Permission denied");
    files.open_error = ENOENT;
    assert_int_equal(read_file(), TESS_E_INVALID);
    assert_string_equal(reason, "no such file");
    files.open_error = 0;
    unlink(scratch);
}

static void test_elf_note__file_is_read_and_a_missing_one_named(void **state) {
    (void)state;
    char path[] = "/tmp/tessera-elf-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &good, sizeof good), sizeof good);
    close(fd);
    assert_int_equal(tess__elf_note_file(path, &note, reason, sizeof reason), TESS_OK);
    assert_string_equal(note.name, "made");
    unlink(path);
    assert_int_equal(tess__elf_note_file(path, &note, reason, sizeof reason), TESS_E_INVALID);
    assert_string_equal(reason, "no such file");
    assert_int_equal(tess__elf_note_file("/tmp", &note, reason, sizeof reason), TESS_E_INVALID);
    assert_string_equal(reason, "not a regular file");
    assert_int_equal(tess__elf_note_file("/proc/self/exe", &note, reason, sizeof reason), TESS_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elf_note__descriptor_is_copied),
        cmocka_unit_test(test_elf_note__every_shorter_file_is_refused),
        cmocka_unit_test(test_elf_note__header_faults_are_named),
        cmocka_unit_test(test_elf_note__offsets_outside_the_file_are_truncation),
        cmocka_unit_test(test_elf_note__each_segment_lies_in_the_file),
        cmocka_unit_test(test_elf_note__names_are_whole_and_within_their_table),
        cmocka_unit_test(test_elf_note__sections_without_bytes_may_say_any_place),
        cmocka_unit_test(test_elf_note__section_faults_are_named),
        cmocka_unit_test(test_elf_note__options_are_copied_as_far_as_they_are_known),
        cmocka_unit_test(test_elf_note__faults_of_the_options_are_named),
        cmocka_unit_test(test_elf_note__options_are_whole_ones_and_64_at_most),
        cmocka_unit_test(test_elf_note__any_single_wrong_byte_is_survived),
        cmocka_unit_test(test_elf_note__each_read_that_fails_is_an_error),
        cmocka_unit_test(test_elf_note__a_file_is_read_in_as_many_pieces_as_it_comes),
        cmocka_unit_test(test_elf_note__file_is_read_and_a_missing_one_named),
    };
    return cmocka_run_group_tests_name("elf_note", tests, setup, NULL);
}
