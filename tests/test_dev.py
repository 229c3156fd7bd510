"""The set-up script: standard library only, with clear failures."""

import ast
import contextlib
import hashlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

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


#: What `_choose_torch` answers in the Python outside of the environment, which has pip.
CHOOSE = """
import sys
from pathlib import Path

import dev

dev.PYTHON, dev.TORCH_CPU_INDEX, dev.CONNECT_S = Path(sys.executable), sys.argv[1], 1
try:
    print(dev._choose_torch())
except dev.SetupFailure as failure:
    print(failure)
"""


@pytest.fixture
def choose_torch(tmp_path, dev):
    """Which torch is chosen of local indexes; one of None does not answer."""
    outside = [str(Path(sys.base_prefix) / "bin" / "python3"), "-c"]
    if subprocess.run([*outside, "import pip"], capture_output=True).returncode:
        pytest.skip("Python outside of .venv has no pip")
    (version,) = re.findall(r"^torch==(\S+)$", dev.CONSTRAINTS.read_text(), re.MULTILINE)

    def write(folder, builds):
        folder.mkdir(parents=True)
        for build in builds:
            (folder / f"torch-{version}{build}-py3-none-any.whl").touch()

    def choose(given, of_pytorch, found=()):
        silent = contextlib.closing(socket.create_server(("127.0.0.1", 0)))
        handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        with silent as unanswered, server:
            Thread(target=server.serve_forever, daemon=True).start()
            urls = []
            for name, builds in (("given", given), ("pytorch", of_pytorch)):
                port = (unanswered.getsockname() if builds is None else server.server_address)[1]
                write(tmp_path / name / "torch", builds or ())
                urls.append(f"http://127.0.0.1:{port}/{name}")
            write(tmp_path / "wheels", found)
            kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
            settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": urls[0]}
            settings |= {"PIP_FIND_LINKS": str(tmp_path / "wheels"), "PYTHONPATH": str(ROOT)}
            command = [*outside, CHOOSE, urls[1]]
            began = time.monotonic()
            done = subprocess.run(command, env=kept | settings, capture_output=True, text=True)
            server.shutdown()
        assert time.monotonic() - began < dev.ANSWER_S
        text = (done.stdout + done.stderr).replace(version, "V").replace(urls[1], "URL")
        return text.splitlines()

    return choose


def further(*case):
    """A case that CI leaves out."""
    return pytest.param(*case, marks=pytest.mark.cases)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, torch has no CUDA")
@pytest.mark.whole
@pytest.mark.parametrize(
    ("given", "of_pytorch", "found", "answer"),
    [
        further(["", "+cpu", "+cu130"], ["+cpu"], [], "(['torch==V+cpu'], '')"),
        ([""], ["+cpu"], [], "(['torch==V+cpu'], 'URL')"),
        further(["", "+cpu"], None, [], "(['torch==V+cpu'], '')"),
        further([""], None, ["+cpu"], "(['torch==V+cpu'], '')"),
        further(None, ["+cpu"], [], "(['torch==V+cpu'], 'URL')"),
    ],
)
def test_a_cpu_build_is_taken_wherever_it_is(choose_torch, given, of_pytorch, found, answer):
    assert choose_torch(given, of_pytorch, found) == [answer]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, torch has no CUDA")
@pytest.mark.whole
def test_without_a_cpu_build_one_line_says_what_is_installed(choose_torch):
    answer, said = choose_torch([""], None)
    assert answer == "(['torch==V'], '')"
    assert said.startswith("dev.py: no CPU build of torch V at URL and the indexes of pip, asked")
    assert "installing the default build, gigabytes with CUDA" in said


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, torch has no CUDA")
@pytest.mark.whole
def test_if_no_index_answers_set_up_ends_at_once(choose_torch):
    (said,) = choose_torch(None, None)
    assert said.startswith("no torch V at URL and the indexes of pip, asked for ")
    assert said.endswith("PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS")


@pytest.mark.parametrize("index", ["", "https://cpu.invalid"])
def test_only_an_index_that_answers_is_used(dev, monkeypatch, index):
    calls = []
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="")
    monkeypatch.setattr(dev, "_pip", lambda *arguments, **_: calls.append(arguments) or failed)
    monkeypatch.setattr(dev, "_uv", lambda: "uv")
    monkeypatch.setattr(dev, "_choose_torch", lambda: (["torch==2"], index))
    monkeypatch.setattr(dev.subprocess, "run", lambda command, **_: calls.append(command) or failed)
    dev._install("-e", ".", fresh=True)
    _, uv, hashed, torch, rest = calls
    assert ("--torch-backend" in uv) == bool(index) == ("--extra-index-url" in torch)
    assert "torch==2" in uv and torch[-1] == "torch==2"
    assert hashed == (
        "install", "--no-deps", "--require-hashes", "--requirement", str(dev.HASHES)
    )  # fmt: skip
    assert rest == ("install", "--constraint", str(dev.CONSTRAINTS), "-e", ".")


@pytest.mark.cases
def test_set_up_compiles_what_a_profile_imports(dev, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "compiled"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setattr(dev, "PYTHON", sys.executable)
    dev._compile()
    compiled = {*(tmp_path / "compiled").rglob("*.pyc")}
    command = [sys.executable, "-m", "workbench", "profile", "toy_cnn", "--effort", "quick"]
    subprocess.run([*command, "--quiet"], cwd=tmp_path, check=True, capture_output=True)
    more = {*(tmp_path / "compiled").rglob("*.pyc")} - compiled
    assert len(more) < 0.05 * len(compiled), sorted(map(str, more))


def test_what_cannot_be_imported_fails_set_up(dev, monkeypatch, tmp_path):
    monkeypatch.setattr(dev, "PYTHON", sys.executable)
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "IMPORTED", ("json no_such_module",))
    with pytest.raises(dev.SetupFailure, match=r"imported: ModuleNotFoundError.*no_such_module"):
        dev._compile()


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
    monkeypatch.setattr(dev, "_compile", lambda: None)
    return installed


def test_a_finished_setup_is_not_repeated(dev, finished):
    dev.install("test")
    dev.install()
    assert finished == []


def test_a_command_adds_what_it_needs(dev, finished):
    dev.install("lab")
    dev.setup([])
    assert finished == [f"{ROOT}[lab,test]", f"{ROOT}[docs,lab,test]"]


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
