"""Tiny transformers models of the kinds that people train, random weights, example inputs."""

from collections.abc import Callable, Mapping

import torch
import transformers as hf
from torch import Tensor, nn

Model = tuple[nn.Module, Mapping[str, Tensor]]

_TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}


def _ids() -> Tensor:
    return torch.randint(0, 60, (2, 12))


def _resnet(depths: list[int]) -> Model:
    widths = [16, 32, 64, 128][: len(depths)]
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=widths, depths=depths, num_labels=10)
    return hf.ResNetForImageClassification(config), {"pixel_values": torch.randn(2, 3, 64, 64)}


def resnet50() -> Model:
    return _resnet([3, 4, 6, 3])


def resnet() -> Model:
    return _resnet([1, 1])


def vit() -> Model:
    sizes = {"intermediate_size": 64, "image_size": 16, "patch_size": 8}
    config = hf.ViTConfig(**{**_TEXT, **sizes})
    return hf.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


def bert() -> Model:
    return hf.BertForMaskedLM(hf.BertConfig(**_TEXT, intermediate_size=64)), {"input_ids": _ids()}


def gpt2() -> Model:
    config = hf.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=16, use_cache=False,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return hf.GPT2LMHeadModel(config), {"input_ids": _ids()}


def t5() -> Model:
    config = hf.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=64, use_cache=False
    )
    model = hf.T5ForConditionalGeneration(config)
    return model, {"input_ids": _ids(), "decoder_input_ids": _ids()}


def llama() -> Model:
    config = hf.LlamaConfig(**_TEXT, intermediate_size=64, num_key_value_heads=2, use_cache=False)
    return hf.LlamaForCausalLM(config), {"input_ids": _ids()}


def mixtral() -> Model:
    config = hf.MixtralConfig(
        **_TEXT, intermediate_size=64, num_key_value_heads=2, num_local_experts=4, use_cache=False
    )
    return hf.MixtralForCausalLM(config), {"input_ids": _ids()}


def whisper() -> Model:
    config = hf.WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=64,
        num_mel_bins=8, max_source_positions=8, pad_token_id=0, bos_token_id=0, eos_token_id=1,
        decoder_start_token_id=0,
    )  # fmt: skip
    return hf.WhisperModel(config).encoder, {"input_features": torch.randn(2, 8, 16)}


ZOO: Mapping[str, Callable[[], Model]] = {
    f.__name__: f for f in (resnet50, resnet, vit, bert, gpt2, t5, llama, mixtral, whisper)
}


def make(name: str) -> Model:
    torch.manual_seed(0)
    return ZOO[name]()
