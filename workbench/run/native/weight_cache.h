// XNNPACK's packed weights in a file that later starts map instead of packing again.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <executorch/runtime/backend/backend_options_map.h>

#include "failure.h"
#include "files.h"
#include "stages.h"

// XNNPACK trusts a file with its trailer at the end, writes in place, and dies of SIGBUS on a full
// disk. So a file is used only with its size, and where time allows its checksum, as in FILE.sum;
// anything else is replaced: packed under another name, then renamed.
class WeightCache {
 public:
  // No file: every start packs. No workspace: as XNNPACK was built.
  explicit WeightCache(const std::string& path = "", const std::string& workspace = "")
      : path_(path.empty() ? "" : std::filesystem::weakly_canonical(path).string()) {
    const std::array<const char*, 3> scopes = {"delegate", "method", "process"};
    for (size_t mode = 0; mode < scopes.size(); mode++) {
      if (workspace != scopes[mode]) continue;
      check(options_.set_option("workspace_sharing_mode", static_cast<int>(mode)));
    }
  }

  // Chooses the file; `thorough` reads all of it, which a timed start must not.
  void choose_file(size_t program_bytes, bool thorough) {
    if (!path_.empty()) {
      stages.weights = path_;
      used_ = is_whole(thorough) ? path_ : begin_writing(program_bytes);
      if (used_.size() >= executorch::runtime::kMaxOptionValueLength) {
        throw Failure(kUsage, "usage", "--weight_cache: the path is longer than XNNPACK takes");
      }
      check(options_.set_option("weight_cache_enabled", true));
      check(options_.set_option("packed_cache_path", used_.c_str()));
    }
    check(map_.set_options("XnnpackBackend", options_.view()));
  }

  const executorch::runtime::LoadBackendOptionsMap& options() const { return map_; }

  // What became of the file: "mapped", "written", or "packed" if another process has it open, or no
  // weight of the program has a name. Empty without a file.
  std::string state() const {
    if (path_.empty()) return "";
    return written_ ? "written" : is_mapped(path_) ? "mapped" : "packed";
  }

  // To call once the method is loaded.
  void finish() {
    if (used_ == path_) return;
    for (const int signal : {SIGBUS, SIGXFSZ}) std::signal(signal, SIG_DFL);
    if (!is_mapped(used_)) {
      std::remove(used_.c_str());
      return;
    }
    const std::string sum = describe(used_, true);
    written_ = std::rename(used_.c_str(), path_.c_str()) == 0;
    if (written_) atomic_write(path_ + ".sum", sum.data(), sum.size());
    stages.end("weight cache");
  }

 private:
  static void check(executorch::runtime::Error error) {
    if (error != executorch::runtime::Error::Ok) {
      throw Failure(kDelegate, "delegate", "XNNPACK's options were refused", error);
    }
  }

  // The size, and the FNV-1a hash of the bytes in words of 64 bits; empty without a file.
  static std::string describe(const std::string& path, bool thorough) {
    if (access(path.c_str(), F_OK) != 0) return "";
    const MappedFile file(path, kIo, "io");
    uint64_t hash = 14695981039346656037u;
    for (size_t at = 0; thorough && at < file.size(); at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, file.data() + at, std::min(sizeof word, file.size() - at));
      hash = (hash ^ word) * 1099511628211u;
    }
    return std::to_string(file.size()) + ' ' + (thorough ? std::to_string(hash) : "");
  }

  static bool is_mapped(const std::string& path) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (is_file_of(line, path)) return true;
    }
    return false;
  }

  bool is_whole(bool thorough) const {
    std::string sum;
    std::ifstream file(path_ + ".sum");
    std::getline(file, sum);
    const std::string found = describe(path_, thorough);
    return !found.empty() && (thorough ? sum == found : sum.rfind(found, 0) == 0);
  }

  std::string begin_writing(size_t program_bytes) const {
    const std::filesystem::path folder = std::filesystem::absolute(path_).parent_path();
    // XNNPACK locks what it writes: a partial file without a lock was left by a killed process.
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      const std::string other = entry.path();
      const bool ours = other.find(path_ + '.') != std::string::npos;
      if (!ours || entry.path().extension() != ".partial") continue;
      const int file = open(other.c_str(), O_RDONLY | O_CLOEXEC);
      if (file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0) std::remove(other.c_str());
      if (file >= 0) close(file);
    }
    struct statvfs disk;
    // Packing pads: twice the program, and a page for each weight, is more than it takes.
    const uint64_t needed = 2 * static_cast<uint64_t>(program_bytes) + (1 << 20);
    if (statvfs(folder.c_str(), &disk) == 0 && uint64_t{disk.f_bavail} * disk.f_frsize < needed) {
      throw Failure(kIo, "io", "no space for packed weights of up to " +
                                   std::to_string(needed >> 20) + " MB in " + folder.string());
    }
    const auto give_up = [](int) {
      constexpr char kAnswer[] =
          "{\"error\":\"io\",\"message\":\"no space is left for packed weights, or their file "
          "would be too large\",\"et_error\":\"\",\"log\":[]}\n";
      static_cast<void>(!write(STDOUT_FILENO, kAnswer, sizeof kAnswer - 1));
      _exit(kIo);
    };
    for (const int signal : {SIGBUS, SIGXFSZ}) std::signal(signal, give_up);
    return path_ + '.' + std::to_string(getpid()) + ".partial";
  }

  std::string path_, used_;
  bool written_ = false;
  executorch::runtime::BackendOptions<3> options_;
  executorch::runtime::LoadBackendOptionsMap map_;
};
