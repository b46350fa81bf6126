// Atomics.  Blocks of other ranks' devices may run at the same time on other OS threads, so these are atomic for all of
// the process.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace cuda_emulation {

template <class Value, class Function>
Value AtomicUpdate(Value* address, Function function) {
  std::atomic_ref<Value> cell(*address);
  Value old = cell.load();
  while (!cell.compare_exchange_weak(old, function(old))) {
  }
  return old;
}

// The types CUDA has atomics for; a `long` would not compile there.
template <class Value>
concept AtomicInteger = std::is_same_v<Value, int> || std::is_same_v<Value, unsigned> ||
    std::is_same_v<Value, unsigned long long> || std::is_same_v<Value, long long>;
template <class Value>
concept AtomicAddend = std::is_same_v<Value, int> || std::is_same_v<Value, unsigned> ||
    std::is_same_v<Value, unsigned long long> || std::is_same_v<Value, float> || std::is_same_v<Value, double>;

}  // namespace cuda_emulation

template <cuda_emulation::AtomicAddend Value>
inline Value atomicAdd(Value* address, std::type_identity_t<Value> value) {
  return cuda_emulation::AtomicUpdate(address, [=](Value old) { return static_cast<Value>(old + value); });
}
template <class Value>
requires(std::is_same_v<Value, int> || std::is_same_v<Value, unsigned>) inline Value
    atomicSub(Value* address, std::type_identity_t<Value> value) {
  return cuda_emulation::AtomicUpdate(address, [=](Value old) { return static_cast<Value>(old - value); });
}
template <cuda_emulation::AtomicInteger Value>
inline Value atomicMax(Value* address, std::type_identity_t<Value> value) {
  return cuda_emulation::AtomicUpdate(address, [=](Value old) { return old < value ? value : old; });
}
template <cuda_emulation::AtomicInteger Value>
inline Value atomicMin(Value* address, std::type_identity_t<Value> value) {
  return cuda_emulation::AtomicUpdate(address, [=](Value old) { return value < old ? value : old; });
}
template <cuda_emulation::AtomicInteger Value>
inline Value atomicAnd(Value* address, std::type_identity_t<Value> value) {
  return cuda_emulation::AtomicUpdate(address, [=](Value old) { return static_cast<Value>(old & value); });
}
template <cuda_emulation::AtomicInteger Value>
inline Value atomicOr(Value* address, std::type_identity_t<Value> value) {
  return cuda_emulation::AtomicUpdate(address, [=](Value old) { return static_cast<Value>(old | value); });
}
template <cuda_emulation::AtomicInteger Value>
inline Value atomicXor(Value* address, std::type_identity_t<Value> value) {
  return cuda_emulation::AtomicUpdate(address, [=](Value old) { return static_cast<Value>(old ^ value); });
}
template <class Value>
requires(cuda_emulation::AtomicInteger<Value> || std::is_same_v<Value, float>) inline Value
    atomicExch(Value* address, std::type_identity_t<Value> value) {
  return cuda_emulation::AtomicUpdate(address, [=](Value) { return value; });
}
template <class Value>
requires(cuda_emulation::AtomicInteger<Value> || std::is_same_v<Value, unsigned short>) inline Value
    atomicCAS(Value* address, std::type_identity_t<Value> compare, std::type_identity_t<Value> value) {
  std::atomic_ref<Value> cell(*address);
  Value old = compare;
  cell.compare_exchange_strong(old, value);
  return old;
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return cuda_emulation::AtomicUpdate(address, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}
inline unsigned atomicDec(unsigned* address, unsigned limit) {
  return cuda_emulation::AtomicUpdate(address, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}
