#include "clients/cli/interrupts.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace switchyard::cli {
namespace {

int signal_fd = -1;  // an eventfd: what a signal handler may write to

void OnSignal(int) {
  const int saved = errno;
  eventfd_write(signal_fd, 1);  // a plain write(), allowed in a handler
  errno = saved;
}

}  // namespace

Interrupts::Interrupts() {
  signal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  struct sigaction action = {};
  action.sa_handler = &OnSignal;
  action.sa_flags = SA_RESTART;  // a prompt that waits for a line goes on waiting
  sigaction(SIGINT, &action, &old_action_);
  thread_ = std::thread([this] { Watch(); });
}

Interrupts::~Interrupts() {
  sigaction(SIGINT, &old_action_, nullptr);
  eventfd_write(stop_fd_, 1);
  thread_.join();
  close(signal_fd);
  close(stop_fd_);
}

void Interrupts::Handle(std::function<void()> on_interrupt) {
  absl::MutexLock lock(&mu_);
  on_interrupt_ = std::move(on_interrupt);
}

void Interrupts::Watch() {
  pollfd fds[2] = {{signal_fd, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
  for (;;) {
    if (poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    eventfd_t count = 0;
    if (eventfd_read(signal_fd, &count) != 0) continue;
    absl::MutexLock lock(&mu_);
    if (on_interrupt_) on_interrupt_();
  }
}

}  // namespace switchyard::cli
