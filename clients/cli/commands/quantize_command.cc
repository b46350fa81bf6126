// switchyard quantize: becomes the program switchyard-quantize, which lies beside this one.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "clients/cli/command.h"
#include "scheduler/base/flags/quantize_flags.h"

namespace switchyard::cli {
namespace {

// Returns only where it fails.
absl::Status BecomeQuantize(const std::vector<std::string>& flags) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = self.parent_path() / kQuantizeProgram;
  std::vector<char*> arguments = {const_cast<char*>(program.c_str())};
  for (const std::string& flag : flags) arguments.push_back(const_cast<char*>(flag.c_str()));
  arguments.push_back(nullptr);
  execv(program.c_str(), arguments.data());
  return absl::NotFoundError(
      absl::StrCat(program, ": ", std::strerror(errno), "; it is installed beside this program, with the server"));
}

}  // namespace

void AddQuantizeCommand(Command* app) {
  Command* command = app->AddCommand("quantize", "write a checkpoint with its matrices in 8 or 4 bits");
  auto values = std::make_shared<QuantizeFlags>();
  FlagSet* const flags = command->flags();
  AddQuantizeFlags(values.get(), flags);
  command->SetFooter(
      "It writes compressed-tensors (pack-quantized), which this server, vLLM and transformers load; embeddings, "
      "norms, routers and lm_head stay as they are. No server is asked.\n"
      "Example: switchyard quantize --model=MODEL --output=MODEL-int4 --format=int4");
  command->SetRun([values, flags](Console& console) -> absl::StatusOr<int> {
    console.out << std::flush;
    return BecomeQuantize(flags->ArgumentsOf(kOfQuantize));
  });
}

}  // namespace switchyard::cli
