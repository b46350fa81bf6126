// How fast training text becomes packed tokens: documents of this tree's own sources and pages, packed with the demo
// model's tokenizer by one thread and by several.  usage: pack_bench [FILE.jsonl]   (without: made of the sources)
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/base/cores.h"
#include "server/jobs/pack/packer.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBytes = 24 << 20;

// A line for each source file, again and again.
void WriteSources(const fs::path& to) {
  std::string lines;
  for (const char* root : {"server", "workers", "scheduler", "clients"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      if (!entry.is_regular_file()) continue;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      lines +=
          nlohmann::json({{"text", text.str()}}).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    }
  }
  std::ofstream out(to);
  for (int64_t bytes = 0; bytes < kBytes; bytes += static_cast<int64_t>(lines.size())) out << lines;
}

int Main(int argc, char** argv) {
  const fs::path dir = fs::temp_directory_path() / "switchyard-pack-bench";
  fs::remove_all(dir);
  fs::create_directories(dir);
  if (argc > 1) {
    fs::copy_file(argv[1], dir / "in.jsonl");
  } else {
    WriteSources(dir / "in.jsonl");
  }
  nlohmann::ordered_json json;
  for (const int threads : {1, UsableCores()}) {
    server::Packer packer({.dataset_root = dir.string(), .checkpoint_root = "deploy", .num_threads = threads});
    const auto start = std::chrono::steady_clock::now();
    const absl::StatusOr<server::PackedData> packed =
        packer.Pack({.inputs = {"in.jsonl"}, .output = "out.bin", .replace = true, .tokenizer = "demo-model"},
                    [](int64_t, int64_t) { return true; });
    if (!packed.ok()) {
      std::cerr << packed.status() << "\n";
      return 1;
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double tokens = static_cast<double>(packed->tokens) / seconds;
    std::printf("%d threads: %ld documents, %.1f MB, %.2f s: %.0f tokens/s, %.1f MB/s\n", threads,
                static_cast<long>(packed->documents), 1e-6 * static_cast<double>(packed->bytes), seconds, tokens,
                1e-6 * static_cast<double>(packed->bytes) / seconds);
    json[absl::StrCat("pack_tokens_per_second_", threads)] = tokens;
  }
  std::cout << json.dump() << std::endl;
  fs::remove_all(dir);
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
