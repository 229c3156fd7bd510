// The runtime's clock, which times events, and XNNPACK's, which times operators.
//
// XNNPACK reads clock_gettime after every operator and keeps whole microseconds, rounded down. On
// Linux, it finds the runner's function below instead, which can give it nanoseconds in place of
// microseconds; everybody else gets the true time.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include <dlfcn.h>
#include <time.h>
#if defined(__linux__)
#include <link.h>
#endif
#include <executorch/runtime/platform/types.h>

#include "stages.h"

namespace clocks {

enum class Unit { kNone, kMicrosecond, kNanosecond };

inline Unit unit = Unit::kNone;            // of what XNNPACK reads; kNone costs next to nothing
inline uintptr_t begin = 0, size = 0;      // XNNPACK's code
inline int64_t first_ns = 0, last_ns = 0;  // what XNNPACK read first and last; 0: nothing

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
extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock,
                                                                    timespec* time) noexcept {
  static const auto real =
      reinterpret_cast<int (*)(clockid_t, timespec*)>(dlsym(RTLD_NEXT, "clock_gettime"));
  const auto caller = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  const bool xnnpack = caller - clocks::begin < clocks::size;
  if (xnnpack && clocks::unit == clocks::Unit::kNone) {
    *time = {};
    return 0;
  }
  const int code = real(clock, time);
  if (!xnnpack || code != 0) return code;
  constexpr int64_t kSecond = 1'000'000'000, kScale = 1000;
  clocks::last_ns = time->tv_sec * kSecond + time->tv_nsec;
  if (!clocks::first_ns) clocks::first_ns = clocks::last_ns;
  if (clocks::unit == clocks::Unit::kNanosecond) {
    const int64_t scaled = (clocks::last_ns - clocks::first_ns) * kScale;
    time->tv_sec = scaled / kSecond;
    time->tv_nsec = scaled % kSecond;
  }
  return 0;
}
#endif
