"""The seam between the driver and where a runner runs."""

import pytest

from workbench.errors import UsageError
from workbench.run.targets import open_target
from workbench.run.targets.host import HOST, run_there


def test_the_host_is_the_identity(tmp_path):
    with open_target("host") as target:
        assert target is HOST
        assert not target.emulated
        assert target.command(["a b", "c"]) == ["a b", "c"]
        assert target.push(tmp_path / "x y") == f"{tmp_path}/x y"
        assert target.place(tmp_path / "x y") == f"{tmp_path}/x y"
        assert target.describe()["cpu"]
        assert run_there(target, ["echo", "a  b"]).stdout == b"a  b\n"


def test_an_unknown_target_is_refused_with_those_that_there_are():
    with pytest.raises(UsageError, match=r"unknown target 'hots'.*did you mean 'host'"):
        open_target("hots")
