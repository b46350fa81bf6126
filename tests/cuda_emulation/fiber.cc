#include "tests/cuda_emulation/fiber.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace cuda_emulation {
namespace {

constexpr size_t kPage = 4096;

// Stacks of OS threads that ended.
std::mutex shared_mu;
Fiber* shared_pool = nullptr;

struct Pool {
  Fiber* first = nullptr;
  ~Pool() {
    std::lock_guard lock(shared_mu);
    while (first != nullptr) {
      Fiber* fiber = first;
      first = fiber->next;
      fiber->next = shared_pool;
      shared_pool = fiber;
    }
  }
};
thread_local Pool pool;

Fiber* NewFiber() {
  void* memory = mmap(nullptr, kPage + kFiberStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kPage, PROT_NONE) != 0) std::abort();
  auto* fiber = new Fiber;
  fiber->stack = static_cast<char*>(memory) + kPage;
  return fiber;
}

}  // namespace

#if defined(__x86_64__)
// The callee-saved registers go on the old stack and come from the new one; a new fiber's frame is made by Prepare.
extern "C" void CudaEmulationSwitch(void** save, void* load);
asm(R"(
.text
.p2align 4
.globl CudaEmulationSwitch
.hidden CudaEmulationSwitch
.type CudaEmulationSwitch, @function
CudaEmulationSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size CudaEmulationSwitch, .-CudaEmulationSwitch
)");

static void Prepare(Fiber* fiber, void (*entry)()) {
  auto* top = reinterpret_cast<void**>(fiber->stack + kFiberStackBytes);
  top[-1] = nullptr;  // entry's return address: it never returns
  top[-2] = reinterpret_cast<void*>(entry);
  for (int i = 3; i <= 8; ++i) top[-i] = nullptr;
  fiber->stack_pointer = top - 8;
}

static void Jump(Fiber* from, Fiber* to) { CudaEmulationSwitch(&from->stack_pointer, to->stack_pointer); }
#else
static ucontext_t* Context(Fiber* fiber) {
  if (fiber->context == nullptr) fiber->context = new ucontext_t;
  return static_cast<ucontext_t*>(fiber->context);
}

static void Prepare(Fiber* fiber, void (*entry)()) {
  ucontext_t* context = Context(fiber);
  getcontext(context);
  context->uc_stack.ss_sp = fiber->stack;
  context->uc_stack.ss_size = kFiberStackBytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}

static void Jump(Fiber* from, Fiber* to) { swapcontext(Context(from), Context(to)); }
#endif

Fiber* TakeFiber(void (*entry)()) {
  Fiber* fiber = pool.first;
  if (fiber != nullptr) {
    pool.first = fiber->next;
  } else {
    {
      std::lock_guard lock(shared_mu);
      fiber = shared_pool;
      if (fiber != nullptr) shared_pool = fiber->next;
    }
    if (fiber == nullptr) fiber = NewFiber();
  }
  Prepare(fiber, entry);
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(fiber->stack, kFiberStackBytes);
#endif
  return fiber;
}

void GiveBackFiber(Fiber* fiber) {
  fiber->next = pool.first;
  pool.first = fiber;
}

void SwitchFiber(Fiber* from, Fiber* to) { Jump(from, to); }

bool IsStackOverflow(const Fiber& fiber, const void* address) {
  const char* byte = static_cast<const char*>(address);
  return fiber.stack != nullptr && byte >= fiber.stack - kPage && byte < fiber.stack;
}

}  // namespace cuda_emulation
