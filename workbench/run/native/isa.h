// Instruction set extensions: detecting them, and hiding them from XNNPACK.
//
// XNNPACK chooses its microkernels by the flags in cpuinfo's global `cpuinfo_isa`. If a flag is
// cleared after cpuinfo has examined the CPU and before XNNPACK is loaded, the same binary chooses
// its kernels for a CPU without that feature.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <dlfcn.h>
#if defined(__GLIBC__)
#include <link.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "upstream.h"

namespace isa {

#if defined(__x86_64__)
#define ISA_TABLE "isa_x86_64.def"
inline constexpr char kArch[] = "x86_64";
enum Word { LEAF1_ECX, LEAF7_EBX, LEAF7_ECX, LEAF7_EDX, LEAF7_1_EAX };
enum Condition { ANY, YMM, ZMM };
#elif defined(__aarch64__)
#define ISA_TABLE "isa_aarch64.def"
inline constexpr char kArch[] = "aarch64";
enum Word { HWCAP, HWCAP2 };
enum Condition { EXACT, MORE };
#else
#error "no table of instruction set extensions for this architecture"
#endif

struct Level {
  const char* name;
  const char* meaning;
};

struct Feature {
  const char* name;
  size_t byte;
  const char* level;  // "" if no level hides it
  Word word;
  unsigned bit;
  Condition condition;
  const char* os_name;
  const char* meaning;
};

#define SIZE(bytes)
#define NUMBERS(first, last)
#define LEVEL(name, meaning) {name, meaning},
#define FEATURE(...)
#define PIN(...)
inline constexpr Level kLevels[] = {
#include ISA_TABLE
};
#undef LEVEL
#undef FEATURE
#undef PIN

#define LEVEL(name, meaning)
#define FEATURE(name, ...) {#name, __VA_ARGS__},
#define PIN(name, byte, word, bit, condition, os_name) \
  {#name, byte, "", word, bit, condition, os_name, ""},
inline constexpr Feature kFeatures[] = {
#include ISA_TABLE
};
#undef SIZE
#undef NUMBERS
#undef FEATURE
#undef PIN

#define FEATURE(...)
#define PIN(...)
#define SIZE(bytes) inline constexpr size_t kSize = bytes;
#define NUMBERS(first, last) inline constexpr size_t kFirstNumber = first, kLastNumber = last;
#if defined(__x86_64__)
NUMBERS(0, 0)
#endif
#include ISA_TABLE
#undef SIZE
#undef NUMBERS
#undef LEVEL
#undef FEATURE
#undef PIN

#if defined(__x86_64__)
struct Cpu {
  unsigned words[LEAF7_1_EAX + 1] = {};
  uint32_t saved = 0;  // the register files that the OS saves (XCR0)

  Cpu() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d)) words[LEAF1_ECX] = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
      const unsigned last_subleaf = a;
      words[LEAF7_EBX] = b;
      words[LEAF7_ECX] = c;
      words[LEAF7_EDX] = d;
      if (last_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) words[LEAF7_1_EAX] = a;
    }
    const bool osxsave = words[LEAF1_ECX] >> 27 & 1;
    if (osxsave) __asm__ volatile("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
  }
};
#endif

// Whether the CPU and the OS report a feature, independently of cpuinfo; -1 if unknown.
inline int os_reports(const Feature& feature) {
#if defined(__x86_64__)
  static const Cpu cpu;
  const uint32_t needed = feature.condition == ZMM ? 0xe6 : feature.condition == YMM ? 0x06 : 0;
  return (cpu.words[feature.word] >> feature.bit & 1) && (cpu.saved & needed) == needed;
#elif defined(__linux__)
  const unsigned long words[] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
  return words[feature.word] >> feature.bit & 1;
#elif defined(__APPLE__)
  if (!*feature.os_name) return -1;
  int value = 0;
  size_t size = sizeof value;
  const std::string key = std::string("hw.optional.arm.") + feature.os_name;
  return sysctlbyname(key.c_str(), &value, &size, nullptr, 0) == 0 && value != 0;
#endif
}

// Whether `flags`, a `cpuinfo_isa` of `size` bytes, has the layout of the table and agrees with
// `os` about each feature: "ok", or the first difference.
inline std::string self_check(const unsigned char* flags, size_t size,
                              int (*os)(const Feature&) = os_reports) {
  if (!flags) return "cpuinfo_isa is not exported";
  if (size != kSize) {
    return "cpuinfo_isa has " + std::to_string(size) + " bytes, not " + std::to_string(kSize);
  }
  for (size_t i = 0; i < kSize; i++) {
    if ((i < kFirstNumber || i >= kLastNumber) && flags[i] > 1) {
      return "byte " + std::to_string(i) + " of cpuinfo_isa is " + std::to_string(flags[i]) +
             ", not a flag";
    }
  }
  for (const Feature& feature : kFeatures) {
    const int expected = os(feature), found = flags[feature.byte];
#if defined(__aarch64__)
    if (feature.condition == MORE && found > expected) continue;
#endif
    if (expected >= 0 && found != expected) {
      return std::string(feature.name) + ": cpuinfo says " + std::to_string(found) +
             ", the CPU says " + std::to_string(expected);
    }
  }
  return "ok";
}

// The size of `cpuinfo_isa` in the library's symbol table; the expected size where that is unknown.
inline size_t size_of_flags(const unsigned char* flags) {
#if defined(__GLIBC__)
  Dl_info info;
  const ElfW(Sym)* symbol = nullptr;
  if (flags && dladdr1(flags, &info, (void**)&symbol, RTLD_DL_SYMENT) && symbol) {
    return symbol->st_size;
  }
#endif
  (void)flags;
  return kSize;
}

// The verdict on the loaded library's flags; why none can be hidden is missing of upstream.
inline std::string examine(const unsigned char* flags) {
  const std::string verdict = self_check(flags, size_of_flags(flags));
  if (verdict != "ok") upstream::missing["ISA mask"] = "no CPU feature can be hidden: " + verdict;
  return verdict;
}

inline size_t level_index(const std::string& name) {
  std::string valid;
  size_t index = 0;
  for (const Level& level : kLevels) {
    if (level.name == name) return index;
    valid += (index++ ? ", " : "") + std::string(level.name);
  }
  throw std::invalid_argument("unknown ISA level '" + name + "'; valid: " + valid);
}

inline bool is_hidden_by(size_t level, const Feature& feature) {
  return *feature.level && level_index(feature.level) <= level;
}

inline const Feature& find_feature(const std::string& name) {
  for (const Feature& feature : kFeatures) {
    if (*feature.level && feature.name == name) return feature;
  }
  throw std::invalid_argument("unknown feature '" + name + "'");
}

// Hides the features of a level, and `extra` ones, from XNNPACK; returns those that were on.
// Refuses to hide an extra feature while one of a stronger level stays on: no such CPU exists.
inline std::vector<std::string> hide(unsigned char* flags, const std::string& level,
                                     const std::vector<std::string>& extra) {
  unsigned char result[kSize];
  std::memcpy(result, flags, kSize);
  const size_t hidden = level_index(level);
  for (const Feature& feature : kFeatures) {
    if (is_hidden_by(hidden, feature)) result[feature.byte] = 0;
  }
  for (const std::string& name : extra) result[find_feature(name).byte] = 0;
  for (const std::string& name : extra) {
    const size_t own = level_index(find_feature(name).level);
    for (const Feature& other : kFeatures) {
      if (result[other.byte] && *other.level && level_index(other.level) < own) {
        throw std::invalid_argument("cannot hide " + name + " and keep " + other.name);
      }
    }
  }
  std::vector<std::string> masked;
  for (const Feature& feature : kFeatures) {
    if (flags[feature.byte] && !result[feature.byte]) masked.push_back(feature.name);
  }
  std::memcpy(flags, result, kSize);
  return masked;
}

// The features of the table that XNNPACK can see.
inline std::vector<std::string> visible(const unsigned char* flags) {
  std::vector<std::string> names;
  for (const Feature& feature : kFeatures) {
    if (*feature.level && flags[feature.byte]) names.push_back(feature.name);
  }
  return names;
}

}  // namespace isa
