#include "server/text/chat_template/interpreter/value.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace switchyard::jinja {
namespace {

std::string FloatKey(double d) {
  // Integral floats share their key with the equal integer.
  if (std::isfinite(d) && d == std::floor(d) && std::abs(d) < 9.2e18) return absl::StrCat("i", static_cast<int64_t>(d));
  uint64_t bits;
  std::memcpy(&bits, &d, sizeof bits);
  return absl::StrCat("f", bits);
}

// Tuples can share parts, so that even a small one could have an endless key.
constexpr int kMaxKeyDepth = 8;
constexpr size_t kMaxTupleKeyBytes = 1 << 16;

bool AppendHashKey(const Value& value, int depth, std::string* key) {
  if (value.IsString()) {
    if (depth > 0 && value.AsString().size() > kMaxTupleKeyBytes)
      return false;  // too long: checked before it is copied
    absl::StrAppend(key, "s", value.AsString());
  } else if (value.IsIntegral()) {
    absl::StrAppend(key, "i", value.AsInt());
  } else if (value.IsFloat()) {
    absl::StrAppend(key, FloatKey(value.AsDouble()));
  } else if (value.IsNone()) {
    key->push_back('n');
  } else if (value.IsUndefined()) {
    key->push_back('u');
  } else if (value.object() != nullptr) {
    absl::StrAppend(key, "o", reinterpret_cast<uintptr_t>(value.object()));
  } else if (value.IsSequence(SequenceKind::kRange)) {
    absl::StrAppend(key, "r", value.sequence()->label);
  } else if (value.IsTuple() && depth < kMaxKeyDepth) {
    key->push_back('t');
    for (const Value& item : value.sequence()->items) {
      std::string part;
      if (!AppendHashKey(item, depth + 1, &part)) return false;
      absl::StrAppend(key, part.size(), ":", part);
      if (key->size() > kMaxTupleKeyBytes) return false;
    }
  } else {
    return false;
  }
  return true;
}

}  // namespace

Value Value::Undefined(std::string reason) {
  return Value(UndefinedType{std::make_shared<const std::string>(std::move(reason))});
}

Value Value::String(std::string s) { return Value(StringType(std::make_shared<const std::string>(std::move(s)))); }

std::string Value::undefined_reason() const {
  const auto& reason = std::get<UndefinedType>(rep_).reason;
  return reason == nullptr ? "the value is undefined" : *reason;
}

std::string Value::TypeName() const {
  static constexpr const char* kScalars[] = {"Undefined", "NoneType", "bool", "int", "float", "str"};  // as in rep_
  static constexpr const char* kSequences[] = {"list", "tuple", "range"};                              // SequenceKind
  if (rep_.index() < std::size(kScalars)) return kScalars[rep_.index()];
  if (dict() != nullptr) return "dict";
  if (object() != nullptr) return object()->TypeName();
  const SequenceKind kind = sequence()->kind;
  return kind == SequenceKind::kView ? sequence()->label : kSequences[static_cast<size_t>(kind)];
}

bool Value::SameAs(const Value& other) const {
  if (rep_.index() != other.rep_.index()) return false;
  if (IsUndefined() || IsNone()) return true;
  if (IsString()) return AsString() == other.AsString();
  if (IsNumber()) return IsFloat() ? AsDouble() == other.AsDouble() : AsInt() == other.AsInt();
  return sequence() == other.sequence() && dict() == other.dict() && object() == other.object();
}

int Value::depth() const {
  if (const Sequence* s = sequence()) return s->depth;
  if (const Dict* d = dict()) return d->depth();
  return 0;
}

bool Value::Truth() const {
  if (IsUndefined() || IsNone()) return false;
  if (IsFloat()) return AsDouble() != 0;
  if (IsIntegral()) return AsInt() != 0;
  if (IsString()) return !AsString().empty();
  if (const Sequence* s = sequence()) return !s->items.empty();
  if (const Dict* d = dict()) return d->size() > 0;
  return object()->Truth();
}

std::optional<std::string> HashKey(const Value& value) {
  std::string key;
  if (!AppendHashKey(value, 0, &key)) return std::nullopt;
  return key;
}

bool Dict::Set(const Value& key, Value value) {
  std::optional<std::string> hash = HashKey(key);
  if (!hash.has_value()) return false;
  depth_ = std::max(depth_, 1 + std::max(key.depth(), value.depth()));
  const auto [it, inserted] = index_.try_emplace(*std::move(hash), items_.size());
  if (inserted) {
    items_.emplace_back(key, std::move(value));
  } else {
    items_[it->second].second = std::move(value);
  }
  return true;
}

const Value* Dict::Find(const Value& key) const {
  const std::optional<std::string> hash = HashKey(key);
  if (!hash.has_value()) return nullptr;
  const auto it = index_.find(*hash);
  return it == index_.end() ? nullptr : &items_[it->second].second;
}

const Value* Dict::Find(absl::string_view key) const {
  const auto it = index_.find(absl::StrCat("s", key));
  return it == index_.end() ? nullptr : &items_[it->second].second;
}

absl::StatusOr<std::optional<Value>> Object::GetAttribute(Runtime&, absl::string_view) { return std::nullopt; }

absl::StatusOr<Value> Object::Call(Runtime&, Args&) {
  return absl::InvalidArgumentError(absl::StrCat("'", TypeName(), "' object is not callable"));
}

std::vector<Value> Iterator::TakeRest() {
  items_.erase(items_.begin(), items_.begin() + static_cast<ptrdiff_t>(std::exchange(next_, 0)));
  return std::exchange(items_, {});
}

absl::StatusOr<std::optional<Value>> Namespace::GetAttribute(Runtime&, absl::string_view name) {
  const Value* found = attributes_.Find(name);
  return found == nullptr ? std::nullopt : std::optional<Value>(*found);
}

bool Namespace::Set(absl::string_view name, Value value) {
  return attributes_.Set(Value::String(std::string(name.data(), name.size())), std::move(value));
}

}  // namespace switchyard::jinja
