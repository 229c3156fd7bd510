// Preloaded before XNNPACK: tells which values each operator of a delegate reads and makes.
//
// One line per delegate goes to the file named by XNN_PLAN, in the order in which they are loaded:
//   <values the caller provides> <operators>: <events, 0 or 1>/<ids read>/<ids made> ...
// The structures are those of the XNNPACK in executorch 1.5.1; ids are checked against the program
// by whoever reads them.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <dlfcn.h>

namespace {

struct Operator {
  uint32_t type, id;
  void* objects[5];
  void* functions[2];
  uint64_t parameters[12];
  uint32_t input_count, inputs[5], output_count, outputs[4];
  void* timestamps;
  void* workspace;
  size_t workspace_size;
  uint32_t flags;
};
static_assert(sizeof(Operator) == 240);

struct Runtime {
  uint32_t external_values, flags;
  Operator* operators;
  size_t operator_count;
};

void write_ids(FILE* file, const uint32_t* ids, uint32_t count, uint32_t most) {
  for (uint32_t i = 0; i < count && i < most; i++) fprintf(file, i ? ",%u" : "%u", ids[i]);
}

void write_plan(FILE* file, uint32_t external_values, const Runtime& runtime) {
  fprintf(file, "%u %zu:", external_values, runtime.operator_count);
  for (size_t i = 0; i < runtime.operator_count; i++) {
    const Operator& op = runtime.operators[i];
    fprintf(file, " %d/", op.objects[0] != nullptr);
    write_ids(file, op.inputs, op.input_count, 5);
    fputc('/', file);
    write_ids(file, op.outputs, op.output_count, 4);
  }
  fputc('\n', file);
}

}  // namespace

extern "C" int xnn_create_runtime_v4(uint32_t* subgraph, void* cache, void* workspace, void* pool,
                                     uint32_t flags, Runtime** runtime) {
  using Create = int(uint32_t*, void*, void*, void*, uint32_t, Runtime**);
  void* library = dlopen("libexecutorch_backend_xnnpack.so", RTLD_NOLOAD | RTLD_LAZY);
  auto* create = reinterpret_cast<Create*>(dlsym(library, "xnn_create_runtime_v4"));
  const uint32_t external_values = subgraph[0];
  // XNNPACK fills its lookup tables by a graph of its own, while it creates that of the delegate.
  static int depth = 0;
  depth++;
  const int status = create(subgraph, cache, workspace, pool, flags, runtime);
  depth--;
  FILE* file = status == 0 && depth == 0 ? fopen(getenv("XNN_PLAN"), "a") : nullptr;
  if (file) {
    write_plan(file, external_values, **runtime);
    fclose(file);
  }
  return status;
}
