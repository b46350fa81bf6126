// The queue of jobs: says whose turn it is.
//
// First come, first served: a job that waits for workers holds back those behind it that want the same kind (training
// alone, or serving as well).  A job whose attempt was lost keeps its place; a paused one goes to the end.
// Thread-compatible; a job's place is in the book.
#pragma once

#include <vector>

#include "server/jobs/job_book.h"
#include "server/jobs/run/job_retries.h"
#include "server/jobs/run/job_runs.h"
#include "server/jobs/trainer_pool.h"
#include "server/jobs/training_host.h"

namespace switchyard::server {

class JobQueue {
 public:
  // All borrowed.
  JobQueue(TrainingHost* host, JobBook* book, const TrainerPools* pools, JobRetries* retries, JobRuns* runs)
      : host_(host), book_(book), pools_(*pools), retries_(retries), runs_(runs) {}

  // Begins jobs for which there are workers; notes of each other what it waits for.
  void Admit();

 private:
  // Workers of one kind.
  struct Room {
    int available = 0;
    bool held = false;  // whoever is first keeps others from what it waits for
  };
  std::vector<Job*> Waiting() const;
  // False: the journal cannot be written, so nobody else begins either.
  bool Consider(Job* job, Room* room);

  TrainingHost* const host_;
  JobBook* const book_;
  const TrainerPools& pools_;
  JobRetries* const retries_;
  JobRuns* const runs_;
};

}  // namespace switchyard::server
