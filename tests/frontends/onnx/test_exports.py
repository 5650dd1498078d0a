"""Transformers models with random weights through their own ``torch.onnx.export``."""

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.onnx._internal.exporter._registration import ONNXRegistry

from pipec.frontends.base import LoadOptions
from pipec.frontends.onnx import OnnxFrontend
from pipec.graph.ir import origin
from pipec.graph.torch_private import quick_tracing
from tests.frontends.onnx.models import run, worst

IDS = (torch.arange(12)[None] * 7 % 90,)
IMAGE = (torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32).sin(),)
SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**SMALL, "intermediate_size": 64, "num_key_value_heads": 2}


class Only(nn.Module):
    """A model as a function of tensors to one tensor."""

    def __init__(self, model: nn.Module, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *args: Tensor) -> Tensor:
        return self.call(self.model, *args)


def logits(model: Any, *args: Tensor) -> Any:
    return model(*args).logits


def no_cache(model: Any, ids: Tensor) -> Any:
    return model(ids, use_cache=False).logits


def hidden(model: Any, *args: Tensor) -> Any:
    return model(*args).last_hidden_state


def resnet() -> nn.Module:
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
    config = transformers.ResNetConfig(**sizes, layer_type="basic", num_labels=10)
    return Only(transformers.ResNetForImageClassification(config), logits)


def vit() -> nn.Module:
    config = transformers.ViTConfig(**SMALL, intermediate_size=64, image_size=32, patch_size=8)
    return Only(transformers.ViTForImageClassification(config), logits)


def bert() -> nn.Module:
    config = transformers.BertConfig(**SMALL, intermediate_size=64)
    return Only(transformers.BertForMaskedLM(config), logits)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    return Only(transformers.GPT2LMHeadModel(config), no_cache)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    return Only(transformers.T5EncoderModel(config), hidden)


def llama() -> nn.Module:
    return Only(transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)), no_cache)


def whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64,
        num_mel_bins=16, max_source_positions=30, vocab_size=99, pad_token_id=0,
    )  # fmt: skip
    return Only(transformers.models.whisper.modeling_whisper.WhisperEncoder(config), hidden)


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        **LLAMA, num_local_experts=4, experts_implementation="batched_mm"
    )
    return Only(transformers.MixtralForCausalLM(config), no_cache)


SOUND = (torch.linspace(0, 9, 16 * 60).reshape(1, 16, 60).sin(),)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "resnet": (resnet, IMAGE),
    "vit": (vit, IMAGE),
    "bert": (bert, IDS),
    "gpt2": (gpt2, IDS),
    "t5": (t5, IDS),
    "llama": (llama, IDS),
    "whisper": (whisper, SOUND),
    "mixtral": (mixtral, IDS),
}


@pytest.fixture(autouse=True, scope="module")
def translations_are_read_once() -> Iterator[None]:
    """Those of torch's exporter, which reads their sources anew for each model."""
    with pytest.MonkeyPatch.context() as patch:
        once = staticmethod(cache(ONNXRegistry.from_torchlib))
        patch.setattr(ONNXRegistry, "from_torchlib", once)
        yield


def export(module: nn.Module, args: tuple[Tensor, ...], path: Path) -> None:
    mute = contextlib.redirect_stdout(io.StringIO())
    with torch.no_grad(), warnings.catch_warnings(), mute, quick_tracing():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), args, path, dynamo=True, verbose=False)


@pytest.mark.parametrize("name", MODELS)
def test_exported_model_matches_onnxruntime(name: str, tmp_path: Path) -> None:
    factory, args = MODELS[name]
    torch.manual_seed(0)
    export(factory(), args, tmp_path / "model.onnx")
    loaded = OnnxFrontend().load(str(tmp_path / "model.onnx"), LoadOptions(seed=3))
    error = worst(run(loaded.graph, loaded.example_inputs), loaded.original(loaded.example_inputs))
    assert error < 1e-5
    assert all(origin(n).index is not None for n in loaded.graph.calls)
    assert not any("onnx" in str(n.target) for n in loaded.graph.calls)
