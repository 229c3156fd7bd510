// An event tracer that disturbs what it traces as little as possible: it appends events to a buffer
// and makes the ETDump from them afterwards. Times of XNNPACK's operators are in nanoseconds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <executorch/devtools/etdump/etdump_flatcc.h>

#include "clock.h"

class Tracer : public executorch::etdump::ETDumpGen {
  using Base = executorch::etdump::ETDumpGen;
  using Entry = executorch::runtime::EventTracerEntry;
  using Id = executorch::runtime::DelegateDebugIntId;
  using IdType = executorch::runtime::DelegateDebugIdType;

 public:
  // With `pause`, the runtime's clock stands still while XNNPACK's operators are reported, which
  // takes longer than the shortest of them.
  explicit Tracer(bool pause) : pause_(pause) {
    clocks::unit = clocks::find_xnnpack() ? clocks::Unit::kNanosecond : clocks::Unit::kMicrosecond;
  }

  // Ends the first traced inference: checks that the operators of every delegate take as long
  // together as XNNPACK's clock says, or goes back to microseconds; returns the unit or the reason.
  const char* check_clock() {
    inference_ = {events_.size(), bytes_.size()};
    reset();
    if (clocks::unit == clocks::Unit::kNanosecond && adds_up_) return "ns";
    const bool found = clocks::unit == clocks::Unit::kNanosecond;
    clocks::unit = clocks::Unit::kMicrosecond;
    adds_up_ = true;
    return found ? "us: XNNPACK's operator times do not add up in nanoseconds"
                 : "us: XNNPACK's clock cannot be refined on this system";
  }

  void create_event_block(const char* name) override {
    add(Event::kBlock, start(copy(name), IdType::kStr), 0);
  }

  Entry start_profiling(const char* name, executorch::runtime::ChainID chain,
                        executorch::runtime::DebugHandle handle) override {
    clocks::first_ns = 0;
    Entry entry = start(copy(name), IdType::kNone);
    if (chain != -1) entry.chain_id = chain, entry.debug_handle = handle;
    return entry;
  }

  void end_profiling(Entry entry) override {
    add(Event::kCall, entry, clocks::ticks());
    if (logged_ && logged_ != (clocks::last_ns - clocks::first_ns) * kScale) adds_up_ = false;
    logged_ = 0;
  }

  Entry start_profiling_delegate(const char* name, Id id) override {
    return name ? start(copy(name), IdType::kStr) : start(id, IdType::kInt);
  }

  void end_profiling_delegate(Entry entry, const void* metadata, size_t size) override {
    add(Event::kOperator, entry, clocks::ticks(), metadata, size);
  }

  void log_profiling_delegate(const char* name, Id id, et_timestamp_t start, et_timestamp_t end,
                              const void* metadata, size_t size) override {
    Entry entry = start_profiling_delegate(name, id);
    const bool xnnpack = clocks::first_ns != 0;
    if (xnnpack && clocks::unit == clocks::Unit::kNanosecond) {
      // Laid end to end, each a thousand times as long as it was.
      if (logged_ == 0) origin_ = start;
      logged_ += static_cast<int64_t>(end - start);
      start = origin_ + (start - origin_) / kScale;
      end = origin_ + (end - origin_) / kScale;
    }
    entry.start_time = start;
    add(Event::kOperator, entry, end, metadata, size);
    if (xnnpack && pause_) {
      const int64_t now = now_ns(CLOCK_MONOTONIC);
      clocks::paused_ns += now - std::max(clocks::last_ns, paused_until_);
      paused_until_ = now;
    }
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
  const bool pause_;
  bool adds_up_ = true;
  int64_t logged_ = 0, paused_until_ = 0;
  et_timestamp_t origin_ = 0;
};
