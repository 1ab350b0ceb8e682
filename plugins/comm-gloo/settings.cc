#include "settings.h"
#include "failure.h"
#include <algorithm>
#include <cfenv>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <gloo/transport/tcp/device.h>
#include <pthread.h>
#include <thread>

namespace tess_gloo {

// "2,6-7" as in the kernel's lists. An empty or unreadable list means any CPU.
static bool parse_cpus(const char *text, cpu_set_t *out) {
    CPU_ZERO(out);
    while (text != nullptr && *text != '\0') {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (end == text)
            return false;
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
            if (end == text)
                return false;
        }
        if (first < 0 || last < first || last >= CPU_SETSIZE)
            return false;
        for (long cpu = first; cpu <= last; cpu++)
            CPU_SET(cpu, out);
        text = *end == ',' ? end + 1 : end;
        if (*end != ',' && *end != '\0')
            return false;
    }
    return CPU_COUNT(out) > 0;
}

Settings::Settings(const tess_host *host) {
    memcpy(&host_, host, std::min<size_t>(host->struct_size, sizeof host_));
    pin_ = parse_cpus(host_.helper_cpus, &cpus_);
    interface_ = setting("interface");
    hostname_ = setting("hostname");
    if (interface_.empty() && hostname_.empty())
        hostname_ = "127.0.0.1";
}

// "interface=eth0,hostname=…" after the colon of TESSERA_COMM wins over the option "gloo-interface".
std::string Settings::setting(const char *name) const {
    std::string args = host_.args != nullptr ? host_.args : "", key = std::string(name) + "=";
    for (size_t at = 0; at < args.size();) {
        size_t end = std::min(args.find(',', at), args.size());
        if (args.compare(at, key.size(), key) == 0)
            return args.substr(at + key.size(), end - at - key.size());
        at = end + 1;
    }
    const char *text =
        host_.option != nullptr ? host_.option(host_.host, ("gloo-" + std::string(name)).c_str()) : nullptr;
    return text != nullptr ? text : "";
}

void Settings::enter_thread(const char *name) const {
    // Gloo writes to sockets whose peer may be gone: SIGPIPE must not reach this process.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    pthread_setname_np(pthread_self(), name);
    if (pin_)
        sched_setaffinity(0, sizeof cpus_, &cpus_);
    // Threads inherit the creator's modes; sums must not depend on them.
    fesetenv(FE_DFL_ENV);
}

std::shared_ptr<gloo::transport::Device> Settings::device() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (device_)
        return device_;
    // Gloo's I/O thread inherits mask and affinity from the thread that makes the device.
    std::exception_ptr error;
    std::thread maker([&] {
        enter_thread("tess-gloo-io");
        try {
            gloo::transport::tcp::attr attr;
            attr.hostname = hostname_;
            attr.iface = interface_;
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
        throw Failure(
            TESS_E_SYSTEM, -1, "gloo cannot listen on %s '%s' (TESSERA_GLOO_INTERFACE, TESSERA_GLOO_HOSTNAME): %s",
            interface_.empty() ? "host" : "interface", (interface_.empty() ? hostname_ : interface_).c_str(), e.what());
    }
}

} // namespace tess_gloo
