// The goldens of tests/golden/tokenizer as unpacked by the build: archives of text and JSON lines.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace switchyard::tokenizer {

// The file's content; fails the test if there is none.
std::string ReadGolden(const std::string& path);
std::vector<nlohmann::json> ReadGoldenLines(const std::string& path);
// The tokenizer.json of a kind: its own, or another's with a JSON merge patch.
std::string KindJson(const std::string& kind);

}  // namespace switchyard::tokenizer
