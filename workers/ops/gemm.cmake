# Weights and matrix products.
sy_library(sy_isa SRCS isa.cc DEPS sy_base absl::statusor absl::strings)
