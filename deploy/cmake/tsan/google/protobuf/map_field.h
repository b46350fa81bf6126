// In the way of Protobuf's header of the same name, under ThreadSanitizer: there its MapFieldBase has two members more,
// but the distribution's libprotobuf was compiled without them.  The layout must be the library's.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include_next <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")
