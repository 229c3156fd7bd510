"""Language models as ExecuTorch exports them: operators from packages, and phases.

``data/llm`` has the program that upstream's exporter makes of ``llama_tiny.json``: random weights,
int4, a KV cache of 32 positions, attention by ``llama::custom_sdpa``.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from brief import LATENCIES_ALONE
from explored import read_data
from needed import needs
from planned import make_plan
from recorded import report_text

import workbench as wb
from workbench.errors import RunnerError, StoreError, UsageError
from workbench.export.sidecar import outline_pte, resize
from workbench.records.exports import Tensor
from workbench.records.layer_sidecar import Instruction, Layers, Method, XNode, XValue
from workbench.run import runner as runners
from workbench.run.build import find_operator_libraries
from workbench.run.tensor_files import locate_inputs, random_bytes, read_output

TINY = Path(__file__).parent / "data" / "llm" / "llama_tiny_8da4w.pte"
#: Opened once: its layers are read once.
PROGRAM = wb.open_program(TINY)
BRIEF = wb.MeasureOptions(runs=4, warmup=1, processes=2, evidence=False, roof=False)
PHASES = ("prefill=16", "decode=1@20")


@pytest.fixture(scope="module")
def runner():
    return wb.find_runner()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    options, root = replace(BRIEF, phases=PHASES), tmp_path_factory.mktemp("llm")
    return wb.measure(TINY, options=options, root=root, artifacts=False)


# Operators


def test_operators_of_the_wheel_are_loaded_for_programs_that_need_them(runner):
    with runner.open(["--model_path", str(TINY)], timeout_s=60) as session:
        assert [tuple(tensor.shape) for tensor in session.ready.inputs] == [(1, 31), (1,)]
        maps = Path(f"/proc/{session._process.pid}/maps").read_text()
    assert "libcustom_ops_aot_lib.so" in maps
    assert "libpython" not in maps


@pytest.mark.whole
def test_libraries_of_operators_are_loaded_once_before_the_method(run):
    stages = run.subject.starts[0].stages
    assert "operators" not in [stage.name for stage in stages]


def test_other_programs_load_none(runner, conv_pte):
    with runner.open(["--model_path", str(conv_pte)], timeout_s=60) as session:
        assert "libtorch" not in Path(f"/proc/{session._process.pid}/maps").read_text()


def test_a_missing_operator_is_named_with_the_option_that_brings_it(runner):
    with pytest.raises(RunnerError, match=r"llama::custom_sdpa.*ops=FILE"):
        replace(runner, operators=()).open(["--model_path", str(TINY)], timeout_s=60)


def test_the_users_libraries_bring_operators_and_are_recorded(monkeypatch):
    libraries = list(map(str, find_operator_libraries()))
    monkeypatch.setattr(runners, "find_operator_libraries", list)
    runner = wb.find_runner(operators=libraries)
    assert "libcustom_ops_aot_lib.so" in runner.description["operators"]
    with runner.open(["--model_path", str(TINY)], timeout_s=60) as session:
        assert session.ready.inputs


def test_a_library_that_cannot_be_loaded_is_one_clear_error(tmp_path):
    with pytest.raises(StoreError, match="no such library"):
        wb.find_runner(operators=[str(tmp_path / "absent.so")])
    (tmp_path / "text.so").write_text("no library")
    broken = wb.find_runner(operators=[str(tmp_path / "text.so")])
    with pytest.raises(RunnerError, match=r"text\.so"):
        broken.open(["--model_path", str(TINY)], timeout_s=60)


# Phases


def test_a_step_is_computed_on_the_state_that_earlier_ones_left(runner, tmp_path):
    """Seven tokens at once, or five and then two at their position: the last one's logits."""
    ids = np.arange(3, 10, dtype=np.int64)

    def flags(tokens, position):
        parts = []
        for name, values in (("ids", tokens), ("at", np.array([position]))):
            path = tmp_path / f"{name}{len(tokens)}-{position}"
            path.write_bytes(values.astype(np.int64).tobytes())
            parts += ["--inputs", str(path)]
        return [*parts, "--input_shape", f"1x{len(tokens)}", "--input_shape", "1"]

    def last_logits(*parts):
        command = ["--model_path", str(TINY), *parts]
        with runner.open(command, timeout_s=60) as session:
            session.run(2)  # again at the same position: the state is the same
            (output,) = session.output(tmp_path / "out")
        return read_output(Path(output.file), output.dtype)[-64:]

    whole = last_logits(*flags(ids, 0))
    split = last_logits(*flags(ids[:5], 0), "--then", *flags(ids[5:], 5))
    empty = last_logits(*flags(ids[5:], 5))
    assert np.isfinite(whole).all()
    assert np.allclose(split, whole, atol=0.02 * np.abs(whole).max())
    assert not np.allclose(empty, whole, atol=0.02 * np.abs(whole).max())


@needs("memory")
@pytest.mark.whole
def test_memory_of_libraries_of_operators_is_accounted_for(run):
    memory = run.subject.memory.set_index("part")
    assert abs(memory.at["not accounted for", "share"]) < 0.02


@pytest.mark.whole
def test_every_phase_has_its_experiments_control_and_pair(run):
    assert [m.name for m in run.measurements if m.phase.name == "decode"] == [
        f"decode_{name}" for name in ("avx512_off", "avx512_on", "control")
    ]
    assert run["decode", "avx512_on"] is run["decode_avx512_on"]
    labels = [(ab.baseline.name, ab.candidate.name) for ab in run.comparisons]
    assert labels == [(f"{p}_avx512_off", f"{p}_avx512_on") for p in ("prefill", "decode")]
    assert [ab.label for ab in run.comparisons] == [
        "with avx512 in prefill",
        "with avx512 in decode",
    ]


@pytest.mark.whole
def test_phases_of_one_program_share_its_operators(run):
    prefill, decode = (run[phase, "avx512_on"].operators for phase in ("prefill", "decode"))
    assert set(prefill["key"]) == set(decode["key"])
    assert prefill["mean_ms"].sum() > decode["mean_ms"].sum()


@pytest.mark.whole
def test_outputs_are_compared_within_a_phase_only(run):
    pairs = {(a.baseline.split("_")[0], a.candidate.split("_")[0]) for a in run.record.agreements}
    assert pairs == {("prefill", "prefill"), ("decode", "decode")}
    assert all(a.agree for a in run.record.agreements)


def test_the_cache_is_filled_in_as_few_executions_as_the_program_allows(runner, tmp_path):
    options = replace(BRIEF, phases=("late=2@70",), toggle="none")
    plan = make_plan(PROGRAM, options, runner)
    (phase,) = plan.phases
    assert (phase.tokens, phase.position) == (2, 70)
    assert [(tokens.shape, at.first) for tokens, at in phase.before] == [
        ((1, 31), 0),
        ((1, 31), 31),
        ((1, 8), 62),
    ]
    files = locate_inputs(plan, tmp_path)["late_baseline"]
    assert np.fromfile(files[-1][1], np.int64).tolist() == [70]
    tokens = np.fromfile(files[0][0], np.int64)
    assert tokens.size == 31
    assert 8 < tokens.max() < 64


def test_arrays_are_phases_too_executed_after_earlier_ones(runner, tmp_path):
    names = []
    for step, (count, at) in enumerate([(5, 0), (1, 5)]):
        for name, values in (("ids", np.ones((1, count), np.int64)), ("at", np.array([at]))):
            np.save(tmp_path / f"{name}{step}.npy", values)
        names.append(f"s{step}={tmp_path}/ids{step}.npy,{tmp_path}/at{step}.npy")
    plan = make_plan(PROGRAM, replace(BRIEF, phases=tuple(names), toggle="none"), runner)
    assert plan.phases[1].before == (plan.phases[0].inputs,)
    files = locate_inputs(plan, tmp_path / "run")["s1_baseline"]
    assert [len(paths) for paths in files] == [2, 2]
    assert Path(files[1][1]).read_bytes() == np.int64(5).tobytes()


@pytest.mark.cases
def test_arrays_are_measured_as_phases_from_the_files_to_the_report(cli, tmp_path):
    for name, count, at in (("prompt", 5, 0), ("next", 1, 5)):
        np.save(tmp_path / f"{name}.npy", np.arange(count, dtype=np.int64)[None])
        np.save(tmp_path / f"{name}_at.npy", np.array([at]))
    phases = [
        f"--phase={name}={tmp_path}/{name}.npy,{tmp_path}/{name}_at.npy"
        for name in ("prompt", "next")
    ]
    brief = ["--runs=4", "--processes=2", "--toggle=none", *LATENCIES_ALONE]
    code, _, err = cli("run", str(TINY), *phases, *brief, "--out", str(tmp_path))
    assert code == 0, err
    run = wb.open_run(next((tmp_path / "runs").iterdir()))
    assert [phase.name for phase in run.record.plan.phases] == ["prompt", "next"]
    assert run["prompt", "baseline"].latency_ms > run["next", "baseline"].latency_ms
    assert run.phases["tokens"].isna().all(), "arrays need not be tokens"
    assert all(agreement.agree for agreement in run.record.agreements)
    assert "next_baseline" in report_text(run)


def test_tokens_are_refused_by_programs_that_take_none(runner, conv_pte):
    with pytest.raises(UsageError, match="does not take tokens"):
        make_plan(Path(conv_pte), replace(BRIEF, phases=("a=4",)), runner)


@pytest.mark.whole
def test_the_table_of_phases_has_their_latency_and_tokens_per_second(run):
    table = run.phases.set_index("experiment")
    assert list(table.index) == [m.name for m in run.measurements if not m.control]
    decode = table.loc["decode_avx512_on"]
    assert decode["latency_ms"] == run["decode", "avx512_on"].latency_ms
    assert decode["rate"] == pytest.approx(1e3 / decode["latency_ms"])
    assert decode["rate_low"] == pytest.approx(1e3 / decode["latency_high_ms"])
    assert (table.loc["prefill_avx512_on", "rate"] / decode["rate"]) > 1
    assert "token/s" in str(wb.show(run, "latencies"))


@pytest.mark.whole
def test_findings_name_their_phase(run):
    titles = run.findings["cause"]
    assert {title.split(":")[0] for title in titles} == {"prefill", "decode"}
    assert run.findings["rank"].tolist() == list(range(1, len(titles) + 1))
    findings = [each for each in run.opportunities if each.gain.of == "latency"]
    unknown = [
        each.gain.basis == "unknown" or each.is_hopeless or bool(np.isnan(each.share))
        for each in findings
    ]
    assert unknown == sorted(unknown), "what nobody can act on comes last"
    shares = pd.Series([each.share for each in findings])
    for _, group in shares.dropna().groupby(np.array(unknown)[shares.notna()]):
        assert group.is_monotonic_decreasing


# Sweeps


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    options = replace(BRIEF, sweep="tokens=1,8,31", toggle="none")
    return wb.measure(TINY, options=options, root=tmp_path_factory.mktemp("sweep"))


@pytest.mark.cases
def test_a_sweep_measures_one_program_at_every_size(swept):
    assert swept.phases["size"].tolist() == [1, 1, 8, 8, 31, 31]
    assert swept["tokens_8", "baseline"].phase.tokens == 8
    latency = [swept[f"tokens_{n}", "baseline"].latency_ms for n in (1, 8, 31)]
    assert latency == sorted(latency)
    assert swept.comparisons[0].label.endswith("at tokens=1")
    assert all(a.agree for a in swept.record.agreements)
    flops = [swept[f"tokens_{n}", "baseline"].operators["flops"].sum() for n in (1, 8, 31)]
    assert flops[0] < flops[1] < flops[2]


@pytest.mark.cases
def test_findings_of_a_sweep_are_of_its_ends(swept):
    assert {title.split(":")[0] for title in swept.findings["cause"]} <= {"tokens_1", "tokens_31"}


def test_programs_can_be_the_sizes_of_a_sweep(runner):
    plan = make_plan(PROGRAM, replace(BRIEF, against=(str(TINY),), sweep="size=8,16"), runner)
    assert [(phase.name, phase.size) for phase in plan.phases] == [("size_8", 8), ("size_16", 16)]
    programs = {e.phase: plan.program_of(e).name for e in plan.experiments}
    assert programs == {"size_8": "", "size_16": f"{TINY.stem}-2"}
    assert {pair.baseline.split("_")[1] for pair in plan.pairs} == {"8", "16"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        pytest.param({"phases": ("decode",)}, "is not NAME=INPUTS", marks=pytest.mark.whole),
        pytest.param({"phases": ("../x=1",)}, "is not NAME=INPUTS", marks=pytest.mark.whole),
        ({"phases": ("a=0",)}, "takes 1 to 31 tokens"),
        pytest.param({"phases": ("a=32",)}, "takes 1 to 31 tokens", marks=pytest.mark.whole),
        ({"phases": ("a=absent.npy",)}, "No such file"),
        pytest.param({"sweep": "tokens"}, "is not NAME=SIZES", marks=pytest.mark.whole),
        pytest.param({"sweep": "tokens=8"}, "is not NAME=SIZES", marks=pytest.mark.whole),
        pytest.param({"sweep": "tokens=8,8"}, "is not NAME=SIZES", marks=pytest.mark.whole),
        pytest.param({"sweep": "tokens=8,x"}, "is not NAME=SIZES", marks=pytest.mark.whole),
        pytest.param({"sweep": "tokens=8,32"}, "takes 1 to 31 tokens", marks=pytest.mark.whole),
        ({"sweep": "batch=1,2"}, "unknown dynamic dimension 'batch'"),
        pytest.param(
            {"sweep": "tokens=1,8", "phases": PHASES}, "cannot be combined", marks=pytest.mark.whole
        ),
        pytest.param(
            {"sweep": "tokens=1,2,4", "against": (str(TINY),)},
            "3 sizes for 2 programs",
            marks=pytest.mark.whole,
        ),
    ],
)
def test_a_bad_phase_or_sweep_is_one_clear_error(runner, changes, problem):
    with pytest.raises((UsageError, StoreError), match=problem):
        make_plan(PROGRAM, replace(BRIEF, **changes), runner)


@pytest.mark.cases
def test_a_model_of_fixed_shapes_is_exported_once_for_each_size(tmp_path):
    options = replace(BRIEF, sweep="batch=1,2", toggle="none")
    run = wb.profile("toy_cnn", measure=options, root=tmp_path)
    assert [phase.inputs[0].shape[0] for phase in run.record.plan.phases] == [1, 2]
    assert run["batch_2", "baseline"].latency_ms > run["batch_1", "baseline"].latency_ms
    assert run["batch_2", "baseline"].layers is not None


# Costs at the sizes that were measured


def test_costs_are_those_of_the_measured_sizes():
    known = outline_pte(TINY.read_bytes())
    assert resize(known, [((1, 31), (1, 31))]) == known
    single = resize(known, [((1, 31), (1, 1))])
    both = (layers.methods[0].instructions for layers in (known, single))
    for before, after in zip(*both, strict=True):
        for node, small in zip(before.xnodes, after.xnodes, strict=True):
            if node.type == "FullyConnected" and node.flops != small.flops:
                assert node.flops == 31 * small.flops
                weights = next(v for v in before.xvalues if v.id == node.inputs[1])
                assert node.bytes > small.bytes > weights.size_bytes


def test_sizes_that_follow_from_the_inputs_are_not_guessed():
    value = XValue(0, "fp32", (1, 8, 8, 4), 1024, "input")
    pooled = XValue(1, "fp32", (1, 4, 4, 4), 256, "output")
    window = {"pooling_height": 2, "pooling_width": 2}
    node = XNode("MaxPooling2d", (0,), (1,), window, 0, 0, 1)
    call = Instruction("delegate", xvalues=(value, pooled), xnodes=(node,))
    layers = Layers("", (Method("forward", (call,), {}),))
    assert resize(layers, [((1, 4, 8, 8), (1, 4, 8, 8))]) == layers
    assert resize(layers, [((1, 4, 8, 8), (1, 4, 6, 6))]) is None


def test_a_size_that_weights_have_too_is_not_guessed():
    assert resize(outline_pte(TINY.read_bytes()), [((1, 32), (1, 1))]) is None


@pytest.mark.whole
def test_a_lookup_reads_rows_not_the_table(run):
    rows = run["decode", "avx512_on"].operators
    (bytes_read,) = rows.loc[rows["name"].str.contains("embedding"), "bytes"]
    assert bytes_read == 2 * 32 * 4


# Methods


@pytest.fixture(scope="module")
def two_methods(tmp_path_factory):
    """An encoder of images and a decoder with a cache of 8 positions; no ``forward``."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = torch.nn.Conv2d(3, 16, 4, 4)

        def forward(self, image):
            return self.patches(image).flatten(2).transpose(1, 2)

    class Decoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(16, 50)
            self.register_buffer("cache", torch.zeros(1, 8, 16))

        def forward(self, rows, position):
            torch.ops.aten.index_put_(self.cache, [None, position], rows)
            return self.head(self.cache.sum(1, keepdim=True) + rows)

    tokens = torch.export.Dim("tokens", min=1, max=8)
    decoder = (torch.ones(1, 4, 16), torch.arange(4))
    shapes = ({1: tokens}, {0: tokens})
    exported = {
        "image_encoder": torch.export.export(Encoder().eval(), (torch.ones(1, 3, 16, 16),)),
        "text_decoder": torch.export.export(Decoder().eval(), decoder, dynamic_shapes=shapes),
    }
    lowered = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    pte = tmp_path_factory.mktemp("methods") / "speaks.pte"
    pte.write_bytes(lowered.to_executorch().buffer)
    return pte


@pytest.mark.cases
def test_every_method_can_be_a_phase_with_its_own_operators_and_layers(two_methods, tmp_path):
    phases = ("image=image_encoder", "prefill=text_decoder:4", "decode=text_decoder:1@4")
    run = wb.measure(
        two_methods, options=replace(BRIEF, phases=phases, toggle="none"), root=tmp_path
    )
    image, prefill, decode = (run[phase, "baseline"] for phase in ("image", "prefill", "decode"))
    assert [t.shape for t in image.phase.inputs] == [(1, 3, 16, 16)]
    assert [t.shape for t in prefill.phase.inputs] == [(1, 4, 16), (4,)]
    assert [len(each) for each in decode.phase.before] == [2]
    assert image.operators["operator"].str.contains("Convolution").sum() == 1
    assert not decode.operators["operator"].str.contains("Convolution").any()
    assert decode.operators["operator"].str.contains("index_put").sum() == 1
    assert [m.name for m in decode.sidecar.methods] == ["text_decoder"]
    assert set(run.phases["phase"]) == {"image", "prefill", "decode"}
    keys = [set(program["keys"]) for program in read_data(run)["programs"]]
    assert keys == [set(image.operators["key"]), set(decode.operators["key"])]


@pytest.mark.cases
@pytest.mark.parametrize(
    ("phase", "problem"),
    [
        ("image=", "is not NAME=INPUTS"),
        ("image=image_decoder", "no method 'image_decoder'; the program has: image_encoder, text"),
        ("image=image_encoder:4", "does not take tokens"),
        ("first=4", "no method 'forward'"),
    ],
)
def test_a_method_that_does_not_fit_is_one_clear_error(two_methods, runner, phase, problem):
    with pytest.raises((UsageError, RunnerError), match=problem):
        make_plan(two_methods, replace(BRIEF, phases=(phase,)), runner)


# Models


def test_a_bad_group_size_is_one_clear_error(tmp_path):
    with pytest.raises(UsageError, match="48 is no multiple of 32"):
        wb.export_model("toy_cnn", options=wb.ExportOptions("8da4w", group_size=48), root=tmp_path)


#: A model of transformers, as the README wraps one.
_WRAPPED = re.search(
    r"```python\n(import torch\nfrom transformers.*?)```",
    (Path(wb.__file__).parent / "README.md").read_text(),
    re.DOTALL,
)


@pytest.mark.cases
def test_a_model_of_transformers_is_profiled_as_the_readme_wraps_it(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    (tmp_path / "my_llm.py").write_text(_WRAPPED[1])
    spec = f"{tmp_path / 'my_llm.py'}:Net"
    pte = wb.export_model(spec, options=wb.ExportOptions("8da4w"), root=tmp_path).path
    run = wb.measure(pte, options=replace(BRIEF, toggle="none"), root=tmp_path)
    products = run["baseline"].operators.query("name.str.startswith('Fully Connected')")
    assert products["module"].str.contains(r"layers\.[01]\.(?:self_attn|mlp)").sum() == 14


def test_random_integers_and_positions_are_what_the_tensor_says():
    ids = np.frombuffer(random_bytes(Tensor("int32", (1, 999), below=50), 0), np.int32)
    assert ids.min() >= 0
    assert 40 < ids.max() < 50
    at = random_bytes(Tensor("int64", (3,), first=7), 0)
    assert np.frombuffer(at, np.int64).tolist() == [7, 8, 9]
