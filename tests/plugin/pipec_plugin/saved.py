"""A front end for folders that transformers' ``save_pretrained`` writes."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from pipec.frontends.base import Frontend, Loaded, LoadOptions, quiet, user_code
from pipec.frontends.factory import call_loss
from pipec.frontends.torch_module import from_module


class Logits(nn.Module):
    """A language model without its cache: token ids [rows, length] to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.model(ids, use_cache=False).logits
        return found


class SavedFrontend(Frontend):
    """Reads language models: ``config.json`` and safetensors, no code of the folder's author."""

    name = "saved"
    pattern = "FOLDER with config.json"
    casts = True
    runs_code = False

    def accepts(self, spec: str) -> bool:
        """Whether there is a ``config.json``."""
        return (Path(spec) / "config.json").is_file()

    def load(self, spec: str, options: LoadOptions) -> Loaded:
        """Build the model, map its weights, and trace it on one row of 16 tokens."""
        from transformers import AutoModelForCausalLM

        with quiet(), user_code(f"transformers cannot read {spec}"):
            model = AutoModelForCausalLM.from_pretrained(spec, use_safetensors=True)
        loss = call_loss(options.loss, options.seed) if options.loss else None
        ids = torch.zeros(1, 16, dtype=torch.int64)
        loaded = from_module(Logits(model.eval()), {"ids": ids}, loss, options)
        source = replace(loaded.graph.source, kind=self.name, location=spec)
        return replace(loaded, graph=loaded.graph.replace(source=source))
