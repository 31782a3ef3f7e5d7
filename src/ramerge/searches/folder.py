"""The folder OUT of a search or a greedy soup: its files, its lock, and the description of the search.

OUT/search.json      every trial, the choice, and how sure it is
OUT/search.html      the same as a page
OUT/recipe.yaml      the recipe of the best point
OUT/best/            its checkpoint
OUT/asked.json       the description of the search; no other search may resume here
OUT/trials/N.json    trial N with its scores, item by item; OUT/trials/N.yaml is its recipe
OUT/study.log        with a sampler of Optuna: its journal, rewritten in each run
OUT/score.log        what the score printed
OUT/candidate/       the checkpoint being scored
OUT/served           with a server: the link that it loads; OUT/server.log is its output
OUT/calibration/     with prompts: replies and statistics of the agents
OUT/replies/         with prompts and a reward: replies of the best candidates themselves
OUT/agents.json      with a score: the scores of the agents, if nothing varies explicitly or --score-agents was given
OUT/order.json       with prompts and a score: the mass of every point, which decides their order
OUT/evaluation/      with suites: the last model's answers
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from typing_extensions import TypedDict  # of typing before Python 3.12, pydantic cannot check it

from ramerge import CheckpointError, EvaluationError, OutputError
from ramerge.calibration.record import CalibrationSettings
from ramerge.core.foundation.files import read_regular
from ramerge.core.planning.inputs import open_model
from ramerge.core.storage.own_files import RECORDS, SEARCH_DESCRIPTION
from ramerge.scoring.scores import Objective, Scores, Split
from ramerge.scoring.serving import SERVED_NAME
from ramerge.sdk.files import check_state, lock, write_file
from ramerge.sdk.outputs import path_of
from ramerge.sdk.text import brief, dumped, reason
from ramerge.searches.trials import Figures, TrialFiles, read, scores_from_json, scores_to_json, validate

_MOST_TEXT = 1 << 24
_AGENTS, _CALIBRATION = "agents.json", "calibration"
_NAMES = {name: f"other {name}" for name in ("inputs", "prompts", "settings")}
_LINKS = {SERVED_NAME, "study.log.lock"}
"""Links that a search makes itself, and a kill may leave behind; they are removed, never followed."""
_DIGEST = "its file, or a module that it imports from its folder,"
_FLAGS = {
    each.name: each.metadata["setting"].flag for each in fields(CalibrationSettings) if "setting" in each.metadata
}


class _Settings(TypedDict):
    right_at: float | None


class _Description(TypedDict):
    """The part of `asked.json` that others read."""

    settings: _Settings


@dataclass(frozen=True)
class Folder:
    """The folder of a search, locked by this process."""

    root: Path

    @property
    def journal(self) -> Path:
        return self.root / "study.log"

    @property
    def log(self) -> Path:
        return self.root / "score.log"

    @property
    def best(self) -> Path:
        return self.root / "best"

    @property
    def replies(self) -> Path:
        """The folder of candidates' own replies, which belong to trials of this search."""
        return self.root / "replies"

    @property
    def candidate(self) -> Path:
        return self.root / "candidate"

    def write(self, name: str, content: str) -> None:
        """Write a file in the folder of the search, completely or not at all."""
        write_file(self.root / name, content)

    def text(self, name: str) -> str | None:
        """Read a small file in the folder of the search; None if it cannot be read."""
        try:
            return read_regular(self.root / name, _MOST_TEXT).decode("utf-8")
        except (OSError, ValueError):
            return None

    def has_best(self) -> bool:
        """Whether `best` holds a complete merge, judged by its headers."""
        try:
            open_model(self.best)
        except CheckpointError:
            return False
        return (self.best / RECORDS[0]).is_file()

    def check_description(self, description: Mapping[str, object], objectives: Sequence[Objective] = ()) -> None:
        """Store the description of the search, or refuse to resume a search with a different description.

        A search without any score is replaced. Other objectives need no new scores, because scores hold all figures;
        but points that were given up under the former objectives are scored again.
        """
        path = self.root / SEARCH_DESCRIPTION
        content = {**description, "objectives": [asdict(each) for each in objectives]}
        if path.exists():
            before = read(path)
            if self.refuse_other(description):
                self.trials.clear()
                shutil.rmtree(self.replies, ignore_errors=True)
                (self.root / _AGENTS).unlink(missing_ok=True)
            elif before.get("objectives") == content["objectives"]:
                return
            else:
                self.trials.drop_pruned()
        write_file(path, dumped(content))

    def refuse_other(self, description: Mapping[str, object]) -> bool:
        """Refuse to resume a search with a different description, as far as known yet; nothing is written.

        Returns:
            Whether the folder holds another search without any score.

        Raises:
            EvaluationError: the folder holds another search with scores.
        """
        path = self.root / SEARCH_DESCRIPTION
        before = read(path) if path.exists() else {}
        is_other_draw = _draw_settings(before) != _draw_settings(description)
        consequences = {"prompts"} if is_other_draw else set()  # which differ for that reason, and are not named
        problems = [
            f"{self.root}: holds a search with {_NAMES.get(name, f'another {name}')}: "
            + _describe_difference(name, before.get(name), description[name])
            for name in description
            if before and before.get(name) != description[name] and name not in consequences
        ]
        if problems and self.has_scores:
            how = "to resume it, give what it had; to search from scratch, name another folder, or remove this one"
            raise EvaluationError([*problems, f"{self.root}: {how}"])
        return bool(problems)

    @property
    def right_at(self) -> float | None:
        """The least reward of a right reply, if the user has given it to a search by prompts."""
        path = self.root / SEARCH_DESCRIPTION
        return validate(path, read(path), _Description)["settings"]["right_at"]

    @property
    def trials(self) -> TrialFiles:
        """The files of its trials."""
        return TrialFiles(self.root / "trials")

    @property
    def has_scores(self) -> bool:
        """Whether any candidate was scored, in this run or an earlier one."""
        return any(trial.state != "failed" for trial in self.trials.read())

    def said_by_score(self) -> list[str]:
        """A sentence that names the log of the score, if it is not empty: tracebacks, and what the score printed."""
        with suppress(OSError):
            if self.log.stat().st_size:
                return [f"output and tracebacks of the score function are in {self.log}"]
        return []

    def agents(self) -> dict[Split, dict[str, Scores]]:
        """The stored scores of agents, by the purpose of the items and by name."""
        path = self.root / _AGENTS
        content = validate(path, read(path), dict[Split, dict[str, Figures]]) if path.exists() else {}
        if len({frozenset(figures) for by_agent in content.values() for figures in by_agent.values()}) > 1:
            raise EvaluationError(f"{path}: agents have different scores; remove the file, and they are scored again")
        return {
            split: {name: scores_from_json(path, figures) for name, figures in by_agent.items()}
            for split, by_agent in content.items()
        }

    def keep_agents(self, agents: Mapping[Split, Mapping[str, Scores]]) -> None:
        """Store the scores of agents in the folder."""
        content = {
            split: {name: scores_to_json(scores) for name, scores in by_agent.items()}
            for split, by_agent in agents.items()
        }
        self.write(_AGENTS, dumped(content, indent=None))

    def clear(self) -> None:
        """Remove the last scored candidate."""
        shutil.rmtree(self.candidate, ignore_errors=True)


@contextmanager
def search_folder(out: Path) -> Iterator[Folder]:
    """Open the folder of a search, and lock it against other processes."""
    path_of(out, "the folder of a search")
    check_state(*(each for each in _folder_entries(out) if not (each.name in _LINKS and each.is_symlink())))
    if any(out.glob("*.safetensors")):
        raise EvaluationError(f"{out}: is the folder of a model; name another folder for the search")
    if not (out / SEARCH_DESCRIPTION).exists():
        others = {path.name for path in _folder_entries(out)} - {".lock", "score.log", _CALIBRATION, "order.json"}
        if others:
            raise EvaluationError(
                f"{out}: holds {brief(', '.join(sorted(others)), 200)}, and no search; name another folder"
            )
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = lock(out / ".lock", wait=False)
    except BlockingIOError as error:
        raise EvaluationError(f"{out}: another search runs there") from error
    except OSError as error:
        raise OutputError(f"{out}: cannot be written: {reason(error)}") from error
    try:
        yield Folder(out)
    finally:
        os.close(descriptor)
        if {path.name for path in _folder_entries(out)} <= {".lock", Folder(out).log.name}:  # nothing was begun
            (out / ".lock").unlink(missing_ok=True)
            with suppress(OSError):  # the score has left its log
                out.rmdir()


def _folder_entries(out: Path) -> list[Path]:
    return list(out.iterdir()) if out.is_dir() else []


def left_by_stop(out: Path) -> str:
    """Return a phrase that says what an interrupted search has left in its folder."""
    resumes = f"is kept in {out}, and the same command resumes from there"
    if Folder(out).has_scores or (out / _AGENTS).is_file():
        return f"what was scored {resumes}"
    if any(path.is_file() for path in (out / _CALIBRATION).rglob("*")):
        return f"nothing was scored yet; what was gathered of the agents {resumes}"
    return "nothing was scored yet"


def _describe_difference(part: str, before: object, now: object) -> str:
    """Describe where two plain values first differ, without digests, sizes and times of inputs."""
    keys = []
    while isinstance(before, dict) and isinstance(now, dict):
        key = next(key for key in {**before, **now} if before.get(key) != now.get(key))
        keys.append(_DIGEST if key == "digest" else _FLAGS.get(key, key) if part == "settings" else key)
        before, now = before.get(key), now.get(key)
    where = ": ".join(keys)
    if part == "inputs" or _is_digest(before) or _is_digest(now):
        return f"{where} {'is new' if before is None else 'is not used any more' if now is None else 'has changed'}"
    return f"{where}{': ' if where else ''}it was {_describe_value(before)}, and is {_describe_value(now)}"


def _draw_settings(description: Mapping[str, object]) -> tuple[object, ...] | None:
    """Return the settings by which prompts are drawn; None if a search has no prompts."""
    settings = description.get("settings")
    return (settings.get("count"), settings.get("prompt_seed")) if isinstance(settings, dict) else None


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _describe_value(value: object) -> str:
    if isinstance(value, dict) and "function" in value:
        value = value["function"]
    with suppress(TypeError, ValueError):
        return brief(json.dumps(value, ensure_ascii=False), 200)
    return brief(repr(value), 200)
