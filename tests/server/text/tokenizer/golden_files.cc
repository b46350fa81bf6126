#include "tests/server/text/tokenizer/golden_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace switchyard::tokenizer {

std::string ReadGolden(const std::string& path) {
  std::ifstream file(std::string(SY_TOKENIZER_GOLDEN_DIR "/") + path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path << " is missing";
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<nlohmann::json> ReadGoldenLines(const std::string& path) {
  std::istringstream file(ReadGolden(path));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::string KindJson(const std::string& kind) {
  if (!std::filesystem::exists(std::string(SY_TOKENIZER_GOLDEN_DIR "/") + kind + "/patch.json")) {
    return ReadGolden(kind + "/tokenizer.json");
  }
  auto json = nlohmann::json::parse(ReadGolden(ReadGolden(kind + "/base.txt") + "/tokenizer.json"));
  json.merge_patch(nlohmann::json::parse(ReadGolden(kind + "/patch.json")));
  return json.dump();
}

}  // namespace switchyard::tokenizer
