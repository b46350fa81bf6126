// What ops of a layer's one chunk read and write, for builders whose buffers have a slot each.
#pragma once

#include "scheduler/pipeline/moe_schedule.h"

namespace switchyard::pipeline {

// Experts' outputs, or the gradients of their inputs: what combines take back.
inline BufferSlot ResultOf(Pass pass) {
  return {pass == Pass::kForward ? BufferKind::kOutput : BufferKind::kInputGradient};
}

inline MicroOp DispatchAmong(Group group, Pass pass) {
  MicroOp op = {.kind = MicroOpKind::kDispatch, .pass = pass, .group = group};
  op.writes = {BufferSlot{pass == Pass::kForward ? BufferKind::kInput : BufferKind::kOutputGradient}};
  return op;
}

inline MicroOp Experts(Pass pass) {
  MicroOp op = {.kind = MicroOpKind::kExpert, .pass = pass};
  if (pass == Pass::kForward) {
    op.reads = {BufferSlot{BufferKind::kInput}};
    op.writes = {{BufferKind::kHidden}, ResultOf(pass)};
  } else {
    op.reads = {{BufferKind::kHidden}, {BufferKind::kOutputGradient}};
    op.writes = {{BufferKind::kHiddenGradient}, ResultOf(pass)};
  }
  return op;
}

inline MicroOp ExpertWeights() {
  MicroOp op = {.kind = MicroOpKind::kWeights, .pass = Pass::kBackward};
  op.reads = {{BufferKind::kInput}, {BufferKind::kOutputGradient}, {BufferKind::kHiddenGradient}};
  return op;
}

}  // namespace switchyard::pipeline
