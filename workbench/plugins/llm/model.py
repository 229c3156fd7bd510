"""Language models by ExecuTorch's own definition: ``llm:NAME`` or ``llm:params.json``."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workbench import EagerModelBase, ExportOptions, WorkbenchError
from workbench.api import UsageError
from workbench.jobs import list_llm_transforms, load_record, unknown_name

#: Sizes of published models, as upstream's ``params.json`` has them.
PRESETS: dict[str, dict[str, Any]] = {
    "smollm2_135m": {
        "dim": 576, "hidden_dim": 1536, "n_layers": 30, "n_heads": 9, "n_kv_heads": 3,
        "vocab_size": 49152, "norm_eps": 1e-5, "rope_theta": 100000.0, "use_hf_rope": True,
    },
    "qwen3_0_6b": {
        "dim": 1024, "hidden_dim": 3072, "n_layers": 28, "n_heads": 16, "n_kv_heads": 8,
        "head_dim": 128, "vocab_size": 151936, "norm_eps": 1e-6, "rope_theta": 1000000.0,
        "use_hf_rope": True, "use_qk_norm": True, "qk_norm_before_rope": True,
    },
    "llama3_2_1b": {
        "dim": 2048, "hidden_dim": 8192, "n_layers": 16, "n_heads": 32, "n_kv_heads": 8,
        "vocab_size": 128256, "norm_eps": 1e-5, "rope_theta": 500000.0, "use_scaled_rope": True,
        "rope_scale_factor": 32,
    },
}  # fmt: skip


#: What may follow the name, such as ``llm:smollm2_135m,layers=4,sdpa=0``, and the defaults.
SETTINGS = {
    "layers": 0,  # replaces the number of layers; 0 keeps it
    "context": 256,  # positions in the cache
    "cache": 1,  # without it, the program takes all tokens, and no position
    "sdpa": 1,  # attend by ``llama::custom_sdpa``, which needs the cache
    "logits": 0,  # compute those of all tokens, not only the last one's
    "embedding": 0,  # bits of the quantised table of tokens, 4 or 8; 0: floats
    "kv": 0,  # bits of the cache's values, 8, for which attention needs ``sdpa``; 0: floats
}
_BITS = {"embedding": (0, 4, 8), "kv": (0, 8)}


#: Upstream's names of a layer's weights, and those of Hugging Face's Llama and Qwen3.
HF_NAMES = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "attention.q_norm_fn": "self_attn.q_norm",
    "attention.k_norm_fn": "self_attn.k_norm",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)\.weight")


class LanguageModel(EagerModelBase):
    """A language model with a KV cache, for any number of tokens; random weights."""

    def __init__(self, spec: str):
        name, *changes = spec.split(",")
        self.settings = settings = SETTINGS | dict(map(_parse_change, changes))
        self.params = dict(PRESETS[name]) if name in PRESETS else _read_params(Path(name))
        self.cache = bool(settings["cache"])
        self.sdpa = bool(settings["sdpa"] and self.cache)
        if settings["kv"] and not self.sdpa:
            raise UsageError("a cache of 8 bits needs cache=1 and sdpa=1", where="llm:")
        if settings["layers"]:
            self.params["n_layers"] = settings["layers"]

    def get_eager_model(self) -> nn.Module:
        """The transformer, as upstream's exporter builds it."""
        try:
            from executorch.examples.models.llama.llama_transformer import construct_transformer
            from executorch.examples.models.llama.model_args import ModelArgs
        except ImportError as error:
            package = error.name or "executorch"
            raise WorkbenchError(f"language models need {package}", install=package) from None
        parameters = {each.name for each in fields(ModelArgs)}
        for key in self.params:
            if key not in parameters:
                raise unknown_name("parameter", key, parameters, where="params.json")
        try:
            arguments = ModelArgs(
                max_seq_len=self.settings["context"],
                max_context_len=self.settings["context"],
                use_kv_cache=self.cache,
                use_sdpa_with_kv_cache_op=self.sdpa,
                generate_full_logits=bool(self.settings["logits"]),
                enable_dynamic_shape=True,
                **self.params,
            )
            self.params["n_layers"] = arguments.n_layers
            return construct_transformer(arguments)
        except (TypeError, ValueError, AssertionError, RuntimeError, ZeroDivisionError) as error:
            raise WorkbenchError(f"makes no model: {error}", where="params.json") from None

    def fit_weights(self, state: dict[str, Any], module: nn.Module) -> dict[str, Any]:
        """A checkpoint, of Hugging Face or of upstream's own names, as the module's state.

        Of a model with fewer layers, it takes the first ones.
        """
        last, theirs = self.params["n_layers"], {hf: ours for ours, hf in HF_NAMES.items()}
        foreign = "model.embed_tokens.weight" in state
        renamed = {
            "model.embed_tokens.weight": "tok_embeddings.weight",
            "model.norm.weight": "norm.weight",
            "lm_head.weight": "output.weight",
        }
        renamed_state = {}
        for name, value in state.items():
            name = renamed.get(name, name.removeprefix("model.") if foreign else name)
            if layer := _LAYER.fullmatch(name):
                number, part = layer.groups()
                if int(number) >= last:
                    continue
                name = f"layers.{number}.{theirs.get(part, part)}.weight"
                if part in ("self_attn.q_proj", "self_attn.k_proj"):
                    value = self._interleave(value)
            renamed_state[name] = value
        if "tok_embeddings.weight" in renamed_state:
            tied = renamed_state["tok_embeddings.weight"]
            renamed_state.setdefault("output.weight", tied)
        # Tables of positions, masks and the cache are in no checkpoint.
        weights = dict(module.named_parameters())
        return {n: v for n, v in module.state_dict().items() if n not in weights} | renamed_state

    def _interleave(self, weight: Any) -> Any:
        """Rows of each head in the order of upstream's rotary embedding.

        Hugging Face has the real parts of all pairs first, then the imaginary ones.
        """
        if self.params.get("use_hf_rope"):
            return weight
        heads = self.params.get("n_heads", 32)
        size = self.params.get("head_dim") or self.params.get("dim", 4096) // heads
        pairs = weight.reshape(-1, 2, size // 2, weight.shape[-1])
        return pairs.transpose(1, 2).reshape(weight.shape)

    def prepare_for_export(self, module: nn.Module) -> nn.Module:
        """The module with the operators that upstream's exporter puts in for attention."""
        bits = self.settings["embedding"]
        if bits:
            import executorch.kernels.quantized  # noqa: F401  (registers its operators)
        for transform in list_llm_transforms(
            use_kv_cache=self.cache,
            use_sdpa_with_kv_cache=self.sdpa,
            quantize_kv_cache=bool(self.settings["kv"]),
            embedding_quantize=f"{bits},{ExportOptions.group_size}" if bits else None,
        ):
            module = transform(module)
        return module

    def get_example_inputs(self) -> tuple[Any, ...]:
        """Some tokens at position 0."""
        tokens = torch.randint(0, self.params["vocab_size"], (1, min(16, self._most)))
        position = {"input_pos": torch.tensor([0], dtype=torch.long)}
        return (tokens, position) if self.cache else (tokens,)

    def get_dynamic_shapes(self) -> Any:
        """Any number of tokens; upstream's exporter has the same limit."""
        tokens = {1: torch.export.Dim("tokens", max=self._most)}
        return (tokens, {"input_pos": {0: 1}}) if self.cache else (tokens,)

    def get_metadata(self) -> dict[str, Any]:
        """The constant methods by which upstream's runner knows the program."""
        return {
            "get_max_seq_len": self.settings["context"],
            "get_max_context_len": self.settings["context"],
            "get_n_layers": self.params["n_layers"],
            "get_vocab_size": self.params["vocab_size"],
            "use_kv_cache": self.cache,
            "enable_dynamic_shape": True,
            "use_sdpa_with_kv_cache": self.sdpa,
        }

    @property
    def _most(self) -> int:
        return self.settings["context"] - 1


def _parse_change(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if name not in SETTINGS:
        raise unknown_name("setting", name, SETTINGS, where="llm:")
    number = int(value) if value.isdecimal() and len(value) < 8 else -1
    allowed = _BITS.get(name, range(2 * (name == "context"), 2**20))
    if number not in allowed:
        raise UsageError(f"{text!r:.40} is not a setting such as layers=4", where="llm:")
    return name, number


def _read_params(path: Path) -> dict[str, Any]:
    if path.suffix != ".json":
        raise unknown_name("language model", str(path), [*PRESETS, "path/to/params.json"])
    params: dict[str, Any] = load_record(dict, path)
    if not isinstance(params.get("vocab_size"), int):
        raise WorkbenchError("is no params.json of a language model", where=path)
    return params
