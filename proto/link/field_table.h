// Table of the fields that a message and a plain struct share, listed once for both directions.
//
//   constexpr auto EvaluationFields() {
//     using M = v1::EvaluationResult;
//     using S = jobs::EvaluationResult;
//     return FieldTable(Field(&M::step, &M::set_step, &S::step), Field(&M::loss, &M::set_loss, &S::loss), ...);
//   }
//   message = EvaluationFields().ToProto(result);
#pragma once

#include <string>
#include <tuple>
#include <type_traits>

namespace switchyard::link {

// A number or a bool.
template <class M, class Value, class S, class Member>
struct ScalarField {
  using Message = M;
  using Struct = S;
  Value (M::*get)() const;
  void (M::*set)(Value);
  Member S::*member;

  void Put(const S& from, M* to) const { (to->*set)(from.*member); }
  void Take(const M& from, S* to) const { to->*member = (from.*get)(); }
};
template <class M, class Value, class S, class Member>
constexpr auto Field(Value (M::*get)() const, void (M::*set)(Value), Member S::*member) {
  return ScalarField<M, Value, S, Member>{get, set, member};
}

// A number that may be unset in the message; the struct then keeps its default.
template <class M, class Value, class S, class Member>
struct OptionalField : ScalarField<M, Value, S, Member> {
  bool (M::*has)() const;

  void Take(const M& from, S* to) const {
    if ((from.*has)()) ScalarField<M, Value, S, Member>::Take(from, to);
  }
};
template <class M, class Value, class S, class Member>
constexpr auto Field(bool (M::*has)() const, Value (M::*get)() const, void (M::*set)(Value), Member S::*member) {
  return OptionalField<M, Value, S, Member>{{get, set, member}, has};
}

// A text or a list of values.
template <class M, class Value, class S, class Member>
struct SequenceField {
  using Message = M;
  using Struct = S;
  const Value& (M::*get)() const;
  Value* (M::*mutate)();
  Member S::*member;

  void Put(const S& from, M* to) const {
    const Member& values = from.*member;
    if constexpr (std::is_same_v<Value, std::string>) {
      *(to->*mutate)() = values;
    } else {
      (to->*mutate)()->Add(values.begin(), values.end());
    }
  }
  void Take(const M& from, S* to) const { (to->*member).assign((from.*get)().begin(), (from.*get)().end()); }
};
template <class M, class Value, class S, class Member>
constexpr auto Field(const Value& (M::*get)() const, Value* (M::*mutate)(), Member S::*member) {
  return SequenceField<M, Value, S, Member>{get, mutate, member};
}

template <class First, class... Rest>
class FieldTable {
 public:
  using Message = typename First::Message;
  using Struct = typename First::Struct;

  constexpr explicit FieldTable(First first, Rest... rest) : fields_(first, rest...) {}

  // REQUIRES: the lists of *to are empty.
  void Put(const Struct& from, Message* to) const {
    std::apply([&](const auto&... field) { (field.Put(from, to), ...); }, fields_);
  }
  void Take(const Message& from, Struct* to) const {
    std::apply([&](const auto&... field) { (field.Take(from, to), ...); }, fields_);
  }
  Message ToProto(const Struct& from) const {
    Message to;
    Put(from, &to);
    return to;
  }
  Struct FromProto(const Message& from) const {
    Struct to;
    Take(from, &to);
    return to;
  }

 private:
  std::tuple<First, Rest...> fields_;
};

}  // namespace switchyard::link
