// The goldens of tests/golden/tokenizer as unpacked by the build: archives of text and JSON lines.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace switchyard::tokenizer {

// Returns the file's content; fails the test if it does not exist.
std::string ReadGolden(const std::string& path);
std::vector<nlohmann::json> ReadGoldenLines(const std::string& path);
// Returns the tokenizer.json of a kind: its own file, or another's with a JSON merge patch.
std::string KindJson(const std::string& kind);

}  // namespace switchyard::tokenizer
