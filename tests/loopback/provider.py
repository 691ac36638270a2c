"""The provider without its network: a request and its headers in, an answer out.

thread → validate → thinking → window → cache → brain → sign → message
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from . import prompts, replies, thinking, tokens
from .cache import Cache
from .prompts import Piece
from .replies import Reply
from .shapes import THINKING, Json, Refused, Rules, blocks_of, refuse
from .threads import THREADS, Threads
from .validation import CLEARING, check_request

Brain = Callable[[Json], Reply]

_CLEAR = "clear_thinking_20251015"
_CREATED = "2026-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer, and the prompt that led to it."""

    body: Json
    pieces: Sequence[Piece]


@dataclass
class Provider:
    """Keeps the prompt cache and the threads between requests; not for several threads at once."""

    brain: Brain
    rules: Rules
    now: Callable[[], float]

    def __post_init__(self) -> None:
        self.cache = Cache(self.rules, self.now)
        self.threads = Threads(self.now)
        self.count = 0

    def create(self, asked: Json, betas: Collection[str] = ()) -> Answer:
        """Answer a body of `POST /v1/messages`.

        Raises:
            Refused: where the provider would refuse it.

        """
        whole = self.threads.whole(asked) if THREADS in betas else asked
        check_request(whole, self.rules, betas, counting=False)
        request, cleared = _clear(whole)
        checked = thinking.check(request, self.rules)
        shown = {**request, "messages": checked.messages}
        pieces = prompts.pieces(shown)
        total = pieces[-1].total
        self._check_window(request, total)
        use = self.cache.account(pieces)
        reply = self._limited(self.brain(shown), request, total)
        signed = Reply(checked.chain.sign(reply.content), reply.stop_reason)
        self.count += 1
        body = replies.message(self.count, request["model"], signed, use)
        if CLEARING in betas:
            body["context_management"] = {"applied_edits": cleared}
        if thinking.CONTROLS in betas:
            body["input_transformations"] = checked.dropped
        self.threads.keep(asked, whole, body)
        return Answer(body, pieces)

    def count_tokens(self, request: Json, betas: Collection[str] = ()) -> Json:
        """Answer a body of `POST /v1/messages/count_tokens`; nothing is cached by it."""
        check_request(request, self.rules, betas, counting=True)
        request, _ = _clear(request)
        checked = thinking.check(request, self.rules)
        return {"input_tokens": prompts.pieces({**request, "messages": checked.messages})[-1].total}

    def model(self, name: str) -> Json:
        """Answer `GET /v1/models/…`."""
        if not name.startswith("claude"):
            text = f"model: {name}"
            raise Refused(text, status=404)
        return {
            "id": name,
            "type": "model",
            "display_name": name,
            "created_at": _CREATED,
            "lifecycle": "active",
            "max_input_tokens": self.rules.window_of(name),
            "max_tokens": self.rules.max_output,
        }

    def batch(self, request: Json) -> Json:
        """Answer `POST /v1/messages/batches`: it is taken, and never worked on."""
        asked = request.get("requests") or []
        for item in asked:
            check_request(item["params"], self.rules, (), counting=False)
        counts = dict.fromkeys(("succeeded", "errored", "canceled", "expired"), 0)
        self.count += 1
        return {
            "id": f"msgbatch_loopback_{self.count:06d}",
            "type": "message_batch",
            "processing_status": "in_progress",
            "request_counts": {"processing": len(asked), **counts},
            "created_at": _CREATED,
            "expires_at": "2026-01-02T00:00:00Z",
        }

    def _check_window(self, request: Json, total: int) -> None:
        window = self.rules.window_of(request["model"])
        if total > window:
            refuse(f"prompt is too long: {total} tokens > {window} maximum")
        asked = request["max_tokens"]
        if self.rules.overflow == "refuse" and total + asked > window:
            refuse(
                f"input length and `max_tokens` exceed context limit: {total} + {asked} > "
                f"{window}, decrease input length or `max_tokens` and try again"
            )

    def _limited(self, reply: Reply, request: Json, total: int) -> Reply:
        room = self.rules.window_of(request["model"]) - total
        if room < request["max_tokens"]:
            return replies.cut(reply, room, "model_context_window_exceeded")
        return replies.cut(reply, request["max_tokens"], "max_tokens")


def _clear(request: Json) -> tuple[Json, list[Json]]:
    """Apply `context_management`: thinking of all but the last turns goes. Others are refused."""
    applied: list[Json] = []
    for edit in (request.get("context_management") or {}).get("edits", ()):
        if edit.get("type") != _CLEAR:
            refuse(f"context_management: the loopback does not know {edit.get('type')}")
        request, turns, cost = _without_thinking(request, edit.get("keep") or {})
        applied.append(
            {"type": _CLEAR, "cleared_input_tokens": cost, "cleared_thinking_turns": turns}
        )
    return request, applied


def _without_thinking(request: Json, keep: Json | str) -> tuple[Json, int, int]:
    """Return the request, and how many turns and tokens of thinking it has lost."""
    if keep == "all":
        return request, 0, 0
    kept = int(keep.get("value", 1)) if isinstance(keep, dict) else 1
    messages = list(request["messages"])
    having = [at for at, message in enumerate(messages) if _thinks(message)]
    cleared = having[: max(len(having) - kept, 0)]
    cost = 0
    for at in cleared:
        blocks = blocks_of(messages[at])
        content = [block for block in blocks if block["type"] not in THINKING]
        cost += sum(map(tokens.of_block, blocks)) - sum(map(tokens.of_block, content))
        messages[at] = {**messages[at], "content": content}
    return {**request, "messages": messages}, len(cleared), cost


def _thinks(message: Json) -> bool:
    return any(block["type"] in THINKING for block in blocks_of(message))
