// A request's line of the request log.
#pragma once

#include <string>

#include "server/observe/request_record.h"

namespace switchyard::server {

// Returns one JSON object and a line end.  Every line has the same members; what is not known is null.  Bytes of
// clients that are not UTF-8 become U+FFFD; line ends and the like are escaped.
std::string RequestLine(const RequestRecord& record);

}  // namespace switchyard::server
