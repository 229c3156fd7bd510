"""The ladder of ISA levels: its tables, the self-check, the toggles, and that they take effect."""

import json
import platform
import random
import statistics
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from compiled import compile_cpp
from devices import needs_compiler
from isa_table import hide, load_table, self_check

from workbench.errors import RunnerError, UsageError, WorkbenchError
from workbench.options import MeasureOptions
from workbench.run.build import build_runner, find_compiler
from workbench.run.isa import TOGGLES, Isa, find_levels, read_isa, resolve_toggle
from workbench.run.plan import choose_experiments, plan_levels
from workbench.run.session import RunnerSession

ARCHES = ["x86_64", "aarch64"]


def cpu_with(table, present):
    """cpuinfo's flags, and what the system says, on a CPU with these features."""
    flags = bytearray(table.size)
    for feature in table.features:
        flags[feature.byte] = feature.name in present
    return flags, {f.name: f.name in present for f in table.features}


def this_table():
    return load_table(platform.machine())


def isa_of(arch, present, verdict="ok"):
    table = load_table(arch)
    return Isa(
        arch=arch,
        features=tuple(name for name in table.hideable if name in present),
        levels={
            level: tuple(
                name
                for name, feature in table.hideable.items()
                if table.rank(feature.level) <= table.rank(level)
            )
            for level in table.levels
        },
        self_check=verdict,
    )


@pytest.mark.parametrize("arch", ARCHES)
def test_a_table_is_consistent(arch):
    table = load_table(arch)
    places = Counter(feature.byte for feature in table.features)
    assert max(places.values()) == 1
    assert max(places) < table.size
    assert not set(places) & set(table.numbers)
    assert next(iter(table.levels)) == "native"
    used = {feature.level for feature in table.hideable.values()}
    assert used == set(table.levels) - {"native"}
    assert all(feature.meaning for feature in table.hideable.values())
    assert all(table.levels.values())


@pytest.mark.parametrize("arch", ARCHES)
def test_each_toggle_hides_its_feature_and_names_real_levels(arch):
    table = load_table(arch)
    for toggle in TOGGLES[arch]:
        level = table.hideable[toggle.feature].level
        assert table.rank(toggle.on) < table.rank(level) <= table.rank(toggle.off)


@needs_compiler
def test_both_implementations_agree(tmp_path):
    """Random CPUs through isa.h and through isa.py: same verdict, same features hidden."""
    source = tmp_path / "check.cpp"
    source.write_text(
        r"""
#include "isa.h"
#include <iostream>
static std::string system_says;  // '0', '1' or '?' per feature
static int os(const isa::Feature& feature) {
  const char said = system_says[static_cast<size_t>(&feature - isa::kFeatures)];
  return said == '?' ? -1 : said - '0';
}
int main() {
  size_t size;
  std::string level, extra;
  while (std::cin >> size >> system_says >> level >> extra) {
    std::vector<unsigned char> flags(size);
    for (auto& flag : flags) {
      int value;
      std::cin >> value;
      flag = static_cast<unsigned char>(value);
    }
    const std::string verdict = isa::self_check(flags.data(), size, os);
    std::cout << verdict << "|";
    if (verdict == "ok") {
      std::vector<std::string> names;
      if (extra != "-") names.push_back(extra);
      try {
        for (const auto& name : isa::hide(flags.data(), level, names)) std::cout << name << ",";
      } catch (const std::invalid_argument&) { std::cout << "refused"; }
    }
    std::cout << "\n";
  }
}
"""
    )
    binary = tmp_path / "check"
    compile_cpp(source, binary, "-Wall", "-Wextra", "-Werror")
    table = this_table()
    rng = random.Random(0)
    lines, expected = [], []
    for number in range(400):
        present = {f.name for f in table.features if rng.random() < 0.7}
        flags, system = cpu_with(table, present)
        if number % 4 == 1:
            flags[rng.randrange(table.size)] ^= rng.choice([1, 2, 255])
        if number % 4 == 2:
            system.pop(rng.choice(table.features).name)
        if number % 20 == 3:
            flags = flags + b"\0" if number % 40 == 3 else flags[:-1]
        level = rng.choice(list(table.levels))
        extra = rng.choice(["-", "nonsense", *table.hideable])
        said = "".join(
            str(int(system[f.name])) if f.name in system else "?" for f in table.features
        )
        lines.append(" ".join([str(len(flags)), said, level, extra, *map(str, flags)]))
        verdict = self_check(table, flags, system)
        hidden = ""
        if verdict == "ok":
            try:
                masked = hide(table, flags, level, [] if extra == "-" else [extra])
                hidden = "".join(f"{name}," for name in masked)
            except UsageError:
                hidden = "refused"
        expected.append(f"{verdict}|{hidden}")
    done = subprocess.run(
        [binary], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == expected
    kinds = Counter("refused" if "refused" in e else e.split("|")[0] == "ok" for e in expected)
    assert min(kinds["refused"], kinds[True], kinds[False]) > 20


MODERN_X86 = {"avx512f", "avx512bw", "avx512vnni", "gfni", "avx2", "fma3", "avx", "sse4_1"}
OLD_X86 = {"gfni", "avx2", "fma3", "f16c", "avx", "sse4_1", "ssse3"}
ARM_SME2 = {"sme2", "sme", "i8mm", "bf16", "sve", "dot", "fp16arith"}


@pytest.mark.parametrize(
    ("arch", "present", "name", "on", "off", "hidden"),
    [
        ("x86_64", MODERN_X86, "auto", "native", "avx2", "avx512vnni gfni avx512f avx512bw"),
        ("x86_64", MODERN_X86, "avx512vnni", "native", "avx512-novnni", "avx512vnni gfni"),
        ("x86_64", MODERN_X86, "avx2", "avx2", "avx", "avx2 fma3"),
        # gfni without AVX-512 is hidden by level avx2, so that level is what to compare with
        ("x86_64", OLD_X86, "auto", "avx2", "avx", "avx2 fma3 f16c"),
        ("x86_64", OLD_X86 - {"gfni"}, "auto", "native", "avx", "avx2 fma3 f16c"),
        ("x86_64", {"ssse3"}, "auto", "native", "native", ""),
        ("aarch64", ARM_SME2, "auto", "native", "nosme", "sme2 sme"),
        ("aarch64", ARM_SME2, "sme2", "native", "nosme", "sme2 sme"),
        ("aarch64", ARM_SME2, "sme", "sme", "nosme", "sme"),
        ("aarch64", ARM_SME2, "i8mm", "nosme", "dot", "i8mm bf16 sve"),
        ("aarch64", ARM_SME2 - {"sme2"}, "auto", "native", "nosme", "sme"),
        ("aarch64", {"i8mm", "dot", "fp16arith"}, "auto", "native", "dot", "i8mm"),
        ("aarch64", {"dot", "fp16arith"}, "auto", "native", "fp16", "dot"),
        ("aarch64", set(), "auto", "native", "native", ""),
        ("aarch64", ARM_SME2, "none", "native", "native", ""),
    ],
)
def test_toggles(arch, present, name, on, off, hidden):
    toggle = resolve_toggle(name, isa := isa_of(arch, present))
    assert (toggle.on, toggle.off) == (on, off)
    assert isa.hidden_by(off) - isa.hidden_by(on) == set(hidden.split())
    assert (toggle.name == "none") == (on == off)


@pytest.mark.parametrize(
    ("arch", "present", "name", "message"),
    [
        ("x86_64", OLD_X86, "avx521", r"unknown toggle 'avx521' -> did you mean 'avx512'\? valid:"),
        ("x86_64", OLD_X86, "avx512", r"no avx512f -> it has gfni, avx2.*valid here: avx2, avx,"),
        ("x86_64", OLD_X86, "sme2", r"this x86_64 CPU has no sme2"),
        ("aarch64", {"dot"}, "sme2", r"no sme2 -> it has dot; valid here: dot, none"),
        ("aarch64", set(), "dot", r"it has no extension; valid here: none"),
    ],
)
def test_impossible_toggles(arch, present, name, message):
    with pytest.raises(UsageError, match=message):
        resolve_toggle(name, isa_of(arch, present))


def test_a_failed_self_check_allows_no_toggle():
    isa = isa_of("x86_64", ("avx2",), verdict="byte 3 of cpuinfo_isa is 9, not a flag")
    assert {resolve_toggle(name, isa).name for name in ("none", "auto")} == {"none"}
    with pytest.raises(WorkbenchError, match="byte 3"):
        resolve_toggle("avx2", isa)


@needs_compiler
def test_a_runner_reports_the_levels_of_its_table():
    native = read_isa([str(build_runner())])
    assert native.self_check == "ok"
    listed = native.features
    flags, _ = cpu_with(this_table(), listed)
    for level in native.levels:
        assert native.hidden_by(level) == set(hide(this_table(), bytearray(flags), level))
    table = this_table()
    assert list(native.levels) == list(table.levels)
    assert native.hidden_by("native") == frozenset()
    assert native.hidden_by(list(native.levels)[-1]) == frozenset(native.features)


def test_reading_the_isa_of_another_program_fails(tmp_path):
    with pytest.raises(WorkbenchError, match="cannot start"):
        read_isa([str(tmp_path / "none")])
    with pytest.raises(RunnerError, match="--print_isa"):
        read_isa(["true"])
    answer = '{"arch": "x", "self_check": "ok", "levels": [], "features": [], "cores": %s}'
    for cores in ("-1", "5000", '"many"', "[1]"):
        with pytest.raises(RunnerError, match="--print_isa"):
            read_isa(["sh", "-c", f"echo '{answer % cores}'"])
    assert read_isa(["sh", "-c", f"echo '{answer % 8}'"]).cores == 8


@pytest.fixture
def session(conv_pte):
    """Open a session on the convolution net at some level."""

    def start(level):
        command = [str(build_runner())]
        flags = ["--server_mode", "--cpu_threads", "1", "--isa", level, "--model_path"]
        return RunnerSession([*command, *flags, conv_pte], timeout_s=60)

    return start


@needs_compiler
def test_hiding_changes_the_kernels_but_not_the_result(session, tmp_path):
    isa = read_isa([str(build_runner())])
    levels = list(isa.levels)
    lowest = levels[-1]
    latency, output = {}, {}
    for level in levels:
        with session(level) as opened:
            assert set(opened.ready.masked) == isa.hidden_by(level)
            assert set(opened.ready.features) == set(isa.features) - isa.hidden_by(level)
            opened.run(5)
            latency[level] = statistics.median(opened.run(15).cpu_ns)
            (tensor,) = opened.output(tmp_path / level)
            output[level] = np.fromfile(tensor.file, np.float32)
    reference = output["native"]
    assert np.abs(reference).max() > 0.01
    for level in levels:
        np.testing.assert_allclose(output[level], reference, atol=1e-5 * np.abs(reference).max())
    if not {"avx512f", "avx2", "sme2"} & set(isa.features):
        pytest.skip("this CPU has no extension that makes a convolution much faster")
    assert latency[lowest] / latency["native"] > 1.2


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
def test_a_changed_layout_is_refused(conv_pte, tmp_path):
    """A wheel whose cpuinfo_isa has another size: nothing may be hidden, the rest still works."""
    source = tmp_path / "other.cpp"
    source.write_text('extern "C" { unsigned char cpuinfo_isa[128]; }')
    library = tmp_path / "other.so"
    subprocess.run(
        [*find_compiler(), "-shared", "-fPIC", str(source), "-o", str(library)], check=True
    )
    level = list(this_table().levels)[-1]

    def run(command, *flags):
        return subprocess.run(
            [*command, "--model_path", str(conv_pte), *flags],
            env={"LD_PRELOAD": str(library)},
            capture_output=True,
            text=True,
        )

    runner = [str(build_runner())]
    refused = run(runner, "--isa", level)
    assert refused.returncode == 8
    answer = json.loads(refused.stdout)
    assert answer["error"] == "isa"
    assert "cpuinfo_isa has 128 bytes" in answer["message"]
    works = run(runner)
    assert works.returncode == 0
    ready = json.loads(works.stdout.splitlines()[0])
    assert "128 bytes" in ready["missing"]["ISA mask"]
    assert ready["features"] == []
    assert "128 bytes" in json.loads(run(runner, "--print_isa").stdout)["self_check"]


# --- the ladder of levels ---


def an_isa(*features, self_check="ok"):
    levels = {
        "native": (),
        "a": ("x",),
        "b": ("x", "y"),
        "c": ("x", "y", "z"),
    }
    return Isa("any", features, levels, self_check)


def test_levels_that_hide_the_same_count_once():
    assert find_levels(an_isa("x", "y", "z")) == ("c", "b", "a", "native")
    assert find_levels(an_isa("y", "z")) == ("c", "b", "native")
    assert find_levels(an_isa("z")) == ("c", "native")


def test_without_extensions_or_self_check_there_is_no_ladder():
    with pytest.raises(UsageError, match="no extension to hide"):
        find_levels(an_isa())
    with pytest.raises(WorkbenchError, match="moved"):
        find_levels(an_isa("x", self_check="moved"))


def test_pairs_are_the_ends_and_all_neighbours():
    experiments, pairs = plan_levels(("low", "mid", "high"))
    assert [e.name for e in experiments] == ["low", "mid", "high", "control"]
    assert [(p.baseline, p.candidate) for p in pairs] == [
        ("low", "high"),
        ("low", "mid"),
        ("mid", "high"),
    ]
    assert len(plan_levels(("low", "mid"))[1]) == 1


def test_a_toggle_and_isa_ladder_exclude_each_other():
    with pytest.raises(UsageError, match="--toggle x: --isa-ladder measures every level"):
        choose_experiments(MeasureOptions(toggle="x", isa_ladder=True), an_isa("x"))
