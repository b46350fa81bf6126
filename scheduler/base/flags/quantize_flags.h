// The flags of `switchyard quantize` and of switchyard-quantize, the program that it becomes.  Plain data.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/base/flags/flag_set.h"

namespace switchyard {

struct QuantizeFlags {
  std::string model, output, format;
  int32_t group_size = 32;
  std::string dataset;
  int32_t samples = 128;
  int32_t sequence = 0;
  std::string dtype = "auto";
  int32_t threads = 0;
};

// Marks all of them with kOfQuantize.
void AddQuantizeFlags(QuantizeFlags* values, FlagSet* flags);
inline constexpr uint32_t kOfQuantize = 1;

inline constexpr char kQuantizeProgram[] = "switchyard-quantize";

}  // namespace switchyard
