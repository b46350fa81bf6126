// switchyard plan: how steps run, and what was expected and measured of each way in which they may.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "clients/cli/command.h"
#include "clients/cli/json.h"
#include "clients/cli/message_json.h"
#include "clients/cpp/client.h"
#include "scheduler/base/status_macros.h"
#include "switchyard/v1/admin.pb.h"

namespace switchyard::cli {
namespace {

struct PlanFlags {
  ServerFlags server = {.server = kAdminServer};
  bool why = false;
  bool json = false;
};

Json PlanJson(const v1::GetPlanResponse& plan) {
  return ToJson(plan, {"model", "note", "link_start_seconds", "link_bytes_per_second", "link_r_squared",
                       "expert_weights_seconds", "expert_row_seconds", "micro_batches", "placement"});
}

std::string WayInWords(const v1::StepWay& way) {
  std::string out = absl::StrFormat("%8s: ", way.name());
  if (way.has_expected_seconds()) absl::StrAppendFormat(&out, "%.3f ms expected, ", 1e3 * way.expected_seconds());
  if (!way.tried()) return out + "not tried";
  if (way.has_measured_seconds()) absl::StrAppendFormat(&out, "%.3f ms measured, ", 1e3 * way.measured_seconds());
  return absl::StrCat(out, way.steps(), " steps");
}

void PrintClasses(std::ostream& out, const char* what, const google::protobuf::RepeatedPtrField<v1::StepClass>& classes,
                  bool why) {
  for (const v1::StepClass& of : classes) {
    int64_t steps = 0;
    for (const v1::StepWay& way : of.ways()) steps += way.steps();
    const std::string rows = of.least_rows() == of.most_rows() ? absl::StrCat(of.least_rows())
                                                               : absl::StrCat(of.least_rows(), " to ", of.most_rows());
    out << absl::StreamFormat("%-14s %16s %-8s %8d  %s\n", what, rows, of.prompts() ? "prompts" : "decodes", steps,
                              absl::StrCat(of.chosen(), of.uneven() ? " (most rows on one worker)" : ""));
    for (const v1::StepWay& way : of.ways()) {
      if (why && (way.tried() || way.has_expected_seconds())) out << "  " << WayInWords(way) << "\n";
    }
  }
}

void PrintPlan(std::ostream& out, const v1::GetPlanResponse& plan, bool why) {
  if (plan.has_link_bytes_per_second()) {
    out << absl::StreamFormat(
        "links      an all-to-all takes %.3f ms, and a second for %.1f MB that a worker sends (r2 %.4f)\n",
        1e3 * plan.link_start_seconds(), 1e-6 * plan.link_bytes_per_second(), plan.link_r_squared());
  }
  if (plan.has_expert_row_seconds()) {
    out << absl::StreamFormat("experts    %.3f ms to read one, %.3f us a row\n", 1e3 * plan.expert_weights_seconds(),
                              1e6 * plan.expert_row_seconds());
  }
  if (!plan.note().empty()) out << "note       " << plan.note() << "\n";
  if (plan.micro_batches().empty() && plan.placement().empty()) {
    out << "no step has been tried in another way than the first\n";
    return;
  }
  out << absl::StreamFormat("%-14s %16s %-8s %8s  %s\n", "what", "rows of a step", "of", "steps", "chosen");
  PrintClasses(out, "micro-batches", plan.micro_batches(), why);
  PrintClasses(out, "placement", plan.placement(), why);
}

absl::StatusOr<int> RunPlan(Console& console, const PlanFlags& flags) {
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  ASSIGN_OR_RETURN(const v1::GetPlanResponse plan, client->GetPlan());
  if (flags.json) {
    console.out << Dump(PlanJson(plan)) << std::endl;
  } else {
    PrintPlan(console.out, plan, flags.why);
    console.out.flush();
  }
  return kExitOk;
}

}  // namespace

void AddPlanCommand(Command* app) {
  Command* command = app->AddCommand("plan", "show how steps run: into how many micro-batches, and where rows go");
  auto flags = std::make_shared<PlanFlags>();
  command->flags()->BeginGroup("What to show");
  command->flags()->Add("why", &flags->why, "show what was expected and measured of each way");
  command->flags()->Add("json", &flags->json, "print one line of JSON, with all of it");
  flags->server.AddTo(command->flags());
  command->SetFooter(
      "Steps are sorted by their rows. What is expected comes from the measured links and experts' times; ways that "
      "are expected to be the fastest are tried, and the one with the lowest median time stays, but for a try now and "
      "then.\n"
      "Times are of a step of the most rows of its line.");
  command->SetRun([flags](Console& console) { return RunPlan(console, *flags); });
}

}  // namespace switchyard::cli
