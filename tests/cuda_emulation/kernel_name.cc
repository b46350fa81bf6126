// A kernel's name from its address: from the program's own symbol table, which also has what is not exported.
#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tests/cuda_emulation/launch.h"

namespace cuda_emulation {
namespace {

struct Module {
  uintptr_t address, bias;
  std::string path;
};

int FindModule(dl_phdr_info* module, size_t, void* argument) {
  auto* wanted = static_cast<Module*>(argument);
  for (int i = 0; i < module->dlpi_phnum; ++i) {
    const auto& segment = module->dlpi_phdr[i];
    const uintptr_t begin = module->dlpi_addr + segment.p_vaddr;
    if (segment.p_type != PT_LOAD || wanted->address < begin || wanted->address >= begin + segment.p_memsz) continue;
    wanted->bias = module->dlpi_addr;
    wanted->path = module->dlpi_name[0] == '\0' ? "/proc/self/exe" : module->dlpi_name;
    return 1;
  }
  return 0;
}

std::string Symbol(const std::vector<char>& file, uintptr_t offset) {
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(file.data());
  if (file.size() < sizeof *header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return "";
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(file.data() + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(file.data() + sections[i].sh_offset);
    const char* names = file.data() + sections[sections[i].sh_link].sh_offset;
    for (size_t k = 0; k < sections[i].sh_size / sizeof *symbols; ++k) {
      if ((symbols[k].st_info & 0xF) == STT_FUNC && symbols[k].st_value == offset) return names + symbols[k].st_name;
    }
  }
  return "";
}

}  // namespace

std::string KernelName(const void* kernel) {
  Module module{reinterpret_cast<uintptr_t>(kernel), 0, ""};
  dl_iterate_phdr(&FindModule, &module);
  std::ifstream stream(module.path, std::ios::binary);
  const std::vector<char> file{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  const std::string symbol = Symbol(file, module.address - module.bias);
  int failed = 0;
  char* readable = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &failed);
  std::string name = failed == 0 && readable != nullptr ? readable : symbol;
  std::free(readable);
  if (name.empty()) {
    char text[32];
    std::snprintf(text, sizeof text, "%p", kernel);
    name = text;
  }
  return name;
}

}  // namespace cuda_emulation
