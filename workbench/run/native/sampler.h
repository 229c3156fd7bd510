// Samples the program counter while the method runs: a timer interrupts every thread at random
// moments, and a signal handler records the program counter.
//
// The timers count real time, because Linux checks CPU-time timers only at its ticks, 250 times a
// second at equal intervals. Waiting threads are interrupted too; their CPU clock, recorded with
// each sample, identifies them.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "failure.h"
#include "json.h"
#include "model.h"

#if defined(__linux__)
#include <cerrno>
#include <cstring>
#include <memory>

#include <dirent.h>
#include <elf.h>
#include <link.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace sampler {

struct Sample {
  int64_t time_ns, cpu_ns;  // monotonic clock; the thread's CPU clock
  uintptr_t address;
  int thread;
};

struct Thread {
  int id;
  timer_t timer;
  uint32_t random;
};

// A loaded ELF file: its addresses in memory are its addresses in the file plus `bias`.
struct Module {
  std::string path, build_id;
  uintptr_t bias = 0;
  std::vector<std::pair<uintptr_t, uintptr_t>> code;

  bool contains(uintptr_t address) const {
    for (const auto& [begin, end] : code) {
      if (begin <= address && address < end) return true;
    }
    return false;
  }
};

inline uintptr_t program_counter(void* context) {
  const mcontext_t& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return static_cast<uintptr_t>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return machine.pc;
#else
#error "unknown program counter on this architecture"
#endif
}

inline std::string build_id_of(const char* notes, size_t size) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= size;) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof note);
    const size_t name = at + sizeof note, value = name + (note.n_namesz + 3) / 4 * 4;
    at = value + (note.n_descsz + 3) / 4 * 4;
    if (at > size || note.n_type != NT_GNU_BUILD_ID || note.n_namesz != 4) continue;
    if (std::memcmp(notes + name, "GNU", 4) != 0) continue;
    for (size_t i = value; i < value + note.n_descsz; i++) {
      const auto byte = static_cast<unsigned char>(notes[i]);
      text += {kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return text;
}

inline Module describe_module(const dl_phdr_info& info) {
  Module module;
  module.path = info.dlpi_name;
  module.bias = info.dlpi_addr;
  if (module.path.empty()) {  // the program itself
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    module.path.assign(path, length > 0 ? static_cast<size_t>(length) : 0);
  }
  for (size_t i = 0; i < info.dlpi_phnum; i++) {
    const auto& segment = info.dlpi_phdr[i];
    const uintptr_t begin = info.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && segment.p_flags & PF_X) {
      module.code.emplace_back(begin, begin + segment.p_memsz);
    }
    if (segment.p_type == PT_NOTE) {
      module.build_id += build_id_of(reinterpret_cast<const char*>(begin), segment.p_memsz);
    }
  }
  return module;
}

inline std::vector<Module> list_modules() {
  std::vector<Module> modules;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* list) {
        static_cast<std::vector<Module>*>(list)->push_back(describe_module(*info));
        return 0;
      },
      &modules);
  return modules;
}

// One per process, because a signal handler has no other access to it.
class Sampler {
 public:
  explicit Sampler(int hz) : hz_(hz), samples_(std::make_unique<Sample[]>(kMaxSamples)) {
    threads_.reserve(kMaxThreads);
    self_ = this;
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGPROF, &action, nullptr);
  }
  Sampler(const Sampler&) = delete;
  ~Sampler() {
    stop();
    signal(SIGPROF, SIG_IGN);
    self_ = nullptr;
  }

  // Samples all threads that exist now.
  void start() {
    find_threads();
    running_.store(true);
    for (Thread& thread : threads_) set_timer(thread);
  }
  void stop() {
    running_.store(false);
    const itimerspec never = {};
    for (Thread& thread : threads_) timer_settime(thread.timer, 0, &never, nullptr);
  }
  void reset() { count_.store(0); }

  // All samples since the last call; only while stopped.
  json::Object take() {
    const size_t total = count_.load(), count = std::min(total, kMaxSamples);
    const std::vector<Module> modules = list_modules();
    std::vector<int64_t> times, clocks, addresses, threads, where;
    for (size_t i = 0; i < count; i++) {
      const Sample& sample = samples_[i];
      size_t module = 0;
      while (module < modules.size() && !modules[module].contains(sample.address)) module++;
      const bool known = module < modules.size();
      times.push_back(sample.time_ns);
      clocks.push_back(sample.cpu_ns);
      threads.push_back(sample.thread);
      where.push_back(known ? static_cast<int64_t>(module) : -1);
      addresses.push_back(known ? static_cast<int64_t>(sample.address - modules[module].bias) : 0);
    }
    std::vector<json::Object> described;
    for (const Module& module : modules) {
      described.push_back(
          json::Object().add("path", module.path).add("build_id", module.build_id));
    }
    reset();
    return json::Object()
        .add("format", "workbench samples")
        .add("version", 1)
        .add("machine", kMachine)
        .add("hz", hz_)
        .add("lost", total - count)
        .add("modules", described)
        .add("time_ns", times)
        .add("cpu_ns", clocks)
        .add("thread", threads)
        .add("module", where)
        .add("address", addresses);
  }

 private:
#if defined(__x86_64__)
  static constexpr char kMachine[] = "x86_64";
#else
  static constexpr char kMachine[] = "aarch64";
#endif
  static constexpr size_t kMaxSamples = 1 << 16, kMaxThreads = 1024;

  void find_threads() {
    DIR* folder = opendir("/proc/self/task");
    if (!folder) throw Failure(kIo, "io", std::string("/proc/self/task: ") + std::strerror(errno));
    while (const dirent* entry = readdir(folder)) {
      const int id = std::atoi(entry->d_name);
      if (id <= 0 || find(id) || threads_.size() == kMaxThreads) continue;
      sigevent event = {};
      event.sigev_notify = SIGEV_THREAD_ID;
      event.sigev_signo = SIGPROF;
      event.sigev_notify_thread_id = id;
      timer_t timer;
      if (timer_create(CLOCK_MONOTONIC, &event, &timer) == 0) {
        threads_.push_back({id, timer, static_cast<uint32_t>(id) * 2654435761u + 1});
      }
    }
    closedir(folder);
    if (threads_.empty()) throw Failure(kExecution, "samples", "this system has no thread timers");
  }

  Thread* find(int id) {
    for (Thread& thread : threads_) {
      if (thread.id == id) return &thread;
    }
    return nullptr;
  }

  // Sets the next interrupt, 0.5 to 1.5 periods from now.
  void set_timer(Thread& thread) {
    thread.random = thread.random * 1664525u + 1013904223u;
    const int64_t period = INT64_C(1'000'000'000) / hz_;
    itimerspec once = {};
    once.it_value.tv_nsec = period / 2 + static_cast<int64_t>(thread.random >> 8) * period / (1 << 24);
    timer_settime(thread.timer, 0, &once, nullptr);
  }

  // Async-signal-safe: system calls and preallocated memory only.
  static void on_signal(int, siginfo_t*, void* context) {
    const int error = errno;
    if (Sampler* self = self_) self->record(program_counter(context));
    errno = error;
  }
  void record(uintptr_t address) {
    if (!running_.load()) return;
    Thread* thread = find(static_cast<int>(syscall(SYS_gettid)));
    if (!thread) return;
    const size_t at = count_.fetch_add(1);
    if (at < kMaxSamples) {
      samples_[at] = {now_ns(CLOCK_MONOTONIC), now_ns(CLOCK_THREAD_CPUTIME_ID), address, thread->id};
    }
    set_timer(*thread);
  }

  static inline Sampler* self_ = nullptr;
  int hz_;
  std::vector<Thread> threads_;
  std::unique_ptr<Sample[]> samples_;
  std::atomic<size_t> count_{0};
  std::atomic<bool> running_{false};
};

}  // namespace sampler

#else

namespace sampler {

class Sampler {
 public:
  explicit Sampler(int) {
    throw Failure(kUsage, "usage", "--samples_path: this system has no thread timers");
  }
  void start() {}
  void stop() {}
  void reset() {}
  json::Object take() { return {}; }
};

}  // namespace sampler

#endif
