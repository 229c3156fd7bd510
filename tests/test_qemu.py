"""The aarch64 runner under emulation: which code runs with SME2, and which without."""

import shutil
from pathlib import Path

import pytest
from isa_table import load_table
from planned import make_plan, run_plan

import workbench as wb
from workbench import store
from workbench.errors import SetupError, UsageError
from workbench.options import MeasureOptions
from workbench.run.isa import read_isa
from workbench.run.runner import find_runner
from workbench.run.targets import open_target
from workbench.run.targets.qemu import Qemu, list_cpus, qemu_version
from workbench.trace.etdump import read_etdump

pytestmark = [pytest.mark.qemu, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def runner():
    try:
        return find_runner(open_target("qemu"))
    except SetupError as error:
        pytest.skip(str(error))


def test_the_emulated_cpu_has_sme2_where_cpuinfo_and_the_kernel_say(runner):
    isa = read_isa(runner.command)
    assert isa.self_check == "ok"
    assert {"sme2", "sme2p1", "sme", "i8mm", "dot", "fp16arith"} <= set(isa.features)
    assert isa.arch == load_table("aarch64").arch


def test_a_named_cpu_has_its_real_features(runner):
    named = find_runner(open_target("qemu:cortex-a76"))
    isa = read_isa(named.command)
    assert isa.self_check == "ok"
    assert {"dot", "fp16arith"} <= set(isa.features)
    assert not {"sme2", "sme", "i8mm", "sve"} & set(isa.features)


def test_an_unknown_cpu_is_refused(runner):
    with pytest.raises(UsageError, match="did you mean 'cortex-a76'"):
        Qemu("cortex-a67")
    assert "max" in list_cpus(runner.target.emulator)
    assert qemu_version(runner.target.emulator) >= (10, 1)


def test_sme2_kernels_run_with_the_toggle_on_and_none_with_it_off(runner, conv_pte, tmp_path):
    pte = Path(shutil.copy(conv_pte, tmp_path / "conv.pte"))
    plan = make_plan(pte, MeasureOptions(toggle="sme2"), runner)
    run_dir = run_plan(plan, runner, tmp_path / "out")
    run = store.load_run(run_dir)
    assert run.platform == "qemu-aarch64" and "-qemu-aarch64-" in run_dir.name
    assert run.emulated
    assert run.plan.target == "qemu"
    assert "max" in run.host["cpu"]
    assert all(agreement.agree for agreement in run.agreements)
    names = {
        s.experiment: set(read_etdump(run_dir / s.etdump)["name"]) for s in run.sessions if s.traced
    }
    assert any("(NHWC, PF32) IGEMM" in name for name in names["sme2_on"])
    assert any("(NHWC, F32) IGEMM" in name for name in names["sme2_off"])
    assert not any("PF32" in name for name in names["sme2_off"])


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8"])
def test_samples_prove_that_sme2_ran(runner, tmp_path, dtype):
    from workbench.export.artifact import export_model
    from workbench.options import ExportOptions

    pte = export_model(
        "toy_cnn", ExportOptions(dtype=dtype, sizes=(("size", 96),)), root=tmp_path
    ).path
    options = MeasureOptions(
        target="qemu", toggle="sme2", runs=2, processes=2, warmup=1, timeout_s=600,
        cold_start=False,
    )  # fmt: skip
    analysis = wb.measure(pte, options, root=tmp_path)
    proof = analysis.comparisons[0].proof
    assert proof.outcome == "changed"
    assert proof.after["sme2"] > 0.5
    assert not proof.before.keys() & {"sme", "sme2"}
    ran = {
        name: set(analysis[name, 1].machine_code["function"]) for name in ("sme2_on", "sme2_off")
    }
    assert any("sme2_mopa" in function for function in ran["sme2_on"])
    assert not any("_sme" in function for function in ran["sme2_off"])


#: Functions of matrix products by dtype: of the prefill, then of the decode; with SME2 off, and on.
_LLM_KERNELS = {
    "fp32": (("", "sme2_mopa"), ("", "1x16vl_sme2_mla")),
    "8da4w": (("qsi4c32p4x8_16x4x32", "neon_i8mm"), ("qsi4c32p4x8_1x4x32", "neon_dotprod")),
}


@pytest.mark.parametrize("dtype", _LLM_KERNELS)
def test_sme2_runs_in_both_phases_of_a_language_model_but_not_its_int4_products(tmp_path, dtype):
    """Without custom SDPA: the library of operators for aarch64 needs its PyTorch."""
    params = Path(__file__).parent / "data" / "llm" / "llama_tiny.json"
    pte = wb.export_model(
        f"llm:{params},sdpa=0,context=32", wb.ExportOptions(dtype), root=tmp_path
    ).path
    options = MeasureOptions(
        target="qemu", toggle="sme2", phases=("prefill=16", "decode=1@20"), runs=2, processes=1,
        warmup=1, timeout_s=600, cold_start=False,
    )  # fmt: skip
    run = wb.measure(pte, options, root=tmp_path)
    assert all(agreement.agree for agreement in run.record.agreements)
    for phase, kernels in zip(("prefill", "decode"), _LLM_KERNELS[dtype], strict=True):
        for state in ("off", "on"):
            measured = run[phase, f"sme2_{state}"]
            operators, code = measured.operators, measured.machine_code.set_index("key")["function"]
            linear = operators[operators["operator"].str.startswith("Fully Connected")]
            attention = operators[operators["operator"].str.startswith("Batch Matrix")]
            products = "QB4W" if dtype == "8da4w" else "PF32" if state == "on" else " F32"
            assert linear["operator"].str.contains(products).all()
            assert attention["operator"].str.contains("PF32" if state == "on" else " F32").all()
            functions = set(code[code.index.isin(linear["key"])])
            if dtype == "8da4w" or state == "on":
                named = {name for name in functions if all(part in name for part in kernels)}
                assert named, functions
            sme = {name for name in functions if "_sme" in name}
            assert bool(sme) is (state == "on" and dtype == "fp32"), sme
