// Values as JSON text, always valid UTF-8, even if a name or message has invalid bytes.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace json {

// The length of the valid UTF-8 sequence at the start of `text`, 0 if there is none.
inline size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  uint32_t code = first & (0x7f >> length);
  for (size_t i = 1; i < length; i++) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return overlong || surrogate || code > 0x10ffff ? 0 : length;
}

// `value` on one line of valid UTF-8, escaped as inside a JSON string.
inline std::string escape(std::string_view value) {
  std::string out;
  while (!value.empty()) {
    const size_t length = utf8_length(value);
    const unsigned char first = value[0];
    if (length == 0) {
      out += "\\ufffd";
    } else if (first == '"' || first == '\\') {
      out += {'\\', value[0]};
    } else if (first < 0x20 || first == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", first);
      out += escaped;
    } else {
      out += value.substr(0, length);
    }
    value.remove_prefix(length ? length : 1);
  }
  return out;
}

inline std::string text(std::string_view value) { return '"' + escape(value) + '"'; }
inline std::string text(const std::string& value) { return text(std::string_view(value)); }
inline std::string text(const char* value) { return text(std::string_view(value)); }
inline std::string text(bool value) { return value ? "true" : "false"; }
inline std::string text(int value) { return std::to_string(value); }
inline std::string text(int64_t value) { return std::to_string(value); }
inline std::string text(size_t value) { return std::to_string(value); }
inline std::string text(double value) {
  char out[32];
  std::snprintf(out, sizeof out, "%.3f", value);
  return out;
}

// A number in full precision; null for infinities and NaN.
struct Number {
  double value;
};
inline std::string text(const Number& number) {
  if (!std::isfinite(number.value)) return "null";
  char out[32];
  std::snprintf(out, sizeof out, "%.17g", number.value);
  return out;
}

class Object;
inline std::string text(const Object& value);
inline std::string text(const std::map<std::string, std::string>& members);

template <class T>
std::string text(const std::vector<T>& values) {
  std::string out = "[";
  for (const T& value : values) out += (out.size() > 1 ? "," : "") + text(value);
  return out + "]";
}

// An object, key by key: Object().add("event", "run").add("wall_ns", times)
class Object {
 public:
  template <class T>
  Object& add(const char* key, const T& value) {
    members_ += (members_.empty() ? "" : ",") + text(key) + ":" + json::text(value);
    return *this;
  }
  Object& extend(const Object& other) {
    members_ += (members_.empty() || other.members_.empty() ? "" : ",") + other.members_;
    return *this;
  }
  std::string str() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};

inline std::string text(const Object& value) { return value.str(); }

inline std::string text(const std::map<std::string, std::string>& members) {
  Object object;
  for (const auto& [key, value] : members) object.add(key.c_str(), value);
  return object.str();
}

// One answer: a line on standard output, flushed.
inline void answer(const Object& object) {
  std::puts(object.str().c_str());
  std::fflush(stdout);
}

}  // namespace json
