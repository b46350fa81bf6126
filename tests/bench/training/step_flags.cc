#include "tests/bench/training/step_flags.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"

ABSL_FLAG(int, layers, 4, "");
ABSL_FLAG(int64_t, row_bytes, 1 << 18, "of a rank's rows of a layer, each way");
ABSL_FLAG(double, attention_us, 1000, "of a layer, forward");
ABSL_FLAG(double, experts_us, 1000, "likewise");
ABSL_FLAG(std::vector<std::string>, feed_forward, {}, "elements of gradients of each layer, and so below");
ABSL_FLAG(std::vector<std::string>, attention_out, {}, "");
ABSL_FLAG(std::vector<std::string>, attention_in, {}, "");
ABSL_FLAG(std::vector<std::string>, expert, {}, "of one expert");
ABSL_FLAG(std::vector<std::string>, head, {}, "before all layers");
ABSL_FLAG(std::vector<std::string>, embedding, {}, "after all layers");
ABSL_FLAG(int, decoder_layer, -1, "the decoder's first, or -1");
ABSL_FLAG(std::vector<std::string>, decoder_out, {}, "of each layer from there on, besides");
ABSL_FLAG(std::vector<std::string>, decoder_in, {}, "likewise");
ABSL_FLAG(std::vector<std::string>, decoder_embedding, {}, "with the decoder's first layer");
ABSL_FLAG(int64_t, piece_bytes, 30 << 20, "of a micro-op");
ABSL_FLAG(double, rank_bytes_per_s, 1e7, "of a rank's link");
ABSL_FLAG(double, node_bytes_per_s, 3e7, "of a node's");
ABSL_FLAG(int, node_size, 4, "ranks");

namespace switchyard::bench {
namespace {

std::vector<int64_t> Numbers(const std::vector<std::string>& texts) {
  std::vector<int64_t> numbers;
  for (const std::string& text : texts) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(text, &number)) {
      std::cerr << "training_worker: " << text << " is no number" << std::endl;
      std::exit(2);
    }
    if (number > 0) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

StepShape ShapeOfFlags() {
  return {.layers = absl::GetFlag(FLAGS_layers),
          .row_bytes = absl::GetFlag(FLAGS_row_bytes),
          .attention = absl::Microseconds(absl::GetFlag(FLAGS_attention_us)),
          .experts = absl::Microseconds(absl::GetFlag(FLAGS_experts_us)),
          .feed_forward = Numbers(absl::GetFlag(FLAGS_feed_forward)),
          .attention_out = Numbers(absl::GetFlag(FLAGS_attention_out)),
          .attention_in = Numbers(absl::GetFlag(FLAGS_attention_in)),
          .expert = Numbers(absl::GetFlag(FLAGS_expert)),
          .head = Numbers(absl::GetFlag(FLAGS_head)),
          .embedding = Numbers(absl::GetFlag(FLAGS_embedding)),
          .decoder_layer = absl::GetFlag(FLAGS_decoder_layer),
          .decoder_out = Numbers(absl::GetFlag(FLAGS_decoder_out)),
          .decoder_in = Numbers(absl::GetFlag(FLAGS_decoder_in)),
          .decoder_embedding = Numbers(absl::GetFlag(FLAGS_decoder_embedding))};
}

Links LinksOfFlags() {
  return {.rank_bytes_per_s = absl::GetFlag(FLAGS_rank_bytes_per_s),
          .node_bytes_per_s = absl::GetFlag(FLAGS_node_bytes_per_s),
          .node_size = absl::GetFlag(FLAGS_node_size)};
}

jobs::CommunicationSpec SpecOfFlags(jobs::CommMode mode) {
  return {.mode = mode, .piece_bytes = absl::GetFlag(FLAGS_piece_bytes)};
}

comm::SocketGroupOptions SocketsOfFlags(const comm::GroupOptions& group) {
  static constexpr int64_t kLeastBytes = 8 << 10;  // about a packet
  // Scaled, too: what the kernel chooses is many times what an all-to-all has here.
  static constexpr int kSendBuffer = 64 << 10;
  comm::SocketGroupOptions options = {
      .group = group, .framing = comm::kOvertakingFrames, .socket = {.send_buffer_bytes = kSendBuffer}};
  const auto scaled = [](int64_t bytes) {
    return std::clamp(absl::GetFlag(FLAGS_piece_bytes) * bytes / jobs::kMostPiece, kLeastBytes, bytes);
  };
  options.framing.bytes = scaled(options.framing.bytes);
  options.socket.send_buffer_bytes = static_cast<int>(2 * scaled(options.socket.send_buffer_bytes / 2));
  options.socket.unsent_bytes = static_cast<int>(scaled(options.socket.unsent_bytes));
  return options;
}

}  // namespace switchyard::bench
