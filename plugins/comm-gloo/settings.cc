/* SPDX-License-Identifier: BSD-3-Clause */
#include "settings.h"
#include "failure.h"
#include "plugin_base.h"
#include "socket.h"
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <gloo/transport/tcp/device.h>
#include <thread>

namespace tess_gloo {

namespace {
enum { INTERFACE, HOSTNAME, N_OPTIONS };
TESS_OPTIONS(option_list) = {
    { sizeof(tess_option_spec), TESS_OPTION_TEXT, 0, 0, "gloo-interface", "", "",
      "network interface Gloo uses, for ranks on several hosts" },
    { sizeof(tess_option_spec), TESS_OPTION_TEXT, 0, 0, "gloo-hostname", "", "", "name or address Gloo listens on" },
};
const kit_options readable = { "gloo", "gloo-", option_list, N_OPTIONS, nullptr };
} // namespace

Settings::Settings(const tess_host *host) {
    kit_option read[N_OPTIONS];
    tess_error error{};
    error.struct_size = sizeof error;
    memcpy(&host_, host, std::min<size_t>(host->struct_size, sizeof host_));
    if (kit_options_read(&readable, &host_, read, &error) != TESS_OK)
        throw Failure(error);
    interface_ = read[INTERFACE].text;
    hostname_ = read[HOSTNAME].text;
    if (interface_.empty() && hostname_.empty()) {
        const char *name = host_.option(host_.host, "interface");
        interface_ = name != nullptr ? name : "";
    }
    const double seconds = kit_core_real(&host_, "heartbeat", 5);
    silence_ns_ = seconds > 0 && seconds < 86400 ? static_cast<int64_t>(seconds * 1e9) : 0;
}

// Gloo writes to sockets whose peer may be gone: with every signal blocked, SIGPIPE cannot reach this process.
void Settings::enter_thread(const char *name) const {
    kit_thread_enter(&host_, name);
}

struct sockaddr_storage Settings::address() const {
    const char *route = host_.option != nullptr ? host_.option(host_.host, "address") : nullptr;
    const std::string host = !hostname_.empty() ? hostname_ : route != nullptr ? route : "127.0.0.1";
    struct sockaddr_storage found;
    if (!interface_.empty() ? find_interface(interface_, &found) != 0 : find_address(host, &found) != 0)
        throw Failure(TESS_E_INVALID, -1, "gloo cannot listen on %s '%.100s' (%s): no such address here",
                      interface_.empty() ? "host" : "interface", interface_.empty() ? host.c_str() : interface_.c_str(),
                      interface_.empty() ? "TESSERA_GLOO_HOSTNAME" : "TESSERA_INTERFACE, TESSERA_GLOO_INTERFACE");
    return found;
}

std::shared_ptr<gloo::transport::Device> Settings::device() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (device_)
        return device_;
    // Gloo's I/O thread inherits mask and affinity from the thread that makes the device. Nobody is accepted on the
    // device's own address: connections are made in rendezvous.h.
    std::exception_ptr error;
    std::thread maker([&] {
        enter_thread("tess-gloo-io");
        try {
            gloo::transport::tcp::attr attr;
            attr.hostname = "127.0.0.1";
            device_ = gloo::transport::tcp::CreateDevice(attr);
        } catch (...) {
            error = std::current_exception();
        }
    });
    maker.join();
    if (!error)
        return device_;
    try {
        std::rethrow_exception(error);
    } catch (const std::exception &e) {
        throw Failure(TESS_E_SYSTEM, -1, "gloo cannot make its device: %s", e.what());
    }
}

} // namespace tess_gloo
