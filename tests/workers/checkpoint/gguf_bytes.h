// Writes GGUF files for tests, sound ones and others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/base/gguf/gguf_header.h"

namespace switchyard::checkpoint {

// A number as little-endian bytes, a text behind its length.
std::string GgufU32(uint32_t value);
std::string GgufU64(uint64_t value);
std::string GgufText(const std::string& text);

// A key with its value; `value` is behind the type, as the file has it.
std::string GgufKey(const std::string& key, GgufValueType type, const std::string& value);
std::string GgufU32Key(const std::string& key, uint32_t value);
std::string GgufF32Key(const std::string& key, float value);
std::string GgufTextKey(const std::string& key, const std::string& value);
// `elements` are as the file has them.
std::string GgufArrayKey(const std::string& key, GgufValueType type, uint64_t size, const std::string& elements);

// A row of the table, dimensions outermost first.
std::string GgufRow(const std::string& name, const std::vector<int64_t>& shape, uint32_t type, uint64_t offset);

// A file of what is given: counts from the lists' sizes, data behind the table, aligned.
struct GgufParts {
  uint32_t version = 3;
  std::vector<std::string> keys = {};
  std::vector<std::string> rows = {};
  std::string data = {};
  int64_t alignment = 32;  // of the data; says nothing of it in the file
};
std::string GgufBytes(const GgufParts& parts);

}  // namespace switchyard::checkpoint
