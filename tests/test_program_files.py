"""Programs of others that need more than their file says: weights in a `.ptd`, several methods."""

import shutil
from pathlib import Path

import pytest
import torch
from brief import LATENCIES_ALONE
from torch import nn

SHORT = ["--processes", "3", "--runs", "5", *LATENCIES_ALONE]


@pytest.fixture(scope="module")
def external(tmp_path_factory):
    """A program, its file of weights as ExecuTorch names it, and that of another program."""
    from executorch.exir import ExecutorchBackendConfig, to_edge

    folder = tmp_path_factory.mktemp("external")
    for name, size in (("net", 16), ("other", 8)):
        module, x = nn.Linear(size, 4).eval(), torch.randn(1, size)
        edge = to_edge(torch.export.export(module, (x,)))
        program = edge.to_executorch(ExecutorchBackendConfig(external_constants=True))
        (folder / name).mkdir()
        program.write_tensor_data_to_file(str(folder / name))
        (folder / name / "net.pte").write_bytes(program.buffer)
    return folder


@pytest.mark.whole
@pytest.mark.parametrize(
    "name",
    [
        "_default_external_constant.ptd",
        *(pytest.param(name, marks=pytest.mark.cases) for name in ("net.ptd", "weights.ptd")),
    ],
)
def test_weights_beside_a_program_are_found(cli, external, name):
    shutil.copy(external / "net/net.pte", ".")
    shutil.copy(external / "net/_default_external_constant.ptd", name)
    code, out, err = cli("run", "net.pte", *SHORT)
    assert code == 0 and "net: " in out, err


@pytest.mark.whole
def test_weights_elsewhere_are_named_and_those_of_another_program_refused(cli, external):
    shutil.copy(external / "net/net.pte", ".")
    code, _, err = cli("run", "net.pte", *SHORT)
    assert code == 1 and "weights of the program are in a .ptd file" in err and "--data FILE" in err
    weights = external / "net/_default_external_constant.ptd"
    code, out, err = cli("run", "net.pte", "--data", weights, *SHORT)
    assert code == 0 and "net: " in out, err
    code, _, err = cli("run", "net.pte", "--data", external / "other" / weights.name, *SHORT)
    assert code == 1 and "the .ptd file is not that of the program" in err and "--data" in err
    code, _, err = cli("run", "net.pte", "--data", "none.ptd", *SHORT)
    assert code == 1 and "none.ptd: no such file" in err
    Path("broken.ptd").write_text("no weights")
    code, _, err = cli("run", "net.pte", "--data", "broken.ptd", *SHORT)
    assert code == 1 and "is not a .ptd file of weights" in err and "--data" in err
    code, _, err = cli("profile", "toy_cnn", "--data", "broken.ptd", *SHORT)
    assert code == 2 and "--data: needs exactly one .pte" in err


@pytest.mark.whole
def test_weights_that_change_during_a_run_are_noticed(external, tmp_path):
    import workbench as wb

    pte = Path(shutil.copy(external / "net/net.pte", tmp_path))
    weights = tmp_path / "net.ptd"
    shutil.copy(external / "net/_default_external_constant.ptd", weights)

    def change(text, fraction):
        if "process 2" in text:
            content = weights.read_bytes()
            weights.unlink()  # another file, of another time
            weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    brief = wb.MeasureOptions(runs=1, processes=2, toggle="none", evidence=False, cold_start=False)
    with pytest.raises(wb.WorkbenchError, match=r"net.ptd.*changed since the run was planned"):
        wb.measure(pte, options=brief, root=tmp_path, progress=change)


@pytest.mark.whole
def test_other_weights_are_another_run(cli, external):
    """The plan has the hash of the weights: an equal program with others is measured again."""
    import workbench as wb

    shutil.copy(external / "net/net.pte", ".")
    shutil.copy(external / "net/_default_external_constant.ptd", "net.ptd")
    options = wb.MeasureOptions(
        "none", runs=5, processes=3, evidence=False, cold_start=False, roof=False
    )
    runs = [wb.measure("net.pte", options=options, again=False) for _ in range(2)]
    weights = bytearray(Path("net.ptd").read_bytes())
    weights[-1] ^= 1
    Path("net.ptd").write_bytes(weights)
    runs.append(wb.measure("net.pte", options=options, again=False))
    paths = [run.path for run in runs]
    assert paths[0] == paths[1] != paths[2]


@pytest.mark.whole
def test_of_several_methods_the_measured_one_is_named(cli):
    from executorch.exir import to_edge

    x = (torch.randn(2, 3),)
    methods = {"forward": nn.ReLU(), "double": nn.Sigmoid()}
    exported = {name: torch.export.export(module, x) for name, module in methods.items()}
    program = to_edge(exported, constant_methods={"get_size": 3}).to_executorch()
    Path("multi.pte").write_bytes(program.buffer)
    code, out, err = cli("run", "multi.pte", *SHORT)
    words = "multi: method forward is measured; it also has double: --phase double=double measures"
    assert code == 0 and words in out, err
    code, out, err = cli("run", "multi.pte", "--phase", "double=double", *SHORT)
    assert code == 0 and "multi: method double is measured; it also has forward: " in out, err
    phases = ["--phase", "forward=forward", "--phase", "double=double"]
    code, out, err = cli("run", "multi.pte", *phases, *SHORT)
    assert code == 0 and "it also has" not in out, err
