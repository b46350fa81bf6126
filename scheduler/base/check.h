// SY_CHECK: for our own mistakes only, never for what a user or the world can cause.  A failed check aborts with
//   step.cc:67 CHECK failed: plan.step == result.step (12 vs 11)
#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace switchyard::internal {

[[noreturn]] void CheckFailed(const char* file, int line, const char* expr, const std::string& values);

}  // namespace switchyard::internal

#define SY_CHECK(cond) \
  (__builtin_expect(!(cond), 0) ? ::switchyard::internal::CheckFailed(__FILE__, __LINE__, #cond, "") : (void)0)
#define SY_CHECK_OP_(a, op, b)                                                   \
  do {                                                                           \
    const auto& sy_a_ = (a);                                                     \
    const auto& sy_b_ = (b);                                                     \
    if (__builtin_expect(!(sy_a_ op sy_b_), 0))                                  \
      ::switchyard::internal::CheckFailed(__FILE__, __LINE__, #a " " #op " " #b, \
                                          ::absl::StrCat(sy_a_, " vs ", sy_b_)); \
  } while (false)
#define SY_CHECK_EQ(a, b) SY_CHECK_OP_(a, ==, b)
#define SY_CHECK_NE(a, b) SY_CHECK_OP_(a, !=, b)
#define SY_CHECK_LE(a, b) SY_CHECK_OP_(a, <=, b)
#define SY_CHECK_LT(a, b) SY_CHECK_OP_(a, <, b)
#define SY_CHECK_GE(a, b) SY_CHECK_OP_(a, >=, b)
#define SY_CHECK_GT(a, b) SY_CHECK_OP_(a, >, b)
#define SY_CHECK_OK(expr)                                                                                \
  do {                                                                                                   \
    if (const ::absl::Status sy_status_ = (expr); !sy_status_.ok())                                      \
      ::switchyard::internal::CheckFailed(__FILE__, __LINE__, #expr, std::string(sy_status_.message())); \
  } while (false)
