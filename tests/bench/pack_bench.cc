// How fast training text becomes packed tokens: documents of this tree's own sources and pages, packed with the demo
// model's tokenizer by one thread and by several, which must write the same bytes.
// usage: pack_bench [--quick] [FILE.jsonl]   (without a file: made of the sources; --quick: of each once)
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/cores.h"
#include "server/jobs/pack/packer.h"
#include "tests/bench/measured_on.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBytes = 24 << 20, kQuickBytes = 1;

// A folder of this run alone, removed at its end.
class RunFolder {
 public:
  RunFolder() : path_((fs::temp_directory_path() / "switchyard-pack-bench-XXXXXX").string()) {
    if (mkdtemp(path_.data()) != nullptr) return;
    std::perror(path_.c_str());
    std::exit(1);
  }
  ~RunFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return absl::StrCat(path_, "/", name); }

 private:
  std::string path_;
};

// A line for each source file, again and again.
void WriteSources(const std::string& to, int64_t least_bytes) {
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
  for (int64_t bytes = 0; bytes < least_bytes; bytes += static_cast<int64_t>(lines.size())) out << lines;
}

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Returns the program's exit status.
int PackWith(int threads, const RunFolder& folder, std::string* first_output, nlohmann::ordered_json* json) {
  server::Packer packer({.dataset_root = folder.path(), .checkpoint_root = "deploy", .num_threads = threads});
  const auto start = std::chrono::steady_clock::now();
  const absl::StatusOr<server::PackedData> packed =
      packer.Pack({.inputs = {"in.jsonl"}, .output = "out.bin", .replace = true, .tokenizer = "demo-model"},
                  [](int64_t, int64_t) { return true; });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!packed.ok()) {
    std::cerr << packed.status() << "\n";
    return 1;
  }
  const std::string output = BytesOf(folder.File("out.bin"));
  if (first_output->empty()) *first_output = output;
  if (output.empty() || output != *first_output) {
    std::cerr << "pack_bench: " << threads << " threads write other bytes than one\n";
    return 1;
  }
  const double tokens = static_cast<double>(packed->tokens) / seconds;
  std::printf("%d threads: %ld documents, %.1f MB, %.2f s: %.0f tokens/s, %.1f MB/s\n", threads,
              static_cast<long>(packed->documents), 1e-6 * static_cast<double>(packed->bytes), seconds, tokens,
              1e-6 * static_cast<double>(packed->bytes) / seconds);
  (*json)[absl::StrCat("pack_tokens_per_second_", threads)] = tokens;
  return 0;
}

int Main(int argc, char** argv) {
  bool quick = false;
  std::string input;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--quick") {
      quick = true;
    } else if (input.empty() && !absl::StartsWith(arg, "--")) {
      input = arg;
    } else {
      std::cerr << "pack_bench: cannot take " << arg << "; usage: pack_bench [--quick] [FILE.jsonl]\n";
      return 2;
    }
  }
  const double load = bench::LoadAverage();
  const RunFolder folder;
  std::error_code failed;
  if (input.empty()) {
    WriteSources(folder.File("in.jsonl"), quick ? kQuickBytes : kBytes);
  } else if (!fs::copy_file(input, folder.File("in.jsonl"), failed)) {
    std::cerr << "pack_bench: " << input << ": " << failed.message() << "\n";
    return 1;
  }
  nlohmann::ordered_json json;
  json["benchmark"] = "pack";
  std::string output;
  for (const int threads : {1, UsableCores()}) {
    if (const int status = PackWith(threads, folder, &output, &json); status != 0) return status;
  }
  json["quick"] = quick;
  json["load"] = {load, bench::LoadAverage()};
  json["commit"] = bench::Commit();
  json["processor"] = bench::Processor();
  std::cout << json.dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
