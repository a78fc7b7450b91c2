"""Weights → a Hugging Face model directory that transformers and SGLang load as it is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from openclaw_core.errors import OpenClawError
from openclaw_core.weights.checksum import checksum, checksum_directory
from openclaw_core.weights.child import Log, run_module
from openclaw_core.weights.errors import WeightsError
from openclaw_core.weights.files import atomic_directory, read_json, write_json
from openclaw_core.weights.hf_files import WEIGHTS, copy_companions
from openclaw_core.weights.names import hf_shapes
from openclaw_core.weights.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The model directory and the checksum of its weights, read back from the disk."""

    path: Path
    checksum: str


def export_hf(tensors: Iterable[tuple[str, Tensor]], hf_dir: Path, out_dir: Path) -> ExportResult:
    """Write named Hugging Face tensors with the configuration and tokenizer of ``hf_dir``; replaces ``out_dir``.

    Raises:
        WeightsError: tensors are missing or left over, or what was written reads back otherwise.
    """
    named = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors}
    differing = named.keys() ^ hf_shapes(ModelSpec.from_hf(hf_dir)).keys()
    if differing:
        raise WeightsError(f"these tensors are missing or not part of the model in {hf_dir}: {sorted(differing)[:8]}")
    with atomic_directory(out_dir) as directory:
        copy_companions(hf_dir, directory)
        config = read_json(directory / "config.json") or {}
        dtype = str(next(iter(named.values())).dtype).removeprefix("torch.")
        write_json(directory / "config.json", config | {"dtype": dtype})
        save_file(named, directory / WEIGHTS, metadata={"format": "pt"})
        (directory / WEIGHTS).chmod(0o644)  # it is made for its owner alone
        written = checksum_directory(directory)
        if written != checksum(named.items()):
            raise WeightsError(f"{out_dir}: the weights read back from the disk differ from those written")
    return ExportResult(out_dir, written)


def export_checkpoint(checkpoint: Path, hf_dir: Path, out_dir: Path, log: Log, deadline_s: float = 3600) -> ExportResult:
    """The same for a checkpoint in torch_dist format, converted or trained, in a child process.

    Raises:
        WeightsError: the checkpoint is not whole or is of another model than ``hf_dir``.
    """
    arguments = ["--checkpoint", str(checkpoint), "--hf", str(hf_dir), "--out", str(out_dir)]
    run_module("openclaw_core.weights.export", arguments, log, deadline_s)
    return ExportResult(out_dir, checksum_directory(out_dir))


def _export(checkpoint: Path, hf_dir: Path, out_dir: Path) -> ExportResult:
    """In the child: build, load, name, write."""
    from openclaw_core.trainer.accelerator import detect

    accelerator = detect()
    accelerator.prepare()
    from openclaw_core.trainer.checkpoint import load
    from openclaw_core.trainer.model import build_gpt, init_parallel
    from openclaw_core.trainer.retention import read_info
    from openclaw_core.weights.names import to_hf

    spec = ModelSpec.from_hf(hf_dir)
    info = read_info(checkpoint)
    init_parallel(accelerator)
    _, gpt = build_gpt(spec, info.dtype)
    load(checkpoint, spec, gpt)
    return export_hf(to_hf([dict(gpt.named_parameters())], spec), hf_dir, out_dir)


def main() -> None:
    """Entry point of the child process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="a checkpoint's directory, as in checkpoints/step_000020"
    )
    parser.add_argument("--hf", type=Path, required=True, help="model directory whose configuration and tokenizer are taken")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    arguments = parser.parse_args()
    try:
        result = _export(arguments.checkpoint, arguments.hf, arguments.out)
    except OpenClawError as error:
        sys.exit(str(error))
    sys.stdout.write(f"exported to {result.path}, checksum {result.checksum}\n")


if __name__ == "__main__":
    main()
