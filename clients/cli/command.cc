#include "clients/cli/command.h"

#include "absl/strings/str_cat.h"
#include "clients/cpp/client_error.h"

namespace switchyard {

void ServerFlags::AddTo(CLI::App* app) {
  app->add_option("--server", server, "the server's gRPC address; an IPv6 one in brackets: [::1]:50051")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app->add_option("--timeout", timeout_seconds, "longest time that one request may take, in seconds")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
}

absl::StatusOr<std::unique_ptr<Client>> ServerFlags::Connect() const {
  ClientOptions options;
  options.generate_timeout = absl::Seconds(timeout_seconds);
  return Client::Connect(server, options);
}

int Complain(Console& console, const absl::Status& status) {
  console.err << "switchyard: " << Explain(status) << std::endl;
  return Describe(status).reason == "BAD_INPUT" ? kExitUsage : kExitFailed;
}

Json ErrorJson(const absl::Status& status) {
  const ErrorDescription error = Describe(status);
  Json out = {{"code", error.code}, {"reason", error.reason}, {"message", error.message}};
  if (error.retry_after > absl::ZeroDuration()) out["retry_after_seconds"] = absl::ToDoubleSeconds(error.retry_after);
  if (!error.metadata.empty()) out["metadata"] = error.metadata;
  return out;
}

absl::Status BadInput(absl::string_view message) {
  return ClientError(absl::StatusCode::kInvalidArgument, "BAD_INPUT", message);
}

}  // namespace switchyard
