"""A model that replies to prompts, with the weights in memory and its tokenizer. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ramerge import InputError
from ramerge.calibration.encode import ChatExample, Example, ExampleEncoder, Text
from ramerge.calibration.exchanges import Exchange
from ramerge.calibration.live import LiveModel, SeededDraws
from ramerge.calibration.prompts import Prompt, Reply


@dataclass(frozen=True)
class Speaker:
    """A model that replies: the current weights and their tokenizer.

    Attributes:
        most_new: the most tokens of a generated reply.
    """

    name: str
    live: LiveModel
    tokenizer: Any
    most_new: int
    temperature: float = 0.0
    seed: int = 0

    @property
    def length(self) -> int:
        """The most tokens of prompt and reply together."""
        return self.live.positions or 1 << 20

    @cached_property
    def encoder(self) -> ExampleEncoder:
        """The encoder of prompts and replies into token ids."""
        return ExampleEncoder(self.tokenizer, self.length)

    @property
    def ends(self) -> tuple[int, ...]:
        """The ids of the tokens that end a reply."""
        end_tokens = getattr(self.live.model.generation_config, "eos_token_id", None)
        ends = end_tokens if isinstance(end_tokens, list) else [end_tokens]
        return tuple({token for token in (*ends, self.tokenizer.eos_token_id) if token is not None})

    @property
    def pad(self) -> int:
        """The id of the token that fills shorter sequences of a batch."""
        pad = self.tokenizer.pad_token_id
        return int(pad if pad is not None else (self.ends or (0,))[0])

    def most_for(self, *prompts: Sequence[int]) -> int:
        """Return the most tokens of replies to a batch of prompts."""
        return max(1, min(self.most_new, self.length - max(map(len, prompts))))

    def first_reply(self, prompt: Prompt) -> Exchange | str:
        """Return the best of the replies that come with a prompt, as token ids; or the problem with it."""
        best = prompt.best
        if best.ids:
            token_ids = self.encoder.cut(best.ids[: best.start], best.ids[best.start :])
        else:
            token_ids = self.encoder(self._example(prompt, best))
        if isinstance(token_ids, str):
            return token_ids
        self.check(token_ids.ids)
        return Exchange(
            prompt.place, token_ids.ids, token_ids.start, best.text, best.reward, False, token_ids.truncated, True
        )

    def _example(self, prompt: Prompt, reply: Reply) -> Example:
        """Return prompt and reply in the encoder's form."""
        last_message = {"role": "assistant", "content": reply.text}
        if prompt.text is None:
            return ChatExample([*prompt.messages, *reply.turns, last_message])
        if prompt.state != "decoded":
            return Text(prompt.text, reply.text, complete=prompt.state == "rendered")
        if (chat := self.encoder.conversation(prompt.text)) is None:
            return Text(prompt.text, reply.text + (self.tokenizer.eos_token or ""))
        messages, beginning = chat
        return ChatExample([*messages, {**last_message, "content": beginning + reply.text}])

    def takes_as_plain(self, prompt: Prompt) -> bool:
        """Whether a trainer's decoded prompt is not a conversation in the chat template."""
        decoded = prompt.text is not None and prompt.state == "decoded" and not any(each.ids for each in prompt.replies)
        return decoded and self.encoder.conversation(prompt.text or "") is None

    def question(self, prompt: Prompt) -> tuple[list[int], bool] | str:
        """Return the ids of a prompt with room for a reply, and whether they were cut; or the problem with it."""
        chat = None
        if prompt.text is None:
            ids = self.encoder.prompt(ChatExample(prompt.messages))
        elif prompt.state == "decoded" and (chat := self.encoder.conversation(prompt.text)) is not None:
            ids = self.encoder.prompt(ChatExample(chat[0]))
        else:
            ids = self.encoder.prompt(Text(prompt.text, complete=prompt.state == "rendered"))
        if isinstance(ids, str):
            return ids
        if chat is not None:
            ids = [*ids, *self.encoder.prompt(Text(chat[1], complete=True))]
        if not ids:
            return "gives no token"
        self.check(ids)
        room = max(self.length - self.most_new, self.length // 2, 1)  # a long limit of replies leaves half to prompts
        return ids[-room:], len(ids) > room

    def check(self, ids: Sequence[int]) -> None:
        """Refuse token ids beyond the model's vocabulary."""
        if max(ids) >= self.live.vocabulary:
            raise InputError(
                f"{self.name}: token {max(ids)} is beyond the model's vocabulary of {self.live.vocabulary:,}; the "
                "tokenizer belongs to another model"
            )

    def replies(self, prompts: Sequence[tuple[Prompt, list[int], bool]]) -> list[Exchange]:
        """Generate replies to prompts, all at once; greedy, or sampled with a seed for each prompt."""
        ends, asked = self.ends, [ids for _, ids, _ in prompts]
        seeds = [f"{self.seed}\n{prompt.key}" for prompt, _, _ in prompts]
        draws = SeededDraws(self.temperature, seeds) if self.temperature else None
        replies = self.live.generate(asked, self.most_for(*asked), self.pad, ends, draws)
        return [
            Exchange(
                prompt.place,
                (*ids, *reply),
                len(ids),
                self.tokenizer.decode(reply, skip_special_tokens=True),
                truncated=cut,
                ended=bool(reply) and reply[-1] in ends,
            )
            for (prompt, ids, cut), reply in zip(prompts, replies, strict=True)
        ]
