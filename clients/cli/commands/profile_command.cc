// switchyard profile: makes the file for --profile, which describes a model's routing before it serves.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "clients/cli/command.h"
#include "clients/cli/commands/trace_record.h"
#include "clients/cli/json.h"
#include "clients/cli/whole_file.h"
#include "clients/cpp/client.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/popularity/popularity.h"
#include "scheduler/popularity/profile_bundle.h"
#include "scheduler/popularity/trace/trace_profile.h"
#include "switchyard/v1/admin.pb.h"

namespace switchyard::cli {
namespace {

struct MakeFlags {
  RecordFlags record;
  std::string trace;
  std::string output;
  int path_length = popularity::kLivePathLength;
};

struct SaveFlags {
  ServerFlags server = {.server = kAdminServer};
  std::string output;
  std::string weights_hash;
};

struct MergeFlags {
  std::vector<std::string> inputs;
  std::string output;
};

absl::StatusOr<popularity::ProfileBundle> ReadBundle(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(path));
  absl::StatusOr<popularity::ProfileBundle> bundle = popularity::ProfileBundle::Parse(bytes);
  return bundle.ok() ? std::move(bundle) : RefuseFile(path, bundle.status().message());
}

absl::StatusOr<int> Write(Console& console, const popularity::ProfileBundle& bundle, const std::string& path) {
  RETURN_IF_ERROR(WriteWhole(path, bundle.Serialize()));
  console.err << "[" << path << ": " << bundle.profiles.size() << " profiles, " << bundle.maps.size() << " probe maps]"
              << std::endl;
  return kExitOk;
}

absl::StatusOr<int> CountInto(Console& console, const std::string& trace_path, const MakeFlags& flags) {
  ASSIGN_OR_RETURN(const popularity::RoutingTrace trace, ReadTrace(console, trace_path));
  const absl::StatusOr<popularity::ProfileBundle> bundle = popularity::CountTrace(trace, flags.path_length);
  if (!bundle.ok()) return BadInput(bundle.status().message());
  if (bundle->profiles.empty()) return BadInput("no token was routed: nothing to count");
  return Write(console, *bundle, flags.output);
}

// Refuses flags of recording beside --trace, as an existing trace is counted as it is.
absl::Status CheckAlone(const RecordFlags& record) {
  ASSIGN_OR_RETURN(const Json given, record.request.Given());
  std::string flag = given.empty() ? "" : given.begin().key();
  if (!record.input.empty()) flag = "dataset";
  if (!record.label.empty()) flag = "label";
  if (record.window != 0) flag = "window";
  if (flag.empty()) return absl::OkStatus();
  return BadInput(absl::StrCat("--", flag, " has no effect with --trace, which counts a trace as it is"));
}

absl::StatusOr<int> Make(Console& console, MakeFlags flags) {
  if (flags.output.empty()) return BadInput("give --output=FILE");
  if (!flags.trace.empty()) {
    RETURN_IF_ERROR(CheckAlone(flags.record));
    return CountInto(console, flags.trace, flags);
  }
  flags.record.output = absl::StrCat(flags.output, ".", getpid(), ".trace");
  const absl::Cleanup remove = [&] { std::remove(flags.record.output.c_str()); };
  const int code = ExitCodeOf(console, RecordTrace(console, flags.record));
  if (access(flags.record.output.c_str(), F_OK) != 0) return code;  // nothing was recorded
  const int counted = ExitCodeOf(console, CountInto(console, flags.record.output, flags));
  return code != kExitOk ? code : counted;
}

absl::StatusOr<int> Save(Console& console, const SaveFlags& flags) {
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  v1::GetProfileRequest request;
  request.set_weights_hash(flags.weights_hash);
  int reported = -1;
  const auto show = [&](const v1::GetProfileResponse& message) {
    if (message.workers() == 0 || message.workers_done() == reported) return;
    reported = message.workers_done();
    console.err << "[asking worker " << reported << " of " << message.workers() << ", " << message.collected_bytes()
                << " bytes so far]" << std::endl;
  };
  ASSIGN_OR_RETURN(const std::string bytes, client->GetProfile(request, show));
  ASSIGN_OR_RETURN(const popularity::ProfileBundle bundle, popularity::ProfileBundle::Parse(bytes));
  return Write(console, bundle, flags.output);
}

absl::StatusOr<int> Merge(Console& console, const MergeFlags& flags) {
  ASSIGN_OR_RETURN(popularity::ProfileBundle merged, ReadBundle(flags.inputs[0]));
  for (size_t i = 1; i < flags.inputs.size(); ++i) {
    ASSIGN_OR_RETURN(const popularity::ProfileBundle next, ReadBundle(flags.inputs[i]));
    if (const absl::Status status = merged.Merge(next); !status.ok())
      return RefuseFile(flags.inputs[i], status.message());
  }
  return Write(console, merged, flags.output);
}

void PrintProfile(const popularity::PathProfile& profile, std::ostream& out) {
  const popularity::ProfileIdentity& identity = profile.identity();
  out << popularity::NameOf(identity.phase) << ", " << popularity::NameOf(identity.context)
      << (identity.channel.empty() ? "" : absl::StrCat(" by ", identity.channel))
      << (identity.context == popularity::ContextKind::kPath ? absl::StrCat(" of ", identity.path_length, " layers")
                                                             : "")
      << ":\n";
  for (int layer = 0; layer < identity.shape.num_layers; ++layer) {
    const absl::Span<const int64_t> counts = profile.MarginalCounts(layer);
    const int64_t all = std::max<int64_t>(1, popularity::TotalOf(counts)),
                  most = *std::max_element(counts.begin(), counts.end());
    out << absl::StrFormat("  layer %d: %d tokens, %d contexts, busiest expert %d at %.2f times the mean\n", layer,
                           profile.num_tokens(layer), profile.num_rows(layer), popularity::TopExperts(counts, 1)[0],
                           static_cast<double>(most) * identity.shape.num_experts / static_cast<double>(all));
  }
}

absl::StatusOr<int> ShowProfile(Console& console, const std::string& path) {
  ASSIGN_OR_RETURN(const popularity::ProfileBundle bundle, ReadBundle(path));
  console.out << "model: " << bundle.model << "\n"
              << bundle.shape.num_layers << " MoE layers, " << bundle.shape.num_experts << " experts, top-"
              << bundle.shape.top_k << "\n";
  for (const popularity::PathProfile& profile : bundle.profiles) PrintProfile(profile, console.out);
  for (const popularity::ProbeMap& map : bundle.maps) {
    console.out << "probe of layer " << map.layer + map.ahead << " from layer " << map.layer << ": fitted on "
                << map.num_rows << " rows\n";
  }
  console.out.flush();
  return kExitOk;
}

void AddSaveCommand(Command* profile) {
  Command* command = profile->AddCommand("save", "save what a server's workers have learned so far, while they serve");
  auto flags = std::make_shared<SaveFlags>();
  command->flags()->BeginGroup("Files");
  command->flags()->Add("output=FILE", &flags->output, "file for the profile, written when it is complete").Required();
  command->flags()->Add("weights_hash=HASH", &flags->weights_hash,
                        "fail unless the server serves the weights of this hash");
  flags->server.AddTo(command->flags());
  command->SetRun([flags](Console& console) { return Save(console, *flags); });
}

void AddMergeCommand(Command* profile) {
  Command* command = profile->AddCommand("merge", "merge profiles of one model; their counts add up");
  auto flags = std::make_shared<MergeFlags>();
  command->flags()->BeginGroup("Files");
  command->flags()->AddPositional("files", &flags->inputs, "the profiles").Required();
  command->flags()->Add("output=FILE", &flags->output, "file for the merged profile").Required();
  command->SetRun([flags](Console& console) { return Merge(console, *flags); });
}

void AddShowProfile(Command* profile) {
  Command* command = profile->AddCommand("show", "show a profile's contents, by phase and layer");
  auto path = std::make_shared<std::string>();
  command->flags()->BeginGroup("Files");
  command->flags()->AddPositional("file", path.get(), "the profile").Required();
  command->SetRun([path](Console& console) { return ShowProfile(console, *path); });
}

}  // namespace

void AddProfileCommand(Command* app) {
  Command* command =
      app->AddCommand("profile", "learn a model's routing, from documents or from a server, for --profile");
  auto flags = std::make_shared<MakeFlags>();
  command->flags()->BeginGroup("Files");
  command->flags()->Add("output=FILE", &flags->output, "file for the profile, written when all is counted");
  command->flags()->Add("trace=FILE", &flags->trace, "count this routing trace; no server is asked");
  command->flags()
      ->Add("path_length", &flags->path_length,
            "layers of the counted paths (l of the paper Lina); the server must run with the same --path_length")
      .Range(1, popularity::kMaxPathLength);
  AddDocumentFlags("dataset", &flags->record, command->flags());
  AddSaveCommand(command);
  AddMergeCommand(command);
  AddShowProfile(command);
  command->SetFooter(
      "Examples:\n"
      "  switchyard profile --dataset=documents.jsonl --output=prose.profile\n"
      "  switchyard profile save --output=live.profile\n"
      "  switchyard profile merge prose.profile code.profile --output=all.profile\n"
      "  switchyard-server --model=DIR --profile=all.profile\n"
      "A profile is good for the weights that it was made with, and no others take it.");
  command->SetRun([flags](Console& console) { return Make(console, *flags); });
}

}  // namespace switchyard::cli
