// XNNPACK's packed weights in a file that later starts map instead of packing again.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <sys/statvfs.h>
#include <unistd.h>

#include <executorch/runtime/backend/backend_options_map.h>

#include "failure.h"
#include "stages.h"

// XNNPACK writes the file where there is none, and trusts one that is there.
class WeightCache {
 public:
  // Without a path, every start packs.
  WeightCache(const std::string& path, size_t program_bytes) {
    if (path.empty()) return;
    path_ = std::filesystem::weakly_canonical(path).string();
    if (path_.size() >= executorch::runtime::kMaxOptionValueLength) {
      throw Failure(kUsage, "usage", "--weight_cache: the path is longer than XNNPACK takes");
    }
    exists_ = access(path_.c_str(), F_OK) == 0;
    if (!exists_) check_space(program_bytes);
    stages.weights = path_;
    check(options_.set_option("weight_cache_enabled", true));
    check(options_.set_option("packed_cache_path", path_.c_str()));
    check(map_.set_options("XnnpackBackend", options_.view()));
  }

  const executorch::runtime::LoadBackendOptionsMap& options() const { return map_; }

  // "mapped", or "packed" if the file is new, no weight of the program has a name, or another
  // process has the file open. Empty without a file.
  std::string state() const {
    if (path_.empty()) return "";
    return exists_ && is_mapped() ? "mapped" : "packed";
  }

  // Removes what a method that was loaded in part wrote.
  void discard() const {
    if (!exists_) std::remove(path_.c_str());
  }

 private:
  static void check(executorch::runtime::Error error) {
    if (error != executorch::runtime::Error::Ok) {
      throw Failure(kDelegate, "delegate", "XNNPACK's options were refused", error);
    }
  }

  // On a full disk, XNNPACK dies of SIGBUS.
  void check_space(size_t program_bytes) const {
    const std::filesystem::path folder = std::filesystem::absolute(path_).parent_path();
    struct statvfs disk;
    // Packing pads: twice the program, and a page for each weight, is more than it takes.
    const uint64_t needed = 2 * static_cast<uint64_t>(program_bytes) + (1 << 20);
    if (statvfs(folder.c_str(), &disk) == 0 && uint64_t{disk.f_bavail} * disk.f_frsize < needed) {
      throw Failure(kIo, "io", "no space for packed weights of up to " +
                                   std::to_string(needed >> 20) + " MB in " + folder.string());
    }
  }

  bool is_mapped() const {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (is_file_of(line, path_)) return true;
    }
    return false;
  }

  std::string path_;
  bool exists_ = false;
  executorch::runtime::BackendOptions<2> options_;
  executorch::runtime::LoadBackendOptionsMap map_;
};
