"""The set-up script: standard library only, with clear failures."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def dev():
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_imports_only_the_standard_library():
    tree = ast.parse((ROOT / "dev.py").read_text())
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("version", "cpu"), [("2.13.0+cpu", True), ("2.13.0", False), (None, True)]
)
def test_a_cpu_build_from_the_configured_index_is_preferred(dev, monkeypatch, version, cpu):
    install = [] if version is None else [{"metadata": {"version": version}}]
    answer = subprocess.CompletedProcess([], 0, stdout=json.dumps({"install": install}))
    monkeypatch.setattr(dev, "_pip", lambda *_, **__: answer)
    assert dev._resolves_to_cpu_build("torch==2.13.0") is cpu


def test_without_a_cpu_build_pip_uses_the_cpu_index(dev, monkeypatch):
    calls = []

    def pip(*arguments, **_):
        calls.append(arguments)
        answer = {"install": [{"metadata": {"version": "2.13.0"}}]}
        return subprocess.CompletedProcess([], 0, stdout=json.dumps(answer))

    monkeypatch.setattr(dev, "_pip", pip)
    monkeypatch.setattr(dev.sys, "platform", "linux")
    dev._install_torch()
    assert calls[-1][:4] == ("install", "--no-deps", "--index-url", dev.TORCH_CPU_INDEX)


def test_an_unknown_benchmark_is_reported(dev):
    with pytest.raises(dev.SetupFailure, match="unknown benchmark speed; known: ab_spread, "):
        dev.bench(["speed"])


def test_without_chromium_the_browser_tests_are_skipped(dev, monkeypatch, capsys):
    monkeypatch.setattr(dev.shutil, "which", lambda name: None)
    monkeypatch.setattr(dev, "_run", lambda *_: pytest.fail("run"))
    assert dev.browser([]) == 0
    assert "chromium is not installed" in capsys.readouterr().out


def test_with_chromium_the_browser_tests_run(dev, monkeypatch):
    monkeypatch.setattr(dev.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(dev, "_run", lambda *arguments: arguments)
    assert dev.browser(["-k", "x"]) == ("-m", "pytest", "-m", "browser", "-rs", "-k", "x")


def test_lint_stops_at_the_first_failure(dev, monkeypatch):
    tools = []

    def run(_, tool, *arguments):
        tools.append(tool)
        return int(tool == "mypy")

    monkeypatch.setattr(dev, "_run", run)
    assert dev.lint([]) == 1
    assert tools == ["ruff", "ruff", "mypy"]


def test_a_finished_setup_is_not_repeated(dev, monkeypatch, tmp_path):
    stamp = tmp_path / "stamp"
    stamp.write_text(dev._fingerprint())
    monkeypatch.setattr(dev, "STAMP", stamp)
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(dev, "_create_venv", lambda: pytest.fail("set up again"))
    assert dev.setup([]) == 0


def test_without_a_command_the_commands_are_listed():
    done = subprocess.run([sys.executable, ROOT / "dev.py"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage" in done.stderr
