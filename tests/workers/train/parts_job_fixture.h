// Small jobs that train a part of a model: by rules, or adapters of attention, or of experts, too.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "scheduler/base/check.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::train {

// The bytes of a file's tensors, by name.
inline std::map<std::string, std::string> TensorsOf(const std::string& folder, const std::string& file) {
  const absl::StatusOr<ModelDir> dir = ModelDir::Open(folder);
  SY_CHECK_OK(dir.status());
  const auto opened = checkpoint::WeightsFile::OpenSafetensors(*dir, file);
  SY_CHECK_OK(opened.status());
  std::map<std::string, std::string> tensors;
  for (const auto& [name, entry] : (*opened)->tensors()) {
    std::string& bytes = tensors[name];
    bytes.resize(static_cast<size_t>(entry.bytes));
    SY_CHECK_OK((*opened)->Read(entry.begin, entry.bytes, bytes.data()));
  }
  return tensors;
}

class PartsJobFixture : public JobFixture {
 protected:
  jobs::JobSpec Adapted() const {
    jobs::JobSpec spec = Spec();
    spec.lora = {.rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj", "o_proj"}};
    return spec;
  }
  jobs::JobSpec OfExperts() const {
    jobs::JobSpec spec = Spec();
    spec.lora = {.rank = 3, .alpha = 6, .targets = {"v_proj", "gate_up_proj", "down_proj"}};
    return spec;
  }
  // The same, for any number of ranks up to 4: batches are not cut, as balance losses are of a micro-batch.
  jobs::JobSpec OfExpertsOnAny() const {
    jobs::JobSpec spec = OfExperts();
    spec.batch_sequences = 12;
    spec.micro_batch_sequences = 0;
    return spec;
  }
  jobs::JobSpec Ruled() const {
    jobs::JobSpec spec = Spec();
    spec.parameters = {{.pattern = "*.experts.1.*", .frozen = true},
                       {.pattern = "*layers.0.self_attn.k_proj*", .frozen = true},
                       {.pattern = "model.embed_tokens.weight", .frozen = true},
                       {.pattern = "*norm*", .rate = 0.5}};
    return spec;
  }
  std::string StepPath(int64_t step) const { return JobPath(checkpoint::StepFolder(step)); }
  // Stops after some steps and goes on; the files of the last step.
  std::map<std::string, std::string> Interrupted(const jobs::JobSpec& spec, int world) {
    AttemptOptions first = {.world = world};
    first.on_step = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == 6) job->Stop(jobs::StopKind::kSave);
    };
    EXPECT_EQ(Run(spec, first)[0].end.outcome, jobs::TrainOutcome::kStopped);
    const std::vector<RankStory> second = Run(spec, {.world = world, .attempt = 2});
    EXPECT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
    EXPECT_EQ(second[0].start_step, 6);
    std::map<std::string, std::string> files = FilesOfStep(spec.steps);
    ForgetJob();
    return files;
  }
};

}  // namespace switchyard::train
