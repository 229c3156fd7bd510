"""What a command says of outputs that are wrong, no numbers, or missing, and how it ends."""

import json
from pathlib import Path

import pytest
from brief import LATENCIES_ALONE
from exporting import slow

NETS = """\
import torch
from torch import nn


class Net(nn.Module):
    def get_example_inputs(self):
        return (torch.ones(2, 6),)


class Ratio(Net):
    def forward(self, x):
        zero = x - x
        return torch.relu(x), zero / zero + 1


class Logarithm(Net):
    def forward(self, x):
        return torch.log(x - x)


class Empty(Net):
    def forward(self, x):
        return torch.relu(x)[:0]


class Large(Net):
    def forward(self, x):
        return torch.exp(x * 20)


class Shares(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.before, self.after = nn.Conv2d(3, 8, 3), nn.Linear(6, 4)

    def forward(self, x):
        return self.after(self.before(x.exp()).softmax(-1)).relu()

    def get_example_inputs(self):
        return (torch.randn(1, 3, 8, 8),)


class Nothing(Net):
    def forward(self, x):
        x + 1


class Text(Net):
    def forward(self, x):
        return x + 1, "text"


class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(48, 48)

    def forward(self, x):
        return nn.functional.silu(self.fc(x))

    def get_example_inputs(self):
        return (torch.randn(2, 13, 48),)

    def get_dynamic_shapes(self):
        return {"x": {1: torch.export.Dim("tokens", min=2, max=64)}}
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """A user's file, in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Ratio", "output 1: 12 of 12 values are NaN, as in PyTorch; first in div (nets.py:13)"),
        slow("Logarithm", "12 of 12 values are infinite, as in PyTorch; first in log (nets.py:18)"),
        ("Empty", "output 0: empty: one of its sizes is 0"),
    ],
)
def test_outputs_of_the_model_that_are_no_numbers_are_named(cli, nets, name, words):
    code, out, err = cli("export", f"nets.py:{name}")
    assert (code, out) == (0, f"out_{name}/artifacts/{name}_xnnpack_fp32.pte\n")
    assert words in err and "not comparable" not in err


@pytest.mark.whole
def test_an_export_that_overflows_fails_with_the_operator(cli, nets):
    code, out, err = cli("export", "nets.py:Large", "--dtype", "fp16")
    assert code == 1 and "next:" not in err
    assert "12 of 12 values are infinite, in PyTorch none; first in exp (nets.py:28)" in err
    *_, last = err.splitlines()
    assert last.startswith("error: Large_xnnpack_fp16.pte is wrong: output 0: 12 of 12 values are ")
    assert last.endswith("-> write exp in another way, or choose another --dtype")
    assert Path(out.strip()).is_file(), "it is kept"


@pytest.mark.whole
def test_a_wrong_export_fails_with_the_rewrite_that_avoids_it(cli, nets):
    """ExecuTorch 1.5.1's delegate normalises the channels of an image, not its last dimension."""
    code, out, err = cli("export", "nets.py:Shares", "--json")
    record = json.loads(out)
    (failure,) = record["failures"]
    assert code == 1 and "-> --rewrite softmax may avoid it" in failure
    export = record["export"]
    assert (export["cause"]["operator"], export["cause"]["source"]) == ("softmax", "nets.py:38")
    assert export["cure"] == {"rewrites": ["softmax"]}
    code, _, err = cli("export", "nets.py:Shares")
    assert code == 1 and "may avoid it" in err, "an export that is up to date fails, too"
    code, _, err = cli("export", "nets.py:Shares", "--rewrite", "softmax")
    assert code == 0 and "next: workbench run" in err


@pytest.mark.whole
def test_a_profile_of_a_wrong_export_says_so_and_fails(cli, nets):
    short = ["--processes", "3", *LATENCIES_ALONE]
    code, out, err = cli("profile", "nets.py:Shares", *short)
    assert code == 1 and "report: " in out and "next:" not in err
    *_, last = err.splitlines()
    assert last.startswith("error: Shares_xnnpack_fp32.pte is wrong: output 0 is not the model's")


@pytest.mark.whole
@pytest.mark.parametrize("name", ["Nothing", slow("Text")])
def test_a_model_without_tensors_as_results_has_a_next_step(cli, nets, name):
    code, _, err = cli("export", f"nets.py:{name}")
    *_, last = err.splitlines()
    assert code == 1 and last.startswith("error: nets.py:") and ": forward() returns " in last
    assert last.endswith("-> return tensors, in tuples, lists or dicts")


@pytest.mark.whole
def test_no_rewrite_is_offered_where_nothing_is_quantised(cli, nets):
    code, _, err = cli("export", "nets.py:Narrow", "--dtype", "8da4w")
    *_, last = err.splitlines()
    assert code == 1 and "nothing to quantise for 8da4w" in last
    assert "-> choose int8" in last and "--rewrite" not in last and "tried" not in err


@pytest.mark.whole
def test_delegates_that_wait_for_each_other_have_a_next_step(cli, nets, monkeypatch):
    import executorch.exir

    def refuse(*arguments, **options):
        raise AssertionError("Invalid partition, found dependency cycles")

    monkeypatch.setattr(executorch.exir, "to_edge_transform_and_lower", refuse)
    code, _, err = cli("export", "nets.py:Large")
    *_, last = err.splitlines()
    assert code == 1 and "delegates" in last and "-> " in last and "--module-dtype" in last
