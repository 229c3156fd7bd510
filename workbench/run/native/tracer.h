// An event tracer that disturbs what it traces as little as possible: it appends events to a buffer
// and makes the ETDump from them afterwards. Times of XNNPACK's operators are in nanoseconds. What
// its events cost is measured once, and is an event "tracing" at the end of every inference.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <executorch/devtools/etdump/etdump_flatcc.h>

#include "clock.h"
#include "upstream.h"

class Tracer : public executorch::etdump::ETDumpGen {
  using Base = executorch::etdump::ETDumpGen;
  using Entry = executorch::runtime::EventTracerEntry;
  using Id = executorch::runtime::DelegateDebugIntId;
  using IdType = executorch::runtime::DelegateDebugIdType;

 public:
  // With `pause`, the runtime's clock stands still while XNNPACK's operators are reported, which
  // takes longer than the shortest of them.
  explicit Tracer(bool pause) {
    clocks::pauses = pause;
    set_unit(upstream::find_xnnpack() ? clocks::Unit::kNanosecond : clocks::Unit::kMicrosecond);
    if (pause) calibrate();
  }

  // Without, an inference costs what it does in a process without a tracer.
  void enable(bool on) { clocks::unit = on ? unit_ : clocks::Unit::kNone; }

  // Ends the first traced inference, which shows what of upstream.h has an effect. Goes back to
  // microseconds unless XNNPACK reads nanoseconds, and the operators of every delegate take as long
  // together as its clock says.
  void probe() {
    inference_ = {events_.size(), bytes_.size()};
    reset();
    if (!reported_) return;
    upstream::probe_delegate();
    if (refined_ && adds_up_) return;
    upstream::missing["operator clock"] =
        refined_ ? "in whole microseconds: nanoseconds do not add up to the delegate's time"
                 : "in whole microseconds: XNNPACK does not read the runner's clock";
    set_unit(clocks::Unit::kMicrosecond);
    adds_up_ = true;
  }

  void create_event_block(const char* name) override {
    if (is_on()) add(Event::kBlock, start(copy(name), IdType::kStr), 0);
  }

  Entry start_profiling(const char* name, executorch::runtime::ChainID chain,
                        executorch::runtime::DebugHandle handle) override {
    if (!is_on()) return {};
    clocks::first_ns = 0;
    Entry entry = start(copy(name), IdType::kNone);
    if (chain != -1) entry.chain_id = chain, entry.debug_handle = handle;
    return entry;
  }

  void end_profiling(Entry entry) override {
    if (!is_on()) return;
    et_timestamp_t end = clocks::ticks() - static_cast<et_timestamp_t>(read_ns_);
    end = std::max(end, entry.start_time);
    if (logged_ && logged_ != (clocks::last_ns - clocks::first_ns) * kScale) adds_up_ = false;
    logged_ = 0;
    leave_out(call_ns_);
    if (left_out_ && std::strcmp(text(entry), "Method::execute") == 0) {
      const et_timestamp_t begin = end;
      end += static_cast<et_timestamp_t>(std::exchange(left_out_, 0));
      clocks::paused_ns -= static_cast<int64_t>(end - begin);
      add(Event::kCall, {copy("tracing"), -1, 0, begin, IdType::kNone}, end);
    }
    add(Event::kCall, entry, end);
  }

  Entry start_profiling_delegate(const char* name, Id id) override {
    if (!is_on()) return {};
    return name ? start(copy(name), IdType::kStr) : start(id, IdType::kInt);
  }

  void end_profiling_delegate(Entry entry, const void* metadata, size_t size) override {
    if (is_on()) add(Event::kOperator, entry, clocks::ticks(), metadata, size);
  }

  void log_profiling_delegate(const char* name, Id id, et_timestamp_t start, et_timestamp_t end,
                              const void* metadata, size_t size) override {
    if (!is_on()) return;
    Entry entry = start_profiling_delegate(name, id);
    reported_ = true;
    if (clocks::first_ns != 0 && unit_ == clocks::Unit::kNanosecond) {
      refined_ = true;
      // Laid end to end, each a thousand times as long as it was, and one reading of the clock.
      if (logged_ == 0) laid_ = start;
      logged_ += static_cast<int64_t>(end - start);
      const int64_t took = static_cast<int64_t>(end - start) / kScale;
      const int64_t read = std::min(took, read_ns_);
      start = laid_;
      end = laid_ += static_cast<et_timestamp_t>(took - read);
      leave_out(read);
    }
    entry.start_time = start;
    add(Event::kOperator, entry, end, metadata, size);
  }

  // Makes room for the events of more inferences; touches it, so that no page is missing later.
  void reserve(size_t inferences) {
    const auto touch = [&](auto& list, size_t more) {
      const size_t size = list.size();
      list.resize(size + inferences * more);
      list.resize(size);
    };
    touch(events_, inference_.events);
    touch(bytes_, inference_.bytes);
  }

  void reset() {
    events_.clear();
    bytes_.clear();
    Base::reset();
  }

  // The ETDump of all events since the last reset, and resets; without a buffer if there are none.
  executorch::etdump::ETDumpResult take() {
    if (!adds_up_) {
      throw Failure(kExecution, "trace", "the operators' times do not add up to their delegate's");
    }
    for (const Event& event : events_) {
      const Entry& entry = event.entry;
      const char* name = entry.delegate_event_id_type == IdType::kInt ? nullptr : text(entry);
      set_chain_debug_handle(entry.chain_id, entry.debug_handle);
      if (event.kind == Event::kBlock) {
        Base::create_event_block(name);
      } else if (event.kind == Event::kCall) {
        Entry written = Base::start_profiling(name);
        written.start_time = entry.start_time;
        clocks::replayed = event.end;  // Base reads the clock
        Base::end_profiling(written);
        clocks::replayed = 0;
      } else {
        const Id id = name ? executorch::runtime::kUnsetDelegateDebugIntId
                           : static_cast<Id>(entry.event_id);
        const char* metadata = event.metadata_size ? &bytes_[event.metadata] : nullptr;
        Base::log_profiling_delegate(name, id, entry.start_time, event.end, metadata,
                                     event.metadata_size);
      }
    }
    const auto dump = Base::get_etdump_data();
    reset();
    return dump;
  }

 private:
  static constexpr int64_t kScale = 1000;

  // Of a name, the entry's id is its place in `bytes_`.
  struct Event {
    enum Kind { kBlock, kCall, kOperator } kind;
    Entry entry;
    et_timestamp_t end;
    size_t metadata, metadata_size;
  };

  static bool is_on() { return clocks::unit != clocks::Unit::kNone; }

  void set_unit(clocks::Unit unit) { clocks::unit = unit_ = unit; }

  // Stops the runtime's clock for what a traced inference takes longer than another.
  void leave_out(int64_t ns) {
    clocks::paused_ns += ns;
    left_out_ += ns;
  }

  // Measures what a reading of XNNPACK's clock, a call that is traced, and a pause cost in an
  // inference: where other data has taken the place of theirs in the first cache. Medians.
  void calibrate() {
#if defined(__linux__)
    constexpr size_t kTries = 101, kCache = 128 << 10, kLine = 64;
    std::vector<char> others(kCache);
    const auto measure = [&](auto&& act, clockid_t clock = CLOCK_MONOTONIC) {
      std::vector<int64_t> times(kTries);
      for (int64_t& time : times) {
        for (size_t i = 0; i < kCache; i += kLine) static_cast<volatile char&>(others[i])++;
        const int64_t begin = now_ns(clock), paused = clocks::paused_cpu_ns;
        act();
        time = now_ns(clock) - begin - (clocks::paused_cpu_ns - paused);
      }
      std::nth_element(times.begin(), times.begin() + kTries / 2, times.end());
      return times[kTries / 2];
    };
    timespec time;
    const int64_t nothing = measure([] {});
    const auto more = [&](auto&& act) { return std::max(INT64_C(0), measure(act) - nothing); };
    const int64_t call = more(
        [&] { end_profiling(start_profiling("native_call_aten::add.out", -1, 0)); });
    read_ns_ = more([&] { clocks::read(CLOCK_MONOTONIC, &time, true); });
    call_ns_ = call;
    const auto pause = [] { clocks::pause([] {}); };
    const int64_t missed = measure(pause, CLOCK_PROCESS_CPUTIME_ID);
    clocks::missed_cpu_ns =
        std::max(INT64_C(0), missed - measure([] {}, CLOCK_PROCESS_CPUTIME_ID));
    left_out_ = clocks::first_ns = 0;
    reset();
#endif
  }

  Entry start(int64_t id, IdType type) {
    return {id, chain_id_, debug_handle_, clocks::ticks(), type};
  }

  void add(typename Event::Kind kind, const Entry& entry, et_timestamp_t end,
           const void* metadata = nullptr, size_t size = 0) {
    const auto* bytes = static_cast<const char*>(metadata);
    events_.push_back({kind, entry, end, bytes_.size(), size});
    bytes_.insert(bytes_.end(), bytes, bytes + size);
  }

  int64_t copy(const char* name) {
    const size_t at = bytes_.size();
    do bytes_.push_back(*name);
    while (*name++);
    return static_cast<int64_t>(at);
  }

  const char* text(const Entry& entry) const {
    return &bytes_[static_cast<size_t>(entry.event_id)];
  }

  std::vector<Event> events_;
  std::vector<char> bytes_;  // names and metadata
  struct {
    size_t events, bytes;
  } inference_{};
  bool adds_up_ = true;
  bool reported_ = false, refined_ = false;  // a delegate's operators; in nanoseconds
  clocks::Unit unit_ = clocks::Unit::kNone;
  // What a reading of the clock and a call cost, and both since the inference began, in ns.
  int64_t read_ns_ = 0, call_ns_ = 0, left_out_ = 0;
  int64_t logged_ = 0;
  et_timestamp_t laid_ = 0;
};
