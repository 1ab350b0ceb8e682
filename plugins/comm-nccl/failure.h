/* What went wrong, as it travels inside this plugin. Empty while `status` is TESS_OK. */
#ifndef NCCL_FAILURE_H
#define NCCL_FAILURE_H
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tessera/plugin.h>

struct nccl_failure {
    tess_status status;
    int32_t rank, native; /* in the communicator, -1 none; NCCL's or CUDA's number */
    char message[240];
};

/* Fills in `out` and returns `status`, so that it can be called in a return. */
__attribute__((format(printf, 4, 5))) static inline tess_status nccl_fail(struct nccl_failure *out, tess_status status,
                                                                          int32_t rank, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(out->message, sizeof out->message, format, args);
    va_end(args);
    out->status = status;
    out->rank = rank;
    out->native = 0;
    return status;
}

/* To the caller's tess_error, as far as its struct_size goes; null is fine. */
static inline tess_status nccl_report(const struct nccl_failure *f, tess_error *out) {
    tess_error full = { .code = f->status, .native = f->native, .rank = f->rank };
    if (!out || out->struct_size < offsetof(tess_error, message))
        return f->status;
    memcpy(full.message, f->message, sizeof full.message);
    full.struct_size = out->struct_size;
    size_t bytes = out->struct_size < sizeof full ? out->struct_size : sizeof full;
    memcpy(out, &full, bytes);
    if (bytes > offsetof(tess_error, message))
        ((char *)out)[bytes - 1] = 0;
    return f->status;
}
#endif
