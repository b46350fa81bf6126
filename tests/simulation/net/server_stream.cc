#include "tests/simulation/net/server_stream.h"

#include <utility>

namespace switchyard::simulation {

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  if (!buffer.Valid() || !buffer.DumpToSingleSlice(&slice).ok()) return "";
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

ServerStream::ServerStream(World* world, Process* server, std::shared_ptr<Connection> connection,
                           std::function<void()> woke)
    : world_(*world), server_(*server), connection_(std::move(connection)), woke_(std::move(woke)) {}

void ServerStream::Bind(Reactor* reactor) {
  reactor_ = reactor;
  BindReactor(reactor);
  connection_->Attach(Connection::kServer, this);
}

void ServerStream::Drop() {
  connection_->Abandon(Connection::kServer);
  if (reactor_ != nullptr) std::exchange(reactor_, nullptr)->OnDone();
}

void ServerStream::Finish(grpc::Status status) {
  finished_ = true;
  connection_->Close(Connection::kServer,
                     absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
  EndRead();
  DoneIfOver();
}

void ServerStream::Read(grpc::ByteBuffer* message) {
  read_ = message;
  EndRead();
}

// Ends the read under way once there is something to read or there will not be.
void ServerStream::EndRead() {
  if (read_ == nullptr || reading_ || (arrived_.empty() && !broken_ && !finished_)) return;
  reading_ = true;
  server_.Soon([this] {
    reading_ = false;
    grpc::ByteBuffer* const to = std::exchange(read_, nullptr);
    const bool ok = !arrived_.empty() && !finished_;
    if (ok) {
      const grpc::Slice slice(arrived_.front());
      *to = grpc::ByteBuffer(&slice, 1);
      arrived_.pop_front();
    }
    reactor_->OnReadDone(ok);
    woke_();
    DoneIfOver();
  });
}

void ServerStream::Write(const grpc::ByteBuffer* message, grpc::WriteOptions) {
  connection_->Send(Connection::kServer, BytesOf(*message));
  ++writes_;
  server_.Soon([this] {
    --writes_;
    reactor_->OnWriteDone(!broken_);
    DoneIfOver();
  });
}

void ServerStream::OnBytes(std::string bytes) {
  arrived_.push_back(std::move(bytes));
  EndRead();
}

void ServerStream::OnEnd(const absl::Status&) {
  broken_ = true;
  EndRead();
  server_.Soon([this] {
    if (reactor_ == nullptr || over_) return;
    reactor_->OnCancel();
    woke_();
  });
}

void ServerStream::DoneIfOver() {
  if (!finished_ || over_ || read_ != nullptr || writes_ > 0) return;
  over_ = true;
  arrived_.clear();
  server_.Soon([this] {
    std::exchange(reactor_, nullptr)->OnDone();
    woke_();
  });
}

}  // namespace switchyard::simulation
