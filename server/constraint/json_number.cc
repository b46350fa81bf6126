#include "server/constraint/json_number.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace switchyard::server {
namespace {

using grammar::Grammar;
using grammar::StateId;

constexpr int kMostDigits = 20;
constexpr int64_t kMostMultiple = 20'000;

// Numbers that are not negative, from `low` on up to `high`, digit by digit.
class Magnitudes {
 public:
  Magnitudes(const Decimal& low, bool above_low, const std::optional<Decimal>& high, bool below_high, bool whole,
             int64_t multiple, int scale, StateId to, Grammar* grammar)
      : low_(low),
        high_(high),
        above_low_(above_low),
        below_high_(below_high),
        multiple_(multiple),
        scale_(scale),
        fraction_digits_(whole          ? 0
                         : multiple > 0 ? scale
                                        : kMostDigits),
        to_(to),
        grammar_(grammar) {}

  void Emit(StateId from) {
    const int shortest = std::max<int>(1, static_cast<int>(low_.whole.size()));
    const int longest =
        high_ ? std::max<int>(1, static_cast<int>(high_->whole.size())) : std::max(shortest, kMostDigits);
    for (int length = shortest; length <= longest && !grammar_->full(); ++length) {
      const bool at_low = length == std::max<int>(1, static_cast<int>(low_.whole.size()));
      const bool at_high = high_ && length == longest;
      grammar_->Empty(from, StateOf({.length = length, .at_low = at_low, .at_high = at_high}));
    }
    while (!todo_.empty() && !grammar_->full()) {
      const auto [place, state] = todo_.back();
      todo_.pop_back();
      Expand(place, state);
    }
  }

 private:
  struct Place {
    int length = 0;  // digits before the point
    int done = 0;    // digits so far, of both parts; past `length` the point has been written
    bool in_fraction = false;
    bool at_low = false, at_high = false;  // the digits so far are those of the bound
    int64_t rest = 0;                      // modulo `multiple_`

    auto Key() const { return std::tuple(length, done, in_fraction, at_low, at_high, rest); }
  };

  StateId StateOf(Place place) {
    if (!place.at_low && !place.at_high && place.done > 0) {  // what is behind it depends on what is left alone
      const int start = place.in_fraction ? place.length : place.done - 1;
      place.done -= start;
      place.length -= start;
    }
    const auto [it, is_new] = states_.try_emplace(place.Key(), 0);
    if (!is_new) return it->second;
    const StateId state = grammar_->NewState();
    it->second = state;
    todo_.emplace_back(place, state);
    return state;
  }

  // The bound's digit at a place, with zeros before and behind.
  static int DigitOf(const Decimal& bound, int length, int index) {
    if (index < length) {
      const int at = index - (length - static_cast<int>(bound.whole.size()));
      return at < 0 ? 0 : bound.whole[static_cast<size_t>(at)] - '0';
    }
    const auto at = static_cast<size_t>(index - length);
    return at < bound.fraction.size() ? bound.fraction[at] - '0' : 0;
  }
  static bool ZerosFrom(const Decimal& bound, int length, int index) {
    return static_cast<size_t>(std::max(0, index - length)) >= bound.fraction.size();
  }

  bool MayEnd(const Place& place) const {
    if (place.at_low && (above_low_ || !ZerosFrom(low_, place.length, place.done))) return false;
    if (place.at_high && below_high_ && ZerosFrom(*high_, place.length, place.done)) return false;
    if (multiple_ == 0) return true;
    int64_t rest = place.rest;
    for (int i = place.in_fraction ? place.done - place.length : 0; i < scale_; ++i) rest = rest * 10 % multiple_;
    return rest == 0;
  }

  void Expand(const Place& place, StateId state) {
    if (place.done < place.length || place.in_fraction) {
      if (place.in_fraction && place.done > place.length && MayEnd(place)) grammar_->Empty(state, to_);
      if (place.done - place.length < (place.in_fraction ? fraction_digits_ : 0)) Digits(place, state);
      return;
    }
    if (MayEnd(place)) grammar_->Empty(state, to_);
    if (fraction_digits_ == 0) return;
    Place behind = place;
    behind.in_fraction = true;
    grammar_->Bytes(state, '.', '.', StateOf(behind));
  }

  void Digits(const Place& place, StateId state) {
    const int first = place.done == 0 && place.length > 1 ? 1 : 0;
    const int low = place.at_low ? DigitOf(low_, place.length, place.done) : 0;
    const int high = place.at_high ? DigitOf(*high_, place.length, place.done) : 9;
    for (int digit = std::max(first, low); digit <= high; ++digit) {
      Place next = place;
      ++next.done;
      next.at_low = place.at_low && digit == low;
      next.at_high = place.at_high && digit == high;
      if (multiple_ > 0) next.rest = (place.rest * 10 + digit) % multiple_;
      const auto byte = static_cast<uint8_t>('0' + digit);
      grammar_->Bytes(state, byte, byte, StateOf(next));
    }
  }

  const Decimal low_;
  const std::optional<Decimal> high_;
  const bool above_low_, below_high_;
  const int64_t multiple_;  // of the last of `scale_` digits behind the point; 0: any
  const int scale_;
  const int fraction_digits_;
  const StateId to_;
  Grammar* const grammar_;
  absl::flat_hash_map<std::tuple<int, int, bool, bool, bool, int64_t>, StateId> states_;
  std::vector<std::pair<Place, StateId>> todo_;
};

int CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int by_whole = a.whole.compare(b.whole); by_whole != 0) return by_whole;
  return a.fraction.compare(b.fraction);  // without zeros at their ends
}

}  // namespace

std::optional<Decimal> Decimal::Parse(absl::string_view json) {
  Decimal out;
  size_t at = 0;
  if (!json.empty() && json[0] == '-') out.negative = true, ++at;
  std::string digits;
  int64_t point = -1, exponent = 0;
  for (; at < json.size(); ++at) {
    if (absl::ascii_isdigit(json[at])) {
      digits += json[at];
    } else if (json[at] == '.' && point < 0) {
      point = static_cast<int64_t>(digits.size());
    } else if (json[at] == 'e' || json[at] == 'E') {
      absl::string_view power = json.substr(at + 1);
      if (!power.empty() && power[0] == '+') power.remove_prefix(1);
      if (!absl::SimpleAtoi(power, &exponent)) return std::nullopt;
      break;
    } else {
      return std::nullopt;
    }
  }
  if (digits.empty() || digits.size() > 400 || exponent > 400 || exponent < -400) return std::nullopt;
  point = (point < 0 ? static_cast<int64_t>(digits.size()) : point) + exponent;
  if (point < 0) digits.insert(0, static_cast<size_t>(-point), '0'), point = 0;
  if (point > static_cast<int64_t>(digits.size())) digits.append(static_cast<size_t>(point) - digits.size(), '0');
  out.whole = digits.substr(0, static_cast<size_t>(point));
  out.fraction = digits.substr(static_cast<size_t>(point));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.IsZero()) out.negative = false;
  return out;
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  return a.negative ? CompareMagnitudes(b, a) : CompareMagnitudes(a, b);
}

absl::Status EmitNumbers(const NumberBounds& bounds, StateId from, StateId to, Grammar* grammar) {
  int64_t multiple = 0;
  int scale = 0;
  if (bounds.multiple_of) {
    scale = static_cast<int>(bounds.multiple_of->fraction.size());
    const std::string digits = bounds.multiple_of->whole + bounds.multiple_of->fraction;
    if (scale > 15 || digits.size() > 18 || !absl::SimpleAtoi(digits, &multiple) || multiple > kMostMultiple ||
        multiple < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("multipleOf must be within 1e-15 to ", kMostMultiple, ", with few digits"));
    }
    if (bounds.whole && scale > 0) {  // a whole number is a multiple of p/10^s where it is one of p/gcd
      int64_t ten = 1;
      for (int i = 0; i < scale; ++i) ten *= 10;
      int64_t a = multiple, b = ten;
      while (b != 0) std::tie(a, b) = std::tuple(b, a % b);
      multiple /= a;
      scale = 0;
    }
  }
  const Decimal zero;
  const auto positive = [](Decimal d) { return d.negative = false, d; };
  if (!bounds.max || Compare(*bounds.max, zero) >= 0) {
    const bool has_low = bounds.min && Compare(*bounds.min, zero) >= 0;
    Magnitudes(has_low ? *bounds.min : zero, has_low && bounds.above_min, bounds.max, bounds.below_max, bounds.whole,
               multiple, scale, to, grammar)
        .Emit(from);
  }
  if (!bounds.min || Compare(*bounds.min, zero) < 0) {  // -0 is left out
    const bool has_low = bounds.max && Compare(*bounds.max, zero) < 0;
    std::optional<Decimal> high;
    if (bounds.min) high = positive(*bounds.min);
    Magnitudes(has_low ? positive(*bounds.max) : zero, !has_low || bounds.below_max, high, bounds.above_min,
               bounds.whole, multiple, scale, to, grammar)
        .Emit(grammar->Literal(from, "-"));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::server
