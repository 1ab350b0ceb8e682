/* SPDX-License-Identifier: BSD-3-Clause */
#include "pair.h"
#include <algorithm>
#include <exception>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

namespace tess_gloo {

using gloo::transport::tcp::Address;

// Since Gloo got one listening socket per device its pairs are smaller.
#if __has_include(<gloo/transport/tcp/listener.h>)
[[maybe_unused]] constexpr size_t kPairBytes = 888;
#else
[[maybe_unused]] constexpr size_t kPairBytes = 896;
#endif
#if defined(TESS_GLOO_DEBIAN) && defined(__x86_64__) && defined(_GLIBCXX_RELEASE)
static_assert(sizeof(gloo::transport::tcp::Pair) == kPairBytes,
              "debian/gloo/common/memory.h must give libgloo's layout");
#endif

ProvenPair::ProvenPair(Context *context, Device *device, int rank, std::chrono::milliseconds timeout)
    : Pair(context, device, rank, timeout) {
    std::lock_guard<std::mutex> lock(m_);
    if (fd_ < 0)
        return;
    device_->unregisterDescriptor(fd_, this);
    ::close(fd_);
    fd_ = -1;
}

// Closes before the base's destructor runs, because the I/O thread may be in handleReadWrite until then.
ProvenPair::~ProvenPair() {
    std::lock_guard<std::mutex> lock(m_);
    if (state_ != CLOSED)
        changeState(CLOSED);
}

// Probes of an idle connection, so that the kernel always knows when the other side was last heard of.
static void keep_alive(int fd) {
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &one, sizeof one);
}

void ProvenPair::adopt(int fd) {
    std::lock_guard<std::mutex> lock(m_);
    try {
        throwIfException();
        self_ = Address::fromSockName(fd);
        peer_ = Address::fromPeerName(fd);
        keep_alive(fd);
        device_->registerDescriptor(fd, EPOLLIN, this);
    } catch (...) {
        ::close(fd);
        throw;
    }
    fd_ = fd;
    changeState(CONNECTED);
}

void ProvenPair::handleReadWrite(int events) {
    try {
        Pair::handleReadWrite(events);
    } catch (...) { // a message that fits no receive, no memory: nobody above us could catch it
        if (state_ != CLOSED)
            signalException(std::current_exception());
    }
}

bool ProvenPair::is_silent(int64_t limit_ms, int64_t awake_ms) {
    std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
    struct tcp_info info {};
    socklen_t size = sizeof info;
    if (!lock || state_ != CONNECTED || getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
        return false;
    const int64_t heard_ms = std::min<int64_t>(info.tcpi_last_ack_recv, info.tcpi_last_data_recv);
    return std::min(heard_ms, awake_ms) > limit_ms;
}

int ProvenPair::share() {
    std::lock_guard<std::mutex> lock(m_);
    return state_ == CONNECTED ? fcntl(fd_, F_DUPFD_CLOEXEC, 0) : -1;
}

void ProvenPair::give_up(const std::string &why) {
    std::lock_guard<std::mutex> lock(m_);
    if (state_ == CONNECTED)
        signalException(why);
}

} // namespace tess_gloo
