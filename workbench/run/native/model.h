// An ExecuTorch method: loads it with its inputs, executes it, reads its outputs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>

#include "failure.h"
#include "files.h"
#include "json.h"
#include "program_file.h"
#include "stages.h"
#include "tensors.h"

namespace et = executorch::runtime;
using et::Error;

// The number of values that a summary shows at either end of an output.
inline constexpr size_t kShownValues = 100;

struct Iteration {
  int64_t wall_ns, cpu_ns, preempted;
};

inline int64_t preemptions() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

class Model {
 public:
  Model(const std::string& path, const std::string& data_path, std::string method,
        et::EventTracer* tracer, const std::function<bool()>& load_operators)
      : file_(open_program(path)),
        loader_(std::make_unique<executorch::extension::BufferDataLoader>(file_.data(),
                                                                          file_.size())) {
    if (!data_path.empty()) data_.emplace(data_path);
    stages.program = file_.data();
    stages.end("file");
    auto program = et::Program::load(&loader_, et::Program::Verification::InternalConsistency);
    if (!program.ok()) {
      const bool old = error_log.mentions("constant_buffer");
      throw Failure(kProgram, old ? "version" : "program",
                    path + (old ? ": is too old: ExecuTorch gave up this format of constants in "
                                  "September 2024"
                                : ": the program is broken"),
                    program.error());
    }
    program_.emplace(std::move(*program));
    choose_method(method);
    check_backends();
    stages.end("program");
    load_method(tracer, load_operators);
    place_outputs();
  }

  // Reads the inputs from files of raw bytes; without files, fills them with ones. The default
  // shapes are the largest that the program accepts.
  void set_inputs(const std::vector<std::string>& files,
                  const std::vector<std::vector<int>>& shapes) {
    const et::MethodMeta meta = method_->method_meta();
    if (!files.empty() && files.size() != meta.num_inputs()) {
      throw Failure(kUsage, "inputs",
                    std::to_string(files.size()) + " input files, the method takes " +
                        std::to_string(meta.num_inputs()));
    }
    if (!shapes.empty() && shapes.size() != meta.num_inputs()) {
      throw Failure(kUsage, "inputs",
                    std::to_string(shapes.size()) + " input shapes, the method takes " +
                        std::to_string(meta.num_inputs()));
    }
    inputs_.clear();
    values_.clear();
    for (size_t i = 0; i < meta.num_inputs(); i++) {
      const et::TensorInfo info = input_info(meta, i);
      const std::vector<int> largest(info.sizes().begin(), info.sizes().end());
      const std::vector<int>& sizes = shapes.empty() ? largest : shapes[i];
      check_shape(sizes, largest, i);
      size_t count = et::elementSize(info.scalar_type());
      for (const int size : sizes) count *= static_cast<size_t>(size);
      inputs_.emplace_back(
          info, sizes, files.empty() ? ones(info, count, i) : read_input(files[i], count, i));
      values_.emplace_back(executorch::aten::Tensor(&inputs_.back().tensor));
    }
  }

  // The bytes of pages of the arenas that are still zero; -1 where memory is not read.
  int64_t unused_arena_bytes() const {
    if (!stages.reads_memory()) return -1;
    constexpr int64_t kPage = 4096;
    int64_t bytes = 0;
    for (const auto& arena : planned_spans_) {
      for (const uint8_t* page = arena.data(); page + kPage <= arena.end(); page += kPage) {
        if (std::count(page, page + kPage, 0) == kPage) bytes += kPage;
      }
    }
    return bytes;
  }

  // The bytes of inputs, and of outputs outside of the arenas.
  size_t external_bytes() const {
    size_t bytes = output_bytes_;
    for (const Input& input : inputs_) bytes += input.bytes.size();
    return bytes;
  }

  Iteration run() {
    for (size_t i = 0; i < values_.size(); i++) {
      check(method_->set_input(values_[i], i), "cannot set input " + std::to_string(i));
    }
    const int64_t preempted = preemptions();
    const int64_t paused = clocks::paused_ns, paused_cpu = clocks::paused_cpu_ns;
    const int64_t cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID), wall = now_ns(CLOCK_MONOTONIC);
    const Error error = method_->execute();
    const int64_t wall_end = now_ns(CLOCK_MONOTONIC), cpu_end = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    // What tracing took of either clock is no part of what is timed.
    const Iteration iteration{wall_end - wall - (clocks::paused_ns - paused),
                              cpu_end - cpu - (clocks::paused_cpu_ns - paused_cpu),
                              preemptions() - preempted};
    check(error, "the execution failed");
    if (iteration.wall_ns < 0 || iteration.cpu_ns < 0) {
      throw Failure(kExecution, "clock", "tracing took longer than the inference around it");
    }
    executed_ = true;
    return iteration;
  }

  // Writes every output tensor, in its current shape, to BASE-<index>.bin.
  std::vector<json::Object> write_outputs(const std::string& base) const {
    if (!executed_) throw Failure(kUsage, "command", "nothing was executed yet");
    std::vector<json::Object> written;
    for (size_t i = 0; i < method_->outputs_size(); i++) {
      const et::EValue& value = method_->get_output(i);
      if (!value.isTensor()) continue;
      const auto tensor = value.toTensor();
      const std::string path = base + "-" + std::to_string(i) + ".bin";
      atomic_write(path, tensor.const_data_ptr(), tensor.nbytes());
      const auto sizes = tensor.sizes();
      const auto order = tensor.dim_order();
      written.push_back(describe(tensor.scalar_type(), {sizes.data(), sizes.size()})
                            .add("index", i)
                            .add("dim_order", std::vector<int>(order.begin(), order.end()))
                            .add("file", path));
    }
    return written;
  }

  // The values of every output tensor; a summary has the first and last values of long ones.
  std::vector<json::Object> show_outputs(bool all) const {
    if (!executed_) throw Failure(kUsage, "command", "nothing was executed yet");
    std::vector<json::Object> shown;
    for (size_t i = 0; i < method_->outputs_size(); i++) {
      const et::EValue& value = method_->get_output(i);
      if (!value.isTensor()) continue;
      const auto tensor = value.toTensor();
      const auto sizes = tensor.sizes();
      const size_t count = static_cast<size_t>(tensor.numel());
      const size_t head = all ? count : std::min(count, kShownValues);
      const size_t tail = std::max(head, all ? count : count - std::min(count, kShownValues));
      shown.push_back(describe(tensor.scalar_type(), {sizes.data(), sizes.size()})
                          .add("index", i)
                          .add("first", values_of(tensor, 0, head))
                          .add("last", values_of(tensor, tail, count)));
    }
    return shown;
  }

  json::Object describe_method() const {
    const et::MethodMeta meta = method_->method_meta();
    std::vector<std::string> methods, backends;
    std::vector<json::Object> inputs, outputs;
    for (size_t i = 0; i < program_->num_methods(); i++) {
      methods.emplace_back(program_->get_method_name(i).get());
    }
    for (size_t i = 0; i < meta.num_backends(); i++) {
      backends.emplace_back(meta.get_backend_name(i).get());
    }
    for (size_t i = 0; i < meta.num_inputs(); i++) {
      const et::TensorInfo info = input_info(meta, i);
      const auto order = info.dim_order();
      inputs.push_back(describe(info.scalar_type(), info.sizes())
                           .add("dim_order", std::vector<int>(order.begin(), order.end())));
    }
    for (size_t i = 0; i < meta.num_outputs(); i++) {
      const auto info = meta.output_tensor_meta(i);
      outputs.push_back(
          info.ok() ? describe(info->scalar_type(), info->sizes())
                    : json::Object().add("dtype", "not a tensor").add("shape", std::vector<int>()));
    }
    return json::Object()
        .add("method", meta.name())
        .add("methods", methods)
        .add("backends", backends)
        .add("inputs", inputs)
        .add("outputs", outputs)
        .add("load_ms", load_ms_);
  }

 private:
  // A tensor over its own bytes. Stored in a deque because ExecuTorch keeps pointers into it.
  struct Input {
    std::vector<executorch::aten::SizesType> sizes;
    std::vector<executorch::aten::DimOrderType> order;
    std::vector<executorch::aten::StridesType> strides;
    std::string bytes;
    executorch::aten::TensorImpl tensor;

    Input(const et::TensorInfo& info, const std::vector<int>& shape, std::string content)
        : sizes(shape.begin(), shape.end()),
          order(info.dim_order().begin(), info.dim_order().end()),
          strides(sizes.size()),
          bytes(std::move(content)),
          tensor(info.scalar_type(), static_cast<ssize_t>(sizes.size()), sizes.data(), bytes.data(),
                 order.data(), strides.data()) {
      executorch::aten::StridesType stride = 1;
      for (size_t i = order.size(); i-- > 0;) {
        if (order[i] >= sizes.size()) throw Failure(kProgram, "program", "a broken dim order");
        strides[order[i]] = stride;
        stride *= sizes[order[i]];
      }
    }
  };

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<uint8_t, Free>;

  // Zeroed, and aligned alike in every process, so that processes are comparable.
  static Memory allocate(size_t size) {
    constexpr size_t kAlignment = 64;
    void* memory = nullptr;
    if (posix_memalign(&memory, kAlignment, std::max(size, size_t{1})) != 0) {
      throw Failure(kProgram, "memory", "no memory for " + std::to_string(size) + " bytes");
    }
    std::memset(memory, 0, size);
    return Memory(static_cast<uint8_t*>(memory));
  }

  static et::TensorInfo input_info(const et::MethodMeta& meta, size_t index) {
    const auto info = meta.input_tensor_meta(index);
    if (!info.ok()) {
      const auto tag = meta.input_tag(index);
      const std::string kind = tag.ok() ? et::tag_to_string(*tag) : "broken";
      throw Failure(kUsage, "scalar", "input " + std::to_string(index) + " is no tensor, but " + kind,
                    info.error());
    }
    return *info;
  }

  static void check_shape(const std::vector<int>& sizes, const std::vector<int>& largest,
                          size_t index) {
    bool fits = sizes.size() == largest.size();
    for (size_t i = 0; fits && i < sizes.size(); i++) fits = sizes[i] <= largest[i];
    if (!fits) {
      throw Failure(kUsage, "inputs", "input " + std::to_string(index) + " is larger than planned");
    }
  }

  static std::string ones(const et::TensorInfo& info, size_t count, size_t index) {
    const std::string unit = one(info.scalar_type());
    if (unit.empty()) {
      throw Failure(kUsage, "scalar",
                    "input " + std::to_string(index) + " is of " + dtype_name(info.scalar_type()) +
                        ", not of numbers");
    }
    std::string bytes;
    bytes.reserve(count);
    while (bytes.size() < count) bytes += unit;
    return bytes;
  }

  static std::string read_input(const std::string& path, size_t count, size_t index) {
    const MappedFile file(path, kIo, "io");
    if (file.size() != count) {
      throw Failure(kUsage, "inputs",
                    path + " has " + std::to_string(file.size()) + " bytes, input " +
                        std::to_string(index) + " takes " + std::to_string(count));
    }
    return std::string(reinterpret_cast<const char*>(file.data()), file.size());
  }

  static void check(Error error, const std::string& what) {
    if (error != Error::Ok) throw Failure(kExecution, "execution", what, error);
  }

  void choose_method(const std::string& wanted) {
    std::string names;
    for (size_t i = 0; i < program_->num_methods(); i++) {
      const std::string name = program_->get_method_name(i).get();
      const bool default_one = name == "forward" || program_->num_methods() == 1;
      if (wanted.empty() ? default_one : name == wanted) method_name_ = name;
      names += (i ? ", " : "") + name;
    }
    if (method_name_.empty()) {
      throw Failure(kUsage, "method",
                    (wanted.empty() ? "no method 'forward'" : "no method '" + wanted + "'") +
                        std::string("; the program has: ") + names);
    }
  }

  void check_backends() const {
    const et::MethodMeta meta = method_meta();
    for (size_t i = 0; i < meta.num_backends(); i++) {
      // Without a name, the runtime gives an address just above null.
      const auto id = meta.get_backend_name(i);
      if (!id.ok() || reinterpret_cast<uintptr_t>(*id) < 4096) {
        throw Failure(kProgram, "program", "a delegate has no backend's name");
      }
      const char* name = *id;
      if (!et::get_backend_class(name)) {
        throw Failure(kMissing, "backend",
                      std::string("backend ") + name + " is not in this runner", Error::NotFound);
      }
    }
  }

  et::MethodMeta method_meta() const {
    const auto meta = program_->method_meta(method_name_.c_str());
    if (!meta.ok()) {
      throw Failure(kProgram, "program", "method " + method_name_ + " is broken", meta.error());
    }
    return *meta;
  }

  void load_method(et::EventTracer* tracer, const std::function<bool()>& load_operators) {
    const et::MethodMeta meta = method_meta();
    size_t arena_bytes = 0;
    for (size_t i = 0; i < meta.num_memory_planned_buffers(); i++) {
      const int64_t size = meta.memory_planned_buffer_size(i).get();
      if (size < 0) throw Failure(kProgram, "program", "a memory plan of negative size");
      planned_.push_back(allocate(static_cast<size_t>(size)));
      planned_spans_.push_back({planned_.back().get(), static_cast<size_t>(size)});
      arena_bytes += static_cast<size_t>(size);
    }
    arena_.emplace(et::Span<et::Span<uint8_t>>(planned_spans_.data(), planned_spans_.size()));
    memory_.emplace(&method_allocator_, &*arena_, &temporary_allocator_);
    stages.end("arenas", arena_bytes);
    int64_t start = 0;
    const auto load = [&] {
      start = now_ns(CLOCK_MONOTONIC);
      return program_->load_method(method_name_.c_str(), &*memory_, tracer,
                                   data_ ? &*data_->map : nullptr);
    };
    auto first = load();
    const bool again = first.error() == Error::OperatorMissing && load_operators();
    if (again) {
      error_log.take();
      stages.end("method");
      stages.rename("delegate", "operators");
      stages.rename("method", "operators");
    }
    auto method = again ? load() : std::move(first);
    load_ms_ = static_cast<double>(now_ns(CLOCK_MONOTONIC) - start) / 1e6;
    stages.end("method", method_allocator_.bytes + temporary_allocator_.bytes);
    if (method.ok()) {
      method_.emplace(std::move(*method));
    } else if (method.error() == Error::OperatorMissing) {
      throw Failure(kMissing, "operator", "the program needs operators that this runner lacks",
                    method.error());
    } else if (error_log.mentions("external_data_map is null")) {
      throw Failure(kProgram, "data", "the weights of the program are in a .ptd file",
                    method.error());
    } else if (data_ && (method.error() == Error::NotFound ||
                         method.error() == Error::InvalidExternalData)) {
      throw Failure(kProgram, "data", "the .ptd file is not that of the program", method.error());
    } else if (method.error() == Error::InvalidProgram || meta.num_backends() == 0) {
      throw Failure(kProgram, "program", "cannot load method " + method_name_, method.error());
    } else {
      throw Failure(kDelegate, "delegate", "cannot set up the delegates of method " + method_name_,
                    method.error());
    }
  }

  // Allocates the outputs for which the exporter planned no memory.
  void place_outputs() {
    const et::MethodMeta meta = method_->method_meta();
    for (size_t i = 0; i < meta.num_outputs(); i++) {
      const auto info = meta.output_tensor_meta(i);
      if (!info.ok() || info->is_memory_planned() || info->nbytes() == 0) continue;
      planned_.push_back(allocate(info->nbytes()));
      output_bytes_ += info->nbytes();
      check(method_->set_output_data_ptr(planned_.back().get(), info->nbytes(), i),
            "cannot place output " + std::to_string(i));
    }
  }

  // External weights.
  struct Data {
    MappedFile file;
    executorch::extension::BufferDataLoader loader;
    std::optional<executorch::extension::FlatTensorDataMap> map;

    explicit Data(const std::string& path)
        : file(path, kModelFile, "model_file"), loader(file.data(), file.size()) {
      auto loaded = executorch::extension::FlatTensorDataMap::load(&loader);
      if (!loaded.ok()) {
        throw Failure(kProgram, "data", path + ": is not a .ptd file of weights", loaded.error());
      }
      map.emplace(std::move(*loaded));
    }
  };

  MappedFile file_;
  std::optional<Data> data_;
  StageLoader loader_;
  std::optional<et::Program> program_;
  std::string method_name_;
  std::vector<Memory> planned_;
  std::vector<et::Span<uint8_t>> planned_spans_;
  CountingAllocator method_allocator_, temporary_allocator_;
  std::optional<et::HierarchicalAllocator> arena_;
  std::optional<et::MemoryManager> memory_;
  std::deque<Input> inputs_;
  std::vector<et::EValue> values_;
  std::optional<et::Method> method_;
  double load_ms_ = 0;
  size_t output_bytes_ = 0;
  bool executed_ = false;
};
