"""The convert-checkpoint stage: a Hugging Face model directory → weights in megatron's torch_dist format."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from openclaw_core.errors import OpenClawError
from openclaw_core.trainer.retention import CheckpointError, read_info
from openclaw_core.weights.child import Log, run_module
from openclaw_core.weights.files import remove, sha256
from openclaw_core.weights.hf_files import digest
from openclaw_core.weights.spec import Dtype, ModelSpec


@dataclass(frozen=True, slots=True)
class ConvertResult:
    """Where the converted weights are, and whether they were there before."""

    path: Path
    reused: bool
    seconds: float


def convert_checkpoint(hf_dir: Path, out_dir: Path, dtype: Dtype, log: Log, deadline_s: float = 3600) -> ConvertResult:
    """Convert ``hf_dir`` to ``out_dir``, or take what is there if it was made of the same files in the same dtype.

    Raises:
        WeightsError: the model cannot be read or is not supported, or the conversion did not end in time.
    """
    started = time.monotonic()
    ModelSpec.from_hf(hf_dir)  # refuses what is not supported before a process is started
    if _made_of(out_dir, hf_dir, dtype):
        log(f"{out_dir}: already converted from these files")
        return ConvertResult(out_dir, True, time.monotonic() - started)
    remove(out_dir)
    log(f"converting {hf_dir} to torch_dist ({dtype})")
    arguments = ["--hf", str(hf_dir), "--out", str(out_dir), "--dtype", dtype]
    run_module("openclaw_core.weights.convert", arguments, log, deadline_s)
    return ConvertResult(out_dir, False, time.monotonic() - started)


def _made_of(out_dir: Path, hf_dir: Path, dtype: str) -> bool:
    """Whether it is there, of these files, and as it was written."""
    try:
        info = read_info(out_dir)
    except CheckpointError:  # none there, or one of another version
        return False
    if info.dtype != dtype or info.meta.get("hf") != digest(hf_dir):
        return False
    files = {name: out_dir / name for name in info.parts}
    return all(file.is_file() and sha256(file) == info.parts[name].sha256 for name, file in files.items())


def _convert(hf_dir: Path, out_dir: Path, dtype: Dtype) -> None:
    """In the child: build, load strictly, save."""
    from openclaw_core.trainer.accelerator import detect

    accelerator = detect()
    accelerator.prepare()
    from openclaw_core.trainer.checkpoint import save
    from openclaw_core.trainer.model import build_gpt, init_parallel
    from openclaw_core.weights.hf_files import load_hf

    spec = ModelSpec.from_hf(hf_dir)
    init_parallel(accelerator)
    _, gpt = build_gpt(spec, dtype)
    load_hf(gpt, hf_dir, spec)
    save(out_dir, spec, gpt, meta={"hf": digest(hf_dir), "source": str(hf_dir)})


def main() -> None:
    """Entry point of the child process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hf", type=Path, required=True, help="model directory: config.json and safetensors")
    parser.add_argument("--out", type=Path, required=True, help="directory to write; must not exist")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), required=True)
    arguments = parser.parse_args()
    try:
        _convert(arguments.hf, arguments.out, arguments.dtype)
    except OpenClawError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
