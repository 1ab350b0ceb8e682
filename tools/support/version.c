/* SPDX-License-Identifier: BSD-3-Clause */
#include "version.h"

#include <tessera/plugin.h>

/* One row for each part that a build may lack. An undefined macro counts as 0. */
#ifdef TESSERA_HAVE_HWLOC
#define HWLOC 1
#else
#define HWLOC 0
#endif
#ifdef TESSERA_HAVE_DNNL
#define DNNL 1
#else
#define DNNL 0
#endif
#ifdef TESSERA_HAVE_CUDA
#define CUDA 1
#else
#define CUDA 0
#endif
#ifdef TESSERA_HAVE_CUDNN
#define CUDNN 1
#else
#define CUDNN 0
#endif
#ifdef TESSERA_HAVE_ZLIB
#define ZLIB 1
#else
#define ZLIB 0
#endif
#ifdef TESSERA_HAVE_XXHASH
#define XXHASH 1
#else
#define XXHASH 0
#endif
#ifdef TESSERA_HAVE_PCRE2
#define PCRE2 1
#else
#define PCRE2 0
#endif
#ifdef TESSERA_HAVE_UTF8PROC
#define UTF8PROC 1
#else
#define UTF8PROC 0
#endif
#ifdef TESSERA_HAVE_SENTENCEPIECE
#define SENTENCEPIECE 1
#else
#define SENTENCEPIECE 0
#endif
#ifdef TESSERA_HAVE_OPENMP
#define OPENMP 1
#else
#define OPENMP 0
#endif

static const struct {
    const char *what;
    int built_in;
} parts[] = {
    { "binding to cores (hwloc)", HWLOC },
    { "fast CPU kernels (oneDNN)", DNNL },
    { "threads in the models (OpenMP)", OPENMP },
    { "models on NVIDIA GPUs (CUDA)", CUDA },
    { "convolutions on NVIDIA GPUs (cuDNN)", CUDNN },
    { "gzipped data files (zlib)", ZLIB },
    { "digests (xxHash)", XXHASH },
    { "tokenizers (PCRE2)", PCRE2 },
    { "composed text (utf8proc)", UTF8PROC },
    { "sentencepiece models", SENTENCEPIECE },
};

const char *tool_version_part(size_t i, int *built_in) {
    if (i >= sizeof parts / sizeof parts[0])
        return NULL;
    *built_in = parts[i].built_in;
    return parts[i].what;
}

static void list(FILE *out, const char *title, int built_in) {
    const char *between = "";
    fprintf(out, "  %s ", title);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].built_in == built_in) {
            fprintf(out, "%s%s", between, parts[i].what);
            between = ", ";
        }
    fputs(*between ? "\n" : "nothing\n", out);
}

void tool_version(FILE *out) {
    fprintf(out, "tessera " TESSERA_VERSION "\n");
    fprintf(out, "  plugin ABI   %d.%d\n", TESS_ABI_MAJOR, TESS_ABI_MINOR);
    fprintf(out, "  compiler     %s\n", __VERSION__);
    list(out, "built in    ", 1);
    list(out, "left out    ", 0);
    fputs("  plugins      `tessera plugins list`\n  licence      BSD-3-Clause\n", out);
}
