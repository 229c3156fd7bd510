// The command line.
#pragma once

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include <unistd.h>

#include "failure.h"

struct Flags {
  std::string model_path, method_name, output_file, etdump_path, samples_path, lib_dir;
  std::string data_path, isa = "native", print_output = "none", stages;
  std::vector<std::string> isa_off, operators;
  // The sets of inputs: all but the last one are executed once, before anything is timed.
  struct Inputs {
    std::vector<std::string> files;
    std::vector<std::vector<int>> shapes;
  };
  std::vector<Inputs> inputs{1};
  std::vector<int> cpus;
  int num_executions = 1, warmup = 0, cpu_threads = 0, sample_hz = 249;
  bool server_mode = false, print_isa = false, version = false, help = false;
};

inline constexpr int kMaxExecutions = 1'000'000, kMaxThreads = 1024, kMaxCpu = 1023;
inline constexpr int kMaxSampleHz = 10'000, kMaxSize = 1 << 30;

inline constexpr char kHelp[] =
    R"(Runs one method of an ExecuTorch program and times Method::execute.

  --model_path FILE     the .pte program
  --data_path FILE      the .ptd file of a program with external weights
  --method_name NAME    which method (default: forward, or the only one)
  --inputs FILE,FILE    raw bytes of each input, in order; may be repeated; a FILE with a comma in
                        its name needs an --inputs of its own (default: all inputs are ones)
  --input_shape 1x3x8   the shape of one input; repeat for each, in order (default: the program's)
  --then                execute once with the inputs so far, which fills the program's state; the
                        flags that follow give the next inputs
  --output_file BASE    write the outputs to BASE-0.bin, BASE-1.bin, ...
  --print_output MODE   none (default), summary (the first and last 100 values of each), all
  --num_executions N    timed executions (default 1)
  --warmup N            earlier executions, neither timed nor traced (default 0)
  --cpu_threads N       threads (default, and -1: the CPU's performance cores)
  --cpus 0,1            run on these CPUs only (Linux)
  --etdump_path FILE    trace, and write the ETDump to FILE (in server mode: on command)
  --samples_path FILE   sample the program counter during executions, and write the samples to FILE
                        (in server mode: on command; Linux)
  --sample_hz N         samples per second and thread (default 249)
  --isa LEVEL           hide instruction set extensions from XNNPACK (default native: none)
  --isa_off a,b         hide these features too
  --print_isa           print the extensions of this CPU and the levels, and exit
  --stages MODE         execute once or twice before "ready", which then lists the stages since the
                        process was started: time, cold (the same, with the files that it maps
                        dropped from the page cache first) or memory (also the memory after every
                        stage)
  --version             print how this runner was built, and exit
  --lib_dir DIR         the folder of ExecuTorch's libraries
  --ops FILE            a library of operators, loaded if the program needs operators that the
                        others lack; may be repeated
  --server_mode         load, answer "ready", then execute commands from standard input:
                          run N | untraced N | output BASE | etdump [FILE] | samples [FILE] |
                          reset | quit

Answers are JSON, one line each, on standard output. Exit codes: 2 usage, 3 model file, 4 program,
5 operator, backend or library missing, 6 delegate, 7 execution, 8 ISA self-check, 9 files.
)";

inline int parse_number(const std::string& flag, const std::string& text, int least, int most) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < least || value > most) {
    throw Failure(kUsage, "usage",
                  flag + " takes a number from " + std::to_string(least) + " to " +
                      std::to_string(most) + ", not '" + text + "'");
  }
  return value;
}

inline std::vector<std::string> split(const std::string& text, char separator = ',') {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    const size_t comma = std::min(text.find(separator, start), text.size());
    if (comma > start) parts.push_back(text.substr(start, comma - start));
    start = comma + 1;
  }
  return parts;
}

inline std::string one_of(const std::string& flag, const std::string& text,
                          const std::vector<std::string>& valid) {
  std::string names;
  for (const auto& name : valid) {
    if (text == name) return text;
    names += (names.empty() ? "" : ", ") + name;
  }
  throw Failure(kUsage, "usage", flag + " takes one of " + names + ", not '" + text + "'");
}

inline Flags parse_flags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; i++) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    // Like gflags, which other runners use, accept one dash for two.
    const bool one_dash = argument.size() > 1 && argument[0] == '-' && argument[1] != '-';
    const std::string flag = (one_dash ? "-" : "") + argument.substr(0, equals);
    const auto value = [&] {
      if (equals != std::string::npos) return argument.substr(equals + 1);
      if (i + 1 == argc) throw Failure(kUsage, "usage", flag + " needs a value");
      return std::string(argv[++i]);
    };
    const auto number = [&](int least, int most) {
      return parse_number(flag, value(), least, most);
    };
    const auto is_on = [&] {
      const std::string text = equals == std::string::npos ? "true" : value();
      if (text == "true" || text == "false") return text == "true";
      throw Failure(kUsage, "usage", flag + " takes true or false, not '" + text + "'");
    };
    if (flag == "--model_path") {
      flags.model_path = value();
    } else if (flag == "--method_name") {
      flags.method_name = value();
    } else if (flag == "--inputs") {
      const std::string text = value();
      const bool one_file = access(text.c_str(), F_OK) == 0;
      for (const auto& file : one_file ? std::vector{text} : split(text)) {
        flags.inputs.back().files.push_back(file);
      }
    } else if (flag == "--input_shape") {
      auto& shape = flags.inputs.back().shapes.emplace_back();
      for (const auto& size : split(value(), 'x')) {
        shape.push_back(parse_number(flag, size, 0, kMaxSize));
      }
    } else if (flag == "--then") {
      flags.inputs.emplace_back();
    } else if (flag == "--ops") {
      flags.operators.push_back(value());
    } else if (flag == "--data_path") {
      flags.data_path = value();
    } else if (flag == "--print_output") {
      flags.print_output = one_of(flag, value(), {"none", "summary", "all"});
    } else if (flag == "--stages") {
      flags.stages = one_of(flag, value(), {"time", "cold", "memory"});
    } else if (flag == "--output_file") {
      flags.output_file = value();
    } else if (flag == "--num_executions") {
      flags.num_executions = number(1, kMaxExecutions);
    } else if (flag == "--warmup") {
      flags.warmup = number(0, kMaxExecutions);
    } else if (flag == "--cpu_threads") {
      const std::string text = value();
      flags.cpu_threads = text == "-1" ? 0 : parse_number(flag, text, 1, kMaxThreads);
    } else if (flag == "--cpus") {
      for (const auto& cpu : split(value())) {
        flags.cpus.push_back(parse_number(flag, cpu, 0, kMaxCpu));
      }
    } else if (flag == "--etdump_path") {
      flags.etdump_path = value();
    } else if (flag == "--samples_path") {
      flags.samples_path = value();
    } else if (flag == "--sample_hz") {
      flags.sample_hz = number(1, kMaxSampleHz);
    } else if (flag == "--isa") {
      flags.isa = value();
    } else if (flag == "--isa_off") {
      for (const auto& feature : split(value())) flags.isa_off.push_back(feature);
    } else if (flag == "--lib_dir") {
      flags.lib_dir = value();
    } else if (flag == "--server_mode") {
      flags.server_mode = is_on();
    } else if (flag == "--print_isa") {
      flags.print_isa = is_on();
    } else if (flag == "--version") {
      flags.version = is_on();
    } else if (flag == "--help") {
      flags.help = is_on();
    } else {
      throw Failure(kUsage, "usage", "unknown flag '" + flag + "'; --help lists them");
    }
  }
  return flags;
}
