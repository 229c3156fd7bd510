// Writes `delegate_ids.etdump` and `allocations.etdump` through the runtime's own
// ETDumpGen: what a delegate logs that knows its operators by number, and what allocators log.
// Neither comes from a program that XNNPACK and the portable kernels run.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <executorch/devtools/etdump/etdump_flatcc.h>
#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/exec_aten/exec_aten.h>

using executorch::etdump::ETDumpGen;
using executorch::runtime::EValue;
using executorch::runtime::kUnsetDelegateDebugIntId;
using executorch::runtime::LoggedEValueType;
namespace et = executorch::aten;

namespace {

// A tensor and what it is made of.
template <typename Number>
struct Tensor {
  std::vector<et::SizesType> sizes;
  std::vector<et::DimOrderType> order;
  std::vector<et::StridesType> strides;
  std::vector<Number> data;
  et::TensorImpl impl;

  Tensor(et::ScalarType type, std::vector<et::SizesType> shape,
         std::vector<et::DimOrderType> dim_order, std::vector<et::StridesType> steps,
         std::vector<Number> values)
      : sizes(std::move(shape)),
        order(std::move(dim_order)),
        strides(std::move(steps)),
        data(std::move(values)),
        impl(type, static_cast<ssize_t>(sizes.size()), sizes.data(), data.data(), order.data(),
             strides.data()) {}

  et::Tensor get() { return et::Tensor(&impl); }
};

void write(const std::string& path, const void* bytes, size_t size) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (!file || std::fwrite(bytes, 1, size, file) != size || std::fclose(file)) std::exit(1);
}

void write_trace(ETDumpGen& tracer, const std::string& path) {
  const auto dump = tracer.get_etdump_data();
  const std::unique_ptr<void, void (*)(void*)> owner(dump.buf, std::free);
  write(path, dump.buf, dump.size);
}

void log_run(ETDumpGen& tracer, int run) {
  constexpr auto kNone = kUnsetDelegateDebugIntId;
  Tensor<float> matrix(et::ScalarType::Float, {2, 3}, {0, 1}, {3, 1}, {0, 1, 2, 3, 4, 5});
  // 1 x 2 x 2 x 3 whose two channels lie side by side.
  Tensor<int16_t> image(et::ScalarType::Short, {1, 2, 2, 3}, {0, 2, 3, 1}, {12, 1, 6, 2},
                        {0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11});
  Tensor<uint8_t> empty(et::ScalarType::Byte, {0, 4}, {0, 1}, {4, 1}, {});
  const et::Tensor tensors[] = {matrix.get(), empty.get(), image.get()};
  const uint8_t metadata[] = {1, 0, static_cast<uint8_t>(run)};

  tracer.create_event_block("Execute");
  const auto method = tracer.start_profiling("Method::execute", -1, 0);
  tracer.set_chain_debug_handle(0, 4);
  const auto call = tracer.start_profiling("DELEGATE_CALL");
  const auto start = call.start_time;
  const auto first = tracer.start_profiling_delegate(nullptr, 11);
  tracer.end_profiling_delegate(first, metadata, sizeof metadata);
  tracer.log_profiling_delegate(nullptr, 12, start, start + 100, nullptr, 0);
  tracer.log_profiling_delegate("named", kNone, start + 100, start + 150, "xyz", 3);
  tracer.log_intermediate_output_delegate("logits", kNone, matrix.get());
  tracer.log_intermediate_output_delegate(nullptr, 11, 7);
  tracer.log_intermediate_output_delegate(nullptr, 12, true);
  tracer.log_intermediate_output_delegate(nullptr, 12, 0.5);
  tracer.log_intermediate_output_delegate("states", kNone, et::ArrayRef<et::Tensor>(tensors, 3));
  tracer.end_profiling(call);
  tracer.set_chain_debug_handle(-1, 0);
  tracer.log_evalue(EValue(image.get()), LoggedEValueType::kProgramOutput);
  tracer.log_evalue(EValue(int64_t{-5}));
  tracer.log_evalue(EValue(2.5));
  tracer.log_evalue(EValue(false));
  tracer.end_profiling(method);
}

void log_allocations(ETDumpGen& tracer) {
  tracer.create_event_block("Default");
  const auto planned = tracer.track_allocator("planned memory");
  const auto scratch = tracer.track_allocator("scratch");
  tracer.track_allocation(planned, 4096);
  tracer.track_allocation(scratch, 128);
  tracer.track_allocation(scratch, uint64_t{1} << 40);
  tracer.create_event_block("Execute");
  const auto method = tracer.start_profiling("Method::execute", -1, 0);
  tracer.track_allocation(planned, 8);
  tracer.end_profiling(method);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  std::vector<uint8_t> buffer(1024);
  ETDumpGen values, allocations;
  if (!values.set_debug_buffer({buffer.data(), buffer.size()}).ok()) return 1;
  for (int run = 0; run < 3; run++) log_run(values, run);
  write_trace(values, folder + "/delegate_ids.etdump");
  log_allocations(allocations);
  write_trace(allocations, folder + "/allocations.etdump");
}
