#include "tests/workers/checkpoint/gguf_bytes.h"

#include <cstring>

namespace switchyard::checkpoint {
namespace {

template <class Value>
std::string Raw(Value value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

}  // namespace

std::string GgufU32(uint32_t value) { return Raw(value); }

std::string GgufU64(uint64_t value) { return Raw(value); }

std::string GgufText(const std::string& text) { return GgufU64(text.size()) + text; }

std::string GgufKey(const std::string& key, GgufValueType type, const std::string& value) {
  return GgufText(key) + GgufU32(static_cast<uint32_t>(type)) + value;
}

std::string GgufU32Key(const std::string& key, uint32_t value) {
  return GgufKey(key, GgufValueType::kUint32, GgufU32(value));
}

std::string GgufF32Key(const std::string& key, float value) {
  return GgufKey(key, GgufValueType::kFloat32, Raw(value));
}

std::string GgufTextKey(const std::string& key, const std::string& value) {
  return GgufKey(key, GgufValueType::kString, GgufText(value));
}

std::string GgufArrayKey(const std::string& key, GgufValueType type, uint64_t size, const std::string& elements) {
  return GgufKey(key, GgufValueType::kArray, GgufU32(static_cast<uint32_t>(type)) + GgufU64(size) + elements);
}

std::string GgufRow(const std::string& name, const std::vector<int64_t>& shape, uint32_t type, uint64_t offset) {
  std::string row = GgufText(name) + GgufU32(static_cast<uint32_t>(shape.size()));
  for (auto dim = shape.rbegin(); dim != shape.rend(); ++dim) row += GgufU64(static_cast<uint64_t>(*dim));
  return row + GgufU32(type) + GgufU64(offset);
}

std::string GgufBytes(const GgufParts& parts) {
  std::string file = "GGUF" + GgufU32(parts.version) + GgufU64(parts.rows.size()) + GgufU64(parts.keys.size());
  for (const std::string& key : parts.keys) file += key;
  for (const std::string& row : parts.rows) file += row;
  while (static_cast<int64_t>(file.size()) % parts.alignment != 0) file += '\0';
  return file + parts.data;
}

}  // namespace switchyard::checkpoint
