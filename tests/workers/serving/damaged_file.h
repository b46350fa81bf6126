// Expert files whose bytes change while they are open.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace switchyard::test {

// Flips a bit in each page of the experts in the folder's files.
inline void DamageExpertFiles(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".pack") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (int64_t at = 8192 + 100; at < static_cast<int64_t>(entry.file_size()); at += 4096) {
      file.seekg(at);
      const char flipped = static_cast<char>(file.get() ^ 64);
      file.seekp(at);
      file.put(flipped);
    }
    ASSERT_TRUE(file.good());
  }
}

}  // namespace switchyard::test
