"""Files and records: what is written is read again, and what is damaged says so."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

import workbench as wb
from workbench import store
from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.records.exports import Export, Tensor
from workbench.records.layer_sidecar import Layers
from workbench.store import remove_partials


def make_export(pte, data=b"program"):
    pte.write_bytes(data)
    return Export(
        model="net",
        dtype="fp32",
        backend="xnnpack",
        pte=pte.name,
        sha256=store.sha256_of(pte),
        size_bytes=len(data),
        inputs=(Tensor("float32", (1, 3)),),
        input_source="example inputs",
        outputs=(),
        delegates={"XnnpackBackend": 1},
        undelegated=(),
        versions={},
        seconds=1.0,
        created="2026-01-01",
    )


def test_a_failed_write_leaves_only_the_old_file(tmp_path, monkeypatch):
    path = store.atomic_write(tmp_path / "a.json", "old")

    def fail(*_):
        raise OSError(28, "disk full")

    monkeypatch.setattr(store.Path, "replace", fail)
    with pytest.raises(StoreError, match=r"a\.json: cannot be written: disk full"):
        store.atomic_write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, sys
from pathlib import Path
from workbench.store import atomic_write

Path.replace = lambda *_: os.kill(os.getpid(), 9)
atomic_write(Path(sys.argv[1]), "half of it")
"""


def test_only_leftovers_of_killed_writers_are_removed(tmp_path):
    target = tmp_path / "runs" / "linux" / "manifest.json"
    done = subprocess.run([sys.executable, "-c", KILLED, target])
    assert done.returncode == -signal.SIGKILL
    (left,) = target.parent.iterdir()
    assert left.name.endswith(".partial")
    runner_left = target.with_name("net_t1.etdump.partial")
    others = ("film.partial", ".profile.partial", "net_t1.etdump", ".manifest.json.abcd1234")
    for path in (runner_left, *(target.with_name(name) for name in others)):
        path.write_text("half of it")
    remove_partials(tmp_path)
    assert sorted(path.name for path in target.parent.iterdir()) == sorted(others)


def test_an_export_record_is_found_beside_its_program(tmp_path):
    pte = tmp_path / "net_xnnpack_fp32.pte"
    export = make_export(pte)
    assert wb.open_program(pte).export is None
    store.save_export(export, tmp_path)
    assert wb.open_program(pte).export == export


def test_a_program_that_is_not_the_recorded_one_is_refused(tmp_path):
    pte = tmp_path / "net.pte"
    store.save_export(make_export(pte), tmp_path)
    pte.write_bytes(b"another")
    with pytest.raises(StoreError, match="SHA-256 differs"):
        wb.open_program(pte)


def test_a_folder_without_manifest_names_the_runs_below_it(tmp_path):
    run_dir = store.new_run_dir(tmp_path / "out_net", "linux")
    (run_dir / store.MANIFEST).write_text("{}")
    with pytest.raises(UsageError, match="out_net/runs/linux"):
        store.load_run(tmp_path)


@pytest.mark.parametrize(
    ("text", "name"),
    [("a b/c", "a_b_c"), ("../../etc", "etc"), ("..", "model"), ("-rf", "rf"), ("näme", "n_me")],
)
def test_any_name_becomes_a_file_name(text, name):
    assert store.safe_name(text) == name


def test_the_first_traced_process_has_the_plain_name(tmp_path):
    path = store.trace_path(tmp_path, "net_xnnpack_fp32", "sme2_on", 1, 0)
    assert path == tmp_path / "sme2_on" / "net_xnnpack_fp32_sme2_on_t1.etdump"
    assert store.trace_path(tmp_path, "n", "e", 2, 1).name == "n_e_t2_p2.etdump"


def test_a_sidecar_is_read_for_its_program_only(tmp_path):
    pte = tmp_path / "x.pte"
    path = store.layers_path(pte)
    assert path.name == "x.pte.layers.json"
    assert store.load_layers(path, "1") is None
    layers = Layers("1", ())
    store.save_layers(layers, path)
    assert store.load_layers(path, "1") == layers
    assert store.load_layers(path, "2") is None
    path.write_text("[]")
    with pytest.raises(StoreError, match="not a JSON object"):
        store.load_layers(path, "1")


def test_a_run_keeps_the_sidecar_if_there_is_one(tmp_path):
    (pte := tmp_path / "x.pte").write_bytes(b"not a program")
    kept = tmp_path / store.LAYERS
    program = wb.open_program(pte)
    program.keep_layers(kept)
    assert not kept.exists() and program.layers is None and program.methods == ()
    store.save_layers(Layers(program.sha256, ()), store.layers_path(pte))
    wb.open_program(pte).keep_layers(kept)
    assert store.load_layers(kept, program.sha256) == Layers(program.sha256, ())


# --- records as JSON ------------------------------------------------------------------------------


def test_what_is_cached_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = store.cached("wheels/x", lambda path: path.write_bytes(b"runner"))
    assert store.cached("wheels/x", lambda path: path.write_bytes(b"other")) == path
    assert path.read_bytes() == b"runner" and [*path.parent.iterdir()] == [path]


def test_a_cache_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store.cached("x", lambda path: path.write_bytes(b"runner"))
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(WorkbenchError, match="belongs to another user"):
        store.cached("x", lambda path: path.write_bytes(b"runner"))


def test_an_error_while_making_is_not_one_of_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def make(path):
        raise ConnectionError("the network is down")

    with pytest.raises(WorkbenchError, match="thing: cannot be made: ConnectionError: the network"):
        store.cached("thing", make)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkbenchError, match=r"cannot write the cache.*set XDG_CACHE_HOME"):
        store.cached("thing", make)


def test_runs_are_in_the_order_in_which_they_were_started(tmp_path):
    for number, name in enumerate(["b", "a", "c"]):
        shutil.copytree(wb.sample_run(), folder := tmp_path / "runs" / name)
        path = folder / "manifest.json"
        text = re.sub(r'"started": "20\d\d', f'"started": "203{number}', path.read_text())
        path.write_text(text)
        os.utime(path, (9 - number, 9 - number))  # as after a copy or a checkout
    deleted = tmp_path / "runs" / "gone" / "manifest.json"
    root = SimpleNamespace(glob=lambda pattern: [*tmp_path.glob(pattern), deleted])
    assert [path.name for path in store.find_runs(root)] == ["b", "a", "c"]


def test_a_file_is_hashed_once_for_each_of_its_states(tmp_path):
    (path := tmp_path / "x").write_bytes(b"one")
    os.utime(path, (1, 1))
    first = store.sha256_of(path)
    reads = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.hashlib, "file_digest", lambda *_: reads.append(1))
        assert store.sha256_of(path) == first and not reads
    path.write_bytes(b"two")
    assert store.sha256_of(path) == hashlib.sha256(b"two").hexdigest()
