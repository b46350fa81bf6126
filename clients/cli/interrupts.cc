#include "clients/cli/interrupts.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

namespace switchyard {

Interrupts::Interrupts() {
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, &old_mask_);
  signal_fd_ = signalfd(-1, &interrupt, SFD_CLOEXEC | SFD_NONBLOCK);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  thread_ = std::thread([this] { Watch(); });
}

Interrupts::~Interrupts() {
  const uint64_t one = 1;
  if (write(stop_fd_, &one, sizeof(one)) == sizeof(one)) thread_.join();
  close(signal_fd_);
  close(stop_fd_);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

void Interrupts::Handle(std::function<void()> on_interrupt) {
  absl::MutexLock lock(&mu_);
  on_interrupt_ = std::move(on_interrupt);
}

void Interrupts::Watch() {
  pollfd fds[2] = {{signal_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
  for (;;) {
    if (poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    signalfd_siginfo received;
    if (read(signal_fd_, &received, sizeof(received)) != sizeof(received)) continue;
    absl::MutexLock lock(&mu_);
    if (on_interrupt_) on_interrupt_();
  }
}

}  // namespace switchyard
