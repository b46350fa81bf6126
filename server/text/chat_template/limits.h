// What one template may cost.  Templates come with models and are code by strangers: every bound is hard, every overrun
// an error (RESOURCE_EXHAUSTED), never a crash.  The defaults are far above what any published template needs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchyard::text {

struct ChatTemplateLimits {
  size_t max_source_bytes = 1 << 20;       // the template's text
  int max_nesting = 200;                   // parse: brackets, operators and blocks within each other
  int64_t max_steps = 20'000'000;          // render: nodes, items, 64 bytes of text copied or 16 read by character
  int max_depth = 400;                     // render: expressions, blocks and macro calls within each other
  int max_value_depth = 100;               // lists and dicts within each other, in the input too
  size_t max_value_bytes = 64 << 20;       // one string or list
  size_t max_allocated_bytes = 512 << 20;  // everything a render ever made, freed or not
  size_t max_output_bytes = 64 << 20;      // the rendered text
  int64_t max_range = 100'000;             // items of range(), as in Jinja2's sandbox
};

}  // namespace switchyard::text
