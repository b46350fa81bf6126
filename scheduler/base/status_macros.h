// RETURN_IF_ERROR and ASSIGN_OR_RETURN for absl::Status and absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RETURN_IF_ERROR(expr)                                                  \
  do {                                                                         \
    if (absl::Status sy_status_ = (expr); !sy_status_.ok()) return sy_status_; \
  } while (false)

#define SY_CONCAT_INNER_(a, b) a##b
#define SY_CONCAT_(a, b) SY_CONCAT_INNER_(a, b)
#define ASSIGN_OR_RETURN(lhs, expr) SY_ASSIGN_OR_RETURN_(SY_CONCAT_(sy_or_, __LINE__), lhs, expr)
#define SY_ASSIGN_OR_RETURN_(tmp, lhs, expr)     \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = *std::move(tmp)
