/* SPDX-License-Identifier: BSD-3-Clause */
// An error as it travels inside this plugin; at the slots it becomes a status and a tess_error.
#pragma once
#include <cerrno>
#include <exception>
#include <new>
#include <system_error>
#include <tessera/plugin_helpers.h>

namespace tess_gloo {

struct Failure : tess_error {
    Failure(const tess_error &error) : tess_error(error) {}
    __attribute__((format(printf, 4, 5))) Failure(tess_status status, int32_t peer, const char *format, ...)
        : tess_error{} { // peer: in the communicator
        va_list args;
        struct_size = sizeof(tess_error), code = status, rank = peer;
        va_start(args, format);
        vsnprintf(message, sizeof message, format, args);
        va_end(args);
    }
};

// An exception as this rank's own failure: threads and descriptors that the system refuses are nobody else's fault.
inline bool is_own_failure(const std::exception &e) {
    return dynamic_cast<const std::system_error *>(&e) != nullptr || strstr(e.what(), strerror(EMFILE)) != nullptr;
}
inline Failure failure_of(const std::exception &e) {
    return Failure(is_own_failure(e) ? TESS_E_SYSTEM : TESS_E_INTERNAL, -1, "gloo: %.200s", e.what());
}

// Runs `body` and turns every exception into a status and a tess_error, because no exception may cross the C interface.
template <class Body>
tess_status guarded(tess_error *error, Body body) {
    try {
        return body();
    } catch (const Failure &f) {
        return tess_plugin_copy_error(error, &f);
    } catch (const std::bad_alloc &) {
        return tess_plugin_fail(error, TESS_E_NOMEM, "gloo: out of memory");
    } catch (const std::exception &e) {
        const Failure f = failure_of(e);
        return tess_plugin_copy_error(error, &f);
    } catch (...) {
        return tess_plugin_fail(error, TESS_E_INTERNAL, "gloo: unknown exception");
    }
}

} // namespace tess_gloo
