// Fibers: stacks that an OS thread changes between by itself.  A fiber stays on the OS thread that started it.
//
// Thread-compatible; the pool of stacks belongs to the OS thread and is handed on when that ends.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuda_emulation {

inline constexpr size_t kFiberStackBytes = 128 << 10;  // below it an inaccessible page

struct Fiber {
  void* stack_pointer = nullptr;  // where it continues
  char* stack = nullptr;          // [kFiberStackBytes]
  void* context = nullptr;        // of the portable version: its ucontext_t
  Fiber* next = nullptr;          // in the pool
};

// A fiber that will call `entry`, which must not return.  Uses a stack that was given back, if there is one.
Fiber* TakeFiber(void (*entry)());
void GiveBackFiber(Fiber* fiber);  // also the running one, if it does nothing but switch away after it

// Continues `to`; returns when a fiber switches back to `from`.  `from` may be a Fiber without stack: the OS thread's
// own.
void SwitchFiber(Fiber* from, Fiber* to);

// True if `address` is in the page below one of this OS thread's stacks.
bool IsStackOverflow(const Fiber& fiber, const void* address);

}  // namespace cuda_emulation
