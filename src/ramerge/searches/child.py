"""The process in which a user's score function runs: `python -m ramerge.searches.child FUNCTION DESCRIPTOR`.

It reads a JSON line for each model from standard input, and writes JSON lines to the descriptor. Standard output and
error, to which the function may print, are a log file.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ramerge.scoring.functions import NoFunctionError, describe_error, digest, load

_REPLY = "solution_str"
"""The parameter that receives the reply in a reward function of verl's form."""


def main(spec: str, descriptor: int) -> None:
    """Load a user's score function, and score models with it until standard input ends."""
    with os.fdopen(descriptor, "w", encoding="utf-8") as answers:

        def say(**values: object) -> None:
            answers.write(json.dumps(values) + "\n")
            answers.flush()

        try:
            module, function = load(spec)
            refuse_reward(function, spec)
        except BaseException as error:
            traceback.print_exc()
            say(error=describe_error(error))
            return
        say(
            ready=True,
            splits=takes_split(function),
            in_parts=inspect.isgeneratorfunction(function),
            digest=digest(module),
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it was ignored until now, for `children.start`
        for line in sys.stdin:
            request = json.loads(line)
            if "model" in request:
                try:
                    for part in scores_in_parts(function, Path(request["model"]), request["split"]):
                        say(part=part)
                        if not json.loads(sys.stdin.readline() or "{}").get("more"):
                            break
                    say(done=True)
                except Exception as error:
                    traceback.print_exc()
                    say(error=describe_error(error))


def scores_in_parts(function: Callable[..., object], model: Path, split: str) -> Iterator[object]:
    """Yield a user's scores for a model, as JSON values; a generator yields them part by part."""
    more = {"split": split} if takes_split(function) else {}
    result = function(model, **more)
    yield from map(plain, result if inspect.isgenerator(result) else [result])


def takes_split(function: Callable[..., object]) -> bool:
    """Whether a score function has a parameter `split`; false if its signature is unknown."""
    return _takes_parameter(function, "split")


def refuse_reward(function: Callable[..., object], spec: str) -> None:
    """Refuse a reward function in verl's form where a score function is expected.

    Raises:
        NoFunctionError: the function is a reward function; with the options that take it.
    """
    if _takes_parameter(function, _REPLY):
        raise NoFunctionError(
            f"is a reward function: it takes a reply ({_REPLY}), and a score function takes the folder of a model; "
            f"`ramerge search --prompts NAME=FILE --reward {spec}` scores merges by their replies to prompts"
        )


def _takes_parameter(function: Callable[..., object], parameter: str) -> bool:
    try:
        return parameter in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def plain(value: object) -> object:
    """Return scores as JSON values: numbers of NumPy and torch become Python's, and other values become text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple | range):
        return [plain(item) for item in value]
    return repr(value)[:200]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
