/* SPDX-License-Identifier: BSD-3-Clause */
#include "visitor.h"
#include <exception>
#include <future>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace tess_gloo {

Visitor::Visitor(Device &device, int fd) : device_(device), fd_(fd) {}

Visitor::~Visitor() {
    if (fd_ >= 0)
        ::close(fd_);
}

void Visitor::enter() {
    if (fd_ < 0)
        return;
    entered_ = true;
    device_.registerDescriptor(fd_, EPOLLIN, this);
}

// Gloo waits until its thread has gone round once, on a condition that the thread signals without a lock. So the wait
// orders nothing in the memory model: the lock does.
void Visitor::leave() {
    if (!entered_)
        return;
    entered_ = false;
    try {
        device_.unregisterDescriptor(fd_, this);
    } catch (const std::exception &) { // then it was not registered
    }
    std::lock_guard<std::mutex> lock(turn_);
}

uint64_t Visitor::read_count() {
    uint64_t count = 0;
    return ::read(fd_, &count, sizeof count) == sizeof count ? count : 0;
}

void Visitor::take_turn() {
    std::lock_guard<std::mutex> lock(turn_);
    turn();
}

namespace {

class Call final : public Visitor {
  public:
    Call(Device &device, const std::function<void()> &call)
        : Visitor(device, eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)), call_(call) {}
    ~Call() override { leave(); }

    void run() {
        if (fd() < 0)
            throw std::bad_alloc();
        std::future<void> ended = ended_.get_future();
        enter();
        ended.wait();
        leave();
        ended.get();
    }

  private:
    void turn() override {
        if (read_count() == 0)
            return; // the call has run already
        try {
            call_();
            ended_.set_value();
        } catch (...) {
            ended_.set_exception(std::current_exception());
        }
    }

    const std::function<void()> &call_;
    std::promise<void> ended_;
};

} // namespace

void on_loop(gloo::transport::tcp::Device &device, const std::function<void()> &call) {
    Call(device, call).run();
}

} // namespace tess_gloo
