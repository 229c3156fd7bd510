// Tensors as JSON: dtypes, shapes and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/span.h>

#include "json.h"

using executorch::aten::ScalarType;

// A dtype's name in torch and numpy.
inline std::string dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Short: return "int16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::UInt16: return "uint16";
    case ScalarType::UInt32: return "uint32";
    case ScalarType::UInt64: return "uint64";
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::Bool: return "bool";
    default: return "scalar_type_" + std::to_string(static_cast<int>(type));
  }
}

// Elements of a tensor as numbers; empty for types that are not numeric.
inline std::vector<json::Number> values_of(const executorch::aten::Tensor& tensor, size_t start,
                                           size_t end) {
  std::vector<json::Number> values;
  const auto take = [&](auto unit) {
    const auto* data = static_cast<const decltype(unit)*>(tensor.const_data_ptr());
    for (size_t i = start; i < end; i++) values.push_back({static_cast<double>(data[i])});
  };
  switch (tensor.scalar_type()) {
    case ScalarType::Bool:
    case ScalarType::Byte: take(uint8_t{}); break;
    case ScalarType::Char: take(int8_t{}); break;
    case ScalarType::Short: take(int16_t{}); break;
    case ScalarType::Int: take(int32_t{}); break;
    case ScalarType::Long: take(int64_t{}); break;
    case ScalarType::Half: take(executorch::aten::Half{}); break;
    case ScalarType::BFloat16: take(executorch::aten::BFloat16{}); break;
    case ScalarType::Float: take(float{}); break;
    case ScalarType::Double: take(double{}); break;
    default: break;
  }
  return values;
}

inline json::Object describe(ScalarType type, executorch::runtime::Span<const int32_t> sizes) {
  return json::Object()
      .add("dtype", dtype_name(type))
      .add("shape", std::vector<int>(sizes.begin(), sizes.end()));
}

// The number one in the type's bytes; empty for types that are not numeric.
inline std::string one(ScalarType type) {
  const auto bytes = [](auto value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  switch (type) {
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Bool: return bytes(uint8_t{1});
    case ScalarType::Short:
    case ScalarType::UInt16: return bytes(uint16_t{1});
    case ScalarType::Int:
    case ScalarType::UInt32: return bytes(uint32_t{1});
    case ScalarType::Long:
    case ScalarType::UInt64: return bytes(uint64_t{1});
    case ScalarType::Half: return bytes(uint16_t{0x3c00});
    case ScalarType::BFloat16: return bytes(uint16_t{0x3f80});
    case ScalarType::Float: return bytes(1.0f);
    case ScalarType::Double: return bytes(1.0);
    default: return "";
  }
}
