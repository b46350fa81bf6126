// Illegal addresses: SIGSEGV in a CUDA thread becomes cudaErrorIllegalAddress; elsewhere it kills the process, after a
// line that describes the address.
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "cuda_emulation/runtime_api.h"
#include "tests/cuda_emulation/allocations.h"
#include "tests/cuda_emulation/block_runner.h"

namespace cuda_emulation {
namespace {

constexpr size_t kSignalStackBytes = 64 << 10;

thread_local const void* fault_address = nullptr;
alignas(16) thread_local char emergency_stack[32 << 10];

std::string DescribeFault(const void* address, bool in_kernel) {
  BlockRunner& runner = BlockRunner::OfThisThread();
  if (in_kernel && IsStackOverflow(*runner.current().fiber, address)) return "stack overflow";
  if (in_kernel && runner.IsGuardOfShared(address)) {
    return "address past the end of the " + std::to_string(runner.shared_bytes()) + " bytes of dynamic shared memory";
  }
  return "illegal address: " + DescribeAddress(address);
}

// Where the handler sends a CUDA thread: no longer in the signal, on a stack that has not overflowed.
[[noreturn]] void LeaveKernel() {
  const std::string text = DescribeFault(fault_address, true);
  BlockRunner::OfThisThread().Fault(cudaErrorIllegalAddress, text);
}

void OnSignal(int number, siginfo_t* what, void* context) {
  const bool in_kernel = BlockRunner::OfThisThread().running();
#if defined(__x86_64__)
  if (in_kernel) {
    fault_address = what->si_addr;
    auto* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    registers[REG_RIP] = reinterpret_cast<greg_t>(&LeaveKernel);
    registers[REG_RSP] = reinterpret_cast<greg_t>(emergency_stack + sizeof emergency_stack - 8);
    return;
  }
#endif
  const std::string text = "cuda_emulation: host code: " + DescribeFault(what->si_addr, in_kernel) + "\n";
  if (write(2, text.data(), text.size()) < 0) std::abort();
  signal(number, SIG_DFL);  // the instruction is tried again, and kills
}

// The signal stack of an OS thread.
struct SignalStack {
  void* memory = nullptr;
  SignalStack() {
    stack_t old{};
    if (sigaltstack(nullptr, &old) == 0 && !(old.ss_flags & SS_DISABLE)) return;
    memory = mmap(nullptr, kSignalStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t stack{};
    stack.ss_sp = memory;
    stack.ss_size = kSignalStackBytes;
    if (memory == MAP_FAILED || sigaltstack(&stack, nullptr) != 0) std::abort();
  }
  ~SignalStack() {
    if (memory == nullptr) return;
    stack_t off{};
    off.ss_flags = SS_DISABLE;
    sigaltstack(&off, nullptr);
    munmap(memory, kSignalStackBytes);
  }
};

bool InstallHandler() {
  struct sigaction action {};
  action.sa_sigaction = &OnSignal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  return sigaction(SIGSEGV, &action, nullptr) == 0 && sigaction(SIGBUS, &action, nullptr) == 0;
}

}  // namespace

void CatchFaults() {
  static const bool installed = InstallHandler();
  thread_local SignalStack stack;
  if (!installed || stack.memory == MAP_FAILED) std::abort();
}

}  // namespace cuda_emulation
