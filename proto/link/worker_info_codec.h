// A worker's registration as a message of the worker link, and back.
#pragma once

#include "scheduler/fleet/worker_info.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

// The message has this program's version of the link (link_protocol.h); who reads one checks it.
v1::Register ToProto(const fleet::WorkerInfo& info);
fleet::WorkerInfo FromProto(const v1::Register& message);

}  // namespace switchyard::link
