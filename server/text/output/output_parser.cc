#include "server/text/output/output_parser.h"

#include <iterator>
#include <utility>

#include "server/text/output/channel_output.h"
#include "server/text/output/tagged_output.h"

namespace switchyard::text {

OutputParser::OutputParser(const OutputFormat& format, OutputOptions options) : options_(std::move(options)) {
  if (format.channels()) {
    reader_ = std::make_unique<ChannelOutput>(options_, &list_);
  } else {
    reader_ = std::make_unique<TaggedOutput>(format, options_, &list_);
  }
}

void OutputParser::Push(absl::string_view text, std::vector<OutputEvent>* events) {
  reader_->Take(text);
  MoveTo(events);
}

void OutputParser::Finish(std::vector<OutputEvent>* events) {
  reader_->Finish();
  MoveTo(events);
}

void OutputParser::MoveTo(std::vector<OutputEvent>* events) {
  events->insert(events->end(), std::make_move_iterator(ready_.begin()), std::make_move_iterator(ready_.end()));
  ready_.clear();
}

}  // namespace switchyard::text
