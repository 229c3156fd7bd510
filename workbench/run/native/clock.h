// The runtime's clock, which times events, and XNNPACK's, which times operators.
//
// XNNPACK reads clock_gettime after every operator and keeps whole microseconds, rounded down. On
// Linux, it finds the runner's function below instead, which can give it nanoseconds in place of
// microseconds; everybody else gets the true time. Its delegate also finds two functions that keep it
// from naming and reporting operators that nobody traces, and that time this where somebody does.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include <dlfcn.h>
#include <time.h>
#if defined(__linux__)
#include <link.h>
#endif
#include <executorch/runtime/core/error.h>
#include <executorch/runtime/core/event_tracer.h>
#include <executorch/runtime/platform/types.h>

#include "stages.h"

namespace clocks {

enum class Unit { kNone, kMicrosecond, kNanosecond };

inline Unit unit = Unit::kNone;            // of what XNNPACK reads; kNone costs next to nothing
inline uintptr_t begin = 0, size = 0;      // XNNPACK's code
inline int64_t first_ns = 0, last_ns = 0;  // what XNNPACK read first and last; 0: nothing

inline bool asked = false;   // whether XNNPACK's delegate finds the functions below
inline bool pauses = false;  // whether the runtime's clock stands still while it reports operators

// How long the runtime's clock stood still while the tracer worked, and the time that it shows
// while events are replayed; 0: it runs.
inline std::atomic<int64_t> paused_ns{0};
inline et_timestamp_t replayed = 0;

inline et_timestamp_t ticks() {
  if (replayed) return replayed;
  return static_cast<et_timestamp_t>(now_ns(CLOCK_MONOTONIC) - paused_ns.load());
}

#if defined(__linux__)
// Finds the code of XNNPACK among the loaded libraries; whether there is any.
inline bool find_xnnpack() {
  const auto visit = [](dl_phdr_info* info, size_t, void*) {
    if (!std::strstr(info->dlpi_name, "libexecutorch_backend_xnnpack")) return 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
      const auto& segment = info->dlpi_phdr[i];
      if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_X)) continue;
      begin = info->dlpi_addr + segment.p_vaddr;
      size = segment.p_memsz;
    }
    return 1;
  };
  dl_iterate_phdr(visit, nullptr);
  return size != 0;
}
#else
inline bool find_xnnpack() { return false; }
#endif

}  // namespace clocks

#if defined(__linux__)
namespace clocks {

inline int read(clockid_t clock, timespec* time, bool xnnpack) noexcept {
  static const auto real =
      reinterpret_cast<int (*)(clockid_t, timespec*)>(dlsym(RTLD_NEXT, "clock_gettime"));
  if (xnnpack && unit == Unit::kNone) {
    *time = {};
    return 0;
  }
  const int code = real(clock, time);
  if (!xnnpack || code != 0) return code;
  constexpr int64_t kSecond = 1'000'000'000, kScale = 1000;
  last_ns = time->tv_sec * kSecond + time->tv_nsec;
  if (!first_ns) first_ns = last_ns;
  if (unit == Unit::kNanosecond) {
    const int64_t scaled = (last_ns - first_ns) * kScale;
    time->tv_sec = scaled / kSecond;
    time->tv_nsec = scaled % kSecond;
  }
  return 0;
}

}  // namespace clocks

// Inlined, it would have another caller.
extern "C" __attribute__((visibility("default"), noinline)) int clock_gettime(
    clockid_t clock, timespec* time) noexcept {
  const auto caller = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  return clocks::read(clock, time, caller - clocks::begin < clocks::size);
}

// XNNPACK's delegate calls these functions of its profiler before and after an inference.
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
  clocks::asked = true;
  return real(profiler, clocks::unit == clocks::Unit::kNone ? nullptr : tracer);
}

void submit_trace(void* profiler) {
  static const auto real = reinterpret_cast<decltype(&submit_trace)>(dlsym(RTLD_NEXT, SUBMIT));
  const int64_t begin = now_ns(CLOCK_MONOTONIC);
  real(profiler);
  if (clocks::pauses) clocks::paused_ns += now_ns(CLOCK_MONOTONIC) - begin;
}
#undef PROFILER
#undef START
#undef SUBMIT
#endif
