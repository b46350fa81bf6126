// switchyard data: what training jobs read.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "clients/cli/command.h"
#include "clients/cli/message_json.h"

namespace switchyard {
namespace {

struct PackFlags {
  ServerFlags server;
  std::vector<std::string> inputs;
  std::string output, tokenizer;
  bool json = false;
};

int Pack(Console& console, const PackFlags& flags) {
  const auto client = flags.server.Connect();
  if (!client.ok()) return Complain(console, client.status());
  v1::PackDataRequest request;
  for (const std::string& input : flags.inputs) request.add_inputs(input);
  request.set_output(flags.output);
  request.set_tokenizer(flags.tokenizer);
  int told = -1;
  const auto tell = [&](const v1::PackDataResponse& message) {
    if (message.bytes_total() <= 0) return;
    const int percent = static_cast<int>(100.0 * static_cast<double>(message.bytes_done()) /
                                         static_cast<double>(message.bytes_total()));
    // A line for each tenth where lines stay.
    const int step = console.live ? percent : percent / 10 * 10;
    if (std::exchange(told, step) == step) return;
    console.err << (console.live ? "\r" : "") << "[packed " << step << " % of " << message.bytes_total() << " bytes]"
                << (console.live && percent < 100 ? "" : "\n") << std::flush;
  };
  const absl::StatusOr<v1::PackDataResponse> packed = (*client)->PackData(request, tell);
  if (console.live && told >= 0 && told < 100) console.err << std::endl;
  if (!packed.ok()) return Complain(console, packed.status());
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

void AddDataCommand(CLI::App* app, RunCommand* run) {
  CLI::App* data = app->add_subcommand("data", "what training jobs read");
  data->require_subcommand(1);
  CLI::App* command = data->add_subcommand("pack", "text files of the server's dataset root as packed tokens, there");
  auto flags = std::make_shared<PackFlags>();
  flags->server.timeout_seconds = 86400;
  flags->server.AddTo(command);
  command->add_option("inputs", flags->inputs, "the .jsonl files, relative to the dataset root")
      ->required()
      ->type_name("FILE");
  command->add_option("--output", flags->output, "the .bin file, likewise; it must not be there yet")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--tokenizer", flags->tokenizer,
                   "a folder of the checkpoint root with a tokenizer; default: the served model's")
      ->type_name("FOLDER");
  command->add_flag("--json", flags->json, "one line of JSON");
  command->footer(
      "A line of a .jsonl file is an object with one of: \"text\" (all of it is trained), \"prompt\" and "
      "\"completion\"\n"
      "(the completion is), \"messages\" (what the assistant says is).\n"
      "Example: switchyard data pack web.jsonl books.jsonl --output=train.bin");
  command->callback([flags, run] { *run = [flags](Console& console) { return Pack(console, *flags); }; });
}

}  // namespace switchyard
