"""Shared fixtures: small programs (recorded), the command line, a browser."""

import atexit
import contextlib
import fcntl
import gc
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections import Counter
from pathlib import Path

import programs
import pytest
from hypothesis import settings

# One thread: on a busy machine, torch's threads mostly wait for each other, and burn CPU time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # until all tests are imported

# No deadline: the speed of this machine is not under test. `--hypothesis-profile` chooses another,
# with examples that no earlier run had.
settings.register_profile("fast", deadline=None, max_examples=10, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile("fast")

#: Files that one worker runs, as they read the same recorded runs, which are opened once.
READING = {
    *("align", "categories", "docs", "dtypes", "explorer", "explorer_data", "findings"),
    *("gates", "golden_runs", "kernels_shown", "layers", "machine_code"),
    *(
        "one_clock",
        "output",
        "pickers",
        "plots",
        "public_api",
        "recorded_quality",
        "roofline",
        "tables",
    ),
}
#: Marks of tests that take about so many times as long as others.
SLOW, TIMES = {"whole", "qemu", "adb", "ssh"}, 20


TWO_FRAMES = "() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With ``--dist=loadfile``, what reads the recorded runs is one file."""
    from xdist.scheduler import LoadFileScheduling

    class InGroups(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "reading" if Path(file).stem.removeprefix("test_") in READING else file

    return InGroups(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """After set-up, workers import one after the other: each would compile every module.

    The first one compiles the runner, too, which tests of all workers need.
    """
    torch = importlib.util.cache_from_source(importlib.util.find_spec("torch").origin)
    if not hasattr(session.config, "workerinput") or Path(torch).exists():
        return (yield)
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        items = yield
        import workbench as wb

        with contextlib.suppress(wb.WorkbenchError):
            wb.find_runner()
        return items


def pytest_collection_modifyitems(config, items):
    """Workers begin with the files that take longest: they then end at about the same time."""
    if hasattr(config, "workerinput"):
        costs = Counter()
        for item in items:
            costs[item.path] += 1 if SLOW.isdisjoint(item.keywords) else TIMES
        items.sort(key=lambda item: -costs[item.path])


def pytest_collection_finish():
    """Collect garbage seldom, and not what all tests share: a sixth of all time went there."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(100_000)


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure(config):
    """A worker, which has told its results, ends at once: to free all objects takes two seconds.

    Without workers, libraries release what they hold; nanobind reports the rest.
    """
    if hasattr(config, "workerinput"):
        atexit._run_exitfuncs()
        os._exit(0)
    gc.unfreeze()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file of the user's into the working directory; returns its name."""
    monkeypatch.chdir(tmp_path)

    def write_file(text, name="mine.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return name

    return write_file


@pytest.fixture(scope="session")
def own_cache(tmp_path_factory):
    """A folder for XDG_CACHE_HOME that links to the user's cache, without its locks."""
    from workbench.store import cache_folder

    folder = tmp_path_factory.mktemp("cache") / cache_folder().name
    folder.mkdir()
    for kept in cache_folder().glob("*"):
        if kept.name != "locks":
            (folder / kept.name).symlink_to(kept)
    return folder.parent


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory):
    """Use separate locks: do not wait for measurements outside of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_LOCKS", str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="session", autouse=True)
def short_batches():
    """Time few inferences: only benchmarks ask how fast something is."""
    from workbench.run import steps

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "MAX_BATCH", 5)
        yield


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel, built from the files of the source distribution."""
    root = Path(__file__).resolve().parents[1]
    folder = tmp_path_factory.mktemp("build")
    hidden = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(root, folder / "copy", symlinks=True, ignore=hidden)
    build = "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])('..')"
    subprocess.run([sys.executable, "-c", build, "build_sdist"], cwd=folder / "copy", check=True)
    (sdist,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(sdist, folder, filter="data")
    (unpacked,) = folder.glob("executorch_workbench-*/")
    subprocess.run([sys.executable, "-c", build, "build_wheel"], cwd=unpacked, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """A new environment with the wheel; it borrows the packages of this one."""
    from workbench.run.build import _pip

    folder = tmp_path_factory.mktemp("installed") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is searched, but .pth files there (editable installs) are not read.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    quiet = ["--quiet", "--no-deps", "--no-index", "--ignore-installed", "--no-compile"]
    command = [*_pip(), "--python", folder / "bin" / "python", "install", *quiet, wheel]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def short_cells(monkeypatch):
    """Stop the cells of notebooks after a second."""
    from workbench.report import kernel

    monkeypatch.setattr(kernel, "CELL_LIMIT_S", 1)


@pytest.fixture
def tools(monkeypatch, tmp_path):
    """Nothing on the PATH and in the cache but what a test writes; no runner can be compiled."""
    from devices import Tools

    from workbench.run import doctor

    tools = Tools(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tools.folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setattr(doctor, "find_missing", lambda probed: {})
    return tools.write


@pytest.fixture
def short_waits(monkeypatch):
    """Do not wait long for machines that do not answer."""
    from workbench.plugins.targets import android, remote

    monkeypatch.setattr(android, "TIMEOUT_S", 0.2)
    monkeypatch.setitem(remote.Remote.sh.__kwdefaults__, "timeout_s", 3.0)


@pytest.fixture(scope="session")
def analysed(tmp_path_factory):
    """A copy of the recorded sample with its CSV and JSON files, opened; for reading only."""
    import workbench as wb
    from workbench.report.artifacts import write_artifacts

    folder = tmp_path_factory.mktemp("analysed") / "out_net" / "runs" / "linux"
    run = wb.open_run(shutil.copytree(wb.sample_run(), folder))
    write_artifacts(run)
    return run


@pytest.fixture(scope="session")
def reported(analysed):
    """That run with its report, by papermill: ten seconds of CPU."""
    from workbench.report.report import make_report

    make_report(analysed)
    return analysed


@pytest.fixture
def cli(capfd, tmp_path, monkeypatch):
    """Run a command line in an empty folder: its exit code, stdout, stderr."""
    from workbench.cli import REPORT, main

    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert REPORT not in err, err
        return ended.value.code, out, err

    return run


@pytest.fixture
def shell():
    """A notebook's."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    yield shell
    InteractiveShell.clear_instance()


@pytest.fixture(scope="session")
def small_program(request):
    """From a name to the path of a small program: recorded, or exported once for new versions."""
    if programs.is_current():
        return lambda name: programs.RECORDED / f"{name}.pte"
    if request.config.pluginmanager.hasplugin("cacheprovider"):
        folder = request.config.cache.mkdir(f"programs-{programs.identify()}")
    else:
        folder = request.getfixturevalue("tmp_path_factory").getbasetemp()

    def export(name):
        path = folder / f"{name}.pte"
        if not path.exists():
            programs.export(name, path)
        return path

    return export


@pytest.fixture(scope="session")
def conv_pte(small_program):
    """A convolution net for 1x3x64x64 floats, delegated to XNNPACK except for a mean."""
    return small_program("conv")


@pytest.fixture(scope="session")
def pair_pte(small_program):
    """float32 (2, 3) and int64 (4) to float16 and int64, portable kernels only."""
    return small_program("pair")


@pytest.fixture(scope="session")
def outside_pte(small_program):
    """A program and the file with its weights."""
    return small_program("outside"), small_program("outside_data")


@pytest.fixture(scope="session")
def profiling_kit():
    """The checkout of Arm's profiling kit that PROFILING_KIT names."""
    folder = Path(os.environ.get("PROFILING_KIT", ""))
    if not (folder / "model_profiling" / "scripts").is_dir():
        pytest.skip(f"PROFILING_KIT names no checkout of Arm's profiling kit: {str(folder)!r}")
    return folder


@pytest.fixture(scope="session")
def unplanned_pte(small_program):
    """`pair_pte` without memory planning for inputs and outputs."""
    return small_program("unplanned")


BROWSER_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium, driven by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not (chromium := shutil.which("chromium")):
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_file(browser):
    """Opens a page from its file, without a network; fails on any complaint or request."""
    contexts, complaints = [], []

    def open_one(path, *, size=(1280, 900), dark=False, state=""):
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
            permissions=["clipboard-read", "clipboard-write"],
            offline=True,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda r: r.url.startswith("http") and complaints.append(r.url))
        page.goto(f"{path.as_uri()}{'#' if state else ''}{state}")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def check_axe():
    """Fails if axe-core finds fault with a page, at a desk by day and on a phone by night."""
    axe = (
        Path(__file__).parents[1]
        / "workbench/plugins/explorer/web/node_modules/axe-core/axe.min.js"
    )
    if not axe.is_file():
        pytest.skip("axe-core is not installed: `npm ci` in workbench/plugins/explorer/web")

    def check(page, views=((1280, "light"), (390, "dark"))):
        page.evaluate(axe.read_text())
        for width, scheme in views:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            page.evaluate(TWO_FRAMES)  # in which observers of sizes are called
            found = page.evaluate("axe.run({preload: false})")["violations"]
            assert [(v["id"], n["html"][:160]) for v in found for n in v["nodes"]] == []

    return check


@pytest.fixture
def front_end(monkeypatch):
    """A live front end."""
    monkeypatch.setenv("WORKBENCH_WIDGETS", "1")


@pytest.fixture
def seen(front_end, monkeypatch):
    """What views draw in a live front end."""
    seen = []
    monkeypatch.setattr("workbench.plots.widgets.display", seen.append)
    return seen


@pytest.fixture(scope="module")
def documents():
    """Documents of explorers by name, which a test may add to."""
    return {}


@pytest.fixture
def open_page(open_file, tmp_path, documents):
    """Opens the explorer of a sample from a file."""
    from explored import put_data, read_data
    from recorded import recorded

    import workbench as wb

    def open_one(
        model="mobilenet_v3_small",
        *,
        state="",
        edit=None,
        size=(1400, 1000),
        dark=False,
        view="",
    ):
        if model not in documents:
            documents[model] = read_data(recorded(model))
        document = json.loads(json.dumps(documents[model]))
        if edit:
            edit(document)
        path = tmp_path / "explore.html"
        path.write_text(put_data(wb.explore(recorded(), view).text, document))
        page = open_file(path, size=size, dark=dark, state=state)
        page.wait_for_selector("#explorer[data-drawn-ms]")
        return page

    return open_one


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A machine behind ssh."""
    from devices import Board, Tools

    # The folder there has a name that a careless command would trip over.
    tools, home = Tools(tmp_path / "bin"), tmp_path / "it's $HOME; `rm`"
    tools.write_ssh(home)
    monkeypatch.setenv("PATH", f"{tools.folder}{os.pathsep}{os.environ['PATH']}")
    return Board(tools, home)


@pytest.fixture(scope="module", name="programs")
def three_programs(conv_pte, pair_pte, tmp_path_factory):
    """Two files of one name with the same program, and one with other inputs."""
    folder = tmp_path_factory.mktemp("programs")
    places = [folder / name for name in ("net.pte", "b/net.pte", "pair.pte")]
    for place, source in zip(places, (conv_pte, conv_pte, pair_pte), strict=True):
        place.parent.mkdir(exist_ok=True)
        shutil.copy(source, place)
    return places


@pytest.fixture
def open_hostile(open_file):
    """Opens a page, unfolds and clicks what there is, and asserts that nothing ran."""

    def open_one(path):
        page = open_file(path)
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        title = page.title()
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        assert page.locator("[onerror], [onload], img[src=x]").count() == 0
        links = page.eval_on_selector_all("[href]", "all => all.map(each => each.href)")
        assert [link for link in links if not link.startswith("file:")] == []
        assert page.title() == title != "ran"
        assert "<script>" in page.locator("body").inner_text() + title
        return page

    return open_one
