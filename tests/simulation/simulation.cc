#include "tests/simulation/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace switchyard::simulation {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(100);
// How long a server may say that it is ready when a worker of its group is gone.
constexpr absl::Duration kUnreadyWithin = absl::Seconds(2);
// After the last fault everything ends within this time, and that of the requests' work.
constexpr absl::Duration kAllEnds = absl::Seconds(60);
constexpr absl::Duration kProbesEnd = absl::Seconds(20);

// When the process last ran, at most; InfiniteFuture: it runs.
absl::Time GoneSince(const ServingWorker& worker, int64_t pid) {
  return worker.pid() == pid ? worker.still_since() : worker.born();
}

}  // namespace

Outcome RunSeed(uint64_t seed, bool trace, const ServerProcess::Shared& shared) {
  return Simulation(seed, trace, shared).Run();
}

Simulation::Simulation(uint64_t seed, bool trace, const ServerProcess::Shared& shared)
    : world_(seed, trace),
      scenario_(DrawScenario(&world_.random())),
      disk_(&world_),
      server_(&world_, scenario_.config, shared, scenario_.jobs, scenario_.num_trainers > 0 ? &disk_ : nullptr),
      fabrics_(&world_),
      shelf_(&world_),
      faults_(&world_, &server_, &disk_, scenario_.config.step_timeout) {
  for (int index = 0; index < scenario_.config.workers; ++index) {
    const bool local = index < scenario_.config.local_workers;
    WorkerProcess::Identity identity = {.role = "",
                                        .index = index,
                                        .local = local,
                                        .token = local ? scenario_.config.local_token : scenario_.config.join_token};
    workers_.push_back(
        std::make_unique<ServingWorker>(&world_, &server_, std::move(identity), &fabrics_, scenario_.model));
    if (local) server_.AddLocal(workers_.back().get());
    faults_.AddWorker(workers_.back().get());
  }
  AddTrainers();
  server_.on_forming = [this] { faults_.OnForming(); };
  server_.on_death = [this](bool restart) {
    for (const auto& client : clients_) client->OnServerDeath();
    if (restart) faults_.StartServer(world_.random().Skewed(absl::Milliseconds(50), absl::Seconds(2)));
  };
}

void Simulation::AddTrainers() {
  for (int index = 0; index < scenario_.num_trainers; ++index) {
    const bool local = index < scenario_.num_local_trainers;
    WorkerProcess::Identity identity = {.role = fleet::kRoleTrain,
                                        .index = index,
                                        .local = local,
                                        .token = local ? scenario_.config.local_token : scenario_.config.join_token};
    trainers_.push_back(
        std::make_unique<TrainingWorker>(&world_, &server_, std::move(identity), &fabrics_, &shelf_, &disk_));
    if (local) server_.AddLocal(trainers_.back().get());
    faults_.AddWorker(trainers_.back().get());
  }
}

void Simulation::Start() {
  server_.Boot();
  for (auto& [at, wish] : scenario_.requests) {
    clients_.push_back(std::make_unique<Client>(&world_, &server_, std::move(wish), scenario_.max_context));
    const int poisoned = scenario_.poisoned ? 1 : 0;
    // A poisoned request takes its neighbours along twice; the third time it runs alone.
    clients_.back()->set_may_be_blamed([this, poisoned] { return faults_.num_suspicious() + 2 * poisoned >= 3; });
    world_.After(at, [this, client = clients_.back().get()] {
      ++arrived_;
      client->Begin();
    });
  }
  for (auto& [at, plan] : scenario_.users) {
    users_.push_back(std::make_unique<JobUser>(&world_, &server_, &shelf_, std::move(plan)));
    world_.After(at, [this, user = users_.back().get()] {
      ++arrived_;
      user->Begin();
    });
  }
  faults_.Draw(scenario_.num_faults, scenario_.faults_end);
  faults_.DrawForming(scenario_.num_forming_faults);
  Watch();
}

// Looks at what must hold at any time, and does what people and other machines do.
void Simulation::Watch() {
  server_ran_since_ = server_.runs() ? std::min(server_ran_since_, world_.now()) : absl::InfiniteFuture();
  CheckReadiness();
  std::vector<WorkerProcess*> all;
  for (const auto& worker : workers_) all.push_back(worker.get());
  for (const auto& trainer : trainers_) all.push_back(trainer.get());
  for (WorkerProcess* worker : all) {
    worker->CheckKeepalive();
    // Workers from elsewhere are started by somebody there.
    if (!worker->local() && !worker->alive() && world_.random().OneIn(5)) worker->Boot();
  }
  // Somebody sees that a server runs without its jobs, once its disk is good again.
  if (faults_.healed() && server_.listens() && !trainers_.empty() && !server_.has_jobs()) server_.Terminate();
  world_.After(kLook, [this] { Watch(); });
}

void Simulation::CheckReadiness() {
  if (!server_.ready() || world_.now() - server_ran_since_ < kUnreadyWithin) return;
  for (const server::LoadSnapshot::Worker& member : server_.engine().load().workers) {
    const auto gone = [&](const auto& worker) {
      if (worker->index() != member.pid % 100) return false;
      return world_.now() - GoneSince(*worker, member.pid) > kUnreadyWithin + kLook;
    };
    const auto found = std::find_if(workers_.begin(), workers_.end(), gone);
    if (found != workers_.end()) {
      world_.Violate("the server says that it is ready, though ", (*found)->name(), " has not run for ",
                     absl::FormatDuration(world_.now() - GoneSince(**found, member.pid)));
    }
  }
}

bool Simulation::IsQuiet() const {
  const auto over = [](const auto& who) { return who->over(); };
  return arrived_ == clients_.size() + users_.size() && server_.runs() && server_.ready() &&
         std::all_of(clients_.begin(), clients_.end(), over) && std::all_of(users_.begin(), users_.end(), over);
}

void Simulation::RunUntil(absl::Duration end, bool until_quiet) {
  const absl::Time last = world_.now() - world_.elapsed() + end;
  while (world_.violation().empty() && !(until_quiet && IsQuiet()) && world_.RunOne(last)) {
  }
}

// Requests that take every slot: nothing that was lost meanwhile may be missing.
void Simulation::Probe() {
  const int32_t count = scenario_.config.workers * scenario_.config.batching.max_num_seqs;
  for (int32_t i = 0; i < std::min(count, scenario_.config.batching.max_queue); ++i) {
    Wish wish;
    wish.id = static_cast<int>(clients_.size());
    wish.prompt = {static_cast<int32_t>(world_.random().Below(40)), i % 40, 3};
    wish.max_tokens = 4;
    wish.seed = world_.random().Next();
    clients_.push_back(std::make_unique<Client>(&world_, &server_, std::move(wish), scenario_.max_context));
    ++arrived_;
    clients_.back()->ExpectService();
    clients_.back()->Begin();
  }
}

void Simulation::CheckLeaks() {
  const batching::SchedulerStats stats = server_.engine().load().scheduler;
  world_.Require(stats.running == 0 && stats.waiting == 0 && stats.in_flight == 0, "after the last request ",
                 stats.running, " sequences run, ", stats.waiting, " wait, ", stats.in_flight, " plans are in flight");
  for (size_t rank = 0; rank < stats.ranks.size(); ++rank) {
    world_.Require(stats.ranks[rank].blocks_used == 0, "after the last request rank ", rank, " has ",
                   stats.ranks[rank].blocks_used, " blocks in use");
  }
}

Outcome Simulation::Run() {
  Start();
  RunUntil(scenario_.faults_end, /*until_quiet=*/false);
  faults_.Heal();
  for (const auto& user : users_) user->OnHealed();
  const absl::Duration all_end = kAllEnds + scenario_.work;
  RunUntil(scenario_.faults_end + all_end, /*until_quiet=*/true);
  if (world_.violation().empty() && !IsQuiet()) {
    std::string open = server_.ready() ? "" : " the server is not ready;";
    for (const auto& client : clients_) absl::StrAppend(&open, client->over() ? "" : " " + client->name());
    for (const auto& user : users_) absl::StrAppend(&open, user->over() ? "" : " " + user->name());
    world_.Violate("liveness: ", absl::FormatDuration(all_end), " after the last fault not all has ended:", open);
  }
  if (world_.violation().empty()) {
    Probe();
    const absl::Duration begun = world_.elapsed();
    RunUntil(begun + kProbesEnd, /*until_quiet=*/true);
    for (const auto& client : clients_) {
      if (client->over()) continue;
      world_.Violate("liveness: ", client->name(), " has not ended");
    }
    RunUntil(world_.elapsed() + absl::Milliseconds(500), /*until_quiet=*/false);
    if (world_.violation().empty()) CheckLeaks();
  }
  const Outcome outcome = {world_.violation(), world_.hash(), world_.elapsed()};
  server_.Die("signal 9 (Killed)");
  return outcome;
}

}  // namespace switchyard::simulation
