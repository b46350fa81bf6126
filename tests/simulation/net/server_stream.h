// The server's end of a worker's link: gRPC's stream as the server's own reactor (server/fleet/worker_service.cc) sees
// it, over a simulated connection.
//
// Calls the reactor back as gRPC does: never inside of a call of it, reads and writes one at a time, OnDone once, after
// Finish and all that is under way.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "tests/simulation/core/process.h"
#include "tests/simulation/net/connection.h"

namespace switchyard::simulation {

class ServerStream final : public grpc::ServerCallbackReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public Connection::End {
 public:
  using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  // Borrows the server; after each call of the reactor calls `woke`.
  ServerStream(World* world, Process* server, std::shared_ptr<Connection> connection, std::function<void()> woke);
  // The reactor owns itself.
  void Bind(Reactor* reactor);
  // The server's process has ended: the reactor goes, unasked.
  void Drop();
  // Bytes have come that nobody has read.
  bool has_unread() const { return !arrived_.empty(); }
  bool done() const { return reactor_ == nullptr; }

  // --- gRPC's stream ---
  void Finish(grpc::Status status) override;
  void SendInitialMetadata() override {}
  void Read(grpc::ByteBuffer* message) override;
  void Write(const grpc::ByteBuffer* message, grpc::WriteOptions options) override;
  void WriteAndFinish(const grpc::ByteBuffer*, grpc::WriteOptions, grpc::Status) override {}

  // --- Connection::End ---
  void OnBytes(std::string bytes) override;
  void OnEnd(const absl::Status& status) override;

 private:
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}
  void EndRead();
  void DoneIfOver();

  World& world_;
  Process& server_;
  const std::shared_ptr<Connection> connection_;
  const std::function<void()> woke_;
  Reactor* reactor_ = nullptr;
  grpc::ByteBuffer* read_ = nullptr;  // where the read under way goes
  bool reading_ = false;              // its end is scheduled
  int writes_ = 0;                    // under way
  std::deque<std::string> arrived_;
  bool broken_ = false, finished_ = false, over_ = false;
};

std::string BytesOf(const grpc::ByteBuffer& buffer);

}  // namespace switchyard::simulation
