// A program's file: mapped, and checked to be complete.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include <executorch/runtime/executor/program.h>

#include "failure.h"
#include "files.h"

// The bytes of a program. Refuses other files and incomplete programs before ExecuTorch follows
// their offsets. Layout: bytes 4-8 the FlatBuffer's identifier; from byte 8, in programs that
// have it, the extended header "eh00": u32 its length, u64 size of the FlatBuffer, u64 offset of
// the segments, u64 their size.
inline MappedFile open_program(const std::string& path) {
  using executorch::runtime::Program;
  MappedFile file(path, kModelFile, "model_file");
  const auto fail = [&](const char* kind, const std::string& why) {
    throw Failure(kProgram, kind, path + ": " + why);
  };
  if (file.size() == 0) fail("not_pte", "is empty");
  if (file.size() < Program::kMinHeadBytes) {
    fail("not_pte", std::to_string(file.size()) + " bytes are too few for an ExecuTorch program");
  }
  const auto status = Program::check_header(file.data(), file.size());
  if (status == Program::IncompatibleVersion) {
    const std::string version(reinterpret_cast<const char*>(file.data()) + 4, 4);
    fail("version", "has file format " + version + ", this ExecuTorch reads another");
  }
  if (status != Program::CompatibleVersion) fail("not_pte", "is not an ExecuTorch program");
  if (std::memcmp(file.data() + 8, "eh00", 4) != 0) return file;
  const auto number = [&](size_t offset, size_t width) {
    uint64_t value = 0;
    for (size_t i = width; i-- > 0;) value = value << 8 | file.data()[offset + i];
    return value;
  };
  const uint64_t program = number(16, 8), base = number(24, 8);
  const uint64_t segments = number(12, 4) >= 32 ? number(32, 8) : 0;
  const uint64_t size = file.size();
  if (program > size || base > size || segments > size - base) {
    fail("truncated", "has " + std::to_string(size) + " bytes, its header promises more");
  }
  return file;
}
