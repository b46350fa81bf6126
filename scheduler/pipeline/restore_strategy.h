// How a MoE layer's backward gets the rows that forward had between its ops.  Plain data.
//
// MPMoE's strategies (scheduler/PAPERS.md) are S1 {kOffload, kOffload}, S2 {kResend, kOffload}, S3 {kOffload,
// kRecompute} and S4 {kResend, kRecompute}.  All give the same bits.
#pragma once

#include <cstdint>

namespace switchyard::pipeline {

enum class InputRestore : uint8_t { kKeep, kOffload, kResend };      // of dispatched rows
enum class HiddenRestore : uint8_t { kKeep, kOffload, kRecompute };  // of rows inside experts

struct RestoreStrategy {
  InputRestore input = InputRestore::kKeep;
  HiddenRestore hidden = HiddenRestore::kKeep;
  bool keeps_all() const { return input == InputRestore::kKeep && hidden == HiddenRestore::kKeep; }
  bool offloads() const { return input == InputRestore::kOffload || hidden == HiddenRestore::kOffload; }
  bool operator==(const RestoreStrategy&) const = default;
};

}  // namespace switchyard::pipeline
