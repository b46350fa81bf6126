// Interfaces of what a worker's process does on its link to the server: it serves a model, it trains, or both.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "scheduler/fleet/worker_info.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::worker {

// The address by which the other workers of the group reach this one.
struct Place {
  std::string address;
  bool found = false;  // by this worker itself, not given by a flag

  // Loopback is of no use to workers on other machines.
  std::string Toward(const std::string& reach) const;
};

// Sends to the server, from any thread, also after the link's end; false: the link is over.
using LinkSendFn = absl::AnyInvocable<bool(v1::LinkRequest) const>;

// Handles the server's commands in one session.  Used by the thread that runs the link.
class LinkHandler {
 public:
  // Ends what the handler began; LinkRole::Abort has freed its waits before.  What may wait for a disk ends later.
  virtual ~LinkHandler() = default;
  // A command that the link itself does not know; `registered`, too.  An empty one: none came within patience().
  virtual void Take(const v1::LinkResponse& command) = 0;
  virtual absl::Duration patience() const = 0;
  // Not OK: this process cannot do what it is for, and never has; or its device is lost.
  virtual const absl::Status& fatal() const = 0;
};

// Lives as long as the process.
class LinkRole {
 public:
  virtual ~LinkRole() = default;
  // Fills in what a registration says of the role; the link fills in the rest.
  virtual void Describe(fleet::WorkerInfo* out) const = 0;
  // A link begins: all epochs so far are forgotten.
  virtual std::unique_ptr<LinkHandler> Begin(std::shared_ptr<grpc::Channel> channel, Place place, LinkSendFn send) = 0;
  // A command has arrived; the handler gets it after the commands before it, but masks of steps, which are only shown
  // here.  Any thread; does not block.
  virtual void Arrived(const v1::LinkResponse&) {}
  // Ends the communication of that epoch and of those before, now or when it forms: of the serving group, or of the
  // attempt at a job.  Any thread.
  virtual void Abort(int64_t epoch, const std::string& reason) = 0;
  virtual void AbortTraining(int64_t, const std::string&) {}
  // Whether the role was ever ready: then a later error may pass.
  virtual bool served() const = 0;
  // Whether only another process could go on: the device is lost.
  virtual bool lost() const = 0;
};

}  // namespace switchyard::worker
