// The runtime's clock, which times events, and XNNPACK's, which times operators.
//
// XNNPACK reads clock_gettime after every operator and keeps whole microseconds, rounded down. Where
// its readings can be told apart (upstream.h), it can get nanoseconds in place of microseconds;
// everybody else gets the true time.
#pragma once

#include <atomic>
#include <cstdint>

#include <dlfcn.h>
#include <time.h>
#include <executorch/runtime/platform/types.h>

#include "stages.h"

namespace clocks {

enum class Unit { kNone, kMicrosecond, kNanosecond };

inline Unit unit = Unit::kNone;            // of what XNNPACK reads; kNone costs next to nothing
inline int64_t first_ns = 0, last_ns = 0;  // what XNNPACK read first and last; 0: nothing
inline bool pauses = false;  // whether the runtime's clock stands still while it reports operators

// How long the runtime's clock stood still while the tracer worked, the CPU time that this took,
// and what a pause takes that its readings miss. Other programs may have the core meanwhile: one
// does not follow from the other.
inline std::atomic<int64_t> paused_ns{0}, paused_cpu_ns{0};
inline int64_t missed_cpu_ns = 0;
// The time that the runtime's clock shows while events are replayed; 0: it runs.
inline et_timestamp_t replayed = 0;

inline et_timestamp_t ticks() {
  if (replayed) return replayed;
  return static_cast<et_timestamp_t>(now_ns(CLOCK_MONOTONIC) - paused_ns.load());
}

// Does something for which the runtime's clock may stand still.
template <class Action>
void pause(const Action& act) {
  if (!pauses || unit == Unit::kNone) return act();
  const int64_t begin = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
  act();
  paused_cpu_ns += now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu + missed_cpu_ns;
  paused_ns += now_ns(CLOCK_MONOTONIC) - begin;
}

#if defined(__linux__)
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
#endif

}  // namespace clocks
