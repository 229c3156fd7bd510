"""Whole batches, as a person starts them: killed, starved and crowded."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from batch_evidence import (
    MOMENTS,
    Starter,
    check_disjoint,
    check_finished,
    check_index,
    check_nothing_twice,
    kill_group,
    kill_worker,
    measuring_process,
    measuring_spans,
    read_runs,
    take_snapshot,
    wait_until,
)

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]

MODELS = """
import torch

class First(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU())

class Second(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Conv2d(3, 16, 3), torch.nn.Sigmoid())

class Third(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Conv2d(3, 8, 3), torch.nn.Tanh())

def get_example_inputs():
    return (torch.ones(1, 3, 64, 64),)
"""
MATRIX = """
models: [my.py:First, my.py:Second]
dtypes: [fp32, fp16]
runs: 4
processes: 3
evidence: false
"""
CELLS = 4
TWELVE = MATRIX.replace("my.py:Second", "my.py:Second, my.py:Third") + "isa: [none, auto]\n"


@pytest.fixture
def matrix(tmp_path):
    """A matrix of two small models, beside them; found by the path of the matrix."""
    (tmp_path / "my.py").write_text(MODELS)
    (tmp_path / "small.yaml").write_text(MATRIX)
    return tmp_path / "small.yaml"


@pytest.fixture
def start_batch(own_cache):
    """Start the command; whatever a test leaves running is killed."""
    starter = Starter(own_cache)
    yield starter
    starter.kill_all()


@pytest.fixture(scope="session")
def exported(tmp_path_factory, own_cache):
    """The exports of that matrix, made once: batches that start with them keep them."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "my.py").write_text(MODELS)
    (folder / "small.yaml").write_text(MATRIX)
    finish(Starter(own_cache)(folder / "small.yaml", folder / "out"))
    return folder / "out"


def begin_with(exported, out):
    for artifacts in exported.glob("out_*/artifacts"):
        shutil.copytree(artifacts, out / artifacts.relative_to(exported))


def finish(process):
    out, err = process.communicate(timeout=1200)
    assert process.returncode == 0, err
    return out


def test_killed_at_every_stage_and_resumed(start_batch, matrix, tmp_path):
    out, snapshots = tmp_path / "out", []
    matrix.write_text(TWELVE)
    for condition in MOMENTS.values():
        process = start_batch(matrix, out)
        assert wait_until(process, lambda condition=condition: condition(out))
        kill_group(process)
        snapshots.append(take_snapshot(out))
    assert finish(start_batch(matrix, out)).strip() == f"{out}/index.html"
    assert snapshots[1]
    check_finished(out, 12, snapshots)
    before = {path: path.stat().st_mtime_ns for path in out.glob("out_*/**/*") if path.is_file()}
    finish(start_batch(matrix, out))
    after = {path: path.stat().st_mtime_ns for path in out.glob("out_*/**/*") if path.is_file()}
    assert before == after


def test_a_worker_is_killed(start_batch, matrix, exported, tmp_path):
    out = tmp_path / "out"
    begin_with(exported, out)
    process = start_batch(matrix, out)
    snapshot = kill_worker(process, out, seconds=900)
    finish(process)
    check_finished(out, CELLS, [snapshot])


@pytest.fixture
def namespaces():
    """Two network namespaces, each with a link to this one: the names, and its address there."""
    names = {f"batch{number}": f"10.77.{number}" for number in (1, 2)}

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True)

    made = []
    for name, net in names.items():
        steps = [
            ("netns", "add", name),
            ("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name),
            ("address", "add", f"{net}.1/24", "dev", name),
            ("link", "set", name, "up"),
            ("-n", name, "address", "add", f"{net}.2/24", "dev", "eth0"),
            ("-n", name, "link", "set", "eth0", "up"),
            ("-n", name, "link", "set", "lo", "up"),
        ]
        for step in steps if shutil.which("ip") else ():
            if (done := ip(*step)).returncode:
                break
            made.append(name)
        else:
            continue
        for name in set(made):
            ip("netns", "delete", name)
        pytest.skip("no network namespaces here: " + (done.stderr if made else "needs ip, as root"))
    yield {name: f"{net}.1" for name, net in names.items()}
    for name in names:
        ip("netns", "delete", name)


def test_two_workers_in_networks_of_their_own(start_batch, matrix, namespaces, tmp_path):
    """One worker is killed, then the scheduler; started again, the batch resumes."""
    dask, out = Path(sys.executable).with_name("dask"), tmp_path / "out"
    matrix.write_text(TWELVE)

    def start_cluster(port):
        scheduler = start_batch.start(dask, "scheduler", "--port", port, "--no-dashboard")
        workers = [
            start_batch.start(
                *("ip", "netns", "exec", name, dask, "worker", f"tcp://{address}:{port}"),
                *("--nthreads", "1", "--resources", "device:host=1", "--no-dashboard"),
            )
            for name, address in namespaces.items()
        ]
        time.sleep(30)
        return scheduler, workers

    scheduler, (first, _) = start_cluster(28786)
    process = start_batch(matrix, out, "--dask", "tcp://127.0.0.1:28786")
    assert wait_until(process, lambda: len(take_snapshot(out)) > 3)
    kill_group(first)
    runs = len(read_runs(out))
    assert wait_until(process, lambda: len(read_runs(out)) > runs)
    snapshot = take_snapshot(out)
    kill_group(scheduler)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert err.splitlines()[-1].startswith("error: the Dask scheduler is gone -> start it, and run")
    start_cluster(28787)
    finish(start_batch(matrix, out, "--dask", "tcp://127.0.0.1:28787"))
    check_finished(out, 12, [snapshot])


def test_two_batches_on_one_folder_and_one_on_another(start_batch, matrix, exported, tmp_path):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    for folder in (out, elsewhere):
        begin_with(exported, folder)
    first, third = start_batch(matrix, out), start_batch(matrix, elsewhere)
    assert wait_until(first, (out / "portfolio.json").exists)
    second = start_batch(matrix, out)
    _, err = second.communicate(timeout=300)
    assert second.returncode == 2
    assert err.startswith(f"error: {out}: another batch is running here (")
    assert f", PID {first.pid}, since " in err
    assert len(err.splitlines()) == 1
    finish(first)
    finish(third)
    for folder in (out, elsewhere):
        check_nothing_twice(folder, CELLS)
        check_index(folder, CELLS)
    runs = [run for folder in (out, elsewhere) for run in read_runs(folder).values()]
    assert len(runs) == 2 * CELLS
    check_disjoint(span for run in runs for span in measuring_spans(run))


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of a given size; unmounted at the end."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = []

    def mount(options):
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True
        )
        if done.returncode:
            pytest.skip(f"cannot mount a file system here: {done.stderr.decode().strip()}")
        mounted.append(place)
        return place

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("kilobytes", [40, 700, 1500])
def test_a_disk_that_is_full(start_batch, matrix, small_disk, kilobytes):
    place = small_disk(f"size={kilobytes}k")
    process = start_batch(matrix, place / "out")
    _, err = process.communicate(timeout=900)
    assert process.returncode == 1
    assert "No space left on device" in err
    assert "Traceback" not in err
    # When there is room again, the same command goes on with what is there.
    subprocess.run(["mount", "-o", "remount,size=100m", place], check=True)
    finish(start_batch(matrix, place / "out"))
    check_nothing_twice_of_complete(place / "out")
    check_index(place / "out", CELLS)


def check_nothing_twice_of_complete(out):
    runs = [json.loads(p.read_text()) for p in out.glob("out_*/runs/*/manifest.json")]
    complete = [run["plan"]["stem"] for run in runs if run["state"] == "complete"]
    assert sorted(complete) == sorted(set(complete))
    assert len(complete) == CELLS


def test_an_interrupt_says_that_it_goes_on(start_batch, matrix, exported, tmp_path):
    out = tmp_path / "out"
    begin_with(exported, out)
    process = start_batch(matrix, out)
    assert wait_until(process, lambda: measuring_process(process))
    os.killpg(process.pid, 2)
    started = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted; run the same command again to resume"
    assert time.monotonic() - started < 20
    assert not Path(f"/proc/{process.pid}").exists()
