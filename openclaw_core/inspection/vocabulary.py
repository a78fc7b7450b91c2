"""Token ids as text, for people."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

TokenNames = Callable[[int], str]
"""What a token stands for, as Python writes it (with quotes and escapes); empty where that is not known."""


def token_names(hf_dir: Path) -> TokenNames:
    """By the tokenizer of the model in ``hf_dir``. Without its file or the package `tokenizers`, ids have no names."""
    file = hf_dir / "tokenizer.json"
    if not file.exists():
        return lambda _: ""
    try:
        from tokenizers import Tokenizer
    except ImportError:  # part of the extra `model`; the core shows turns without it
        return lambda _: ""
    tokenizer = Tokenizer.from_file(str(file))
    return lambda token: repr(tokenizer.decode([token], skip_special_tokens=False))
