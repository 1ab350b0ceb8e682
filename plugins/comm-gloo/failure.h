// What went wrong, as it travels inside this plugin; plugin.cc turns it into a status and a tess_error.
#pragma once
#include <cstdarg>
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

inline tess_status report(const Failure &failure, tess_error *out) {
    if (out != nullptr && out->struct_size >= sizeof(tess_error)) {
        out->code = failure.status;
        out->native = 0;
        out->rank = failure.rank;
        memcpy(out->message, failure.message, sizeof out->message);
    }
    return failure.status;
}

} // namespace tess_gloo
