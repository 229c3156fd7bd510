// Files: memory-mapped for reading, written atomically; and lines of standard input.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "failure.h"

// A file's bytes, mapped for the lifetime of the object.
class MappedFile {
 public:
  MappedFile(const std::string& path, ExitCode code, const char* kind) {
    const auto fail = [&](const std::string& why) { throw Failure(code, kind, path + ": " + why); };
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) fail(std::strerror(errno));
    struct stat status;
    const bool known = fstat(file, &status) == 0;
    if (known && S_ISREG(status.st_mode) && status.st_size > 0) {
      size_ = static_cast<size_t>(status.st_size);
      data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    }
    const int error = errno;
    close(file);
    if (!known) fail(std::strerror(error));
    if (!S_ISREG(status.st_mode)) fail("not a regular file");
    if (data_ == MAP_FAILED) fail(std::strerror(error));
  }
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  ~MappedFile() {
    if (size_) munmap(data_, size_);
  }

  const unsigned char* data() const { return static_cast<const unsigned char*>(data_); }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Writes a file under another name first, so that no reader sees an incomplete file.
inline void atomic_write(const std::string& path, const void* data, size_t size) {
  const std::string partial = path + ".partial";
  std::FILE* file = std::fopen(partial.c_str(), "wb");
  bool written = file && std::fwrite(data, 1, size, file) == size;
  if (file) written = std::fclose(file) == 0 && written;
  if (!written || std::rename(partial.c_str(), path.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    if (file) std::remove(partial.c_str());
    throw Failure(kIo, "io", "cannot write " + path + ": " + why);
  }
}

// The next line of standard input, of any length, without its newline; false at the end of input.
inline bool read_line(std::string& line) {
  line.clear();
  int c;
  while ((c = std::getchar()) != EOF && c != '\n') line += static_cast<char>(c);
  return c != EOF || !line.empty();
}
