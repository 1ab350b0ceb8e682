/* SPDX-License-Identifier: BSD-3-Clause */
/* Whether a driver would take an image: reads the headers of a fat binary as nvcc writes it. Machine code fits chips of
 * its own major version from its minor on, in an ELF of an ABI that the driver knows: 8 since CUDA 13.0, 7 before. PTX
 * fits its chip and later ones if the driver compiles its version: 9.k is of CUDA 13.k, 8.k of 12.k. */
#include "driver.h"

#include <string.h>

enum { FAT_MAGIC = (int)0xba55ed50, KIND_PTX = 1, KIND_ELF = 2, ELF_ABI_OF_13 = 8, AT_ABI = 8 };

struct fat_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* behind the header */
};

struct fat_entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes; /* behind the header */
    uint32_t packed_bytes, unknown;
    uint16_t minor, major;
    uint32_t chip;
};

static int chip(void) {
    return (int)double__number("CAPABILITY", 90);
}

static CUresult elf_fits(const struct fat_entry *e, int driver) {
    const unsigned char *elf = (const unsigned char *)e + e->header_bytes;
    if (e->chip / 10 != (unsigned)chip() / 10 || e->chip % 10 > (unsigned)chip() % 10)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (memcmp(elf, "\177ELF", 4) != 0)
        return CUDA_ERROR_INVALID_IMAGE;
    return elf[AT_ABI] < ELF_ABI_OF_13 || driver >= 13000 ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

static CUresult ptx_fits(const struct fat_entry *e, int driver) {
    int newest = (int)double__number("PTX_VERSION", driver); /* that it compiles, by the version of CUDA */
    if (e->chip > (unsigned)chip())
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    return newest >= (e->major + 4) * 1000 + e->minor * 10 ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
}

CUresult double__image_fits(const void *image) {
    const struct fat_header *fat = image;
    int driver = (int)double__number("DRIVER_VERSION", CUDA_VERSION);
    CUresult worst = CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (fat->magic != (uint32_t)FAT_MAGIC)
        return CUDA_ERROR_INVALID_IMAGE;
    const char *at = (const char *)image + fat->header_bytes, *end = at + fat->bytes;
    while (at + sizeof(struct fat_entry) <= end) {
        const struct fat_entry *e = (const void *)at;
        CUresult r = e->kind == KIND_ELF ? elf_fits(e, driver) : e->kind == KIND_PTX ? ptx_fits(e, driver) : worst;
        if (r == CUDA_SUCCESS)
            return r;
        if (r != CUDA_ERROR_NO_BINARY_FOR_GPU)
            worst = r;
        at += e->header_bytes + e->bytes;
    }
    return worst;
}
