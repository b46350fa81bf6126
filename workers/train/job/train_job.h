// One rank's attempt at a training job, from its spec to its end: opens model and data, goes on from the newest whole
// checkpoint, trains step after step, evaluates, saves, and says how it ended.
//
// All ranks run the same attempt over one communicator.  At a control point before each step they tell each other who
// was asked to stop, who cannot go on and whose files are written, so that they stop, save and fail at the same step.
// Where a job is follows from its seed and step alone (data_source.h, lr_schedule.h): an attempt that was interrupted
// anywhere goes on to the bits of one that was not, given as many ranks of the same instruction set.
// Run belongs to one thread; Stop may come from any.  Who wants it ended at once aborts the communicator.
// Where the stream's pool is behind a gate (work_gate.h) all that it computes goes through the gate, in Run's thread
// and in those that it starts; limits of time go on meanwhile.  Threads of connections, which move bytes, do not. CPU
// only.  Does not do: limits of time, retries, packing of text (the server's).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/jobs/expert_packing.h"
#include "scheduler/jobs/job_spec.h"
#include "scheduler/jobs/train_end.h"
#include "scheduler/jobs/training_seat.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/checkpoint/manifest/find_checkpoint.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/comm/core/communicator.h"
#include "workers/model/config/config.h"
#include "workers/model/config/training_config.h"
#include "workers/model/forward/model.h"
#include "workers/tensor/device.h"
#include "workers/tensor/machine_memory.h"
#include "workers/train/data/data_source.h"
#include "workers/train/job/checkpoint_saver.h"
#include "workers/train/packing/expert_packer.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/parameters/state_file.h"
#include "workers/train/step/step_meter.h"
#include "workers/train/step/train_outcome.h"
#include "workers/train/step/trainer.h"
#include "workers/train/step/trainer_state.h"
#include "workers/train/step/training_memory.h"

namespace switchyard {

struct TrainJobInput {
  JobSpec spec = {};
  std::string job_id = {};                            // also the name of its folder
  int64_t attempt = 0;                                // rising with every start of the job
  std::vector<TrainFile> data = {}, evaluation = {};  // .bin
  std::string dataset_root = {}, checkpoint_root = {};
  // Opens the job's folder of the checkpoint root; none: OpenJobFolder.
  std::function<absl::StatusOr<std::unique_ptr<FileSystem>>()> open_checkpoints = {};
  std::function<MachineMemory()> memory = {};     // now; not shared out among ranks
  std::function<int64_t()> promised_memory = {};  // bytes of it that this process will want for others; none: 0
  // Mode full: when packing of experts is decided (`world` and the most are the job's), and what a rank says of the
  // step that it has done (none: TimesOf); for tests.
  PackingOptions packing = {};
  std::function<PackingTimes(int64_t step, const StepReport& report)> packing_times = {};
  std::string offload_dir = {};                      // for a file that offloaded state is in; empty: there is none
  OpenStateFileFn open_offload = {};                 // makes it; none: OpenStateFile in that directory
  std::string software = {};                         // version, for manifests
  absl::Duration step_limit = absl::Hours(1);        // of a step, compute included; who is lost is seen at once
  absl::Duration disk_limit = absl::Hours(1);        // … while one of them reads or writes files
  absl::Duration lock_patience = absl::Seconds(10);  // how long an attempt that is over may hold the job's folder
  absl::Duration read_pause = absl::Seconds(1);      // before another look at a checkpoint that could not be read
  absl::Duration note_interval = absl::Seconds(2);   // between notes of what takes long
};

// Told on Run's thread, in the order of things.  All but Started: by rank 0 alone.
class TrainListener {
 public:
  virtual ~TrainListener() = default;
  // From this step on.  Warnings: what was passed over, and why bits may differ.
  virtual void Started(int64_t step, const std::vector<std::string>& warnings) = 0;
  virtual void StepDone(const StepProgress& progress) = 0;
  virtual void Evaluated(int64_t step, double loss, int64_t tokens) = 0;
  virtual void Saved(const SavedStep& saved) = 0;
  // What it is doing; of what takes long every note_interval or so, for as long as it gets ahead: "evaluation after
  // step 8: 40 of 200 windows".  While Run's thread waits for those that load, one of them may tell.
  virtual void Note(const std::string& text) = 0;
};

class TrainJob {
 public:
  // Borrowed: comm, listener and what the stream borrows.
  TrainJob(TrainJobInput input, const Stream& stream, Communicator* comm, TrainListener* listener);
  ~TrainJob();

  // Blocks until the attempt has ended; once.  On an error of this rank alone the communicator is aborted.
  TrainEnd Run();
  // Any thread, also before Run.
  void Stop(StopKind kind);

 private:
  // All that computes: inside of the pool's gate.
  absl::Status RunInside();
  // train_job_setup.cc: in this order, each ends alike on all ranks.
  absl::Status Prepare();
  absl::Status CountNeighbours();
  absl::Status OpenCheckpoints();
  absl::Status OpenModel();
  absl::Status CheckFits();
  absl::Status OpenData();
  absl::Status FindStart();
  absl::StatusOr<FoundCheckpoint> LookForCheckpoint();
  absl::Status TakeLock();
  absl::Status ReadStart();
  absl::Status FindPacking();
  absl::Status MakeModel();
  absl::Status MakePacker();
  absl::Status LoadStart();
  absl::Status OpenSaver();
  absl::Status OpenPackingJournal();
  absl::StatusOr<std::vector<TokenFile>> OpenFiles(const std::vector<TrainFile>& files, absl::string_view what);
  absl::Status CheckTargets(const DataSource& source, size_t num_files, absl::string_view what);
  absl::Status Restore();
  int64_t AvailableMemory() const;
  int RanksOf(const MemoryPool& pool) const;
  // An error of data: Blocked if they have been right before.
  absl::Status OfData(const absl::Status& status, bool were_right) const;
  // Tells how much was read of what takes long; Cancelled when it is of no use any more.
  absl::Status NoteRead(absl::string_view what, int64_t bytes);
  std::string Holder() const;
  void WarnOfOtherBits(const SavedBy& saved_by);
  // train_job_fit.cc, with so many replicas of every expert; null: nothing can be offloaded.
  OpenStateFileFn OffloadFile() const;
  TrainingNeed NeedOf(int32_t packing, bool offload) const;
  // Failed, with what would help.
  absl::Status DoesNotFit(const TrainingNeed& need, int64_t available, const absl::Status& status) const;
  // Whether it fits into that memory only so; an error where it does not fit at all.
  absl::StatusOr<bool> MustOffload(int32_t packing, int64_t available) const;
  int64_t OffloadedBytes(int32_t packing) const;
  absl::Status CheckOffloadRoom(int64_t bytes) const;
  absl::Status CheckPackingFits();
  void TellOffload();
  // train_job_packing.cc
  absl::Status ReplayPacking(absl::string_view journal);
  void PackAnew(const std::string& why);
  absl::Status Journal(const PackingDecision& decision);
  absl::StatusOr<std::optional<PackingDecision>> Pack(const StepReport& report);

  absl::Status Train();
  void TellSkipped();
  // Where the files have changed: what was trained is kept.
  absl::Status SaveBlocked(absl::Status why);
  absl::StatusOr<StopKind> Control(const absl::Status& mine);
  absl::Status LoadStep(std::vector<TrainRows>* micro_batches) const;
  absl::Status RunStep(absl::Span<const TrainRows> micro_batches, double data_seconds);
  // Whether it came to its end; false: somebody wants to stop.
  absl::StatusOr<bool> Evaluate();
  absl::Status Save();
  // Until it counts; or, `written`, until all ranks have written.
  absl::Status AwaitSave(bool written = false);
  absl::Status AgreeOn(const absl::Status& mine);
  void Stage(const std::string& text);
  void Note(const std::string& text);
  bool leads() const { return comm_->rank() == 0; }
  SavedBy OwnSavedBy() const;

  const TrainJobInput input_;
  JobSpec spec_;  // its balance_weight is set when the model's config.json was read
  const Stream stream_;
  Communicator* const comm_;
  TrainListener* const listener_;
  std::atomic<StopKind> stop_ = StopKind::kNone;

  const DType dtype_;
  std::unique_ptr<FileSystem> checkpoints_;  // the job's folder
  std::unique_ptr<File> lock_;               // rank 0's, of that, until saver_ has it
  bool offloads_ = false;                    // begins with masters and moments of experts in a file
  int64_t told_offload_ = 0;                 // bytes of it
  // How many ranks take from each pool of the memory that this one takes from, by a hash of the pool's name.
  absl::flat_hash_map<std::string, int> ranks_of_pool_;
  int ranks_here_ = 1;  // of this machine
  std::string config_text_;
  ModelConfig config_;
  TrainingConfig training_config_;
  std::unique_ptr<ModelDir> model_dir_;
  std::vector<NamedTokens> data_names_;
  std::unique_ptr<DataSource> data_, evaluation_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<ExpertPacker> packer_;
  std::unique_ptr<CheckpointSaver> saver_;
  std::vector<std::string> warnings_;
  std::string start_folder_;                  // of the checkpoint that it goes on from; "" = from the beginning
  Manifest start_manifest_;                   // of it
  TrainerState start_;                        // of it
  std::optional<PackingController> packing_;  // until packer_ has it
  bool packs_ = false;                        // the same on all ranks
  std::vector<PackingDecision> journalled_;   // that count, in packing.log
  bool renews_journal_ = false;               // those of packing.log do not count

  int64_t step_ = 0;        // done
  int64_t tokens_ = 0;      // trained
  int64_t saved_step_ = 0;  // the newest that was begun to be saved, or restored
  StopKind stopped_ = StopKind::kNone;
  bool agreed_ = false;  // the error is known to all ranks
  StepMeter meter_;
  absl::Time last_note_ = absl::InfinitePast();
  int64_t noted_bytes_ = 0;  // of what is read or written
};

}  // namespace switchyard
