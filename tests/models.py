"""Tiny random models with a real tokenizer, written in Hugging Face form, for tests that need a model but not a good one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1, 2; as in SmolLM2, <|im_start|> is bos and <|im_end|> is both eos and pad."""

VOCAB_SIZE = 600

CHAT_TEMPLATE = (
    "{%- if messages[0]['role'] != 'system' -%}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)

# What the tokenizer is trained on: the kind of text that the project's conversations consist of.
TEXT = """
You are a helpful AI assistant named SmolLM, trained by Hugging Face.
Tom has three boxes with four apples each and he eats two of them. How many apples are left?
First we multiply the number of boxes by the number of apples: 3 times 4 is 12. Then we subtract the 2 that he ate: 12 - 2 = 10.
Let's work through this problem together, step by step. You can check each answer before you go on to the next question.
That is great! Your explanation is clear, and the numbers of the question are all there. Could you say it in one paragraph?
Please do not use bold text, bullet points or headings; write plain sentences as a friend would.
A train travels at 60 miles per hour for 3 hours. What distance does it cover? It covers 60 times 3, which is 180 miles.
Maria bought 5 books at 7 dollars each and paid with a 50 dollar note. Her change is 50 - 35 = 15 dollars.
The student asked why the answer was wrong. The teacher said that the second step had been forgotten, and showed how to add it.
If a baker makes 24 loaves every morning and sells 18 before noon, then 6 loaves remain for the afternoon.
Half of 90 is 45, a third of 90 is 30, and a quarter of 80 is 20. The sum of the first two numbers is 75.
Wonderful work so far. Now explain what each number means, so that someone who has never seen the problem understands it.
The class has 28 students; 16 of them like football and the others prefer swimming, so 12 students prefer swimming.
I would like a longer answer with more detail about how you found the result, because the short one was hard to follow.
"""


def tiny_llama(directory: Path, *, seed: int = 0, tied: bool = True, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Write a LlamaForCausalLM of 2 layers, hidden 64, 4 query and 2 key-value heads, and its tokenizer, to ``directory``."""
    config = LlamaConfig(**_shape(tied), rms_norm_eps=1e-5, rope_parameters=_rope(100_000.0), mlp_bias=False)
    return _write(LlamaForCausalLM, config, directory, seed, dtype)


def tiny_qwen3(directory: Path, *, seed: int = 0, tied: bool = True, dtype: torch.dtype = torch.bfloat16, **shape: Any) -> Path:
    """The same with the Qwen3 architecture: RMSNorm on queries and keys, and a head dimension that is not hidden / heads.

    ``shape``: other values for the model's configuration.
    """
    shape = _shape(tied, head_dim=32) | shape
    config = Qwen3Config(**shape, rms_norm_eps=1e-6, rope_parameters=_rope(1_000_000.0))
    return _write(Qwen3ForCausalLM, config, directory, seed, dtype)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of VOCAB_SIZE entries with the ChatML special tokens and template of SmolLM2."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    unk, bos, eos = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=unk, bos_token=bos, eos_token=eos, pad_token=eos, chat_template=CHAT_TEMPLATE
    )


def _rope(theta: float) -> Any:
    return {"rope_type": "default", "rope_theta": theta}


def _shape(tied: bool, head_dim: int = 16) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }


def _write(
    architecture: type[LlamaForCausalLM] | type[Qwen3ForCausalLM],
    config: LlamaConfig | Qwen3Config,
    directory: Path,
    seed: int,
    dtype: torch.dtype,
) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = architecture(config)  # pyright: ignore[reportArgumentType]
        with torch.no_grad():
            for parameter in model.parameters():
                # Larger than the usual initialisation and norms off 1, so that a wrong layout shows in the outputs.
                if parameter.dim() > 1:
                    parameter.mul_(4.0)
                else:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    model.to(dtype).save_pretrained(directory)
    tokenizer = tiny_tokenizer()
    assert len(tokenizer) == VOCAB_SIZE
    tokenizer.save_pretrained(directory)
    return directory
