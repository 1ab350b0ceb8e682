// What went wrong, as it travels inside this plugin; plugin.cc turns it into a status and a tess_error.
#pragma once
#include <algorithm>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <tessera/plugin.h>

namespace tess_gloo {

struct Failure {
    tess_status status = TESS_OK;
    int32_t rank = -1; // in the communicator
    char message[240] = "";

    Failure() = default;
    __attribute__((format(printf, 4, 5))) Failure(tess_status code, int32_t peer, const char *format, ...)
        : status(code), rank(peer) {
        va_list args;
        va_start(args, format);
        vsnprintf(message, sizeof message, format, args);
        va_end(args);
    }
};

// Fills `out` as far as its struct_size goes; null is fine.
inline tess_status report(const Failure &failure, tess_error *out) {
    if (out == nullptr || out->struct_size < offsetof(tess_error, message))
        return failure.status;
    tess_error full{};
    full.struct_size = out->struct_size;
    full.code = failure.status;
    full.rank = failure.rank;
    memcpy(full.message, failure.message, sizeof full.message);
    const size_t bytes = std::min<size_t>(out->struct_size, sizeof full);
    memcpy(out, &full, bytes);
    if (bytes > offsetof(tess_error, message))
        reinterpret_cast<char *>(out)[bytes - 1] = '\0';
    return failure.status;
}

} // namespace tess_gloo
