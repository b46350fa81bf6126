// What one seed draws before it begins: the cluster, the requests and their clients, and how bad the weather is.
#pragma once

#include <vector>

#include "server/config.h"
#include "tests/simulation/core/random.h"
#include "tests/simulation/serving/client.h"
#include "tests/simulation/serving/serving_worker.h"
#include "tests/simulation/training/job_user.h"

namespace switchyard::simulation {

struct Scenario {
  server::ServerConfig config;
  ServingWorker::Model model;
  int32_t max_context = 0;
  std::vector<std::pair<absl::Duration, Wish>> requests;  // when they come
  int num_trainers = 0, num_local_trainers = 0;           // 0: the server has no jobs
  server::JobManager::Options jobs;
  std::vector<std::pair<absl::Duration, JobUser::Plan>> users;
  absl::Duration work;         // of all requests, one after another, if nothing fails: at most
  bool poisoned = false;       // a request crashes its workers
  absl::Duration faults_end;   // from the start; afterwards nothing fails
  int num_faults = 0;          // drawn in advance
  int num_forming_faults = 0;  // more, when a group forms
};

Scenario DrawScenario(Random* random);

}  // namespace switchyard::simulation
