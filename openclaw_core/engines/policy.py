"""The policy's weights in a transformers model: forward passes with fp32 logits, and replacing all weights in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from openclaw_core.engines.protocol import EngineError
from openclaw_core.engines.slots import Shape, Slots, Window

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
        self._refuse_other_attention(directory)
        self._head: Float[Tensor, "v h"] = self._output_weight().float()
        self._head_is_old = False
        self._borrows = False
        """Whether the weights are somebody else's memory."""
        self.vocab_size: int = self._model.config.vocab_size
        self.context_length: int = self._model.config.max_position_embeddings

    def slots(self) -> Slots:
        """Memory for the keys and values of sequences; none yet."""
        config: Any = self._model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return Slots(Shape(config.num_hidden_layers, config.num_key_value_heads, head_dim, self._model.dtype))

    def next_logits(self, ids: Int[Tensor, "b s"], last: Sequence[int], window: Window) -> Float[Tensor, "b v"]:
        """Feed ``ids``, keep their keys and values in ``window``, and give the fp32 logits after ``ids[row, last[row]]``.

        What stands behind ``last`` is padding: no token before it sees it, and the row's next tokens overwrite it.
        """
        # By position: the cache's name differs between the versions of transformers, and an unknown name is no error.
        hidden = self._backbone(ids, window.mask, window.positions, window).last_hidden_state
        return self._logits(hidden[torch.arange(len(ids)), torch.tensor(last)])

    def logprobs(self, prompt_ids: Sequence[int], response_ids: Sequence[int], temperature: float) -> list[float]:
        """log softmax(z / temperature) of each response token, over the full vocabulary, in one forward pass."""
        ids = torch.tensor([[*prompt_ids, *response_ids]])
        hidden = self._backbone(input_ids=ids, use_cache=False).last_hidden_state[0, len(prompt_ids) - 1 : -1]
        found: list[float] = []
        for start in range(0, len(response_ids), _HEAD_CHUNK):
            rows = hidden[start : start + _HEAD_CHUNK]
            targets = torch.tensor(response_ids[start : start + _HEAD_CHUNK]).unsqueeze(1)
            logprobs = torch.log_softmax(self._logits(rows) / temperature, dim=-1)
            found += logprobs.gather(1, targets).squeeze(1).tolist()
        return found

    def install(self, weights: Mapping[str, Tensor], *, borrow: bool = False) -> bool:
        """Replace every weight; tied weights come once, under the name of the embedding. Nothing changes on an error.

        ``borrow``: compute with these very tensors, where they have the model's dtype, and copy nothing; they may be
        read-only. Returns whether that is so: they must stay as they are then until the next call.

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
        borrow = borrow and all(weights[name].dtype is parameter.dtype for name, parameter in own.items())
        for name, parameter in own.items():
            if borrow:
                parameter.data = weights[name]
            elif self._borrows:  # not to be written to
                parameter.data = weights[name].to(parameter.dtype, copy=True)
            else:
                parameter.data.copy_(weights[name])
        self._borrows, self._head_is_old = borrow, True
        return borrow

    def prepare_head(self) -> None:
        """Make the output head's fp32 form; where nobody has called this, the next pass does."""
        if self._head_is_old:
            head = self._output_weight()
            if head.dtype is torch.float32:
                self._head = head
            else:
                self._head.copy_(head)
            self._head_is_old = False

    def _logits(self, hidden: Float[Tensor, "n h"]) -> Float[Tensor, "n v"]:
        self.prepare_head()
        if hidden.dtype is not torch.bfloat16:
            return F.linear(hidden.float(), self._head)
        with _bf16_products():
            return F.linear(hidden.float(), self._head)

    def _refuse_other_attention(self, directory: Path) -> None:
        kinds = set(getattr(self._model.config, "layer_types", None) or ())
        if other := sorted(kinds - {"full_attention"}):
            raise EngineError(f"{directory} has layers of {', '.join(other)}; this engine's cache holds full_attention only")

    def _output_weight(self) -> Tensor:
        head = cast(torch.nn.Linear, self._model.get_output_embeddings())
        if head.bias is not None:
            raise EngineError(f"{type(self._model).__name__} has a bias on its output head, which this engine does not apply")
        return head.weight.detach()


@contextmanager
def _bf16_products() -> Iterator[None]:
    """For fp32 matrices whose values are bf16's: products of those are exact, and sums stay in fp32; twice as fast on CPUs.

    The setting is the process's: other threads' fp32 products would be rounded meanwhile.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
