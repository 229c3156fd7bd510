// The energy that the CPU's packages used, by Linux's powercap counters (RAPL), where these may be
// read. https://docs.kernel.org/power/powercap/powercap.html
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

class EnergyMeter {
 public:
  EnergyMeter() {
    const char* other = std::getenv("WORKBENCH_POWERCAP");  // a tree for tests
    const std::string root = other ? other : "/sys/class/powercap";
    for (int number = 0;; number++) {
      const std::string folder = root + "/intel-rapl:" + std::to_string(number) + '/';
      std::string name;
      if (!(std::ifstream(folder + "name") >> name)) break;
      // Others, such as psys, include packages.
      if (name.rfind("package", 0) != 0) continue;
      counters_.push_back({folder + "energy_uj", read(folder + "max_energy_range_uj")});
      known_ = known_ && counters_.back().range > 0;
    }
    known_ = lap() >= 0;
  }

  // Microjoules since the last call; -1 where they are unknown.
  int64_t lap() {
    int64_t used = 0;
    for (Counter& counter : counters_) {
      const int64_t now = read(counter.file), before = counter.last;
      known_ = known_ && now >= 0;
      // A counter starts again from 0 after its range.
      used += now - before + (now < before ? counter.range : 0);
      counter.last = now;
    }
    return known_ && !counters_.empty() ? used : -1;
  }

 private:
  struct Counter {
    std::string file;
    int64_t range, last = 0;
  };

  static int64_t read(const std::string& path) {
    int64_t value = -1;
    return std::ifstream(path) >> value ? value : -1;
  }

  std::vector<Counter> counters_;
  bool known_ = true;
};
