// switchyard data: packs the data that training jobs read.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "clients/cli/command.h"
#include "clients/cli/json.h"
#include "clients/cli/message_json.h"
#include "clients/cpp/client.h"
#include "scheduler/base/status_macros.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::cli {
namespace {

struct PackFlags {
  ServerFlags server = {.server = kAdminServer};
  std::vector<std::string> inputs;
  std::string output, tokenizer;
  bool json = false;
};

absl::StatusOr<int> Pack(Console& console, const PackFlags& flags) {
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  v1::PackDataRequest request;
  for (const std::string& input : flags.inputs) request.add_inputs(input);
  request.set_output(flags.output);
  request.set_tokenizer(flags.tokenizer);
  int reported = -1;
  const auto show = [&](const v1::PackDataResponse& message) {
    if (message.bytes_total() <= 0) return;
    const int percent = static_cast<int>(100.0 * static_cast<double>(message.bytes_done()) /
                                         static_cast<double>(message.bytes_total()));
    // Where lines cannot be overwritten, prints one for each tenth.
    const int step = console.live ? percent : percent / 10 * 10;
    if (std::exchange(reported, step) == step) return;
    console.err << (console.live ? "\r" : "") << "[packed " << step << " % of " << message.bytes_total() << " bytes]"
                << (console.live && percent < 100 ? "" : "\n") << std::flush;
  };
  const absl::StatusOr<v1::PackDataResponse> packed = client->PackData(request, show);
  if (console.live && reported >= 0 && reported < 100) console.err << std::endl;
  if (!packed.ok()) return packed.status();
  if (flags.json) {
    console.out << Dump(ToJson(*packed)) << std::endl;
  } else {
    console.out << absl::StreamFormat("%s: %d documents, %d tokens, %d of them trained\n", flags.output,
                                      packed->documents(), packed->tokens(), packed->trained_tokens())
                << std::flush;
  }
  return kExitOk;
}

}  // namespace

void AddDataCommand(Command* app) {
  Command* data = app->AddCommand("data", "prepare the data that training jobs read");
  Command* command =
      data->AddCommand("pack", "pack text files of the server's dataset root into a file of tokens there");
  auto flags = std::make_shared<PackFlags>();
  flags->server.timeout_seconds = 86400;
  command->flags()->BeginGroup("Files");
  command->flags()
      ->AddPositional("inputs", &flags->inputs, "the .jsonl files, relative to the dataset root")
      .Required();
  command->flags()
      ->Add("output=FILE", &flags->output,
            "the .bin file to write, also relative to the dataset root; it must not exist")
      .Required();
  command->flags()->Add("tokenizer=FOLDER", &flags->tokenizer,
                        "a folder of the checkpoint root with a tokenizer (default: the served model's)");
  command->flags()->Add("json", &flags->json, "print one line of JSON");
  flags->server.AddTo(command->flags());
  command->SetFooter(
      "A line of a .jsonl file is an object with one of: \"text\" (all of it is trained), \"prompt\" and "
      "\"completion\" (the completion is), \"messages\" (what the assistant says is), \"chosen\" and \"rejected\" with "
      "their \"prompt\" (both answers are; all lines of all files are such pairs, or none is).\n"
      "Example: switchyard data pack web.jsonl books.jsonl --output=train.bin");
  command->SetRun([flags](Console& console) { return Pack(console, *flags); });
}

}  // namespace switchyard::cli
