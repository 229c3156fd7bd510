"""The native runner under AddressSanitizer and UndefinedBehaviorSanitizer, on damaged programs.

The wheel's libraries are not instrumented: what they do wrong with a damaged program ends the
process with a signal, which the driver reports. What is looked for here is our own code, and what
of ExecuTorch's headers is compiled into it.
"""

import os
import re
import shlex
import subprocess
from random import Random

import numpy as np
import pytest
from compiled import find_compiler
from devices import needs_compiler
from mutants import mutate_bytes

import workbench as wb

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1200), needs_compiler]

#: Programs per part; eight parts.
PROGRAMS = 400
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1")
OPTIONS = {
    "ASAN_OPTIONS": "exitcode=99:detect_leaks=0:allocator_may_return_null=1:handle_segv=0:"
    "handle_abort=0:handle_sigbus=0:handle_sigfpe=0",
    "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=98",
}


@pytest.fixture(scope="module")
def sanitized():
    """The command of the runner, built to check itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", shlex.join([*find_compiler(), *SANITIZE]))
        for name, value in OPTIONS.items():
            patch.setenv(name, value)
        try:
            runner = wb.find_runner()
        except wb.WorkbenchError as error:
            if "asan" not in str(error):
                raise
            pytest.skip("this compiler has no sanitizers")
    # AddressSanitizer's dlopen does not look where the runner's own would.
    return [*runner.command, "--lib_dir", str(runner.libraries)]


def run(sanitized, *flags, stdin=b""):
    environment = {**os.environ, **OPTIONS}
    command = [*sanitized, *map(str, flags)]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, env=environment)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def assert_clean(code, errors, what):
    """No report of a sanitizer, whoever's code it names."""
    assert code not in (98, 99), f"{what}\n{errors[-3000:]}"
    assert not re.search(r"AddressSanitizer|runtime error:", errors), f"{what}\n{errors[-3000:]}"


@pytest.mark.parametrize("part", range(8))
def test_damaged_programs(sanitized, part, pair_pte, conv_pte, tmp_path):
    whole = (pair_pte if part % 2 else conv_pte).read_bytes()
    path = tmp_path / "damaged.pte"
    for number in range(PROGRAMS):
        path.write_bytes(mutate_bytes(Random(f"{part} {number}"), [whole]))
        code, answers, errors = run(sanitized, "--model_path", path, "--cpu_threads", 1)
        assert_clean(code, errors, f"part {part}, program {number}")
        assert code <= 0 or b'"error":' in answers.splitlines()[-1]


def test_sound_use(sanitized, pair_pte, conv_pte, tmp_path):
    commands = b"run 3\noutput %b/out\nreset\nrun 2\netdump %b/x\ndance\nquit\n"
    commands = commands.replace(b"%b", os.fsencode(tmp_path))
    for pte in (pair_pte, conv_pte):
        flags = ["--model_path", pte, "--cpu_threads", 2, "--etdump_path", tmp_path / "x"]
        code, _, errors = run(sanitized, *flags, "--server_mode", stdin=commands)
        assert_clean(code, errors, pte)
        code, _, errors = run(sanitized, *flags, "--print_output=all", "--isa", "native")
        assert_clean(code, errors, pte)
        assert code == 0, errors


def test_hostile_flags_and_commands(sanitized, pair_pte):
    rng = np.random.default_rng(99)
    for _ in range(100):
        words = [rng.bytes(int(rng.integers(1, 40))).replace(b"\0", b"") for _ in range(3)]
        flags = [os.fsdecode(b"--" + word) for word in words]
        assert_clean(*run(sanitized, *flags)[::2], flags)
    garbage = rng.bytes(100_000)
    code, _, errors = run(
        sanitized, "--model_path", pair_pte, "--server_mode", "--cpu_threads", 1, stdin=garbage
    )
    assert_clean(code, errors, "garbage on standard input")
    assert code == 0
