// What the server says to users of vLLM who give its flags.
#pragma once

#include <map>
#include <string>

namespace switchyard::server {

// Names that users of vLLM know, of what has another name or is decided otherwise here.  (model, served_model_name,
// max_model_len, max_num_seqs, dtype, load_format, tokenizer, chat_template, block_size, host, port are the same.)
std::map<std::string, std::string> AdviceForUsersOfVllm();

}  // namespace switchyard::server
