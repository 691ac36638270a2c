"""What stands where the model would: each brain maps a request to a reply."""

import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from . import replies
from .replies import Reply
from .shapes import Json, blocks_of

HANDLE = re.compile(r"\b(?:out|msgs|in|img)-[a-z2-7]{8,}")
_ID = re.compile(r"^toolu_s(\d+)_t(\d+)_c\d+$")
_WORDS = ["parser", "cache", "index", "lane", "vault", "stream", "ledger", "view", "token", "block"]


class Script:
    """Replies in a row: each step is a reply, a text that ends the turn, or a function.

    Raises:
        IndexError: where the script is over; the server raises it again when it closes.

    """

    def __init__(self, steps: Iterable[Reply | str | Callable[[Json], Reply]]) -> None:
        self._steps: Iterator[Reply | str | Callable[[Json], Reply]] = iter(steps)

    def __call__(self, request: Json) -> Reply:
        step = next(self._steps, None)
        if step is None:
            text = "the script of the loopback is over"
            raise IndexError(text)
        if isinstance(step, str):
            return replies.says(step)
        return step if isinstance(step, Reply) else step(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Reads, runs and edits for `turns` replies, then ends its turn.

    The same seed gives the same run. Which turn it is, the agent reads from
    the ids of the calls in the request, so a request sent again gets the same
    reply again and a compacted one goes on where it was. A new message of the
    human's after the end starts no new run. `parallel` is the most calls a
    reply; `recall` makes every so many turns read a handle back that stands
    in the prompt, where the request carries `read_transcript`.
    """

    turns: int
    seed: int = 0
    parallel: int = 2
    thinks: bool = False
    recall: int = 0
    tools: tuple[str, ...] = ("read_file", "run", "edit")

    def __call__(self, request: Json) -> Reply:
        turn = self._turn(request)
        dice = random.Random(f"{self.seed}:{turn}")  # a string: the same in every process
        thought = f"Turn {turn}: {' '.join(dice.choices(_WORDS, k=6))}." if self.thinks else None
        if turn >= self.turns:
            return replies.says(f"Done after {self.turns} steps.", thought=thought)
        uses = [self._call(turn, k, dice) for k in range(dice.randint(1, self.parallel))]
        if self.recall and turn % self.recall == self.recall - 1:
            uses += self._read_back(turn, len(uses), request)
        text = f"Step {turn}: {' '.join(dice.choices(_WORDS, k=8))}."
        return replies.calls(*uses, text=text, thought=thought)

    def _turn(self, request: Json) -> int:
        found = [
            int(match[2])
            for message in request["messages"]
            for block in blocks_of(message)
            if block["type"] == "tool_use" and (match := _ID.match(block["id"]))
            if int(match[1]) == self.seed
        ]
        return max(found, default=-1) + 1

    def _call(self, turn: int, number: int, dice: random.Random) -> Json:
        name = f"toolu_s{self.seed}_t{turn}_c{number}"
        tool = dice.choice(self.tools)
        path = f"src/{dice.choice(_WORDS)}_{dice.randrange(20)}.py"
        match tool:
            case "read_file":
                return replies.use(name, tool, path=path)
            case "edit":
                return replies.use(name, tool, path=path, old=f"v{turn}", new=f"v{turn + 1}")
            case _:
                return replies.use(name, tool, command=f"pytest -k {dice.choice(_WORDS)}_{turn}")

    def _read_back(self, turn: int, number: int, request: Json) -> list[Json]:
        if all(tool.get("name") != "read_transcript" for tool in request.get("tools") or ()):
            return []
        handles = HANDLE.findall(str(request["messages"]))
        name = f"toolu_s{self.seed}_t{turn}_c{number}"
        return [replies.use(name, "read_transcript", handle=handles[0])] if handles else []
