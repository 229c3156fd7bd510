// The stages of a start, from exec to the first output: when each ended, and the memory then.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/core/data_loader.h>

#include "json.h"

inline int64_t now_ns(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec * INT64_C(1'000'000'000) + time.tv_nsec;
}

// The resident memory of this process in bytes, by /proc/self/smaps; empty where there is none.
// `program` is the mapping that starts at this address. With `heap`, also what malloc has given out
// (`heap`), the pages of it that were never written (`unwritten`), and the resident bytes that it
// keeps for later (`kept`); malloc counts in glibc 2.33 and newer.
inline json::Object read_memory(const void* program, bool heap = false) {
  struct Info {
    size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
  };
  static const auto mallinfo = reinterpret_cast<Info (*)()>(dlsym(RTLD_DEFAULT, "mallinfo2"));
  const Info info = heap && mallinfo ? mallinfo() : Info{};
  json::Object found;
  std::ifstream smaps("/proc/self/smaps"), status("/proc/self/status");
  int64_t rss = 0, pss = 0, anonymous = 0, mapped = 0, peak = -1, size = 0;
  int64_t unwritten = 0, unwritten_heap = 0, elsewhere = 0;
  int64_t *place = &elsewhere, *resident = &rss;
  for (std::string line; std::getline(smaps, line);) {
    const size_t colon = line.find(':');
    const std::string key = line.substr(0, colon);
    if (colon == std::string::npos || key.find(' ') != std::string::npos) {
      const bool first = std::strtoull(line.c_str(), nullptr, 16) ==
                         reinterpret_cast<uintptr_t>(program);
      resident = first ? &mapped : &rss;
      const bool writable = line.find(" rw-p 00000000 00:00 0") != std::string::npos;
      const bool named = line.find('[') != std::string::npos;
      place = writable && !named ? &unwritten : &elsewhere;
      if (line.find("[heap]") != std::string::npos) place = &unwritten_heap;
      continue;
    }
    const int64_t bytes = std::strtoll(line.c_str() + colon + 1, nullptr, 10) * 1024;
    if (key == "Size") size = bytes;
    if (key == "Rss") *resident += bytes;
    if (key == "Rss") *place += size - bytes;
    if (key == "Pss") pss += bytes;
    if (key == "Anonymous" && resident == &rss) anonymous += bytes;
  }
  if (heap && mallinfo) {
    // Of the heap, what is free was not written before what was given out.
    const int64_t free = std::min(unwritten_heap, static_cast<int64_t>(info.fordblks));
    found.add("heap", static_cast<int64_t>(info.uordblks + info.hblkhd))
        .add("unwritten", unwritten + unwritten_heap - free)
        .add("kept", static_cast<int64_t>(info.fordblks) - free);
  }
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) peak = std::strtoll(line.c_str() + 6, nullptr, 10) * 1024;
  }
  if (peak < 0 || pss == 0) return found;
  return found.add("anonymous", anonymous)
      .add("program", mapped)
      .add("files", rss - anonymous)
      .add("pss", pss)
      .add("peak", peak);
}

// Starts this process again with its arguments; returns where that is not possible.
inline void restart() {
  std::ifstream cmdline("/proc/self/cmdline");
  std::string text{std::istreambuf_iterator<char>(cmdline), {}};
  std::vector<char*> words;
  for (size_t at = 0; at < text.size(); at = text.find('\0', at) + 1) words.push_back(&text[at]);
  words.push_back(nullptr);
  // XNNPACK leaves its files, and the locks on them, to the next program.
  constexpr int kFirst = 3, kMost = 1024;
  for (int file = kFirst; file < kMost; file++) fcntl(file, F_SETFD, FD_CLOEXEC);
  if (words[0]) execv(words[0], words.data());
}

class Stages {
 public:
  static constexpr const char* kStart = "WORKBENCH_RUNNER_START";
  const void* program = nullptr;  // where its file is mapped

  bool on() const { return on_; }
  bool reads_memory() const { return memory_; }

  // Starts this process again, which gives the time of its exec; drops the files that it maps from
  // the page cache first if asked to. `mode` is empty (no stages), "time", "cold" or "memory".
  void start(const std::string& mode, const std::string& path) {
    if (mode.empty()) return;
    on_ = true;
    memory_ = mode == "memory";
    if (const char* start = std::getenv(kStart)) {
      char* end = nullptr;
      last_ = std::strtoll(start, &end, 10);
      cached_ = std::strtod(end, &end);
      last_cpu_ = std::strtoll(end, nullptr, 10);
      return this->end("process");
    }
    cached_ = share_cached(path, mode == "cold");
    last_ = now_ns(CLOCK_MONOTONIC);
    last_cpu_ = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    std::string said = std::to_string(last_) + ' ' + std::to_string(cached_);
    setenv(kStart, (said += ' ' + std::to_string(last_cpu_)).c_str(), 1);
    restart();
  }

  // Ends a stage; `bytes` are those that it allocated, where that is known exactly.
  void end(const char* name, size_t bytes = 0, int64_t unused = -1) {
    if (!on_) return;
    const int64_t now = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    json::Object stage;
    stage.add("ns", now - last_).add("cpu_ns", cpu - last_cpu_).add("bytes", bytes);
    if (memory_) stage.add("unused", unused).extend(read_memory(program, true));
    stages_.emplace_back(std::exchange(in_delegate_, false) ? "delegate" : name, stage);
    last_cpu_ = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    last_ = now_ns(CLOCK_MONOTONIC);
  }

  void begin_delegate() {
    end("method");
    in_delegate_ = true;
  }
  void end_delegate() {
    if (in_delegate_) end("delegate");
  }

  void rename(const std::string& name, const std::string& other) {
    for (auto& [known, _] : stages_) known = known == name ? other : known;
  }

  json::Object describe() const {
    if (!on_) return {};
    std::vector<json::Object> listed;
    for (const auto& [name, stage] : stages_) {
      listed.push_back(json::Object().add("name", name).extend(stage));
    }
    return json::Object()
        .add("stages", listed)
        .add("cached", json::Number{cached_})
        .add("memory", read_memory(program));
  }

 private:
  // How much of a file is in the page cache; -1 if unknown.
  static double share_cached(const std::string& path, bool drop) {
#if defined(__linux__)
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0 || status.st_size <= 0) return -1;
    if (drop) posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    const size_t size = static_cast<size_t>(status.st_size);
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    std::vector<unsigned char> pages((size + page - 1) / page);
    if (data == MAP_FAILED || mincore(data, size, pages.data()) != 0) return -1;
    size_t cached = 0;
    for (const unsigned char flags : pages) cached += flags & 1;
    munmap(data, size);
    return static_cast<double>(cached) / static_cast<double>(pages.size());
#else
    static_cast<void>(path), static_cast<void>(drop);
    return -1;
#endif
  }

  bool on_ = false, memory_ = false, in_delegate_ = false;
  int64_t last_ = 0, last_cpu_ = 0;
  double cached_ = -1;
  std::vector<std::pair<std::string, json::Object>> stages_;
};

inline Stages stages;

// Gives what another loader does; a delegate is set up from when it asks for its part until it
// frees it.
class StageLoader : public executorch::runtime::DataLoader {
  using Buffer = executorch::runtime::FreeableBuffer;

 public:
  explicit StageLoader(std::unique_ptr<executorch::runtime::DataLoader> loader)
      : loader_(std::move(loader)) {}

  executorch::runtime::Result<Buffer> load(size_t offset, size_t size,
                                           const SegmentInfo& info) const override {
    const bool watched = stages.on() && info.segment_type == SegmentInfo::Type::Backend;
    if (watched) stages.begin_delegate();
    auto part = loader_->load(offset, size, info);
    if (!watched || !part.ok()) return part;
    auto* owned = new Buffer(std::move(*part));
    const auto free = [](void* context, void*, size_t) {
      delete static_cast<Buffer*>(context);
      stages.end_delegate();
    };
    return Buffer(owned->data(), size, free, owned);
  }
  executorch::runtime::Result<size_t> size() const override { return loader_->size(); }
  executorch::runtime::Error load_into(size_t offset, size_t size, const SegmentInfo& info,
                                       void* buffer) const override {
    return loader_->load_into(offset, size, info, buffer);
  }

 private:
  std::unique_ptr<executorch::runtime::DataLoader> loader_;
};

// Counts what it allocates.
class CountingAllocator : public executorch::extension::MallocMemoryAllocator {
 public:
  size_t bytes = 0;

  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override {
    bytes += size;
    return MallocMemoryAllocator::allocate(size, alignment);
  }
};
