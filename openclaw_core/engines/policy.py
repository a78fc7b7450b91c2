"""The policy's weights in a transformers model: forward passes with fp32 logits, and replacing all weights in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.utils import logging as transformers_logging

from openclaw_core.engines.protocol import EngineError

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_HEAD_CHUNK = 256
"""Response positions whose logits exist at the same time."""


class Policy:
    """A causal language model from a Hugging Face directory. Used by one thread at a time.

    The output head runs in fp32 whatever the model's dtype: rounding logits to bf16 moves log-probs by 0.03 (ALGORITHM 2).
    """

    def __init__(self, directory: Path, dtype: str) -> None:
        if dtype not in DTYPES:
            raise EngineError(f"engine dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        transformers_logging.disable_progress_bar()
        self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            directory, dtype=DTYPES[dtype], local_files_only=True
        )
        self._model.eval().requires_grad_(False)
        self._backbone: Any = self._model.base_model
        self._head = self._fp32_head()
        self.vocab_size: int = self._model.config.vocab_size
        self.context_length: int = self._model.config.max_position_embeddings

    def cache(self) -> DynamicCache:
        """An empty key-value cache."""
        return DynamicCache(config=self._model.config)

    def next_logits(
        self, ids: Int[Tensor, "b s"], mask: Int[Tensor, "b l"], positions: Int[Tensor, "b s"], cache: DynamicCache
    ) -> Float[Tensor, "b v"]:
        """Feed ``ids``, keep their keys and values in ``cache``, and give the fp32 logits after each row's last one.

        ``mask`` covers everything in the cache and ``ids``: l = cached + s.
        """
        hidden = self._backbone(input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache).last_hidden_state
        return F.linear(hidden[:, -1].float(), self._head)

    def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int], temperature: float) -> list[float]:
        """log softmax(z / temperature) of each response token, over the full vocabulary, in one forward pass."""
        ids = torch.tensor([[*prompt_ids, *response_ids]])
        hidden = self._backbone(input_ids=ids, use_cache=False).last_hidden_state[0, len(prompt_ids) - 1 : -1]
        found: list[float] = []
        for start in range(0, len(response_ids), _HEAD_CHUNK):
            rows = hidden[start : start + _HEAD_CHUNK].float()
            targets = torch.tensor(response_ids[start : start + _HEAD_CHUNK]).unsqueeze(1)
            logprobs = torch.log_softmax(F.linear(rows, self._head) / temperature, dim=-1)
            found += logprobs.gather(1, targets).squeeze(1).tolist()
        return found

    def install(self, weights: Mapping[str, Tensor]) -> None:
        """Replace every weight; tied weights come once, under the name of the embedding. Nothing changes on an error.

        Raises:
            EngineError: a weight is missing, unknown or of another shape.
        """
        own = dict(self._model.named_parameters())
        wrong = [f"{name} is missing" for name in own.keys() - weights.keys()]
        wrong += [f"{name} is not a weight of this model" for name in weights.keys() - own.keys()]
        wrong += [
            f"{name} is {list(weights[name].shape)}, not {list(own[name].shape)}"
            for name in own.keys() & weights.keys()
            if weights[name].shape != own[name].shape
        ]
        if wrong:
            raise EngineError(f"these weights do not fit the engine's model: {'; '.join(sorted(wrong)[:5])}")
        for name, parameter in own.items():
            parameter.data.copy_(weights[name])
        self._head = self._fp32_head()

    def _fp32_head(self) -> Float[Tensor, "v h"]:
        head = cast(torch.nn.Linear, self._model.get_output_embeddings())
        if head.bias is not None:
            raise EngineError(f"{type(self._model).__name__} has a bias on its output head, which this engine does not apply")
        return head.weight.detach().float()
