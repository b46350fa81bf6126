// Training jobs of a small model on files in a directory of their own, with ranks as threads and a test's faults.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/comm/core/communicator.h"
#include "workers/tensor/yield_point.h"
#include "workers/train/job/train_job.h"

namespace switchyard::train {

struct EvaluationSeen {
  int64_t step = 0;
  double loss = 0;
  int64_t tokens = 0;
  std::vector<jobs::SetResult> sets = {};
  int64_t best_step = 0;
  bool operator==(const EvaluationSeen&) const = default;
};

// A rank's reports, and how it ended.
struct RankStory {
  jobs::TrainEnd end = {};
  bool started = false;
  int64_t start_step = 0;
  std::vector<std::string> warnings = {};
  std::vector<StepProgress> steps = {};
  std::vector<EvaluationSeen> evaluations = {};
  std::vector<SavedStep> saved = {};
  std::vector<std::string> notes = {};
};

// One attempt.
struct AttemptOptions {
  int world = 1;
  int threads = 1;                                                          // of each rank
  std::function<YieldPoint*(int rank)> gate = [](int) { return nullptr; };  // of its computation
  int64_t attempt = 1;
  std::optional<jobs::ForkOrigin> origin = {};
  std::function<int64_t()> available_memory = [] { return int64_t{1} << 40; };
  std::function<int64_t()> promised_memory = {};
  absl::Duration lock_patience = absl::ZeroDuration();
  // When experts are packed, and the times of steps; none: as in production.
  jobs::PackingOptions packing = {};
  std::function<jobs::PackingTimes(int64_t step, const StepReport& report)> packing_times = {};
  absl::Duration note_interval = absl::Seconds(2);
  absl::Duration reference_interval = absl::Minutes(1);
  // The memory of a rank's machine; none: each rank has available_memory alone.
  std::function<MachineMemory(int rank)> memory = {};
  std::string offload_dir = {};
  std::function<absl::StatusOr<std::unique_ptr<StateFile>>(int rank, int64_t bytes)> open_offload = {};
  // Reported by rank 0 on its thread.  May stop the job, or break the group.
  std::function<void(TrainJob* job, comm::Communicator* comm, const StepProgress& progress)> on_step = {};
  std::function<void(TrainJob* job, comm::Communicator* comm, const SavedStep& saved)> on_saved = {};
  std::function<void(TrainJob* job, const std::string& text)> on_note = {};
  // Before Run, on every rank.
  std::function<void(TrainJob* job, int rank)> before = {};
  // After Run, before the job is gone, on every rank.
  std::function<void(int rank)> after = {};
  // Wraps a rank's files.
  std::function<std::unique_ptr<checkpoint::FileSystem>(std::unique_ptr<checkpoint::FileSystem>, int rank)> wrap_files =
      {};
};

class JobFixture : public ::testing::Test {
 protected:
  JobFixture();

  // The small job that tests change: twelve steps on two files, a checkpoint every four, evaluation at the end; MoE
  // layers do not cut rows into chunks.
  jobs::JobSpec Spec() const;
  // All ranks' stories, by rank.  The spec's number of workers becomes `options.world`.
  std::vector<RankStory> Run(jobs::JobSpec spec, const AttemptOptions& options);

  // Writes a .bin into the dataset root with tokens that follow a simple rule, from `begin` on.  `trained`: its tokens
  // are targets.  `documents`: where they begin.
  void WriteTokens(const std::string& name, int begin, int count, int vocab = 256, bool trained = true,
                   const std::vector<int64_t>& documents = {0});
  std::string DataPath(const std::string& name) const { return root_.path() + "/data/" + name; }
  std::string JobPath(const std::string& name = "") const { return root_.path() + "/checkpoints/job/" + name; }
  // Every file of a step's folder but the manifest, which names the attempt; contents by name.
  std::map<std::string, std::string> FilesOfStep(int64_t step) const;
  // Folders "step-…" of the job.
  std::vector<std::string> Steps() const;
  void ForgetJob();
  // Replaces the job's model by another of tests/golden/models.
  void UseModel(const std::string& name);
  // Expects this end on all ranks.
  static void ExpectEnd(const std::vector<RankStory>& stories, jobs::TrainOutcome outcome, absl::StatusCode code,
                        const std::string& message);
  // The final files of a run without faults; the job is removed afterwards.
  std::map<std::string, std::string> Undisturbed(const jobs::JobSpec& spec, int world);

  const model::TempDir root_;
  std::vector<jobs::TrainFile> data_ = {{false, "a.bin"}, {false, "sub/b.bin"}};
  std::vector<jobs::TrainFile> evaluation_ = {{false, "held_out.bin"}};
};

std::string ReadAll(const std::string& path);
// Of a checkpoint's files, contents by name: the bytes of each tensor, whichever rank wrote it, and the other files but
// the index, which names the tensors' files.
std::map<std::string, std::string> TensorsOf(const std::map<std::string, std::string>& files);

}  // namespace switchyard::train
