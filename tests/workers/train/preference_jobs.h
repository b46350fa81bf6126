// Jobs with preferences, of files of pairs that follow a rule.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "scheduler/jobs/checkpoint_names.h"
#include "tests/workers/train/job_fixture.h"
#include "tests/workers/train/token_contents.h"

namespace switchyard::train {

inline constexpr char kComputes[] = "log probabilities of the reference: ", kHas[] = "has all log probabilities";

class PreferenceJobs : public JobFixture {
 protected:
  PreferenceJobs() {
    WritePairs("a.bin", 40, 1);
    WritePairs("sub/b.bin", 24, 2);
    WritePairs("held_out.bin", 10, 3);
  }

  // Answers follow a rule, or are drawn.
  void WritePairs(const std::string& name, int pairs, unsigned seed, int most = 6) {
    std::minstd_rand random(seed);
    TokenContents contents;
    contents.documents.clear();
    for (int i = 0; i < pairs; ++i) {
      std::vector<int32_t> prompt;
      for (int t = static_cast<int>(random() % 4); t >= 0; --t) prompt.push_back(static_cast<int32_t>(random() % 24));
      for (const bool chosen : {true, false}) {
        contents.documents.push_back(static_cast<int64_t>(contents.tokens.size()));
        contents.tokens.insert(contents.tokens.end(), prompt.begin(), prompt.end());
        contents.trained.insert(contents.trained.end(), prompt.size(), false);
        for (int t = static_cast<int>(random()) % most; t >= 0; --t) {
          contents.tokens.push_back(chosen ? (contents.tokens.back() * 7 + 3) % 24 : static_cast<int>(random() % 24));
          contents.trained.push_back(true);
        }
      }
    }
    root_.Write("data/" + name, FileOf(contents, 256, /*pairs=*/true));
  }

  jobs::JobSpec Preferring() const {
    jobs::JobSpec spec = Spec();
    spec.document_mask = true;
    spec.packing = jobs::WindowPacking::kBestFit;
    spec.sequence_length = 24;
    spec.dpo = {.beta = 0.2, .label_smoothing = 0.05};
    return spec;
  }
  jobs::JobSpec Adapted() const {
    jobs::JobSpec spec = Preferring();
    spec.lora = {.rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj"}};
    return spec;
  }
  std::vector<std::string> References() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(JobPath())) {
      if (jobs::IsReferenceFile(entry.path().filename().string())) names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  std::map<std::string, std::string> ReferenceBytes() const {
    std::map<std::string, std::string> bytes;
    for (const std::string& name : References()) bytes[name] = ReadAll(JobPath(name));
    return bytes;
  }
  // Of the base's weights.
  void FlipABit() {
    std::string bytes = ReadAll(root_.path() + "/checkpoints/model/model.safetensors");
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    root_.Write("checkpoints/model/model.safetensors", bytes);
  }
  static bool Computed(const RankStory& story) {
    return std::any_of(story.notes.begin(), story.notes.end(),
                       [](const std::string& note) { return absl::StrContains(note, kHas); });
  }
  static AttemptOptions StopsAt(int64_t step, int world) {
    AttemptOptions options = {.world = world};
    options.on_step = [step](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == step) job->Stop(jobs::StopKind::kSave);
    };
    return options;
  }
};

}  // namespace switchyard::train
