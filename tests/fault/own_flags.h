// Flags of a test program's own, beside GoogleTest's.
#pragma once

#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace switchyard {

// Reads the value of a flag; false: it is wrong.
using ReadFlag = std::function<bool(absl::string_view value)>;

inline ReadFlag NumberFrom(int least, int* number) {
  return [=](absl::string_view value) { return absl::SimpleAtoi(value, number) && *number >= least; };
}
inline ReadFlag Seed(uint64_t* seed) {
  return [=](absl::string_view value) { return absl::SimpleAtoi(value, seed); };
}

// Reads the flags, whose names are those of `flags` ("--kills="), and runs the tests.  Returns main's result: 2 if a
// flag is unknown or wrong.
inline int RunWithFlags(int argc, char** argv, const std::map<std::string, ReadFlag>& flags) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    bool known = false;
    for (const auto& [name, read] : flags) {
      absl::string_view value = argv[i];
      if (absl::ConsumePrefix(&value, name)) known = read(value);
    }
    if (known) continue;
    std::cerr << "unknown or wrong: " << argv[i] << "; flags:";
    for (const auto& [name, read] : flags) std::cerr << " " << name;
    std::cerr << "\n";
    return 2;
  }
  return RUN_ALL_TESTS();
}

}  // namespace switchyard
