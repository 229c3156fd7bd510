"""Another version of ExecuTorch beside the installed one."""

import re
import runpy
import socket
from importlib import metadata

import pytest

import workbench as wb

INSTALLED = metadata.version("executorch")
BRIEF = wb.MeasureOptions(runtime=("1.5.0",), runs=4, processes=2, evidence=False, roof=False)


@pytest.fixture
def package_index():
    try:
        socket.create_connection(("pypi.org", 443), timeout=5).close()
    except OSError:
        pytest.skip("no package index: the wheel of 1.5.0 is not here")


def test_nothing_connects_when_these_tests_are_imported(monkeypatch):
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("it connects"))
    runpy.run_path(__file__)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--runtime", "1.4.0"], "unknown other version of ExecuTorch '1.4.0' -> .*valid: 1.5.0"),
        (["--runtime", INSTALLED], f"unknown other version of ExecuTorch '{INSTALLED}'"),
        (["--runtime", "../1.5.0"], "unknown other version"),
        (["--runtime", "1.5.0", "--isa-ladder"], "compares one program -> without --against"),
        (["--runtime", "1.5.0", "--toggle", "avx2"], "compares one program -> without --against"),
    ],
)
def test_what_cannot_be_a_version_is_one_line(cli, conv_pte, words, says):
    code, _, err = cli("run", conv_pte, *words)
    assert code == 2 and len(err.splitlines()) == 1
    assert re.search(f"--runtime: {says}", err), err


@pytest.mark.cases
@pytest.mark.usefixtures("package_index")
def test_latency_memory_and_start_of_two_versions(conv_pte, tmp_path):
    run = wb.measure(conv_pte, options=BRIEF, root=tmp_path)
    old, new = "executorch_1_5_0", f"executorch_{INSTALLED}".replace(".", "_")
    (ab,) = run.comparisons
    assert (ab.baseline.name, ab.candidate.name) == (old, new)
    assert f"with ExecuTorch {INSTALLED} instead of 1.5.0" in ab.text
    assert {"latency", "peak memory", "first output"} <= set(ab.resources["resource"])
    assert all(agreement.agree for agreement in run.record.agreements)
    experiments = run.description.set_index("what").at["experiments", "value"]
    assert f"{old}: ExecuTorch 1.5.0" in experiments
    assert not (run.checks["status"] == "fail").any(), run.checks
