#include "tests/workers/train/job_fixture.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/job/job_context.h"

namespace switchyard::train {
namespace {

constexpr char kModels[] = "tests/golden/models/";

class Recorder final : public TrainListener {
 public:
  Recorder(const AttemptOptions& options, comm::Communicator* comm, RankStory* story)
      : options_(options), comm_(comm), story_(story) {}
  void set_job(TrainJob* job) { job_ = job; }

  void Started(int64_t step, const std::vector<std::string>& warnings) override {
    story_->started = true;
    story_->start_step = step;
    story_->warnings = warnings;
  }
  void StepDone(const StepProgress& progress) override {
    story_->steps.push_back(progress);
    if (options_.on_step) options_.on_step(job_, comm_, progress);
  }
  void Evaluated(const jobs::EvaluationReport& report) override {
    const jobs::EvaluationResult& result = report.result;
    story_->evaluations.push_back({result.step, result.loss, result.tokens, result.sets, report.best_step});
  }
  void Saved(const SavedStep& saved) override {
    story_->saved.push_back(saved);
    if (options_.on_saved) options_.on_saved(job_, comm_, saved);
  }
  void Note(const std::string& text) override {
    story_->notes.push_back(text);
    if (options_.on_note) options_.on_note(job_, text);
  }

 private:
  const AttemptOptions& options_;
  comm::Communicator* const comm_;
  RankStory* const story_;
  TrainJob* job_ = nullptr;
};

}  // namespace

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

JobFixture::JobFixture() {
  std::filesystem::create_directories(root_.path() + "/data/sub");
  std::filesystem::create_directories(root_.path() + "/checkpoints/model");
  UseModel("olmoe-clip");
  root_.Write("checkpoints/model/tokenizer.json", "{\"a\": \"tokenizer\"}");
  WriteTokens("a.bin", 0, 400);
  WriteTokens("sub/b.bin", 1000, 300);
  WriteTokens("held_out.bin", 5000, 61);
}

void JobFixture::UseModel(const std::string& model) {
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors"}) {
    std::filesystem::copy_file(kModels + model + "/" + name, root_.path() + "/checkpoints/model/" + name,
                               std::filesystem::copy_options::overwrite_existing);
  }
}

void JobFixture::WriteTokens(const std::string& name, int begin, int count, int vocab, bool trained,
                             const std::vector<int64_t>& documents) {
  std::string body;
  for (int i = begin; i < begin + count; ++i) {
    AppendInt(static_cast<uint16_t>((i * i / 7 + i % 5) % std::min(vocab, 256)), &body);
  }
  body.resize((body.size() + 7) / 8 * 8);
  if (!trained) body.append(static_cast<size_t>((count + 63) / 64 * 8), '\0');  // the mask
  for (const int64_t document : documents) AppendInt(document, &body);
  jobs::TokenFileHeader header = {.token_bytes = 2,
                                  .vocab_size = vocab,
                                  .num_tokens = count,
                                  .num_documents = static_cast<int64_t>(documents.size()),
                                  .contents = Fnv1a(body)};
  header.masked = !trained;
  root_.Write("data/" + name, jobs::EncodeTokenHeader(header) + body);
}

jobs::JobSpec JobFixture::Spec() const {
  jobs::JobSpec spec;
  spec.base_checkpoint = "model";
  for (const jobs::TrainFile& file : data_) spec.datasets.push_back(file.name);
  for (const jobs::TrainFile& file : evaluation_) spec.evaluation.push_back(file.name);
  spec.steps = 12;
  spec.sequence_length = 12;
  spec.batch_sequences = 8;
  spec.micro_batch_sequences = 2;
  spec.optimizer.schedule.peak = 2e-3;
  spec.optimizer.schedule.warmup_steps = 3;
  spec.checkpoints.every_steps = 4;
  spec.checkpoints.keep_last = 2;
  // Tests compare jobs bit by bit: nothing is measured.
  spec.communication.granularity = {.rule = jobs::ChunkRule::kFixed, .chunks = 1};
  spec.seed = 7;
  return spec;
}

std::vector<RankStory> JobFixture::Run(jobs::JobSpec spec, const AttemptOptions& options) {
  spec.workers = options.world;
  std::vector<std::unique_ptr<comm::Communicator>> comms = comm::MakeLocalGroup(options.world, options.attempt);
  std::vector<RankStory> stories(comms.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < options.world; ++r) {
    threads.emplace_back([&, r] {
      ThreadPool pool(options.threads, false, options.gate(r));
      TrainJobInput input;
      input.spec = spec;
      input.job_id = "job";
      input.attempt = options.attempt;
      input.origin = options.origin;
      input.data = data_;
      input.evaluation = evaluation_;
      input.dataset_root = root_.path() + "/data";
      input.checkpoint_root = root_.path() + "/checkpoints";
      if (options.wrap_files) {
        input.open_checkpoints = [&, r]() -> absl::StatusOr<std::unique_ptr<checkpoint::FileSystem>> {
          absl::StatusOr<std::unique_ptr<checkpoint::FileSystem>> files =
              OpenJobFolder(root_.path() + "/checkpoints", "job");
          if (!files.ok()) return files.status();
          return options.wrap_files(*std::move(files), r);
        };
      }
      input.memory = [&options, r] {
        if (options.memory) return options.memory(r);
        const int64_t available = options.available_memory();
        return MachineMemory{.total_bytes = available, .pools = {{.name = "", .available_bytes = available}}};
      };
      input.promised_memory = options.promised_memory;
      input.packing = options.packing;
      input.packing_times = options.packing_times;
      input.note_interval = options.note_interval;
      input.reference_interval = options.reference_interval;
      input.software = "test";
      input.offload_dir = options.offload_dir;
      if (options.open_offload) input.open_offload = [&, r](int64_t bytes) { return options.open_offload(r, bytes); };
      input.step_limit = absl::Minutes(1);
      input.disk_limit = absl::Minutes(1);
      input.read_pause = absl::ZeroDuration();
      input.lock_patience = options.lock_patience;
      Recorder recorder(options, comms[r].get(), &stories[r]);
      TrainJob job(std::move(input), Stream::OnCpu(&pool), comms[r].get(), &recorder);
      recorder.set_job(&job);
      if (options.before) options.before(&job, r);
      stories[r].end = job.Run();
      if (options.after) options.after(r);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return stories;
}

std::map<std::string, std::string> JobFixture::FilesOfStep(int64_t step) const {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(JobPath(checkpoint::StepFolder(step)))) {
    const std::string name = entry.path().filename();
    if (name != checkpoint::kManifestName) files[name] = ReadAll(entry.path());
  }
  return files;
}

std::vector<std::string> JobFixture::Steps() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(JobPath())) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::map<std::string, std::string> JobFixture::Undisturbed(const jobs::JobSpec& spec, int world) {
  const std::vector<RankStory> stories = Run(spec, {.world = world});
  EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
  std::map<std::string, std::string> files = FilesOfStep(spec.steps);
  ForgetJob();
  return files;
}

void JobFixture::ExpectEnd(const std::vector<RankStory>& stories, jobs::TrainOutcome outcome, absl::StatusCode code,
                           const std::string& message) {
  for (const RankStory& story : stories) {
    EXPECT_EQ(story.end.outcome, outcome) << story.end.status;
    EXPECT_EQ(story.end.status.code(), code) << story.end.status;
    EXPECT_NE(story.end.status.message().find(message), absl::string_view::npos) << story.end.status;
  }
}

void JobFixture::ForgetJob() { std::filesystem::remove_all(JobPath()); }

std::map<std::string, std::string> TensorsOf(const std::map<std::string, std::string>& files) {
  std::map<std::string, std::string> tensors;
  for (const auto& [name, bytes] : files) {
    if (!absl::EndsWith(name, ".safetensors")) {
      if (!absl::EndsWith(name, ".index.json")) tensors[name] = bytes;
      continue;
    }
    const auto read = [&](int64_t begin, absl::Span<char> to) {
      bytes.copy(to.data(), to.size(), static_cast<size_t>(begin));
      return absl::OkStatus();
    };
    std::string text;
    const auto header = checkpoint::ReadSafetensorsHeader(static_cast<int64_t>(bytes.size()), read, &text);
    SY_CHECK_OK(header.status());
    for (const auto& [tensor, entry] : *header) {
      const std::string values = bytes.substr(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.bytes));
      EXPECT_TRUE(tensors.emplace(tensor, values).second) << tensor << " is there twice";
    }
  }
  return tensors;
}

}  // namespace switchyard::train
