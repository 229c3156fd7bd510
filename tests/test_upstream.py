"""Private parts of other packages: each has its effect, and without it a profile says so."""

import subprocess
import types
from importlib import metadata
from pathlib import Path

import pytest
import torch
from needed import needs
from torch import nn

import workbench as wb
from workbench import upstream
from workbench.process import replaced, silence

BRIEF = wb.MeasureOptions(
    toggle="none", runs=2, processes=2, evidence=False, cold_start=False, roof=False
)


@pytest.fixture
def answers(monkeypatch, tmp_path):
    """Versions that count as not tested; probes of this test are not kept for others."""
    monkeypatch.setattr(upstream, "TESTED_WITH", {"torch": "0."})
    monkeypatch.setattr(upstream, "_answer_path", lambda: tmp_path / "answers.json")


@pytest.mark.parametrize("name", upstream.PROBES)
@pytest.mark.upstream
@pytest.mark.cases
def test_each_private_part_has_its_effect(name):
    with silence():
        assert upstream._run_probe(upstream.PROBES[name]) == ""


def list_functions(module):
    """The functions of a module, and the methods of its classes."""
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else [value]
        for member in members:
            if isinstance(member, types.FunctionType) and member.__module__ == module.__name__:
                yield member


def rename_in_code(code, old, new):
    """The code with another name, also in the functions inside."""
    names = tuple(new if name == old else name for name in code.co_names)
    inner = tuple(
        rename_in_code(const, old, new) if isinstance(const, types.CodeType) else const
        for const in code.co_consts
    )
    return code.replace(co_names=names, co_consts=inner)


@pytest.fixture
def rename(monkeypatch):
    """Rename a global of a module, and wherever its own functions read it, as a release could."""

    def rename_global(module, old):
        new = f"{old}_renamed"
        for function in list(list_functions(module)):
            monkeypatch.setattr(function, "__code__", rename_in_code(function.__code__, old, new))
        monkeypatch.setattr(module, new, getattr(module, old), raising=False)
        monkeypatch.delattr(module, old)

    return rename_global


def _halve(x):
    return x / 2


class Net(nn.Module):
    """A convolution, a helper, and a mean that is not delegated."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)

    def forward(self, x):
        return _halve(self.conv(x)).mean((2, 3))


def rename_visitors(rename):
    from executorch.backends.xnnpack.operators import node_visitor

    rename(node_visitor, "_node_visitor_dict")


def rename_reasons(rename):
    from executorch.exir.backend import utils

    rename(utils, "WhyNoPartition")


def rename_anchors(rename):
    rename(torch.fx.proxy, "_STACK_TRACE_ANCHORS")


#: The profiler's symbol of C++ is renamed in `test_upstream_native`.
RENAMED = {
    "fp16w: fp16 weights of convolutions": rename_visitors,
    "reasons why operators are not delegated": rename_reasons,
    "lines of functions that forward() calls": rename_anchors,
}


@pytest.mark.parametrize("name", RENAMED)
@pytest.mark.upstream
@pytest.mark.cases
def test_a_profile_goes_on_without_what_was_renamed_and_says_so(name, rename, answers, tmp_path):
    x = torch.randn(1, 3, 8, 8)
    whole = wb.export_model(Net(), x, wb.ExportOptions(dtype="fp16w"), root=tmp_path / "whole")
    assert whole.export.missing == {}
    (tmp_path / "answers.json").unlink()
    RENAMED[name](rename)
    run = wb.profile(Net(), x, dtype="fp16w", measure=BRIEF, root=tmp_path / "less")
    assert run.subject.latency_ms > 0 and len(run.subject.operators)
    assert list(run.subject.export.missing) == [name]
    assert any(name in text for text in run.subject.caveats), run.subject.caveats
    (row,) = (r for r in run.subject.export.partition if not r.delegated and "mean" in r.operator)
    mean = "mean.dim only supports keepdim=True"
    assert (row.reason == mean) == (name != "reasons why operators are not delegated")
    same = run.subject.export.size_bytes == whole.size_bytes
    assert same == (not name.startswith("fp16w"))


def test_what_a_library_lacks_is_not_added():
    name = "_STACK_TRACE_ANCHORZ"
    with pytest.raises(AttributeError, match=name), replaced(torch.fx.proxy, name, 1):
        pass
    assert not hasattr(torch.fx.proxy, name)


def test_another_version_is_a_note_of_one_line():
    assert upstream.describe_version("1.5.1") == upstream.describe_version("1.5.0+cpu") == ""
    note = upstream.describe_version("1.9.2")
    assert note == "executorch 1.9.2 is not among the tested versions, 1.5.0, 1.5.1"


@needs("remedies")
def test_a_workaround_is_tried_again_with_the_version_that_it_names():
    from workbench.remedies import REMEDIES

    newest = max(tuple(map(int, version.split("."))) for version in upstream.TESTED)
    ends = {name: remedy.until for name, remedy in REMEDIES.items() if remedy.until}
    ended = [name for name, end in ends.items() if newest >= tuple(map(int, end.split(".")))]
    assert not ended, f"try ExecuTorch without the rewrites {ended}"
    assert {"softmax", "layer_norm", "batch", "readers", "copies"} <= ends.keys()


def test_answers_are_kept_for_the_versions_that_gave_them(answers, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(upstream, "PROBES", {"a part": lambda: asked.append(1) or "it is gone"})
    assert upstream.find_missing() == upstream.find_missing() == {"a part": "it is gone"}
    assert asked == [1]
    Path(tmp_path / "answers.json").write_text("[")
    assert upstream.find_missing() == {"a part": "it is gone"}


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(28, "No space left on device"),
        TimeoutError("took too long"),
        subprocess.CalledProcessError(-9, "flatc"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_one_busy_minute_lacked_is_asked_again(answers, monkeypatch, error):
    asked = []

    def fail_once():
        if not asked:
            asked.append(1)
            raise error
        return ""

    monkeypatch.setattr(upstream, "PROBES", {"a part": fail_once})
    assert type(error).__name__ in upstream.find_missing()["a part"]
    assert upstream.find_missing() == {}


@pytest.mark.parametrize("package", upstream.PACKAGES)
def test_another_version_of_any_package_that_is_reached_into_is_probed(
    tmp_path, monkeypatch, package
):
    monkeypatch.setattr(upstream, "_answer_path", lambda: tmp_path / "answers.json")
    monkeypatch.setattr(upstream, "PROBES", {"a part": lambda: "it is gone"})
    assert upstream.find_missing() == {}, "what is installed here is tested"
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda n: "0.0.1" if n == package else version(n))
    assert upstream.find_missing() == {"a part": "it is gone"}


def test_a_tested_version_is_probed_only_if_asked(answers, monkeypatch):
    monkeypatch.setattr(upstream, "_is_tested", lambda: True)
    monkeypatch.setattr(upstream, "PROBES", {"a part": lambda: "it is gone"})
    assert upstream.find_missing() == {}
    assert upstream.find_missing(probed=True) == {"a part": "it is gone"}
