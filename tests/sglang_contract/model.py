"""A tiny real model, one token at a time: logits, sampling as SGLang samples, and replacing its weights."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

_GREEDY = 1e-6


class TinyModel:
    """The model in ``directory``, in fp32."""

    def __init__(self, directory: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        config = self._model.config
        self.architectures, self.model_type, self.vocab_size = config.architectures, config.model_type, config.vocab_size
        eos = self._model.generation_config.eos_token_id or config.eos_token_id
        self.eos = set(eos if isinstance(eos, list) else [eos])

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], last: int = 1) -> Tensor:
        """[last, V] after the last ``last`` positions."""
        return self._model(input_ids=torch.tensor([list(ids)]), logits_to_keep=last).logits[0].float()

    @torch.inference_mode()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy tensors under HF names in. Raises KeyError at a name that the model has not, after the ones before."""
        parameters = dict(self._model.named_parameters())
        for name, tensor in weights.items():
            if name not in parameters:
                raise KeyError(f"no parameter {name!r}")
            parameters[name].copy_(tensor)

    def hashes(self) -> dict[str, str]:
        """Parameter -> 16 hex digits."""
        return {
            name: hashlib.sha256(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
            for name, parameter in self._model.named_parameters()
        }


def sample(
    logits: Tensor, params: Mapping[str, Any], output_ids: Sequence[int], generator: torch.Generator
) -> tuple[int, Tensor]:
    """A token, and the log-probs [V] that SGLang reports: penalties and bias applied, tempered, before top-k and top-p."""
    logits = _penalised(logits.clone(), params, output_ids)
    greedy = params["temperature"] < _GREEDY
    logprobs = torch.log_softmax(logits if greedy else logits / params["temperature"], dim=-1)
    if greedy:
        return int(logprobs.argmax()), logprobs
    probs = logprobs.exp()
    order = probs.argsort(descending=True, stable=True)
    kept = probs[order]
    top_k = params["top_k"] if 0 < params["top_k"] < len(kept) else len(kept)
    dropped = (kept.cumsum(0) - kept > params["top_p"]) | (kept < kept[0] * params["min_p"])
    dropped[top_k:] = True
    kept = kept.masked_fill(dropped, 0.0)
    return int(order[torch.multinomial(kept, 1, generator=generator)]), logprobs


def _penalised(logits: Tensor, params: Mapping[str, Any], output_ids: Sequence[int]) -> Tensor:
    for token, count in Counter(output_ids).items():
        logits[token] -= params["frequency_penalty"] * count + params["presence_penalty"]
        factor = params["repetition_penalty"]
        logits[token] = logits[token] * factor if logits[token] < 0 else logits[token] / factor
    for token, bias in (params["logit_bias"] or {}).items():
        logits[int(token)] += bias
    return logits
