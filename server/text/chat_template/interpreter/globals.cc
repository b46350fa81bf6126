// The functions that every template can call.
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/interpreter/interpreter.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

// dict(mapping, key=value, …).
absl::StatusOr<Dict> DictOf(Runtime& runtime, absl::string_view callee, const Args& args) {
  Dict dict;
  if (args.positional.size() > 1) return Error(callee, " takes at most 1 positional argument");
  if (!args.positional.empty() && args.positional[0].dict() != nullptr) {
    const Dict& copied = *args.positional[0].dict();
    RETURN_IF_ERROR(runtime.Allocate(copied.size() * 128));
    for (const auto& [key, value] : copied.items()) RETURN_IF_ERROR(runtime.StepsForKey(key));
    dict = copied;
  } else if (!args.positional.empty()) {
    ASSIGN_OR_RETURN(const SequencePtr pairs, Iterate(runtime, args.positional[0]));
    for (const Value& pair : pairs->items) {
      ASSIGN_OR_RETURN(const SequencePtr parts, Iterate(runtime, pair));
      if (parts->items.size() != 2) return Error(callee, ": the items of a sequence must be pairs");
      RETURN_IF_ERROR(runtime.StepsForKey(parts->items[0]));
      if (!dict.Set(parts->items[0], parts->items[1])) {
        return Error("unhashable type: '", parts->items[0].TypeName(), "'");
      }
    }
  }
  for (const auto& [name, value] : args.named) (void)dict.Set(Value::String(name), value);  // strings always hash
  return dict;
}

absl::StatusOr<Value> MakeDict(Runtime& runtime, const Args& args) {
  ASSIGN_OR_RETURN(Dict dict, DictOf(runtime, "dict", args));
  return runtime.NewDict(std::move(dict));
}

absl::StatusOr<Value> MakeNamespace(Runtime& runtime, const Args& args) {
  ASSIGN_OR_RETURN(Dict dict, DictOf(runtime, "namespace", args));
  for (const auto& [key, value] : dict.items()) {
    if (key.IsString() && absl::string_view(key.AsString()).substr(0, 1) == "_") {
      return Error("a namespace cannot have the attribute '", key.AsString(), "': it begins with an underscore");
    }
  }
  ASSIGN_OR_RETURN(Namespace * made, runtime.New<Namespace>(std::move(dict)));
  return Value::Of(made);
}

absl::StatusOr<Value> Range(Runtime& runtime, const Args& args) {
  int64_t bounds[3] = {0, 0, 1};
  const size_t n = args.positional.size();
  if (n < 1 || n > 3 || !args.named.empty()) return Error("range takes 1 to 3 integers");
  for (size_t i = 0; i < n; ++i) {
    RETURN_IF_ERROR(RequireDefined(args.positional[i]));
    if (!args.positional[i].IsIntegral()) return Error("range takes integers, not ", args.positional[i].TypeName());
    bounds[n == 1 ? 1 : i] = args.positional[i].AsInt();
  }
  const auto [start, stop, step] = bounds;
  if (step == 0) return Error("range() arg 3 must not be zero");
  const double span = (static_cast<double>(stop) - static_cast<double>(start)) / static_cast<double>(step);
  if (span > static_cast<double>(runtime.limits().max_range)) {
    return absl::ResourceExhaustedError(absl::StrCat("range() of more than ", runtime.limits().max_range, " items"));
  }
  Sequence out{SequenceKind::kRange, {}, absl::StrCat("range(", start, ", ", stop)};
  absl::StrAppend(&out.label, step == 1 ? "" : absl::StrCat(", ", step), ")");
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    out.items.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return runtime.NewSequence(std::move(out));
}

// Prints nothing the first time, the separator ever after.
absl::StatusOr<Value> Joiner(Runtime& runtime, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("joiner", args, {"sep"}));
  return NewFunction(runtime, "joiner",
                     [separator = bound.Get(0, Value::String(", ")), used = false](Runtime&, const Args&) mutable
                     -> absl::StatusOr<Value> { return std::exchange(used, true) ? separator : Value::String(""); });
}

class Cycler : public Object {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  std::string TypeName() const override { return "Cycler"; }

  absl::StatusOr<std::optional<Value>> GetAttribute(Runtime& runtime, absl::string_view name) override {
    if (name == "current") return items_[place_];
    if (name == "next") {
      return NewFunction(runtime, "next", [this](Runtime&, const Args&) -> absl::StatusOr<Value> {
        const Value item = items_[place_];
        place_ = (place_ + 1) % items_.size();
        return item;
      });
    }
    if (name == "reset") {
      return NewFunction(runtime, "reset", [this](Runtime&, const Args&) -> absl::StatusOr<Value> {
        place_ = 0;
        return Value::None();
      });
    }
    return std::nullopt;
  }

 private:
  const std::vector<Value> items_;
  size_t place_ = 0;
};

absl::StatusOr<Value> MakeCycler(Runtime& runtime, const Args& args) {
  if (args.positional.empty() || !args.named.empty()) return Error("cycler needs at least one item and no names");
  ASSIGN_OR_RETURN(Cycler * cycler, runtime.New<Cycler>(args.positional));
  return Value::Of(cycler);
}

absl::StatusOr<Value> RaiseException(Runtime& runtime, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("raise_exception", args, {"message"}, 1));
  ASSIGN_OR_RETURN(const std::string message, Str(runtime, bound.Get(0)));
  return absl::InvalidArgumentError(message);
}

absl::StatusOr<Value> StrftimeNow(Runtime& runtime, const Args& args) {
  constexpr size_t kMaxFormat = 1024;
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("strftime_now", args, {"format"}, 1));
  ASSIGN_OR_RETURN(const absl::string_view given, bound.Text(0, ""));
  if (given.size() > kMaxFormat) return Error("strftime_now: the format has more than ", kMaxFormat, " bytes");
  if (given.empty()) return Value::String("");
  RETURN_IF_ERROR(runtime.Steps(static_cast<int64_t>(given.size())));
  const int64_t micros =
      absl::ToInt64Microseconds(runtime.now() - absl::FromUnixSeconds(absl::ToUnixSeconds(runtime.now())));
  const std::string format = absl::StrReplaceAll(given, {{"%%", "%%"}, {"%f", absl::StrFormat("%06d", micros)}});
  const std::tm time = absl::ToTM(runtime.now(), runtime.zone());
  std::string out(kMaxFormat * 16, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &time));
  return Value::String(std::move(out));
}

}  // namespace

absl::Status Interpreter::DefineGlobals() {
  static constexpr std::pair<absl::string_view, absl::StatusOr<Value> (*)(Runtime&, const Args&)> kGlobals[] = {
      {"cycler", MakeCycler},
      {"dict", MakeDict},
      {"joiner", Joiner},
      {"namespace", MakeNamespace},
      {"raise_exception", RaiseException},
      {"range", Range},
      {"strftime_now", StrftimeNow},
  };
  for (const auto& [name, body] : kGlobals) {
    ASSIGN_OR_RETURN(Value function, NewFunction(runtime_, name, body));
    Define(std::string(name), std::move(function));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::jinja
