"""Set up and run everything; needs only Python >= 3.11 and pip.

python3 dev.py demo    profile two models and print the paths of the reports
python3 dev.py test    lint, then run the fast tests
"""

import argparse
import ast
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "workbench-setup"
CONSTRAINTS = ROOT / "constraints.txt"
#: The same pins with the hashes of their files. pip cannot take them: it would want torch's too.
HASHES = ROOT / "hashes.txt"
#: The hashes of the wheels of each tested version of ExecuTorch.
WHEELS = ROOT / "workbench" / "run" / "wheels.txt"
# PyPI's torch for Linux pulls in several gigabytes of CUDA packages; this project needs none.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
#: What commands need besides the package; all others need what the tests need.
EXTRAS = {"demo": [], "docs": ["docs"], "lab": ["lab"], "browser": ["lab", "test"]}
#: What a demo does not need: of jedi, every seventh file, IPython completes names less well without
#: it.
UNUSED = "jedi"
#: What commands import, by the processes that import it at set-up, to keep it compiled: with all
#: that is installed that would take a minute.
IMPORTED = (
    "torch._inductor torch.onnx torch._numpy networkx executorch.exir executorch.runtime "
    "executorch.backends.xnnpack.partition.xnnpack_partitioner torchao.quantization",
    "pandas matplotlib.pyplot ipykernel.kernelapp workbench.cli workbench.workflow "
    "workbench.report.kernel workbench.plots.pickers workbench.plots.views",
)
#: Seconds for a connection to a package index, and for an answer of all indexes.
CONNECT_S, ANSWER_S = 3, 15
#: Options of uv for pip's settings; uv reads neither pip's files nor its variables.
UV_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraints",
    "trusted-host": "--allow-insecure-host",
    "cert": "--cert",
}


def main() -> int:
    """Run the command named on the command line; returns its exit code."""
    commands = {
        "setup": (setup, "create .venv and install everything into it"),
        "demo": (
            demo,
            "profile two models, print the paths of the reports",
        ),
        "test": (test, "lint, then run the fast tests (arguments go to pytest)"),
        "whole": (whole, "test exports, runs and commands, and properties with more examples"),
        "campaign": (campaign, "test batches, sanitizers, all notebooks on all kinds of run"),
        "devices": (devices, "test the targets QEMU, adb and ssh, as far as possible here"),
        "plugins": (plugins, "test the core without plug-ins, and plug-ins without each other"),
        "upstream": (upstream, "test private parts of the other tested versions of ExecuTorch"),
        "notebooks": (notebooks, "run the notebooks by papermill, three on every kind of run"),
        "browser": (browser, "test notebooks, timeline and report in Chromium, if installed"),
        "lint": (lint, "check style, formatting, types, and that the notebooks have no outputs"),
        "lab": (lab, "open JupyterLab on the notebooks"),
        "docs": (docs, "build the documentation site into build/docs"),
        "fuzz": (fuzz, "feed the readers mutated files (KIND..., --seconds N or --count N)"),
        "lock": (lock, "look up the hashes of the pinned packages"),
        "web": (web, "bundle the explorer's scripts (needs npm)"),
        "bench": (bench, "run the benchmarks (or the named ones)"),
    }
    parser = argparse.ArgumentParser(prog="dev.py", description="Set-up, demo and tests.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, text) in commands.items():
        subparsers.add_parser(name, help=text, add_help=False)
    options, rest = parser.parse_known_args()
    # Containers often set it; every process would then compile all packages that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        if options.command not in ("lock", "setup", "upstream", "web"):
            install(*EXTRAS.get(options.command, ["test"]))
        return commands[options.command][0](rest)
    except SetupFailure as failure:
        print(f"dev.py: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


class SetupFailure(Exception):
    """Set-up failed; the message says what to do."""


def setup(_: list[str]) -> int:
    """Create ``.venv`` and install the pinned packages for every command, unless that is done."""
    install("docs", "lab", "test")
    return 0


def install(*extras: str) -> None:
    """Create ``.venv`` and install the package with these extras, unless that is done."""
    if sys.version_info < (3, 11):  # noqa: UP036  (pip has not checked it yet)
        raise SetupFailure(f"needs Python >= 3.11, not {platform.python_version()}")
    if os.name != "posix":
        raise SetupFailure("needs Linux or macOS; on Windows use WSL")
    known, _, present = STAMP.read_text().partition("\n") if STAMP.exists() else ("", "", "")
    fresh = known != _fingerprint() or not PYTHON.exists()
    wanted = sorted({*extras, *([] if fresh else present.split())})
    if not fresh and wanted == present.split():
        return
    if VENV.is_symlink():
        raise SetupFailure(
            f"{VENV} is a link to {VENV.resolve()}, which set-up would clear; "
            f"remove the link (rm {VENV}) and run this again"
        )
    print(f"setting up {VENV.relative_to(ROOT)} (once; takes a minute)", file=sys.stderr)
    if fresh:
        _create_venv()
    package = f"{ROOT}[{','.join(wanted)}]" if wanted else str(ROOT)
    _install("-e", package, fresh=fresh, without="" if wanted else UNUSED)
    _compile()
    STAMP.write_text(f"{_fingerprint()}\n{' '.join(wanted)}")


def demo(arguments: list[str]) -> int:
    """Profile two models with the CPU's strongest extension off and on."""
    segmenter = ROOT / "data" / "onboarding" / "my_segmenter.py"
    models = [f"{segmenter}:AsTrained", "mobilenet_v3_small"]
    return _run("-m", "workbench", "profile", *models, "--dtype", "fp32", *arguments)


def test(arguments: list[str]) -> int:
    """Lint, then run the fast tests."""
    return lint([]) or _pytest(*arguments)


def whole(arguments: list[str]) -> int:
    """Test whole runs and commands, further cases, and properties with ten times the examples."""
    chosen = ("-m", "whole or cases or hypothesis", "--hypothesis-profile=thorough")
    return _pytest(*chosen, "-rs", *arguments)  # such as other runtimes, which are extras


def campaign(arguments: list[str]) -> int:
    """Run the tests that are in no other lane, which take minutes each."""
    return _pytest("-m", "campaign", *arguments)


def devices(arguments: list[str]) -> int:
    """Run the tests that need QEMU, adb or sshd; skipped tests say why."""
    return _pytest("-m", "qemu or adb or ssh", "-rs", *arguments)


def upstream(arguments: list[str]) -> int:
    """Test private parts with each other tested ExecuTorch; the fast tests run with the pinned."""
    text = (ROOT / "workbench" / "upstream.py").read_text()
    (tested,) = re.findall(r"^TESTED = (\(.*\))$", text, re.MULTILINE)
    files = sorted(str(path) for path in (ROOT / "tests").glob("test_upstream*.py"))
    pinned = re.findall(r"^executorch==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE)
    codes = [0]
    for version in sorted({*ast.literal_eval(tested)} - {*pinned}):
        use_version(version)
        install("test")
        print(f"with executorch {version}:", flush=True)
        codes.append(_pytest("-m", "upstream", *files, *arguments))
    return max(codes)


def plugins(arguments: list[str]) -> int:
    """Test copies without any plug-in, and without each of them (or the named ones).

    With ``--seam``, what meets plug-ins is tested alone, which takes a minute.
    """
    return _run(str(ROOT / "tests" / "without_plugins.py"), *arguments)


def use_version(version: str) -> None:
    """Use the environment ``build/upstream-VERSION`` from now on, with another ExecuTorch."""
    global VENV, PYTHON, STAMP, CONSTRAINTS, HASHES
    hashes = r"^executorch==%s\b.*(?:\n +--hash.*)*"
    (wheels,) = re.findall(hashes % re.escape(version), WHEELS.read_text(), re.MULTILINE)
    VENV = ROOT / "build" / f"upstream-{version}"
    PYTHON, STAMP = VENV / "bin" / "python", VENV / "workbench-setup"
    VENV.parent.mkdir(exist_ok=True)
    changed = []
    for name, pin in (("constraints.txt", f"executorch=={version}"), ("hashes.txt", wheels)):
        text = (ROOT / name).read_text()
        text = re.sub(hashes % "[0-9.]+", lambda _, pin=pin: pin, text, flags=re.MULTILINE)
        changed.append(VENV.parent / f"{VENV.name}-{name}")
        changed[-1].write_text(text)
    CONSTRAINTS, HASHES = changed


def notebooks(arguments: list[str]) -> int:
    """Run the notebooks by papermill with defaults, and three of them on every kind of run.

    All of them on every kind of run: ``dev.py campaign``, and without a kernel: ``dev.py whole``.
    """
    telling = "papermill and (defaults or 05_ or 06_ or 16_)"
    files = sorted(str(path) for path in (ROOT / "tests").rglob("test_notebook*.py"))
    return _pytest("--dist=load", "-m", "campaign", "-k", telling, *files, *arguments)


def browser(arguments: list[str]) -> int:
    """Run the browser tests; screenshots go to build/screenshots."""
    if not shutil.which("chromium"):
        print("skipped: chromium is not installed (Debian: apt install chromium)")
        return 0
    return _pytest("-m", "browser", "-rs", *arguments)


def lint(_: list[str]) -> int:
    """Check style, formatting and types, and that no notebook has outputs."""
    notebooks = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "notebooks").glob("*.ipynb"))
    keys = "metadata.papermill cell.metadata.papermill metadata.language_info.version"
    checks = [
        ("ruff", "check", "--quiet", "."),
        ("ruff", "format", "--check", "--quiet", "."),
        ("mypy", "--no-error-summary"),
        ("nbstripout", "--verify", "--keep-id", "--extra-keys", keys, *notebooks),
    ]
    with ThreadPoolExecutor() as beside:
        return max(beside.map(lambda words: _run("-m", *words), checks))


def lab(arguments: list[str]) -> int:
    """Open JupyterLab on the notebooks."""
    return _run("-m", "workbench", "lab", *arguments)


def docs(arguments: list[str]) -> int:
    """Build the documentation site; broken links, and notebooks that fail, are errors."""
    strict = ["-q", "-W", "--keep-going", "-c", "data/docs"]
    return _run("-m", "sphinx", *strict, ".", "build/docs", *arguments)


def fuzz(arguments: list[str]) -> int:
    """Feed mutated files to the readers; exits 1 if one is mishandled."""
    return _run(str(ROOT / "tests" / "fuzz.py"), *arguments)


def web(_: list[str]) -> int:
    """Bundle the scripts of the explorer with esbuild into one file, which is committed."""
    if not shutil.which("npm"):
        raise SetupFailure("npm is not installed (Debian: apt install npm)")
    folder = ROOT / "workbench" / "plugins" / "explorer" / "web"
    commands = (["npm", "ci", "--no-audit", "--no-fund"], ["npm", "run", "build"])
    return max(subprocess.run(command, cwd=folder).returncode for command in commands)


def lock(_: list[str]) -> int:
    """Write the hashes of the packages in ``constraints.txt`` into ``hashes.txt``."""
    form = ["--universal", "--no-deps", "--no-emit-index-url", "--no-annotate", "--no-header"]
    if not PYTHON.exists():
        _create_venv()
    if not (uv := _uv()):
        raise SetupFailure("cannot install uv with pip")
    command = [uv, "pip", "compile", "--quiet", "--generate-hashes", *form, *_pip_settings()]
    # torch's CPU build has other hashes than the default build, and they change with the index.
    pins = re.sub(r"^torch==.*\n", "", CONSTRAINTS.read_text(), flags=re.MULTILINE)
    command += ["--python-version", "3.11", "--output-file", HASHES, "-"]
    return subprocess.run(command, input=pins, text=True, stdout=subprocess.DEVNULL).returncode


def bench(arguments: list[str]) -> int:
    """Run the benchmarks; exits 1 if a claim does not hold."""
    folder = ROOT / "tests" / "benchmarks"
    known = sorted(path.stem for path in folder.glob("[!_]*.py"))
    if unknown := sorted(set(arguments) - set(known)):
        raise SetupFailure(f"unknown benchmark {', '.join(unknown)}; known: {', '.join(known)}")
    return max(_run(str(folder / f"{name}.py")) for name in arguments or known)


def _fingerprint() -> str:
    files = [ROOT / "pyproject.toml", CONSTRAINTS, HASHES]
    text = b"".join(path.read_bytes() for path in files) + sys.version.encode()
    return f"{ROOT} {hashlib.sha256(text).hexdigest()}"


def _create_venv() -> None:
    # Debian's python3 has no ensurepip: the pip outside the venv then installs into it.
    flag = ["--without-pip"] if importlib.util.find_spec("pip") else []
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", *flag, str(VENV)])
    if made.returncode:
        raise SetupFailure("cannot create .venv; install pip (Debian: apt install python3-pip)")


def _pip(
    *arguments: str, check: bool = True, quiet: bool = False, within_s: float | None = None
) -> subprocess.CompletedProcess:
    outside = importlib.util.find_spec("pip") is not None
    command = [sys.executable, "-m", "pip", "--python", str(PYTHON)]
    if not outside:
        command = [str(PYTHON), "-m", "pip"]
    command += [*arguments, "--quiet", "--disable-pip-version-check", "--no-input"]
    try:
        done = subprocess.run(command, capture_output=quiet, text=True, timeout=within_s)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, 1, stdout="", stderr="")
    if check and done.returncode:
        raise SetupFailure(f"pip {arguments[0]} failed; fix the error above and run this again")
    return done


def _install(*arguments: str, fresh: bool = False, without: str = "") -> None:
    """Install with uv; with pip, which takes longer, where uv fails. Both check hashes.

    uv leaves out the packages ``without``. Into a ``fresh`` environment goes the CPU build of torch
    if an index has it, which alone has no hash.
    """
    with ThreadPoolExecutor() as beside:  # each starts pip, for two seconds
        settings = beside.submit(_pip_settings)
        torch, index = _choose_torch() if fresh else ([], "")
        uv = _uv()
    pinned = ["--constraint", str(CONSTRAINTS)]
    if uv:
        command = [uv, "pip", "install", "--quiet", "--python", PYTHON, *settings.result(), *pinned]
        command += ["--torch-backend", "cpu"] if index else []
        checked = ["--constraint", str(HASHES), "--build-constraint", str(HASHES)]
        command += [*checked, *torch, *arguments, "--excludes", "-"]
        done = subprocess.run(command, input=without, stderr=subprocess.PIPE, text=True)
        print(done.stderr, end="", file=sys.stderr)
        if done.returncode == 0:
            return
        if "ash mismatch" in done.stderr:
            raise SetupFailure(
                "a package differs from its hash in hashes.txt; check where packages come from "
                "(pip config list), or update the hashes: python3 dev.py lock"
            )
        print("dev.py: uv failed; installing with pip", file=sys.stderr)
    # With hashes, pip takes no package without one: it gets torch, and what it needs, on its own.
    _pip("install", "--no-deps", "--require-hashes", "--requirement", str(HASHES))
    if torch:
        _pip("install", *pinned, *(["--extra-index-url", index] if index else []), *torch)
    _pip("install", *pinned, *arguments)


def _choose_torch() -> tuple[list[str], str]:
    """The torch to install, and PyTorch's own index if it comes from there.

    A line says so if it is not the CPU build, and how long the indexes took that do not answer.
    SetupFailure if none has torch: the others would be waited for in vain, too.
    """
    (version,) = re.findall(r"^torch==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE)
    if sys.platform != "linux":
        return [f"torch=={version}"], ""
    began, beside = time.monotonic(), ThreadPoolExecutor()
    everywhere = beside.submit(_list_torch, "--extra-index-url", TORCH_CPU_INDEX)
    beside.shutdown(wait=False)
    given, cpu = _list_torch(), f"{version}+cpu"
    if cpu in given:
        return [f"torch=={cpu}"], ""
    if cpu in everywhere.result():
        return [f"torch=={cpu}"], TORCH_CPU_INDEX
    asked = f"{TORCH_CPU_INDEX} and the indexes of pip, asked for {time.monotonic() - began:.0f} s"
    if version not in given:
        raise SetupFailure(
            f"no torch {version} at {asked}; name an index or a folder that has it: "
            "PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS"
        )
    print(
        f"dev.py: no CPU build of torch {version} at {asked}: installing the default build, "
        "gigabytes with CUDA; PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL may name another place",
        file=sys.stderr,
    )
    return [f"torch=={version}"], ""


def _list_torch(*options: str) -> list[str]:
    """The versions of torch that the package indexes have, as far as they answer soon."""
    limits = ["--timeout", str(CONNECT_S), "--retries", "0"]
    listed = _pip(
        "index",
        "versions",
        "torch",
        "--verbose",
        *options,
        *limits,
        check=False,
        quiet=True,
        within_s=ANSWER_S,
    )
    versions = re.findall(r"^Available versions: (.*)$", listed.stdout, re.MULTILINE)
    return versions[0].split(", ") if versions else []


def _compile() -> None:
    """Keep what commands import compiled: some run where nothing compiled can be kept."""
    code = "import compileall, importlib, sys; compileall.compile_dir(sys.argv[1], quiet=2); "
    code += "[importlib.import_module(name) for name in sys.argv[2:]]"
    with ThreadPoolExecutor() as beside:
        commands = [
            [PYTHON, "-c", code, str(ROOT / "workbench"), *names.split()] for names in IMPORTED
        ]
        run = partial(subprocess.run, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for done in beside.map(run, commands):
            if done.returncode:
                reason = done.stderr.strip().rpartition("\n")[2]
                raise SetupFailure(f"what was installed cannot be imported: {reason}")


def _uv() -> Path | None:
    """The pinned uv, installed into the venv with pip, which checks its hash; None without it."""
    (pin,) = re.findall(r"^uv==.*(?:\n .*)*", HASHES.read_text(), re.MULTILINE)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        wanted.write(pin)
        wanted.flush()
        done = _pip("install", "--require-hashes", "-r", wanted.name, check=False, quiet=True)
    return None if done.returncode else VENV / "bin" / "uv"


def _pip_settings() -> list[str]:
    """Options of uv for the package indexes and certificates that pip is configured with."""
    # It prints nothing under --quiet, which --verbose cancels.
    listed = _pip("config", "list", "--verbose", check=False, quiet=True).stdout.splitlines()
    values = {}
    for scope in ("global", "install", ":env:"):  # later ones win
        for key, _, value in (line.partition("=") for line in listed):
            if key.startswith(f"{scope}."):
                values[key.removeprefix(f"{scope}.")] = ast.literal_eval(value)
    options = ["--index-strategy", "unsafe-best-match"]  # as pip: the best of all indexes
    for name, option in UV_OPTIONS.items():
        for value in values.get(name, "").split():
            options += [option, value]
    return options + ["--no-index"] * (values.get("no-index") in ("1", "true", "yes", "on"))


def _pytest(*arguments: str) -> int:
    """Run test files in up to four processes, in the order of `tests/conftest.py`."""
    spread = "--numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder"
    return _run("-m", "pytest", *spread.split(), *arguments)


def _run(*arguments: str) -> int:
    return subprocess.run([str(PYTHON), *arguments], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
