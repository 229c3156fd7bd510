"""A user's model in a user's file: the report says which of the user's lines are the hottest."""

import re

import pytest

SOURCE = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 48, 3, padding=1)
        self.wide = nn.Conv2d(48, 48, 5, padding=2)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        return torch.relu(self.wide(x))


def get_example_inputs():
    return (torch.randn(1, 3, 48, 48),)
"""


@pytest.mark.cases
def test_the_hottest_operator_names_its_line(tmp_path, cli):
    (tmp_path / "my.py").write_text(SOURCE)
    code, _, err = cli("profile", "my.py:Net", "--runs", "5")
    assert code == 0, err
    (report,) = tmp_path.glob("out_Net/runs/*/report.md")
    lines = report.read_text().splitlines()
    rows = [line for line in lines if line.startswith("|") and re.search(r"my\.py:\d+", line)]
    assert "Convolution" in rows[0]
    assert re.match(r"\| wide · Convolution \S.*\| Conv2d \| my.py:13 \|", rows[0])
