#include "workers/train/job/checkpoint_saver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/step/train_outcome.h"
#include "workers/train/step/trainer_state.h"

namespace switchyard::train {
namespace {

constexpr absl::Duration kLookAtGroup = absl::Milliseconds(100);
constexpr size_t kPieceBytes = size_t{1} << 20;  // after which a save may be given up

}  // namespace

CheckpointSaver::CheckpointSaver(checkpoint::FileSystem* files, comm::Communicator* comm, SaverOptions options)
    : files_(files), comm_(comm), options_(std::move(options)) {}

CheckpointSaver::~CheckpointSaver() {
  given_up_ = true;
  Join();
}

absl::StatusOr<std::unique_ptr<CheckpointSaver>> CheckpointSaver::Open(checkpoint::FileSystem* files,
                                                                       comm::Communicator* comm, SaverOptions options,
                                                                       std::unique_ptr<checkpoint::File> lock) {
  std::unique_ptr<CheckpointSaver> saver(new CheckpointSaver(files, comm, std::move(options)));
  if (comm->rank() != 0) return saver;
  absl::StatusOr<std::unique_ptr<checkpoint::CheckpointWriter>> writer =
      checkpoint::CheckpointWriter::Open(files, saver->options_.writer, std::move(lock));
  // A later attempt has saved.
  if (absl::IsFailedPrecondition(writer.status())) return Lost(writer.status());
  RETURN_IF_ERROR(writer.status());
  saver->writer_ = *std::move(writer);
  return saver;
}

void CheckpointSaver::Join() {
  if (thread_.joinable()) thread_.join();
}

SavePhase CheckpointSaver::phase() const {
  absl::MutexLock lock(&mu_);
  return phase_;
}

absl::Status CheckpointSaver::status() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

void CheckpointSaver::Do(absl::AnyInvocable<absl::Status()> work, SavePhase then) {
  Join();
  thread_ = std::thread([this, then, work = std::move(work)]() mutable {
    const absl::Status status = work();
    absl::MutexLock lock(&mu_);
    status_ = LostIfNot(status);
    if (status.ok()) phase_ = then;
  });
}

absl::StatusOr<std::vector<checkpoint::CheckpointFile>> CheckpointSaver::FilesOf(
    absl::Span<const ParameterBlock> blocks, std::string trainer_state) {
  std::vector<checkpoint::CheckpointFile> files =
      ParameterFiles(blocks, comm_->rank(), comm_->world(), options_.weights, shards_.get());
  if (expert_adapters_ != nullptr) {
    for (checkpoint::TensorToWrite& tensor : expert_adapters_->ToWrite()) files[0].tensors.push_back(std::move(tensor));
  }
  for (checkpoint::CheckpointFile& file : files) {
    for (checkpoint::TensorToWrite& tensor : file.tensors) {
      tensor.contents = [this, contents = std::move(tensor.contents)](checkpoint::ByteSink sink) {
        const auto write = [&](absl::string_view piece) -> absl::Status {
          if (given_up_) return absl::CancelledError("the save is given up");
          written_bytes_ += static_cast<int64_t>(piece.size());
          return sink(piece);
        };
        return contents([&](absl::string_view bytes) {
          for (; bytes.size() > kPieceBytes; bytes.remove_prefix(kPieceBytes)) {
            RETURN_IF_ERROR(write(bytes.substr(0, kPieceBytes)));
          }
          return write(bytes);
        });
      };
    }
  }
  if (comm_->rank() != 0) return files;
  files.insert(files.end(), options_.side_files.begin(), options_.side_files.end());
  files.push_back({kTrainerStateName, {}, std::move(trainer_state)});
  return files;
}

absl::Status CheckpointSaver::MakeFolder(const absl::StatusOr<int64_t>& own_bytes, bool has_room) {
  RankWord word;
  word.saving = has_room ? 1 : 0;
  word.SetStatus(own_bytes.status());
  word.number = own_bytes.value_or(0);
  ASSIGN_OR_RETURN(std::vector<RankWord> words, ExchangeWords(comm_, word, options_.disk_limit));
  RETURN_IF_ERROR(FirstError(words));
  saving_.bytes = 0;
  for (const RankWord& each : words) saving_.bytes += each.number;
  copied_ = std::all_of(words.begin(), words.end(), [](const RankWord& each) { return each.saving != 0; });
  absl::StatusOr<std::string> folder = std::string();
  if (writer_ != nullptr) {
    folder = writer_->Begin(saving_.step, saving_.bytes);
    if (!folder.ok()) folder = Lost(folder.status());
  }
  ASSIGN_OR_RETURN(folder_, FromLeader(comm_, folder, options_.disk_limit));
  return absl::OkStatus();
}

void CheckpointSaver::MakeExchanges(const Parameters& parameters) {
  shards_.reset();
  expert_adapters_.reset();
  const auto given_up = [this] { return given_up_.load(); };
  if (parameters.shards_dense()) {
    shards_ = std::make_unique<ShardStream>(
        comm_, parameters.blocks(),
        ShardStreamOptions{.with_weights = true, .round_limit = options_.disk_limit, .given_up = given_up});
  }
  if (options_.weights.adapters) {
    expert_adapters_ = std::make_unique<ExpertAdapterTensors>(
        comm_, parameters, ExpertAdapterOptions{.round_limit = options_.disk_limit, .given_up = given_up});
  }
}

int64_t CheckpointSaver::BytesToCopy(const Parameters& parameters) const {
  const int64_t adapters = expert_adapters_ == nullptr ? 0 : expert_adapters_->BytesToKeep();
  return snapshot_.BytesToTake(parameters, comm_->rank()) + adapters;
}

absl::Status CheckpointSaver::Copy(const Stream& stream, const Parameters& parameters) {
  shards_.reset();
  RETURN_IF_ERROR(snapshot_.Take(stream, parameters, comm_->rank(), {.comm = comm_, .limit = options_.disk_limit}));
  return expert_adapters_ == nullptr ? absl::OkStatus() : expert_adapters_->Keep(options_.disk_limit);
}

absl::Status CheckpointSaver::Write(const std::vector<checkpoint::CheckpointFile>& files) {
  // Rank 0 writes all experts' adapters first, and needs the others for that.
  if (expert_adapters_ != nullptr && comm_->rank() != 0) RETURN_IF_ERROR(expert_adapters_->Finish());
  ASSIGN_OR_RETURN(records_, checkpoint::WriteFiles(files_, folder_, files));
  if (expert_adapters_ != nullptr) RETURN_IF_ERROR(expert_adapters_->Finish());
  return shards_ == nullptr ? absl::OkStatus() : shards_->Finish();
}

absl::Status CheckpointSaver::Begin(const Stream& stream, const Parameters& parameters, int64_t step, int64_t kept_step,
                                    std::string trainer_state) {
  SY_CHECK(!busy_);
  Join();
  began_ = MonotonicNow();
  saving_ = {.step = step};
  kept_step_ = kept_step;
  const bool offloaded = parameters.offload() != nullptr;
  MakeExchanges(parameters);
  const int64_t to_take = offloaded ? 0 : BytesToCopy(parameters);
  const int64_t room = to_take == 0 ? 0 : options_.available_memory();
  absl::StatusOr<std::vector<checkpoint::CheckpointFile>> files = FilesOf(parameters.blocks(), trainer_state);
  RETURN_IF_ERROR(
      MakeFolder(files.ok() ? checkpoint::BytesOfFiles(*files) : files.status(), !offloaded && to_take <= room));
  if (copied_) {
    RETURN_IF_ERROR(Copy(stream, parameters));
    ASSIGN_OR_RETURN(files, FilesOf(snapshot_.blocks(), std::move(trainer_state)));
  } else {
    snapshot_ = {};  // frees the copy, as memory is short
    LogInfo("step ", step, ": training waits until the checkpoint is written: ",
            offloaded ? "masters and moments are offloaded"
            : to_take <= room
                ? "another rank makes no copy"
                : absl::StrCat("a copy of ", Mib(to_take), " does not fit into the ", Mib(room), " left"));
  }
  busy_ = true;
  collected_ = false;
  written_bytes_ = 0;
  {
    absl::MutexLock lock(&mu_);
    phase_ = SavePhase::kWriting;
    status_ = absl::OkStatus();
  }
  Do([this, files = *std::move(files)] { return Write(files); }, SavePhase::kWritten);
  saving_.waited_seconds = absl::ToDoubleSeconds(MonotonicNow() - began_);
  return absl::OkStatus();
}

void CheckpointSaver::AwaitNews(absl::Duration most) const {
  const absl::Time end = MonotonicNow() + most;
  const auto has_news = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return (phase_ != SavePhase::kWriting && phase_ != SavePhase::kCommitting) || !status_.ok();
  };
  absl::MutexLock lock(&mu_);
  while (comm_->status().ok() && MonotonicNow() < end &&
         !mu_.AwaitWithTimeout(absl::Condition(&has_news), std::min(kLookAtGroup, end - MonotonicNow()))) {
  }
}

// Sends all ranks' records to rank 0, which commits.
absl::Status CheckpointSaver::Collect() {
  Join();
  expert_adapters_.reset();
  std::vector<comm::Message> out(static_cast<size_t>(comm_->world()));
  const std::string text = checkpoint::EncodeFileRecords(records_);
  out[0] = comm_->NewMessage(static_cast<int64_t>(text.size()));
  std::copy(text.begin(), text.end(), out[0].payload());
  ASSIGN_OR_RETURN(
      std::unique_ptr<comm::Work> work,
      comm_->AllToAllV({.comm_class = comm::CommClass::kControl, .deadline = MonotonicNow() + options_.disk_limit},
                       std::move(out)));
  RETURN_IF_ERROR(work->Wait());
  collected_ = true;
  if (writer_ == nullptr) return absl::OkStatus();
  std::vector<checkpoint::FileRecord> all;
  for (const comm::Message& message : work->received()) {
    ASSIGN_OR_RETURN(std::vector<checkpoint::FileRecord> records,
                     checkpoint::DecodeFileRecords({message.span().data(), message.span().size()}));
    all.insert(all.end(), std::make_move_iterator(records.begin()), std::make_move_iterator(records.end()));
  }
  {
    absl::MutexLock lock(&mu_);
    phase_ = SavePhase::kCommitting;
  }
  auto commit = [this, all = std::move(all)] {
    return writer_->Commit({.step = saving_.step, .saved_by = options_.saved_by, .files = all}, kept_step_);
  };
  Do(std::move(commit), SavePhase::kCommitted);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SavedStep>> CheckpointSaver::Advance(absl::Span<const RankWord> words) {
  if (!busy_) return std::optional<SavedStep>();
  const auto written = [](const RankWord& word) { return word.saving >= static_cast<int32_t>(SavePhase::kWritten); };
  if (!collected_ && std::all_of(words.begin(), words.end(), written)) RETURN_IF_ERROR(Collect());
  if (words[0].saving != static_cast<int32_t>(SavePhase::kCommitted)) return std::optional<SavedStep>();
  busy_ = false;
  saving_.folder = checkpoint::StepFolder(saving_.step);
  saving_.seconds = absl::ToDoubleSeconds(MonotonicNow() - began_);
  absl::MutexLock lock(&mu_);
  phase_ = SavePhase::kIdle;
  return std::optional<SavedStep>(saving_);
}

}  // namespace switchyard::train
