#include "tests/e2e/raw_call.h"

#include <chrono>

#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"

namespace switchyard {
namespace {

// Every operation of the call passes through the queue, one at a time; the call's deadline bounds the wait.
bool Next(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue->Next(&tag, &ok) && ok;
}

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string out;
  if (!buffer.Dump(&slices).ok()) return out;
  for (const grpc::Slice& slice : slices) out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return out;
}

}  // namespace

RawAnswer RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, const std::string& bytes,
                  absl::Duration timeout, const RawOptions& options) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  for (const auto& [key, value] : options.metadata) context.AddMetadata(key, value);
  if (options.compress) context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  const auto call = stub.PrepareCall(&context, method, &queue);
  int tag = 0;
  RawAnswer answer;
  call->StartCall(&tag);
  if (Next(&queue)) {
    const grpc::Slice slice(bytes);
    for (int i = 1; i <= options.times; ++i) {
      grpc::WriteOptions how;
      if (options.half_close && i == options.times) how.set_last_message();
      call->Write(grpc::ByteBuffer(&slice, 1), how, &tag);
      if (!Next(&queue)) break;
    }
    for (grpc::ByteBuffer message;;) {
      call->Read(&message, &tag);
      if (!Next(&queue)) break;
      answer.messages.push_back(Flatten(message));
    }
  }
  call->Finish(&answer.status, &tag);
  Next(&queue);
  for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
    answer.trailers.emplace(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
  }
  queue.Shutdown();
  return answer;
}

}  // namespace switchyard
