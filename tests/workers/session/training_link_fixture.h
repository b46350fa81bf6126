// Workers that train, perhaps beside serving, as links to a server that says what the test wants.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/workers/session/link_server.h"
#include "tests/workers/train/job_fixture.h"
#include "workers/session/training_role.h"
#include "workers/session/worker_link.h"

namespace switchyard::worker {

class TrainingLinkTest : public train::JobFixture {
 protected:
  using MakeRoleFn = std::function<std::unique_ptr<LinkRole>(WorkerMetrics* metrics)>;
  // One process's worth.
  struct Trainer {
    Trainer(const MakeRoleFn& make_role, LinkOptions link_options)
        : role(make_role(&metrics)),
          link(std::move(link_options), role.get()),
          thread([this] { status = link.Run(); }) {}
    ~Trainer() {
      link.Stop();
      thread.join();
      EXPECT_TRUE(status.ok()) << status;
    }
    WorkerMetrics metrics;
    std::unique_ptr<LinkRole> role;
    WorkerLink link;
    absl::Status status;
    std::thread thread;
  };

  TrainingOptions Options() const {
    return {.dataset_root = root_.path() + "/data",
            .checkpoint_root = root_.path() + "/checkpoints",
            .offload_dir = "",
            .threads = 1,
            .software = "test"};
  }
  void StartWorkers(int count) {
    StartWorkers(count, [this](WorkerMetrics* metrics) { return std::make_unique<TrainingRole>(Options(), metrics); });
  }
  void StartWorkers(int count, const MakeRoleFn& make_role) {
    for (int i = 0; i < count; ++i) {
      LinkOptions link;
      link.server = absl::StrCat("127.0.0.1:", server_->port());
      link.local_index = i;
      workers_.push_back(std::make_unique<Trainer>(make_role, link));
      seen_.push_back(0);
    }
    for (int i = 0; i < count; ++i) AwaitRegistration(i);
  }
  v1::Register AwaitRegistration(int worker) {
    return server_
        ->Await(worker, &seen_[worker], [](const v1::LinkRequest& message) { return message.has_register_(); })
        .register_();
  }
  v1::StartTraining StartMessage(int64_t epoch, int64_t attempt, int world) {
    v1::StartTraining start;
    start.set_epoch(epoch);
    start.set_attempt(attempt);
    start.set_job_id("job");
    v1::JobSpec* const spec = start.mutable_spec();
    spec->set_base_checkpoint("model");
    spec->add_datasets("a.bin");
    spec->add_evaluation("held_out.bin");
    spec->set_steps(6);
    spec->set_sequence_length(12);
    spec->set_batch_sequences(4);
    spec->set_workers(world);
    spec->mutable_optimizer()->set_learning_rate(2e-3);
    spec->mutable_checkpoints()->set_every_steps(2);
    spec->mutable_communication()->set_granularity("1");  // nothing is measured
    v1::TrainDataFile* const data = start.add_data();
    data->set_root(v1::TRAIN_DATA_ROOT_DATASETS);
    data->set_name("a.bin");
    v1::TrainDataFile* const evaluation = start.add_evaluation();
    evaluation->set_root(v1::TRAIN_DATA_ROOT_DATASETS);
    evaluation->set_name("held_out.bin");
    start.set_world(world);
    start.set_store_token(absl::StrCat("secret ", epoch));
    start.set_form_deadline_ms(20'000);
    return start;
  }
  void Start(v1::StartTraining start) {
    for (int rank = 0; rank < start.world(); ++rank) {
      start.set_rank(rank);
      v1::LinkResponse message;
      *message.mutable_start_training() = start;
      server_->Send(rank, message);
    }
  }
  void Stop(int worker, int64_t epoch, v1::StopKind kind) {
    v1::LinkResponse message;
    message.mutable_stop_training()->set_epoch(epoch);
    message.mutable_stop_training()->set_kind(kind);
    server_->Send(worker, message);
  }
  v1::TrainingEnded AwaitEnd(int worker) {
    return server_
        ->Await(worker, &seen_[worker], [](const v1::LinkRequest& message) { return message.has_training_ended(); })
        .training_ended();
  }
  void AwaitStep(int64_t step) {
    server_->Await(0, &seen_[0], [step](const v1::LinkRequest& message) {
      return message.has_training_step() && message.training_step().progress().step() >= step;
    });
  }
  v1::TrainingStarted AwaitStarted(int worker) {
    return server_
        ->Await(worker, &seen_[worker], [](const v1::LinkRequest& message) { return message.has_training_started(); })
        .training_started();
  }

  std::unique_ptr<LinkServer> server_ = std::make_unique<LinkServer>();
  std::vector<size_t> seen_;  // messages of each worker
  std::vector<std::unique_ptr<Trainer>> workers_;
};

}  // namespace switchyard::worker
