// The native runner: one ExecuTorch method, timed, with or without an instruction set extension.
//
// Links the runtime of the installed wheel; kernels and the XNNPACK delegate are loaded at run
// time, after CPU features have been hidden (isa.h).
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <dlfcn.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/prctl.h>
#endif

#include <executorch/extension/threadpool/threadpool_guard.h>

#include "failure.h"
#include "files.h"
#include "flags.h"
#include "isa.h"
#include "json.h"
#include "model.h"
#include "sampler.h"
#include "tracer.h"
#include "upstream.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif
#if defined(__APPLE__)
#define LIBRARY_PREFIX "@rpath/"
#define LIBRARY_SUFFIX ".dylib"
#else
#define LIBRARY_PREFIX ""
#define LIBRARY_SUFFIX ".so"
#endif

using sampler::Sampler;

namespace {

void print_isa() {
  const unsigned char* flags = upstream::find_features();
  const std::string verdict = isa::examine(flags);
  std::vector<json::Object> levels, features;
  for (const isa::Level& level : isa::kLevels) {
    levels.push_back(json::Object().add("name", level.name).add("meaning", level.meaning));
  }
  for (const isa::Feature& feature : isa::kFeatures) {
    if (!*feature.level) continue;
    features.push_back(json::Object()
                           .add("name", feature.name)
                           .add("on", verdict == "ok" && flags[feature.byte] != 0)
                           .add("level", feature.level)
                           .add("meaning", feature.meaning));
  }
  json::answer(json::Object()
                   .add("event", "isa")
                   .add("arch", isa::kArch)
                   .add("self_check", verdict)
                   .add("cores", upstream::count_processors())
                   .add("performance_cores",
                        static_cast<int>(upstream::pool::count_fast_cores()))
                   .add("levels", levels)
                   .add("features", features));
}

// Hides features from XNNPACK, as the flags say; describes the remaining ones.
json::Object hide_features(const Flags& flags) {
  unsigned char* bytes = upstream::find_features();
  const std::string verdict = isa::examine(bytes);
  const bool known = verdict == "ok";
  std::vector<std::string> masked;
  try {
    if (isa::level_index(flags.isa) > 0 || !flags.isa_off.empty()) {
      if (!known) throw Failure(kIsa, "isa", "refusing to hide CPU features: " + verdict);
      masked = isa::hide(bytes, flags.isa, flags.isa_off);
    }
  } catch (const std::invalid_argument& error) {
    throw Failure(kUsage, "usage", error.what());
  }
  return json::Object()
      .add("isa", flags.isa)
      .add("masked", masked)
      .add("features", known ? isa::visible(bytes) : std::vector<std::string>());
}

bool load_library(const std::string& directory, const std::string& name) {
  const std::string file = "lib" + name + LIBRARY_SUFFIX;
  const std::string path = directory.empty() ? LIBRARY_PREFIX + file : directory + "/" + file;
  return dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr;
}

// Registers kernels and delegates; some wheels lack some of the optional ones.
void load_libraries(const std::string& directory) {
  for (const char* name : {"executorch_kernels_optimized", upstream::kDelegate}) {
    if (!load_library(directory, name)) throw Failure(kMissing, "library", dlerror());
  }
  for (const char* name : {"executorch_kernels_quantized", "executorch_kernels_torchao"}) {
    load_library(directory, name);
  }
}

constexpr const char* kOperators = "WORKBENCH_RUNNER_OPERATORS";

// Loads libraries that register further operators; whether there are any. A process that learns
// late that it needs them starts again: a method that was loaded in part is not freed.
bool load_operators(const std::vector<std::string>& files, bool late) {
  if (late && !files.empty() && !std::getenv(kOperators)) {
    setenv(kOperators, "1", 1);
    unsetenv(Stages::kStart);
    restart();
  }
  for (const std::string& file : files) {
    if (!dlopen(file.c_str(), RTLD_NOW)) throw Failure(kMissing, "library", dlerror());
  }
  return !files.empty();
}

// Sets the number of threads, and returns it. One runs here, instead of in a pool of one.
size_t set_threads(int wanted) {
  size_t count = wanted ? static_cast<size_t>(wanted) : upstream::pool::count_fast_cores();
  if (count == 0) count = upstream::pool::count_threads();
  if (count != 0 && !upstream::pool::resize(count)) {
    if (count != 1) {
      throw Failure(kExecution, "threads", "this ExecuTorch's thread pool cannot be resized");
    }
    upstream::missing["thread pool"] = "cannot be resized; one thread runs without it";
  }
  executorch::extension::threadpool::NoThreadPoolGuard::set_enabled(count == 1);
  return count;
}

void set_cpus(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    throw Failure(kUsage, "usage", std::string("--cpus: ") + std::strerror(errno));
  }
#else
  throw Failure(kUsage, "usage", "--cpus: this system cannot bind a process to CPUs");
#endif
}

// The optional tracer and sampler.
struct Observers {
  std::unique_ptr<Tracer> tracer;
  std::unique_ptr<Sampler> sampler;

  explicit Observers(const Flags& flags)
      // Samples are matched with events by time: both need a clock that runs.
      : tracer(flags.etdump_path.empty() ? nullptr
                                         : std::make_unique<Tracer>(flags.samples_path.empty())),
        sampler(flags.samples_path.empty() ? nullptr : std::make_unique<Sampler>(flags.sample_hz)) {}

  void reset() {
    if (tracer) tracer->reset();
    if (sampler) sampler->reset();
  }
};

void write_etdump(Tracer* tracer, const std::string& path) {
  if (!tracer) throw Failure(kUsage, "command", "nothing is traced: start with --etdump_path");
  const auto dump = tracer->take();
  const std::unique_ptr<void, void (*)(void*)> owner(dump.buf, std::free);
  if (!dump.buf) throw Failure(kUsage, "command", "nothing was traced since the last dump");
  atomic_write(path, dump.buf, dump.size);
}

void write_samples(Sampler* sampler, const std::string& path) {
  if (!sampler) throw Failure(kUsage, "command", "nothing is sampled: start with --samples_path");
  const std::string samples = sampler->take().str() + '\n';
  atomic_write(path, samples.data(), samples.size());
}

json::Object time_runs(Model& model, const Observers& observers, int count,
                       bool traced = true) {
  Sampler* sampler = observers.sampler.get();
  if (observers.tracer) {
    observers.tracer->enable(traced);
    if (traced) observers.tracer->reserve(static_cast<size_t>(count));
  }
  std::vector<int64_t> wall, cpu, preempted;
  for (auto* times : {&wall, &cpu, &preempted}) times->reserve(static_cast<size_t>(count));
  if (sampler) sampler->start();
  for (int i = 0; i < count; i++) {
    const Iteration iteration = model.run();
    wall.push_back(iteration.wall_ns);
    cpu.push_back(iteration.cpu_ns);
    preempted.push_back(iteration.preempted);
  }
  if (sampler) sampler->stop();
  return json::Object()
      .add("event", "run")
      .add("wall_ns", wall)
      .add("cpu_ns", cpu)
      .add("preempted", preempted);
}

json::Object execute(const std::string& line, Model& model, Observers& observers,
                     const Flags& flags) {
  const size_t space = line.find(' ');
  const std::string command = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  if (line.find('\0') != std::string::npos) {
    throw Failure(kUsage, "command", "a command with a null byte");
  }
  if (command == "run" || command == "untraced") {
    const int count = parse_number(command, rest, 1, kMaxExecutions);
    return time_runs(model, observers, count, command == "run");
  }
  if (command == "output" && !rest.empty()) {
    return json::Object().add("event", "output").add("files", model.write_outputs(rest));
  }
  if (command == "etdump") {
    const std::string path = rest.empty() ? flags.etdump_path : rest;
    write_etdump(observers.tracer.get(), path);
    return json::Object().add("event", "etdump").add("file", path);
  }
  if (command == "samples") {
    const std::string path = rest.empty() ? flags.samples_path : rest;
    write_samples(observers.sampler.get(), path);
    return json::Object().add("event", "samples").add("file", path);
  }
  if (command == "reset" && rest.empty()) {
    observers.reset();
    return json::Object().add("event", "reset");
  }
  constexpr size_t kShown = 80;
  throw Failure(kUsage, "command", "unknown command '" + line.substr(0, kShown) + "'");
}

// Executes commands until "quit" or the end of input; continues after wrong commands.
void serve(Model& model, Observers& observers, const Flags& flags) {
  std::string line;
  while (read_line(line) && line != "quit") {
    try {
      json::answer(execute(line, model, observers, flags));
    } catch (const Failure& failure) {
      if (failure.code != kUsage && failure.code != kIo) throw;
      report(failure);
    }
  }
}

void run_once(Model& model, Observers& observers, const Flags& flags) {
  for (int i = 0; i < flags.warmup; i++) model.run();
  observers.reset();
  json::answer(time_runs(model, observers, flags.num_executions));
  if (flags.print_output != "none") {
    const bool all = flags.print_output == "all";
    json::answer(
        json::Object().add("event", "values").add("outputs", model.show_outputs(all)));
  }
  if (!flags.output_file.empty()) {
    json::answer(
        json::Object().add("event", "output").add("files", model.write_outputs(flags.output_file)));
  }
  if (observers.tracer) {
    write_etdump(observers.tracer.get(), flags.etdump_path);
    json::answer(json::Object().add("event", "etdump").add("file", flags.etdump_path));
  }
  if (observers.sampler) {
    write_samples(observers.sampler.get(), flags.samples_path);
    json::answer(json::Object().add("event", "samples").add("file", flags.samples_path));
  }
}

void run(int argc, char** argv) {
  const int64_t start = now_ns(CLOCK_MONOTONIC);
  const Flags flags = parse_flags(argc, argv);
  if (flags.help) {
    std::fputs(kHelp, stdout);
    return;
  }
  if (flags.version) {
    json::answer(
        json::Object().add("event", "version").add("runner", "native").add("compiler", COMPILER));
    return;
  }
#if defined(__linux__)
  // Nothing may disturb the next measurement once the process that reads the answers has ended.
  if (flags.server_mode) prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  stages.start(flags.stages, flags.model_path);
  set_up_platform();
  upstream::initialize_cpuinfo();
  if (flags.print_isa) {
    print_isa();
    return;
  }
  if (flags.model_path.empty()) throw Failure(kUsage, "usage", "--model_path is missing");
  set_cpus(flags.cpus);
  const json::Object isa = hide_features(flags);
  load_libraries(flags.lib_dir);
  if (std::getenv(kOperators)) load_operators(flags.operators, false);
  stages.end("libraries");
  const size_t threads = set_threads(flags.cpu_threads);
  stages.end("threads");

  Observers observers(flags);
  Model model(flags.model_path, flags.data_path, flags.method_name, observers.tracer.get(),
              [&] { return load_operators(flags.operators, true); });
  for (size_t i = 0; i < flags.inputs.size(); i++) {
    if (i > 0 && !stages.on()) model.run();
    model.set_inputs(flags.inputs[i].files, flags.inputs[i].shapes);
    abort_code = kExecution;
    stages.end("inputs", model.external_bytes());
    if (stages.on()) model.run();
    stages.end(i == 0 ? "first inference" : "later inference", 0, model.unused_arena_bytes());
  }
  observers.reset();
  if (observers.tracer) {
    model.run();
    observers.tracer->probe();
  }
  json::answer(json::Object()
                   .add("event", "ready")
                   .add("runner", "native")
                   .add("clock", "Method::execute")
                   .add("traced", observers.tracer != nullptr)
                   .add("missing", upstream::missing)
                   .add("threads", threads)
                   .add("startup_ms", static_cast<double>(now_ns(CLOCK_MONOTONIC) - start) / 1e6)
                   .extend(isa)
                   .extend(stages.describe())
                   .extend(model.describe_method()));
  if (flags.server_mode) {
    serve(model, observers, flags);
  } else {
    run_once(model, observers, flags);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
    return 0;
  } catch (const Failure& failure) {
    report(failure);
    return failure.code;
  } catch (const std::bad_alloc&) {
    report(Failure(abort_code, "memory", "out of memory"));
    return abort_code;
  } catch (const std::length_error&) {
    report(Failure(abort_code, "memory", "the program asks for impossible amounts of memory"));
    return abort_code;
  }
}
