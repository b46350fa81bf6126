// A client's message as its raw bytes, for each request of inference.  What CheckWire passes protobuf parses, and its
// own bytes pass again; whatever it asks for is answered, or refused with a reason.
#include "proto/support/errors.h"
#include "proto/support/raw_message.h"
#include "server/api/convert.h"
#include "tests/fuzz/fuzz.h"
#include "tests/server/tiny_text.h"

namespace switchyard::fuzz {
namespace {

// Never destroyed.
const server::ConvertArgs& Args() {
  static const auto* const args = [] {
    auto* made = new server::ConvertArgs;
    made->model = new server::ServedModel(server::TinyModel());
    made->text = server::TinyText().release();
    made->drawn_id = "drawn";
    made->now = absl::UnixEpoch();
    made->deadline = made->now + absl::Minutes(1);
    made->clock = [] { return absl::UnixEpoch(); };
    return made;
  }();
  return *args;
}

// Parses as the server does.
template <class Message>
bool Parse(absl::string_view bytes, Message* message) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  const absl::Status status = rpc::ParseRaw(grpc::ByteBuffer(&slice, 1), message);
  SY_CHECK_EQ(status.ok(), rpc::CheckWire(*Message::descriptor(), bytes).ok());
  if (!status.ok()) return false;
  const std::string own = message->SerializeAsString();
  Message again;
  SY_CHECK_OK(rpc::CheckWire(*Message::descriptor(), own));
  SY_CHECK(again.ParseFromString(own));
  return true;
}

template <class Answer>
void CheckReason(const absl::StatusOr<Answer>& answer) {
  if (answer.ok()) return;
  SY_CHECK(rpc::ReasonOf(answer.status()) != v1::ERROR_REASON_UNSPECIFIED);
  SY_CHECK_EQ(FindInvalidUtf8(rpc::ToGrpcStatus(answer.status(), "id").error_message()), absl::string_view::npos);
}

}  // namespace

void Fuzz(absl::string_view input) {
  if (v1::GenerateRequest message; Parse(input, &message)) {
    const auto request = server::ConvertGenerate(message, Args());
    CheckReason(request);
    if (request.ok()) SY_CHECK(!(*request)->prompt.empty());
    for (const int32_t id : request.ok() ? (*request)->prompt : std::vector<int32_t>()) {
      SY_CHECK(id >= 0 && id < Args().model->vocab_size);
    }
  }
  if (v1::TokenizeRequest message; Parse(input, &message)) CheckReason(server::ConvertTokenize(message, Args()));
  if (v1::DetokenizeRequest message; Parse(input, &message)) CheckReason(server::ConvertDetokenize(message, Args()));
}

}  // namespace switchyard::fuzz
