// One worker of `tests/bench/run.sh training`: rank --rank of the workers at --addresses, alone in its network
// namespace.
//
// All workers run the same steps under each mode in turn, so that what disturbs one disturbs all.  Each writes lines of
// JSON to --output.RANK: the critical path of each mode and packing (path, packing), what the links take by themselves
// (probe, micro), what the controller decided of a packing (decision), then a line for each (step, mode).
#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/expert_packing.h"
#include "scheduler/jobs/reduce_policy.h"
#include "tests/bench/training/connection_marks.h"
#include "tests/bench/training/critical_path.h"
#include "tests/bench/training/emulated_step.h"
#include "tests/bench/training/link_probe.h"
#include "tests/bench/training/links.h"
#include "tests/bench/training/packing_trials.h"
#include "tests/bench/training/step_flags.h"
#include "tests/bench/training/step_path.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/tcp/socket_communicator.h"

ABSL_FLAG(int, rank, 0, "");
ABSL_FLAG(std::vector<std::string>, addresses, {}, "IPv4, of all workers");
ABSL_FLAG(std::string, output, "", "what results are written to, with the rank behind it; all ranks see the folder");
ABSL_FLAG(std::string, meeting, "", "an empty folder that all ranks see, where they find each other");
ABSL_FLAG(std::vector<std::string>, modes, {"ar_last=ar_last:64:1"},
          "NAME=MODE:TOS:PACKING; TOS: the mark of its sums' packets; PACKING 0: as the controller chooses");
ABSL_FLAG(int, rows_tos, 32, "the mark of all-to-alls' packets");
ABSL_FLAG(int, steps, 3, "in each mode");
ABSL_FLAG(int, warm_up, 1, "steps that are not written, in each mode that needs them");
ABSL_FLAG(int, probes, 5, "of each size; 0: none");
ABSL_FLAG(int, seed, 1, "of the order of modes");

namespace switchyard::bench {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);

struct NamedMode {
  std::string name;
  jobs::CommunicationSpec spec;
  int tos = 0;
  int packing = 1;                     // 0: not chosen yet
  bool tried = false;                  // it was chosen by trials
  std::unique_ptr<EmulatedStep> step;  // null: not built yet
};

absl::StatusOr<NamedMode> ParseMode(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::ByAnyChar("=:"));
  NamedMode mode;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[2], &mode.tos) || !absl::SimpleAtoi(parts[3], &mode.packing)) {
    return absl::InvalidArgumentError(absl::StrCat("--modes: ", text));
  }
  mode.name = parts[0];
  ASSIGN_OR_RETURN(const jobs::CommMode known, jobs::ParseCommMode(parts[1]));
  mode.spec = SpecOfFlags(known);
  return mode;
}

comm::GroupOptions OptionsOf(const std::string& name) {
  const std::vector<std::string> addresses = absl::GetFlag(FLAGS_addresses);
  return {.rank = absl::GetFlag(FLAGS_rank),
          .world = static_cast<int>(addresses.size()),
          .epoch = 1,
          .token = name,
          .address = addresses[static_cast<size_t>(absl::GetFlag(FLAGS_rank))],
          .deadline = MonotonicNow() + kPatience};
}

absl::StatusOr<std::unique_ptr<comm::Communicator>> FormGroup(const std::string& name) {
  test::DirectoryStore store(absl::GetFlag(FLAGS_meeting));
  comm::PrefixStore own(&store, name);
  return comm::FormSocketGroup({.group = OptionsOf(name)}, &own);
}

class Worker {
 public:
  Worker() : shape_(ShapeOfFlags()), links_(LinksOfFlags()) {}

  absl::Status Run() {
    out_.open(absl::StrCat(absl::GetFlag(FLAGS_output), ".", absl::GetFlag(FLAGS_rank)));
    RETURN_IF_ERROR(Connect());
    for (const std::string& text : absl::GetFlag(FLAGS_modes)) {
      ASSIGN_OR_RETURN(NamedMode mode, ParseMode(text));
      RETURN_IF_ERROR(Make(&mode));
      modes_.push_back(std::move(mode));
    }
    if (rows_->rank() == 0) RETURN_IF_ERROR(WritePathsOfPackings());
    if (absl::GetFlag(FLAGS_probes) > 0) {
      RETURN_IF_ERROR(ProbeLinks());
      RETURN_IF_ERROR(CompareMicroOps());
    }
    RETURN_IF_ERROR(ChoosePackings());
    RETURN_IF_ERROR(RunSteps());
    return out_.flush() ? absl::OkStatus() : absl::UnavailableError("results cannot be written");
  }

 private:
  absl::Status Connect() {
    ASSIGN_OR_RETURN(rows_, FormGroup("rows"));
    RETURN_IF_ERROR(ConnectionMarks::OfNewConnections().Mark(absl::GetFlag(FLAGS_rows_tos)));
    ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> sums, FormGroup("sums"));
    sums_marks_ = ConnectionMarks::OfNewConnections();
    sums_ = std::make_unique<RecordingCommunicator>(std::move(sums));
    return ConnectBoth();
  }

  // Where rows overtake sums on one connection, its packets are of the kind of rows: such a mode has no other, so their
  // weight shares the link with nobody.
  absl::Status ConnectBoth() {
    bool wanted = false;
    for (const std::string& text : absl::GetFlag(FLAGS_modes)) {
      ASSIGN_OR_RETURN(const NamedMode mode, ParseMode(text));
      wanted = wanted || jobs::OvertakesOnTheSocket(mode.spec.mode);
    }
    if (!wanted) return absl::OkStatus();
    test::DirectoryStore store(absl::GetFlag(FLAGS_meeting));
    comm::PrefixStore own(&store, "both");
    ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> both,
                     comm::FormSocketGroup(SocketsOfFlags(OptionsOf("both")), &own));
    both_ = std::make_unique<RecordingCommunicator>(std::move(both));
    return ConnectionMarks::OfNewConnections().Mark(absl::GetFlag(FLAGS_rows_tos));
  }

  absl::StatusOr<StepGroups> GroupsOf(jobs::CommMode mode, int packing) {
    const bool overtakes = jobs::OvertakesOnTheSocket(mode);
    comm::Communicator* const rows = overtakes ? both_.get() : rows_.get();
    RecordingCommunicator* const sums = overtakes ? both_.get() : sums_.get();
    StepGroups groups = {.rows = rows, .row_group = rows, .sums = sums, .replicas = nullptr};
    if (packing == 1) return groups;
    Packed& packed = packed_[{overtakes, packing}];
    if (packed.row_group == nullptr) {
      const int holders = rows->world() / packing, rank = rows->rank();
      ASSIGN_OR_RETURN(packed.row_group, rows->Split(rank / holders, rank, MonotonicNow() + kPatience));
      ASSIGN_OR_RETURN(packed.replicas, sums->Split(rank % holders, rank, MonotonicNow() + kPatience));
    }
    groups.row_group = packed.row_group.get();
    groups.replicas = packed.replicas.get();
    return groups;
  }

  absl::StatusOr<std::unique_ptr<EmulatedStep>> MakeStep(const jobs::CommunicationSpec& spec, int packing) {
    ASSIGN_OR_RETURN(const StepGroups groups, GroupsOf(spec.mode, packing));
    return EmulatedStep::Create(shape_, spec, groups);
  }

  // A mode that this version lacks stays without a step, and a line says so.
  absl::Status Make(NamedMode* mode) {
    absl::StatusOr<std::unique_ptr<EmulatedStep>> step = MakeStep(mode->spec, std::max(mode->packing, 1));
    if (absl::IsUnimplemented(step.status())) {
      if (rows_->rank() == 0) out_ << "{\"not_built\": \"" << mode->name << "\"}\n";
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(mode->step, std::move(step));
    if (mode->packing > 0 && rows_->rank() == 0) WritePath(*mode);
    return absl::OkStatus();
  }

  absl::Status ChoosePackings() {
    for (NamedMode& mode : modes_) {
      if (mode.packing > 0 || mode.step == nullptr) continue;
      RETURN_IF_ERROR(sums_marks_.Mark(mode.tos));
      const auto make = [&](int packing) { return MakeStep(mode.spec, packing); };
      ASSIGN_OR_RETURN(PackingTrials trials, TryPackings(make, rows_.get(), kPatience));
      mode.step = std::move(trials.step);
      mode.packing = mode.step->packing();
      mode.tried = true;
      if (rows_->rank() != 0) continue;
      for (const jobs::PackingDecision& decision : trials.decisions) {
        out_ << "{\"decision\": \"" << decision.ToString() << "\", \"to\": " << decision.to << "}\n";
      }
      WritePath(mode);
    }
    return absl::OkStatus();
  }

  void WritePath(const NamedMode& mode) {
    const PathInput input = PathOfStep(shape_, links_, mode.step->schedule(), {rows_->world(), mode.packing});
    const CriticalPath path = FindCriticalPath(input);
    out_ << "{\"path\": \"" << mode.name << "\", \"step_ms\": " << absl::ToDoubleMilliseconds(path.step)
         << ", \"compute_ms\": " << absl::ToDoubleMilliseconds(path.compute)
         << ", \"moe_backward_ms\": " << absl::ToDoubleMilliseconds(path.moe_backward)
         << ", \"all_to_all_ms\": " << absl::ToDoubleMilliseconds(input.all_to_all)
         << ", \"attention_ms\": " << absl::ToDoubleMilliseconds(shape_.attention) << ", \"layers\": " << shape_.layers
         << ", \"sums_ms\": " << absl::ToDoubleMilliseconds(AllSums(input)) << ", \"packing\": " << mode.packing
         << ", \"chunks\": " << mode.step->schedule().num_chunks << ", \"sums\": " << mode.step->num_sums() << "}\n";
  }

  // What any packing could reach with all-to-alls cut.
  absl::Status WritePathsOfPackings() {
    ASSIGN_OR_RETURN(NamedMode mode, ParseMode("packed=pipelining:0:1"));
    for (mode.packing = 1; mode.packing <= jobs::MostPacking(rows_->world()); mode.packing *= 2) {
      const pipeline::MoeSchedule schedule =
          ScheduleOf(shape_, mode.spec, rows_->world(), rows_->world() / mode.packing);
      const CriticalPath path = FindCriticalPath(PathOfStep(shape_, links_, schedule, {rows_->world(), mode.packing}));
      out_ << "{\"packing\": " << mode.packing << ", \"step_ms\": " << absl::ToDoubleMilliseconds(path.step)
           << ", \"exposed_ms\": " << absl::ToDoubleMilliseconds(path.exposed()) << "}\n";
    }
    return absl::OkStatus();
  }

  void WriteSpan(const char* key, const std::string& name, absl::Time begin, absl::Time end, const std::string& more) {
    out_ << "{\"" << key << "\": \"" << name << "\", \"begin_us\": " << absl::ToUnixMicros(begin)
         << ", \"end_us\": " << absl::ToUnixMicros(end) << more << "}\n";
  }

  absl::Status ProbeLinks() {
    RETURN_IF_ERROR(sums_marks_.Mark(modes_[0].tos));
    const int rounds = absl::GetFlag(FLAGS_probes);
    const std::vector<int> all = RowGroup(rows_->world(), 1, 0);
    ASSIGN_OR_RETURN(std::vector<Probe> probes, ProbeAllToAlls(rows_.get(), shape_.row_bytes, rounds));
    ASSIGN_OR_RETURN(const std::vector<Probe> sums, ProbeSums(sums_.get(), shape_.row_bytes, rounds));
    probes.insert(probes.end(), sums.begin(), sums.end());
    for (const Probe& probe : probes) {
      const auto bytes = static_cast<double>(probe.bytes);
      const double wire =
          probe.what == "sum" ? SumSeconds(links_, all, bytes) : WireSeconds(links_, all, bytes / rows_->world());
      WriteSpan("probe", probe.what, probe.begin, probe.end,
                absl::StrCat(", \"bytes\": ", probe.bytes, ", \"wire_ms\": ", wire * 1e3));
    }
    return absl::OkStatus();
  }

  // All-to-alls in the chunks of the modes that cut them, and sums of pieces beside sums of tensors.
  absl::Status CompareMicroOps() {
    int chunks = 1;
    for (const NamedMode& mode : modes_) {
      if (mode.step != nullptr) chunks = std::max(chunks, mode.step->schedule().num_chunks);
    }
    for (int round = 0; round < absl::GetFlag(FLAGS_probes); ++round) {
      for (const int cut : {1, chunks}) {
        ASSIGN_OR_RETURN(const Probe probe, OneAllToAll(rows_.get(), shape_.row_bytes, cut));
        WriteSpan("micro", cut == 1 ? "all_to_all_whole" : "all_to_all_cut", probe.begin, probe.end, "");
      }
      for (const NamedMode& mode : modes_) {
        const bool whole = mode.spec.mode == jobs::CommMode::kPriority,
                   cut = mode.spec.mode == jobs::CommMode::kPartition;
        if (mode.step == nullptr || !(whole || cut)) continue;
        ASSIGN_OR_RETURN(const TimeSpan span, mode.step->SumAll(MonotonicNow() + kPatience));
        WriteSpan("micro", whole ? "sums_whole" : "sums_cut", span.begin, span.end, "");
      }
    }
    return absl::OkStatus();
  }

  // Messages' buffers grow to the largest that a group has seen: ar_last's all-to-alls are whole, and its sums the
  // largest; a mode in which rows overtake sums has a group of its own.  What was packed by trials has had its steps.
  static bool Warms(const NamedMode& mode) {
    return mode.spec.mode == jobs::CommMode::kArLast || jobs::OvertakesOnTheSocket(mode.spec.mode) ||
           (mode.packing > 1 && !mode.tried);
  }

  absl::Status RunSteps() {
    std::mt19937 random(static_cast<uint32_t>(absl::GetFlag(FLAGS_seed)));
    const int warm_up = absl::GetFlag(FLAGS_warm_up);
    for (int i = 0; i < warm_up + absl::GetFlag(FLAGS_steps); ++i) {
      std::vector<size_t> order(modes_.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t next : order) {
        NamedMode& mode = modes_[next];
        if (mode.step == nullptr || (i < warm_up && !Warms(mode))) continue;
        RETURN_IF_ERROR(sums_marks_.Mark(mode.tos));
        ASSIGN_OR_RETURN(const StepTimes times, mode.step->Run(MonotonicNow() + kPatience));
        if (i >= warm_up) WriteStep(i - warm_up, mode.name, times);
      }
    }
    return absl::OkStatus();
  }

  void WriteStep(int step, const std::string& mode, const StepTimes& times) {
    const auto micros = [](const std::vector<TimeSpan>& spans) {
      return absl::StrJoin(spans, ", ", [](std::string* out, const TimeSpan& span) {
        absl::StrAppend(out, absl::ToInt64Microseconds(span.end - span.begin));
      });
    };
    const std::string covered =
        absl::StrJoin(times.all_to_alls, ", ", [&](std::string* out, const TimeSpan& all_to_all) {
          absl::StrAppend(out, absl::ToInt64Microseconds(Covered(all_to_all, times.sums)));
        });
    absl::Duration summing;
    for (const TimeSpan& span : times.sums) summing += span.end - span.begin;
    WriteSpan("mode", mode, times.begin, times.end,
              absl::StrCat(", \"step\": ", step, ", \"forward_end_us\": ", absl::ToUnixMicros(times.forward_end),
                           ", \"backward_end_us\": ", absl::ToUnixMicros(times.backward_end),
                           ", \"compute_us\": ", absl::ToInt64Microseconds(times.compute),
                           ", \"forward_exchange_us\": ", absl::ToInt64Microseconds(times.forward_exchange),
                           ", \"summing_us\": ", absl::ToInt64Microseconds(summing), ", \"all_to_all_us\": [",
                           micros(times.all_to_alls), "], \"under_sums_us\": [", covered, "], \"moe_us\": [",
                           micros(times.moe_layers), "]"));
  }

  struct Packed {
    std::unique_ptr<comm::Communicator> row_group, replicas;
  };

  const StepShape shape_;
  const Links links_;
  std::ofstream out_;
  std::unique_ptr<comm::Communicator> rows_;
  std::unique_ptr<RecordingCommunicator> sums_, both_;
  ConnectionMarks sums_marks_;
  std::map<std::pair<bool, int>, Packed> packed_;  // by overtakes and packing; outlived by what they are parts of
  std::vector<NamedMode> modes_;
};

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = switchyard::bench::Worker().Run();
  if (!status.ok()) std::cerr << "training_worker " << absl::GetFlag(FLAGS_rank) << ": " << status << std::endl;
  return status.ok() ? 0 : 1;
}
