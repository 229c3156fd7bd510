// Failures: an exit code, a kind, a message, and ExecuTorch's last log lines.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <executorch/runtime/core/error.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include "clock.h"
#include "json.h"

enum ExitCode {
  kUsage = 2,      // wrong flags, commands or inputs
  kModelFile = 3,  // the model file cannot be read
  kProgram = 4,    // it is not an ExecuTorch program, or a broken one
  kMissing = 5,    // an operator, backend or library is missing
  kDelegate = 6,   // a delegate cannot be initialised
  kExecution = 7,  // the method failed during execution
  kIsa = 8,        // the self-check refused to hide CPU features
  kIo = 9,         // a file cannot be read or written
};

struct Failure : std::exception {
  ExitCode code;
  std::string kind, message;
  executorch::runtime::Error error;

  Failure(ExitCode code, std::string kind, std::string message,
          executorch::runtime::Error error = executorch::runtime::Error::Ok)
      : code(code), kind(std::move(kind)), message(std::move(message)), error(error) {}
  const char* what() const noexcept override { return message.c_str(); }
};

// The last errors that ExecuTorch logged, in order, from any thread.
class ErrorLog {
 public:
  void add(std::string line) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (lines_.size() == kMaxLines) lines_.pop_front();
    lines_.push_back(std::move(line));
  }
  bool mentions(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::string& line : lines_) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  }
  std::vector<std::string> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> lines(lines_.begin(), lines_.end());
    lines_.clear();
    return lines;
  }

 private:
  static constexpr size_t kMaxLines = 8;
  std::mutex mutex_;
  std::deque<std::string> lines_;
};

inline ErrorLog error_log;

// The exit code when a check inside ExecuTorch fails: a broken program until one is loaded.
inline ExitCode abort_code = kProgram;

inline void report(const Failure& failure) {
  using executorch::runtime::Error;
  const bool known = failure.error != Error::Ok;
  json::answer(json::Object()
                   .add("error", failure.kind)
                   .add("message", failure.message)
                   .add("et_error", known ? to_string(failure.error) : "")
                   .add("log", error_log.take()));
  std::fprintf(stderr, "error: %s\n", json::escape(failure.message).c_str());
}

// Gives ExecuTorch the runner's clock, adds its log to answers, and answers when it aborts.
inline void set_up_platform() {
  using namespace executorch::runtime;
  runtime_init();
  PalImpl pal = *get_pal_impl();
  pal.source_filename = "runner.cpp";
  pal.current_ticks = clocks::ticks;
  pal.ticks_to_ns_multiplier = [] { return et_tick_ratio_t{1, 1}; };
  pal.emit_log_message = [](et_timestamp_t, et_pal_log_level_t level, const char*, const char*,
                            size_t, const char* message, size_t length) {
    if (level == kError || level == kFatal) error_log.add(std::string(message, length));
  };
  pal.abort = [] {
    report(Failure(abort_code, "check", "a check inside ExecuTorch failed"));
    std::_Exit(abort_code);
  };
  register_pal(pal);
}
