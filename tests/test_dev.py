"""The set-up script: standard library only, with clear failures."""

import ast
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import zipfile
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
    monkeypatch.setattr(dev.sys, "platform", "linux")
    assert dev._needs_cpu_index() is not cpu


def test_without_a_cpu_build_the_cpu_index_is_used(dev, monkeypatch):
    calls = []
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="")
    monkeypatch.setattr(dev, "_pip", lambda *arguments, **_: calls.append(arguments) or failed)
    monkeypatch.setattr(dev, "_uv", lambda: "uv")
    monkeypatch.setattr(dev, "_needs_cpu_index", lambda: True)
    monkeypatch.setattr(dev.subprocess, "run", lambda command, **_: calls.append(command) or failed)
    dev._install("-e", ".", fresh=True)
    _, uv, pip, _ = calls
    assert uv[uv.index("--torch-backend") + 1] == "cpu"
    assert pip[:4] == ("install", "--no-deps", "--index-url", dev.TORCH_CPU_INDEX)


@pytest.mark.whole
def test_settings_of_pip_are_given_to_uv(tmp_path):
    outside = [Path(sys.base_prefix) / "bin" / "python3", "-c"]
    if subprocess.run([*outside, "import pip"], capture_output=True).returncode:
        pytest.skip("Python outside of .venv has no pip")
    (tmp_path / "pip.conf").write_text("[global]\nfind-links = /nowhere\n")
    settings = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PYTHONPATH": str(ROOT)}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")} | settings
    asked = subprocess.run(
        [*outside, "import dev; print(dev._pip_settings())"], env=environment, capture_output=True
    )
    assert b"'--find-links', '/nowhere'" in asked.stdout, asked.stderr


def test_an_unknown_benchmark_is_reported(dev):
    with pytest.raises(dev.SetupFailure, match="unknown benchmark speed; known: ab_spread, "):
        dev.bench(["speed"])


@pytest.fixture
def finished(dev, monkeypatch, tmp_path):
    """A set-up for tests alone; returns what is installed from now on."""
    stamp = tmp_path / "stamp"
    stamp.write_text(f"{dev._fingerprint()}\ntest")
    installed = []
    monkeypatch.setattr(dev, "STAMP", stamp)
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(dev, "_create_venv", lambda: installed.append("venv"))

    def install(*arguments, fresh, without):
        installed.append(f"{arguments[-1]}{' without ' * bool(without)}{without}")

    monkeypatch.setattr(dev, "_install", install)
    return installed


def test_a_finished_setup_is_not_repeated(dev, finished):
    dev.install("test")
    dev.install()
    assert finished == []


def test_a_command_adds_what_it_needs(dev, finished):
    dev.install("lab")
    dev.setup([])
    assert finished == [f"{ROOT}[lab,test]"]


def test_changed_pins_start_from_a_new_venv(dev, finished):
    dev.STAMP.write_text("another fingerprint\nlab test")
    dev.install()
    assert finished == ["venv", f"{ROOT} without {dev.UNUSED}"]
    dev.install("test")
    assert finished[-1] == f"{ROOT}[test]"


def test_an_environment_behind_a_link_is_left_alone(dev, finished, monkeypatch, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").touch()
    (tmp_path / ".venv").symlink_to(other)
    monkeypatch.setattr(dev, "VENV", tmp_path / ".venv")
    with pytest.raises(dev.SetupFailure, match=r"is a link to .*other, .*\(rm .*\.venv\)"):
        dev.install("lab")
    assert finished == []
    assert (other / "kept").exists()


def test_uv_gets_the_package_indexes_of_pip(dev, monkeypatch):
    listed = """\
:env:.find-links='/wheels'
global.cert='/etc/certs.pem'
global.extra-index-url='https://a.invalid/simple https://b.invalid/simple'
global.find-links='/overridden'
install.no-index='yes'
"""
    answer = subprocess.CompletedProcess([], 0, stdout=listed)
    monkeypatch.setattr(dev, "_pip", lambda *_, **__: answer)
    options = " ".join(dev._pip_settings())
    assert "--find-links /wheels" in options
    assert "--index https://a.invalid/simple --index https://b.invalid/simple" in options
    assert "--cert /etc/certs.pem" in options
    assert "--no-index" in options
    assert "overridden" not in options


@pytest.mark.parametrize("uv", ["absent", "fails"])
def test_without_uv_pip_installs(dev, monkeypatch, capsys, uv):
    calls = []

    def pip(*arguments, **_):
        calls.append(arguments)
        return subprocess.CompletedProcess([], int(uv == "absent"), stdout="")

    monkeypatch.setattr(dev, "_pip", pip)
    failed = subprocess.CompletedProcess([], 1, stderr="no route\n")
    monkeypatch.setattr(dev.subprocess, "run", lambda *_, **__: failed)
    dev._install("-e", ".")
    assert calls[-1] == ("install", "--constraint", str(dev.CONSTRAINTS), "-e", ".")
    assert ("no route\ndev.py: uv failed" in capsys.readouterr().err) == (uv == "fails")


UV = Path(sys.executable).with_name("uv")


@pytest.mark.skipif(not UV.exists(), reason="uv is not installed; dev.py installs it")
@pytest.mark.parametrize("right", [True, False])
def test_a_package_with_another_hash_is_refused(dev, monkeypatch, tmp_path, right):
    wheel, about = tmp_path / "tiny-1.0-py3-none-any.whl", "tiny-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "x = 1\n")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest() if right else "0" * 64
    (tmp_path / "pins").write_text("tiny==1.0\n")
    (tmp_path / "hashes").write_text(f"tiny==1.0 --hash=sha256:{digest}\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    for name, path in (
        ("CONSTRAINTS", "pins"),
        ("HASHES", "hashes"),
        ("PYTHON", "venv/bin/python"),
    ):
        monkeypatch.setattr(dev, name, tmp_path / path)
    monkeypatch.setattr(dev, "_uv", lambda: UV)
    monkeypatch.setattr(dev, "_pip_settings", lambda: ["--no-index", "--find-links", tmp_path])
    monkeypatch.setattr(dev, "_pip", lambda *_: pytest.fail("pip checks no hashes"))
    if right:
        dev._install("tiny")
    else:
        with pytest.raises(dev.SetupFailure, match="differs from its hash"):
            dev._install("tiny")
    assert bool([*tmp_path.glob("venv/lib/*/site-packages/tiny.py")]) == right


@pytest.mark.parametrize("version", ["1.5.0", "1.5.1"])
def test_an_environment_for_another_executorch_has_its_pin_and_hashes(
    dev, monkeypatch, tmp_path, version
):
    for name in ("constraints.txt", "hashes.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    dev.use_version(version)
    assert str(dev.PYTHON) == f"{tmp_path}/build/upstream-{version}/bin/python"
    pins, hashes = dev.CONSTRAINTS.read_text(), dev.HASHES.read_text()
    known = (ROOT / "constraints.txt").read_text()
    assert pins == known.replace("executorch==1.5.1", f"executorch=={version}")
    assert f"\nexecutorch=={version} \\\n    --hash=sha256:" in hashes
    of_one_version = "4ea28ab1c261934d3c15c7d044b27c5f1febbd885c59bb55feb4423d11e20719"
    assert (of_one_version in hashes) == (version == "1.5.0")
    assert hashes.count("\nexecutorch==") == 1 and "\nfilelock==" in hashes
