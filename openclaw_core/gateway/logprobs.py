"""Log-probs as OpenAI shows them: each token as text and as bytes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from openclaw_core.gateway.streaming import TokenLogprob


class TokenTexts:
    """Ids → what they are written as. A token may be a part of a character: its text is then a replacement character."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._bytes = lru_cache(maxsize=65536)(self._bytes_of)

    def logprobs_json(self, tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
        """The ``logprobs`` of a choice."""
        return {"content": [self._entry(token) for token in tokens], "refusal": None}

    def _entry(self, token: TokenLogprob) -> dict[str, Any]:
        return self._named(token.token_id, token.logprob) | {"top_logprobs": [self._named(*top) for top in token.top]}

    def _named(self, token_id: int, logprob: float) -> dict[str, Any]:
        written = self._bytes(token_id)
        return {"token": written.decode(errors="replace"), "logprob": logprob, "bytes": list(written)}

    def _bytes_of(self, token_id: int) -> bytes:
        """Byte-level BPE writes each byte as one character; added tokens are plain text."""
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if not isinstance(token, str):
            return b""
        if token_id in self._tokenizer.added_tokens_decoder or any(char not in self._byte_of for char in token):
            return token.encode()
        return bytes(self._byte_of[char] for char in token)

    @cached_property
    def _byte_of(self) -> dict[str, int]:
        return {char: byte for byte, char in bytes_to_unicode().items()}
