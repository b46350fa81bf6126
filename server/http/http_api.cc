#include "server/http/http_api.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/support/api_key.h"
#include "proto/support/errors.h"
#include "proto/support/host_port.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "server/api/model_names.h"
#include "server/engine/engine_loop.h"
#include "server/fleet/serving_group.h"
#include "server/http/api_errors.h"
#include "server/http/apis/anthropic.h"
#include "server/http/apis/chat.h"
#include "server/http/apis/completions.h"
#include "server/http/apis/responses.h"
#include "server/http/generate_exchange.h"
#include "server/http/json_fields.h"
#include "server/http/page/live_api.h"
#include "server/http/page/page.h"
#include "server/http/tokenize.h"

namespace switchyard::server {
namespace {

using Json = JsonFields::Json;

constexpr int64_t kHttpBodies = int64_t{96} << 20;

// Clients write the slash of ORG/NAME as %2F.
std::string PercentDecoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_code = text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) != 0 &&
                         absl::ascii_isxdigit(text[i + 2]) != 0;
    decoded += is_code ? absl::HexStringToBytes(text.substr(i + 1, 2)) : std::string(1, text[i]);
    if (is_code) i += 2;
  }
  return decoded;
}
constexpr absl::string_view kGenerate = "InferenceService/Generate";

constexpr size_t kMostAskedHeaderBytes = 2048;
constexpr absl::string_view kMarksInHeaderNames = "!#$%&'*+-.^_`|~";

// The headers that a page's request may have: those that the browser asks for, as each client library adds its own
// (Anthropic's x-api-key and anthropic-version, OpenAI's x-stainless-os).  `asked`: their names, with commas.
std::string AllowedHeaders(absl::string_view asked) {
  const auto is_of_list = [](char byte) {
    return absl::ascii_isalnum(static_cast<unsigned char>(byte)) || byte == ',' || byte == ' ' ||
           kMarksInHeaderNames.find(byte) != absl::string_view::npos;
  };
  if (!asked.empty() && asked.size() <= kMostAskedHeaderBytes && std::all_of(asked.begin(), asked.end(), is_of_list))
    return std::string(asked);
  return "Authorization, Content-Type, Traceparent, Tracestate, X-Request-Id";
}

}  // namespace

// What handles a path.  Each answers the exchange, now or later.
class HttpApi::Handlers {
 public:
  struct Call {
    RequestContext* context;
    const TrainingContext* training;
    std::shared_ptr<HttpExchange> exchange;
    absl::StatusOr<Caller> caller;

    void Reply(const Json& body, int status = 200) const {
      exchange->Reply({.status = status, .body = JsonText(body)});
    }
  };
  struct Route {
    absl::string_view method, path;  // a path that ends in / stands for all beneath it, but for / itself
    absl::string_view role;          // a method of keys/roles.h that needs the same; empty: anybody may
    void (*handle)(const Call& call);
    bool IsFor(absl::string_view of) const {
      return of == path || (path.size() > 1 && absl::EndsWith(path, "/") && absl::StartsWith(of, path));
    }
  };
  static const Route kRoutes[];

 private:
  static int64_t Now() { return absl::ToUnixSeconds(absl::Now()); }

  static void Health(const Call& call) { call.exchange->Reply({.type = "", .body = ""}); }
  static void Ready(const Call& call) {
    const LoadSnapshot load = call.context->engine->load();
    Json body = {{"ready", load.ready}};
    if (!load.ready) body["reason"] = load.not_ready_reason;
    call.Reply(body, load.ready ? 200 : 503);
  }
  static void Version(const Call& call) { call.Reply({{"version", call.context->config->version}}); }
  static void Load(const Call& call) {
    const LoadSnapshot load = call.context->engine->load();
    call.Reply({{"server_load", load.scheduler.running + load.scheduler.waiting_requests},
                {"ready", load.ready},
                {"running_requests", load.scheduler.running},
                {"waiting_requests", load.scheduler.waiting_requests},
                {"waiting_tokens", load.scheduler.waiting_tokens},
                {"max_waiting_requests", call.context->config->batching.max_queue}});
  }
  static void Metrics(const Call& call) {
    call.exchange->Reply({.type = "text/plain; version=0.0.4; charset=utf-8", .body = call.context->metrics->Page()});
  }
  // The served model; before it is known its name alone.
  static std::shared_ptr<const ServedModel> ModelOf(const RequestContext& context) {
    if (auto model = context.engine->model(); model != nullptr) return model;
    auto unknown = std::make_shared<ServedModel>();
    unknown->name = context.config->served_model_name;
    return unknown;
  }
  // The model with that adapter, whose parent it then is; 0: without.
  static Json ModelJson(const RequestContext& context, const ServedModel& model, int32_t adapter) {
    Json json = {{"id", ModelName(model, adapter)},
                 {"object", "model"},
                 {"created", context.start_time},
                 {"owned_by", "switchyard"},
                 {"root", model.name},
                 {"parent", adapter > 0 ? Json(model.name) : Json(nullptr)}};
    if (model.max_model_len > 0) json["max_model_len"] = model.max_model_len;
    return json;
  }
  static void Models(const Call& call) {
    Json models = Json::array();
    const std::shared_ptr<const ServedModel> model = ModelOf(*call.context);
    for (int32_t i = 0; !call.context->config->only_trains && i <= static_cast<int32_t>(model->adapters.size()); ++i)
      models.push_back(ModelJson(*call.context, *model, i));
    call.Reply({{"object", "list"}, {"data", std::move(models)}});
  }
  static void Model(const Call& call) {
    const std::string name =
        PercentDecoded(absl::string_view(call.exchange->request().path).substr(std::string("/v1/models/").size()));
    const ServerConfig& config = *call.context->config;
    EngineLoop* const engine = call.context->engine;
    // The workers have yet to say which adapters there are.
    if (engine->model() == nullptr && absl::StartsWith(name, absl::StrCat(config.served_model_name, ":"))) {
      const absl::Status loading = LoadingError(config, engine->load().not_ready_reason);
      return call.exchange->Reply(ErrorReply(ErrorShape::kOpenAi, loading));
    }
    const std::shared_ptr<const ServedModel> model = ModelOf(*call.context);
    const absl::StatusOr<int32_t> adapter = FindAdapter(name, *model);
    if (adapter.ok() && !name.empty()) return call.Reply(ModelJson(*call.context, *model, *adapter));
    call.exchange->Reply(ErrorReply(ErrorShape::kOpenAi, UnknownModel(name, *model)));
  }
  static void Chat(const Call& call) {
    AnswerByGenerating(call.context, call.exchange, call.caller, NewChatWriter(call.context->text, Now()));
  }
  static void Completions(const Call& call) {
    AnswerByGenerating(call.context, call.exchange, call.caller, NewCompletionsWriter(call.context->text, Now()));
  }
  static void Responses(const Call& call) {
    AnswerByGenerating(call.context, call.exchange, call.caller, NewResponsesWriter(call.context->text, Now()));
  }
  static void Messages(const Call& call) {
    AnswerByGenerating(call.context, call.exchange, call.caller, NewAnthropicWriter(call.context->text));
  }
  static void CountTokens(const Call& call) { AnswerCountTokens(call.context, call.exchange, *call.caller); }
  static void Tokenize(const Call& call) { AnswerTokenize(call.context, call.exchange, *call.caller); }
  static void Detokenize(const Call& call) { AnswerDetokenize(call.context, call.exchange, *call.caller); }
  static void Page(const Call& call) { AnswerPageFile(call.exchange); }
  // GET /api/…
  template <void (*answer)(const LiveCall&)>
  static void Live(const Call& call) {
    answer({call.context, call.training, call.exchange, *call.caller});
  }
  template <void (*answer)(const LiveCall&)>
  static void Operations(const Call& call) {
    if (const absl::Status may = MayShowOperations(*call.context); !may.ok())
      return call.exchange->Reply(ErrorReply(ErrorShape::kOpenAi, may));
    Live<answer>(call);
  }
};

const HttpApi::Handlers::Route HttpApi::Handlers::kRoutes[] = {
    {"GET", "/health", "", &Handlers::Health},
    {"GET", "/ping", "", &Handlers::Health},
    {"GET", "/ready", "", &Handlers::Ready},
    {"GET", "/version", "", &Handlers::Version},
    {"GET", "/load", "InferenceService/GetLoad", &Handlers::Load},
    {"GET", "/metrics", "AdminService/GetPlan", &Handlers::Metrics},
    {"GET", "/v1/models", "InferenceService/GetModelInfo", &Handlers::Models},
    {"GET", "/v1/models/", "InferenceService/GetModelInfo", &Handlers::Model},
    {"POST", "/v1/chat/completions", kGenerate, &Handlers::Chat},
    {"POST", "/v1/completions", kGenerate, &Handlers::Completions},
    {"POST", "/v1/responses", kGenerate, &Handlers::Responses},
    {"POST", "/v1/messages", kGenerate, &Handlers::Messages},
    {"POST", "/v1/messages/count_tokens", "InferenceService/Tokenize", &Handlers::CountTokens},
    {"POST", "/tokenize", "InferenceService/Tokenize", &Handlers::Tokenize},
    {"POST", "/detokenize", "InferenceService/Detokenize", &Handlers::Detokenize},
    {"GET", "/", "", &Handlers::Page},
    {"GET", "/page/", "", &Handlers::Page},
    {"GET", "/api/load", "InferenceService/GetLoad", &Handlers::Live<&AnswerLoad>},
    {"GET", "/api/experts", "AdminService/GetExperts", &Handlers::Operations<&AnswerExperts>},
    {"GET", "/api/jobs", "TrainingService/ListJobs", &Handlers::Operations<&AnswerJobs>},
    {"GET", "/api/jobs/", "TrainingService/GetJob", &Handlers::Operations<&AnswerJob>},
};

HttpApi::HttpApi(Options options) : options_(std::move(options)) {}
HttpApi::~HttpApi() { Stop(); }

std::string HttpApi::address() const { return rpc::JoinHostPort(options_.host, gate_->port()); }

absl::StatusOr<std::unique_ptr<HttpApi>> HttpApi::Open(Options options) {
  std::unique_ptr<HttpApi> api(new HttpApi(std::move(options)));
  const Options& o = api->options_;
  auto gate = ConnectionGate::Listen(o.host, o.port, o.connections);
  if (!gate.ok() && o.or_any) gate = ConnectionGate::Listen(o.host, 0, o.connections);
  if (!gate.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--http_port=", o.port, ": cannot listen on ",
                                                   rpc::JoinHostPort(o.host, o.port),
                                                   " (is it in use?): ", gate.status().message()));
  }
  api->gate_ = *std::move(gate);
  const ServerConfig& config = *o.request_context->config;
  api->server_ = std::make_unique<HttpServer>(HttpServer::Options{
      .body_bytes = config.max_request_bytes,
      .bodies_bytes = std::max(kHttpBodies, 4 * config.max_request_bytes),
      .body_timeout = config.request_message_timeout,
      .write_timeout = config.slow_client_timeout,
      .handler = [own = api.get()](const std::shared_ptr<HttpExchange>& exchange) { own->Handle(exchange); },
      .for_http2 = absl::StrCat("switchyard: this is the HTTP port; gRPC is on port ", o.grpc_port, "\n"),
      .refuse = [](int status, const std::string& why) { return ErrorReply(ErrorShape::kOpenAi, status, why); },
      .finish_head = [own = api.get()](const HttpRequest& request,
                                       HttpReply* reply) { own->FinishHead(request, reply); },
      .on_cut =
          [metrics = o.request_context->metrics](HttpCut why) {
            metrics->http_answer_cut(why == HttpCut::kSlowReader ? "slow_reader" : "client_gone").Increment();
          },
      .requests_a_second = CallsASecond(config),
      .rates = o.front->relay(Front::Peers::kClients).calls()});
  o.front->NameHttpPort(api->port());
  api->relayed_ = o.front->AddHttp([own = api.get()](int fd, int answer_fd) { own->server_->Adopt(fd, answer_fd); });
  return api;
}

void HttpApi::Accept() {
  gate_->Open([this](int, int fd) { options_.front->relay(Front::Peers::kClients).Take(relayed_, fd); });
}

void HttpApi::Stop() {
  if (gate_ != nullptr) gate_->Close();
  if (server_ != nullptr) server_->Stop();
}

bool HttpApi::IsAllowedOrigin(const HttpRequest& request, absl::string_view origin) const {
  const size_t host = origin.find("://");
  if (host != absl::string_view::npos && origin.substr(host + 3) == request.Value("host")) return true;
  return std::any_of(options_.origins.begin(), options_.origins.end(),
                     [origin](const std::string& allowed) { return allowed == "*" || allowed == origin; });
}

// `host`: as the request's head has it, with a port or without.
bool HttpApi::IsAllowedHost(absl::string_view host) const {
  if (!options_.checks_hosts || host.empty()) return true;
  const size_t colon = host.rfind(':');
  const bool has_port = colon != absl::string_view::npos && host.find(']', colon) == absl::string_view::npos;
  const std::string name = absl::AsciiStrToLower(host.substr(0, has_port ? colon : absl::string_view::npos));
  return rpc::IsLoopback(name) || absl::EndsWith(name, ".localhost") ||
         std::any_of(options_.hosts.begin(), options_.hosts.end(), [&name](const std::string& allowed) {
           return allowed == "*" || absl::EqualsIgnoreCase(allowed, name);
         });
}

void HttpApi::FinishHead(const HttpRequest& request, HttpReply* reply) const {
  options_.request_context->metrics->http_request(PathLabel(request.path), reply->status).Increment();
  if (const absl::string_view id = request.Value("x-request-id"); !id.empty() && id.size() <= 128)
    reply->headers.emplace_back("X-Request-Id", std::string(id));
  const absl::string_view origin = request.Value("origin");
  if (origin.empty() || !IsAllowedOrigin(request, origin)) return;
  reply->headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
  reply->headers.emplace_back("Access-Control-Expose-Headers", "Retry-After, X-Request-Id");
  reply->headers.emplace_back("Vary", "Origin");
}

std::string HttpApi::PathLabel(const std::string& path) {
  for (const Handlers::Route& route : Handlers::kRoutes) {
    if (route.IsFor(path)) return std::string(route.path);
  }
  return "other";
}

// Anthropic's clients send their key as x-api-key.
absl::StatusOr<Caller> HttpApi::Admit(const HttpRequest& request, absl::string_view role) const {
  std::vector<absl::string_view> values = request.Values(rpc::kAuthorization);
  std::string bearer;
  if (const absl::string_view key = request.Value("x-api-key"); values.empty() && !key.empty()) {
    bearer = absl::StrCat("Bearer ", key);
    values.push_back(bearer);
  }
  return options_.request_context->AdmitKey(values, role, KeyPlace::kHeader);
}

void HttpApi::ObserveRefusal(const HttpRequest& request, const absl::Status& status, int http_status) const {
  const bool generates =
      std::any_of(std::begin(Handlers::kRoutes), std::end(Handlers::kRoutes), [&](const auto& route) {
        return route.role == kGenerate && route.IsFor(request.path) && route.method == request.method;
      });
  if (!generates) return;
  const auto observed = ObserveHttp(*options_.request_context, request, status);
  if (observed == nullptr) return;
  observed->SetHttpStatus(http_status);
  observed->SetEnd(status, MonotonicNow());
}

void HttpApi::Handle(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  const ErrorShape shape =
      absl::StartsWith(request.path, "/v1/messages") ? ErrorShape::kAnthropic : ErrorShape::kOpenAi;
  const auto refuse = [&](int status, const std::string& why) { exchange->Reply(ErrorReply(shape, status, why)); };
  if (const absl::string_view host = request.Value("host"); !IsAllowedHost(host)) {
    ObserveRefusal(request, absl::PermissionDeniedError("Host"), 403);
    return refuse(403, absl::StrCat("this server is not called ", Quote(host), " (--http_hosts)"));
  }
  if (const absl::string_view origin = request.Value("origin"); !origin.empty() && !IsAllowedOrigin(request, origin)) {
    ObserveRefusal(request, absl::PermissionDeniedError("Origin"), 403);
    return refuse(403, absl::StrCat("pages of ", Quote(origin), " may not call this server (--http_origins)"));
  }
  if (request.method == "OPTIONS") {
    return exchange->Reply(
        {.status = 204,
         .type = "",
         .headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                     {"Access-Control-Allow-Headers", AllowedHeaders(request.Value("access-control-request-headers"))},
                     {"Access-Control-Max-Age", "600"}}});
  }
  std::string allowed;
  for (const Handlers::Route& route : Handlers::kRoutes) {
    if (!route.IsFor(request.path)) continue;
    const bool is_method = request.method == route.method || (request.method == "HEAD" && route.method == "GET");
    if (!is_method) {
      absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", route.method);
      continue;
    }
    absl::StatusOr<Caller> caller = Caller();
    if (!route.role.empty()) caller = Admit(request, route.role);
    if (!caller.ok()) {
      options_.request_context->metrics->request_error(caller.status().code()).Increment();
      HttpReply reply = ErrorReply(shape, caller.status());
      ObserveRefusal(request, caller.status(), reply.status);
      return exchange->Reply(std::move(reply));
    }
    return route.handle({options_.request_context, options_.training, exchange, std::move(caller)});
  }
  if (allowed.empty()) return refuse(404, absl::StrCat("no such path: ", Quote(request.path)));
  HttpReply reply =
      ErrorReply(shape, 405, absl::StrCat(Quote(request.path), " wants ", allowed, ", not ", Quote(request.method)));
  reply.headers.emplace_back("Allow", allowed);
  exchange->Reply(std::move(reply));
}

}  // namespace switchyard::server
