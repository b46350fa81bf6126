#include <algorithm>
#include <cmath>
#include <numeric>

#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/code_points.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

// Each compared pair is a step, since a value with shared parts may take endlessly long to walk.
absl::StatusOr<bool> EqualItems(Runtime& runtime, const Sequence& a, const Sequence& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    ASSIGN_OR_RETURN(const bool equal, Equal(runtime, a.items[i], b.items[i]));
    if (!equal) return false;
  }
  return true;
}

absl::StatusOr<bool> EqualDicts(Runtime& runtime, const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.items()) {
    RETURN_IF_ERROR(runtime.StepsForKey(key));
    const Value* other = b.Find(key);
    if (other == nullptr) return false;
    ASSIGN_OR_RETURN(const bool equal, Equal(runtime, value, *other));
    if (!equal) return false;
  }
  return true;
}

bool EqualNumbers(const Value& a, const Value& b) {
  if (a.IsIntegral() && b.IsIntegral()) return a.AsInt() == b.AsInt();
  return a.AsDouble() == b.AsDouble();
}

std::optional<int> OrderNumbers(const Value& a, const Value& b) {
  if (a.IsIntegral() && b.IsIntegral()) return a.AsInt() < b.AsInt() ? -1 : a.AsInt() > b.AsInt() ? 1 : 0;
  const double x = a.AsDouble(), y = b.AsDouble();
  if (std::isnan(x) || std::isnan(y)) return std::nullopt;
  return x < y ? -1 : x > y ? 1 : 0;
}

absl::StatusOr<std::optional<int>> OrderItems(Runtime& runtime, const Sequence& a, const Sequence& b) {
  for (size_t i = 0; i < a.items.size() && i < b.items.size(); ++i) {
    ASSIGN_OR_RETURN(const bool equal, Equal(runtime, a.items[i], b.items[i]));
    if (!equal) return Order(runtime, a.items[i], b.items[i]);
  }
  const size_t x = a.items.size(), y = b.items.size();
  return std::optional<int>(x < y ? -1 : x > y ? 1 : 0);
}

absl::StatusOr<bool> ContainsItem(Runtime& runtime, const std::vector<Value>& items, const Value& item) {
  for (const Value& candidate : items) {
    ASSIGN_OR_RETURN(const bool equal, Equal(runtime, candidate, item));
    if (equal) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<bool> Equal(Runtime& runtime, const Value& a, const Value& b) {
  RETURN_IF_ERROR(runtime.Steps());
  if (a.IsNumber() && b.IsNumber()) return EqualNumbers(a, b);
  if (a.IsString() && b.IsString()) {
    RETURN_IF_ERROR(runtime.StepsForBytes(std::min(a.AsString().size(), b.AsString().size())));
    return a.AsString() == b.AsString();
  }
  if (a.sequence() != nullptr && b.sequence() != nullptr) return EqualItems(runtime, *a.sequence(), *b.sequence());
  if (a.dict() != nullptr && b.dict() != nullptr) return EqualDicts(runtime, *a.dict(), *b.dict());
  return a.SameAs(b);
}

absl::StatusOr<std::optional<int>> Order(Runtime& runtime, const Value& a, const Value& b) {
  RETURN_IF_ERROR(runtime.Steps());
  RETURN_IF_ERROR(RequireDefined(a));
  RETURN_IF_ERROR(RequireDefined(b));
  if (a.IsNumber() && b.IsNumber()) return OrderNumbers(a, b);
  if (a.IsString() && b.IsString()) {
    RETURN_IF_ERROR(runtime.StepsForBytes(std::min(a.AsString().size(), b.AsString().size())));
    return std::optional<int>(a.AsString().compare(b.AsString()));  // UTF-8 sorts as its code points do
  }
  if ((a.IsList() && b.IsList()) || (a.IsTuple() && b.IsTuple())) {
    return OrderItems(runtime, *a.sequence(), *b.sequence());
  }
  return Error("'", a.TypeName(), "' and '", b.TypeName(), "' have no order");
}

absl::StatusOr<std::vector<size_t>> SortedPlaces(Runtime& runtime, const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> places(keys.size());
  std::iota(places.begin(), places.end(), size_t{0});
  absl::Status status;
  std::stable_sort(places.begin(), places.end(), [&](size_t a, size_t b) {
    if (!status.ok()) return false;
    const auto order = Order(runtime, keys[reverse ? b : a], keys[reverse ? a : b]);
    if (!order.ok()) status = order.status();
    return order.ok() && order->has_value() && **order < 0;
  });
  if (!status.ok()) return status;
  return places;
}

absl::StatusOr<bool> Contains(Runtime& runtime, const Value& container, const Value& item) {
  if (container.IsUndefined()) return false;
  if (container.IsString()) {
    if (!item.IsString()) return Error("'in <string>' requires a string on its left, not ", item.TypeName());
    const std::string& text = container.AsString();
    RETURN_IF_ERROR(runtime.StepsForBytes(text.size()));
    return FindText(text, item.AsString(), 0) != kNone;
  }
  if (const Dict* dict = container.dict()) {
    RETURN_IF_ERROR(runtime.StepsForKey(item));
    if (!HashKey(item).has_value()) return Error("unhashable type: '", item.TypeName(), "'");
    return dict->Find(item) != nullptr;
  }
  if (const Sequence* sequence = container.sequence()) return ContainsItem(runtime, sequence->items, item);
  if (auto* iterator = dynamic_cast<Iterator*>(container.object())) {
    while (const Value* next = iterator->Next()) {
      ASSIGN_OR_RETURN(const bool equal, Equal(runtime, *next, item));
      if (equal) return true;
    }
    return false;
  }
  return Error("argument of type '", container.TypeName(), "' is not iterable");
}

absl::StatusOr<bool> Compare(Runtime& runtime, ast::CompareOp op, const Value& a, const Value& b) {
  if (op == ast::CompareOp::kIn || op == ast::CompareOp::kNotIn) {
    ASSIGN_OR_RETURN(const bool contains, Contains(runtime, b, a));
    return contains == (op == ast::CompareOp::kIn);
  }
  if (op == ast::CompareOp::kEq || op == ast::CompareOp::kNe) {
    ASSIGN_OR_RETURN(const bool equal, Equal(runtime, a, b));
    return equal == (op == ast::CompareOp::kEq);
  }
  ASSIGN_OR_RETURN(const std::optional<int> order, Order(runtime, a, b));
  if (!order.has_value()) return false;
  if (op == ast::CompareOp::kLt) return *order < 0;
  if (op == ast::CompareOp::kLe) return *order <= 0;
  if (op == ast::CompareOp::kGt) return *order > 0;
  return *order >= 0;
}

}  // namespace switchyard::jinja
