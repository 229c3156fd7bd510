"""Which code an emulated CPU with SME2 runs of a language model."""

from pathlib import Path

import pytest
from needed import needs

import workbench as wb

pytestmark = [pytest.mark.qemu, pytest.mark.timeout(1200), needs("targets")]


@pytest.fixture(autouse=True)
def runner():
    try:
        return wb.find_runner("qemu")
    except wb.WorkbenchError as error:  # QEMU or a part of the bundle cannot be downloaded
        pytest.skip(str(error))


#: Functions of matrix products by dtype: of the prefill, then of the decode; with SME2 off, and on.
_LLM_KERNELS = {
    "fp32": (("", "sme2_mopa"), ("", "1x16vl_sme2_mla")),
    "8da4w": (("qsi4c32p4x8_16x4x32", "neon_i8mm"), ("qsi4c32p4x8_1x4x32", "neon_dotprod")),
}


@pytest.mark.cases
@pytest.mark.parametrize("dtype", ["fp32", "8da4w"])
def test_sme2_runs_in_both_phases_of_a_language_model_but_not_its_int4_products(tmp_path, dtype):
    """Without custom SDPA: the library of operators for aarch64 needs its PyTorch."""
    params = Path(__file__).parents[2] / "data" / "llm" / "llama_tiny.json"
    pte = wb.export_model(
        f"llm:{params},sdpa=0,context=32", options=wb.ExportOptions(dtype), root=tmp_path
    ).path
    options = wb.MeasureOptions(
        target="qemu", toggle="sme2", phases=("prefill=16", "decode=1@20"), runs=2, processes=1,
        warmup=1, timeout_s=600, cold_start=False,
    )  # fmt: skip
    run = wb.measure(pte, options=options, root=tmp_path)
    assert all(agreement.agree for agreement in run.record.agreements)
    for phase, kernels in zip(("prefill", "decode"), _LLM_KERNELS[dtype], strict=True):
        for state in ("off", "on"):
            measured = run[phase, f"sme2_{state}"]
            operators, code = measured.operators, measured.machine_code.set_index("key")["function"]
            linear = operators[operators["operator"].str.startswith("Fully Connected")]
            attention = operators[operators["operator"].str.startswith("Batch Matrix")]
            assert linear["module"].str.contains(r"w[qkvo123]$|output$").all()
            products = "QB4W" if dtype == "8da4w" else "PF32" if state == "on" else " F32"
            assert linear["operator"].str.contains(products).all()
            assert attention["operator"].str.contains("PF32" if state == "on" else " F32").all()
            functions = set(code[code.index.isin(linear["key"])])
            if dtype == "8da4w" or state == "on":
                named = {name for name in functions if all(part in name for part in kernels)}
                assert named, functions
            sme = {name for name in functions if "_sme" in name}
            assert bool(sme) is (state == "on" and dtype == "fp32"), sme
