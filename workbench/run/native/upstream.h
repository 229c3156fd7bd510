// What the runner uses of ExecuTorch, XNNPACK, cpuinfo and the thread pool that has no header in the
// wheel. No other file of the runner names it. Functions are looked up by name at run time: what
// another version lacks, or calls in another way, is an entry of `missing`, and the runner goes on
// without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include <dlfcn.h>
#include <time.h>
#if defined(__linux__)
#include <link.h>
#endif
#include <executorch/runtime/core/error.h>
#include <executorch/runtime/core/event_tracer.h>

#include "clock.h"

namespace upstream {

// What this ExecuTorch lacks, and what follows from it.
inline std::map<std::string, std::string> missing;

template <class Function>
Function* find(const char* symbol) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, symbol));
}

// --- cpuinfo ---

// Examines the CPU, unless it cannot; what came of it shows in the features below.
inline void initialize_cpuinfo() {
  const auto initialize = find<bool()>("cpuinfo_initialize");
  if (initialize) initialize();
}

// The logical processors; 0 if unknown.
inline int count_processors() {
  const auto count = find<uint32_t()>("cpuinfo_get_processors_count");
  return count ? static_cast<int>(count()) : 0;
}

// The features by which XNNPACK chooses its kernels, in the layout of isa_<arch>.def; null if they
// are not exported. Naming the variable would make the linker place a copy of it into the runner.
inline unsigned char* find_features() {
  return static_cast<unsigned char*>(dlsym(RTLD_DEFAULT, "cpuinfo_isa"));
}

// --- the thread pool ---

namespace pool {

#define EXTENSION "_ZN10executorch9extension"
#define POOL "10threadpool10ThreadPool"
inline void* find_pool() {
  const auto pool = find<void*()>(EXTENSION "10threadpool14get_threadpoolEv");
  return pool ? pool() : nullptr;
}

// The number of its threads; 0 if unknown.
inline size_t count_threads() {
  const auto count = find<size_t(void*)>("_ZNK10executorch9extension" POOL "16get_thread_countEv");
  void* pool = find_pool();
  return pool && count ? count(pool) : 0;
}

// Gives the pool another number of threads; whether it has them then.
inline bool resize(size_t threads) {
  if (count_threads() == threads) return true;
  const auto reset = find<bool(void*, uint32_t)>(EXTENSION POOL "24_unsafe_reset_threadpoolEj");
  void* pool = find_pool();
  if (pool && reset) reset(pool, static_cast<uint32_t>(threads));
  return count_threads() == threads;
}

// The cores that ExecuTorch takes for fast ones; 0 if unknown.
inline uint32_t count_fast_cores() {
  const auto count = find<uint32_t()>(EXTENSION "7cpuinfo24get_num_performant_coresEv");
  return count ? count() : 0;
}
#undef EXTENSION
#undef POOL

}  // namespace pool

// --- XNNPACK and its delegate ---

inline constexpr char kDelegate[] = "executorch_backend_xnnpack";  // the library

inline uintptr_t begin = 0, size = 0;  // the code of that library
inline bool starts = false;            // whether the delegate calls the runner's start_profiler
inline bool submits = false;           // whether it calls its submit_trace

// Finds the code of XNNPACK, whose readings of the clock can then be told apart; whether it does.
inline bool find_xnnpack() {
#if defined(__linux__)
  const auto visit = [](dl_phdr_info* info, size_t, void*) {
    if (!std::strstr(info->dlpi_name, kDelegate)) return 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
      const auto& segment = info->dlpi_phdr[i];
      if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_X)) continue;
      begin = info->dlpi_addr + segment.p_vaddr;
      size = segment.p_memsz;
    }
    return 1;
  };
  dl_iterate_phdr(visit, nullptr);
#endif
  return size != 0;
}

// What is missing of all that the delegate calls, once it has reported operators.
inline void probe_delegate() {
  const std::string reason = "not called by XNNPACK's delegate, so ";
  if (!starts) missing["profiler symbol"] = reason + "traces come from processes of their own";
  if (!submits) missing["report symbol"] = reason + "its traced calls include reporting";
}

}  // namespace upstream

#if defined(__linux__)
// Called by XNNPACK after every operator, and by everybody else. Inlined, it would have another
// caller.
extern "C" __attribute__((visibility("default"), noinline)) int clock_gettime(
    clockid_t clock, timespec* time) noexcept {
  const auto caller = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  return clocks::read(clock, time, caller - upstream::begin < upstream::size);
}

// XNNPACK's delegate calls these functions of its profiler before and after an inference. Ours keep
// it from naming and reporting operators that nobody traces, and time this where somebody does.
#define PROFILER "_ZN10executorch8backends7xnnpack8delegate9profiling11XNNProfiler"
#define START PROFILER "5startEPNS_7runtime11EventTracerE"
#define SUBMIT PROFILER "12submit_traceEv"
extern "C" {
__attribute__((visibility("default"))) executorch::runtime::Error start_profiler(
    void* profiler, executorch::runtime::EventTracer* tracer) __asm__(START);
__attribute__((visibility("default"))) void submit_trace(void* profiler) __asm__(SUBMIT);
}

executorch::runtime::Error start_profiler(void* profiler,
                                          executorch::runtime::EventTracer* tracer) {
  static const auto real = reinterpret_cast<decltype(&start_profiler)>(dlsym(RTLD_NEXT, START));
  upstream::starts = true;
  return real(profiler, clocks::unit == clocks::Unit::kNone ? nullptr : tracer);
}

void submit_trace(void* profiler) {
  static const auto real = reinterpret_cast<decltype(&submit_trace)>(dlsym(RTLD_NEXT, SUBMIT));
  upstream::submits = true;
  clocks::pause([&] { real(profiler); });
}
#undef PROFILER
#undef START
#undef SUBMIT
#endif
