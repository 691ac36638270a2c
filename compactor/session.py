"""A session: what a loop calls before and after each request; `engine.py` does the work."""

import asyncio
import copy
import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from compactor.storage import Keys, StorageError, Vault, new_name

from . import manual, notes
from .arguments import Arguments, Reader, check_list, room, switched_off
from .counters import TokenCounter
from .decisions import DecisionSet
from .describe import untouched
from .engine import Engine, Turn
from .errors import BadMessage, CannotFit, Closed, UnknownHandle
from .explain import Explanation, explain
from .foreign import Recognizer
from .messages import JsonObject, plain
from .opening import close_late, open_recorder
from .plan import Situation
from .policy import Policy
from .policy_files import load
from .recall import Recall
from .recorder import Recorder
from .refusals import Refusal, RefusalKind, refusal_of
from .stages import Manual, Wanted
from .summaries import Summaries
from .summarize import Summarizer
from .transcript import vault_root
from .view import View
from .wire import Wire, wire_format

_LOG = logging.getLogger("compactor")
_SUMMARIES = 3  # passes of one view: after two summaries it goes on without another

_T = TypeVar("_T")
OnCompaction = Callable[[DecisionSet, View], object]


class Compactor:
    """Makes compacted views of one growing conversation and keeps everything that they leave out.

    Open one with `Compactor.open`. A context manager; one writer a session; several threads may
    call it, one after the other.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - `open` calls it
        self,
        session: str,
        policy: Policy,
        wire: str,
        recorder: Recorder | None,
        place: tuple[Path, Keys] | None,
        counter: TokenCounter | None = None,
        summarizer: Summarizer | None = None,
    ) -> None:
        """Use `Compactor.open` instead."""
        self.session = session
        self.on_compaction: OnCompaction | None = None
        self._policy = policy
        self._format = wire
        self._wire: Wire = wire_format(wire)
        self._recorder = recorder
        self._place = place
        self._reader = Reader()
        self._recall: Recall | None = None
        self._engine: Engine | None = None
        if recorder is not None and place is not None:
            self._recall = Recall(place, session)
            self._engine = Engine(self._wire, policy, recorder, self._recall.history, counter)
        self._recognizer = Recognizer(resumed=recorder is not None and recorder.sent is not None)
        self._summaries = Summaries(summarizer)
        self._lock = threading.RLock()
        self._summarizing = threading.Lock()
        self._moved: str | None = None  # said once: that the session has another name
        self._closed = False

    @classmethod
    def open(  # noqa: PLR0913 - the settings of a session
        cls,
        workspace: str | Path = ".",
        session: str | None = None,
        *,
        policy: Policy | None = None,
        wire: str = "anthropic",
        keys: Keys | None = None,
        wait: float = 0,
        on_compaction: OnCompaction | None = None,
        counter: TokenCounter | None = None,
        summarizer: Summarizer | None = None,
    ) -> Self:
        """Open a session, or go on with it where it exists.

        Args:
            workspace: the folder whose `.transcripts` holds the encrypted transcript (the
                environment's `COMPACTOR_HOME` names another place for it).
            session: 1 to 64 of `a-z 0-9 . _ -`; None makes a new one. Where it exists and its key
                is gone (a fresh container with an old workspace), it is left alone and
                `<session>.2` goes on in its place; the first view's `degraded` says so.
            policy: the settings; None for those of the user's file, of `[tool.compactor]` in the
                workspace's `pyproject.toml` and of the environment, else the measured defaults.
            wire: the wire format of the messages.
            keys: the host's keys; None for those of the environment or the user.
            wait: seconds to wait while another writer holds the session.
            on_compaction: called with each set that took effect and its view.
            counter: asked for the size of large views that no usage report has told yet.
            summarizer: makes state summaries, such as `ClaudeSummarizer(client, model)`; None for
                the extractive one, which needs no model and stands in where another fails.

        Raises:
            BadPolicy: for settings in a file or the environment that are none.
            StorageError: where the name, the vault, the key or the lock refuses.

        """
        name = new_name() if session is None else session
        settings = policy or load(workspace)
        if switched_off():
            made = cls(name, settings, wire, None, None)
        else:
            root, held = vault_root(workspace), keys or Keys.default()
            made = cls._opened(name, settings, wire, (root, held), counter, summarizer, wait=wait)
        made.on_compaction = on_compaction
        return made

    @classmethod
    def _opened(  # noqa: PLR0913, PLR0917 - the settings of a session
        cls,
        name: str,
        policy: Policy,
        wire: str,
        place: tuple[Path, Keys],
        counter: TokenCounter | None = None,
        summarizer: Summarizer | None = None,
        **how: Any,
    ) -> Self:
        root, keys = place
        how = {"not_human": policy.not_human, **how}
        recorder = open_recorder(lambda: Vault.create(root, keys), name, wire, **how)
        own = recorder.session
        made = cls(own, policy, wire, recorder, place, counter, summarizer)
        if own != name:
            made._moved = f"the key of session {name} is missing: it goes on as {own}"
            _LOG.warning("%s", made._moved)
        weakref.finalize(made, close_late, recorder)
        return made

    def view(
        self,
        messages: list[Any],
        *,
        policy: Policy | None = None,
        human: int | None = None,
        now: float | None = None,
        **request: Any,
    ) -> View:
        """Return what to send in the place of `messages`, which stay as they are.

        Args:
            messages: the whole history in wire form: what earlier calls had, and what is new. It
                may start with a view of this session that was written back into it.
            policy: other settings for this call.
            human: the position of the message that is the human's request, where the host knows
                better than that it is the last one in which the human speaks; that one stays too.
                What has been archived already stays so.
            now: the time in seconds since the epoch, None for the clock's.
            request: the other arguments of the provider's call (`system`, `tools`, `model`,
                `max_tokens`, …): counted, and recorded beside the view.

        Raises:
            BadMessage: for messages or arguments that are not JSON. Never because of size.
            BadPolicy: where `max_tokens` leaves no room in the window.
            StorageError: where the policy says `on_storage_error="raise"`.
            Closed: after `close`.

        """
        self._check_open()
        settings = policy or self._policy
        with self._lock:
            engine = self._engine
            if engine is None or switched_off():
                return untouched(messages, settings)
            arguments = self._reader.read(request)
            check_list(messages, human)
        turn = self._new_turn(messages, arguments, settings, human, now)
        for tries_left in reversed(range(_SUMMARIES)):
            turn.can_wait = tries_left > 0
            made = self._turn(engine, turn)
            if not isinstance(made, Wanted):
                return made
            self._summarize(engine, made, settings)
        raise AssertionError  # the last one cannot wait

    def _new_turn(
        self,
        messages: list[Any],
        arguments: Arguments,
        policy: Policy,
        human: int | None,
        now: float | None,
    ) -> Turn:
        at = time.time() if now is None else now
        return Turn(messages, arguments, room(arguments, policy), policy, at, human)

    def _turn(self, engine: Engine, turn: Turn) -> View | Wanted:
        with self._lock:
            made = self._safely(engine, lambda: engine.view(turn))
            return made if isinstance(made, Wanted) else self._told(*made)

    def _safely(self, engine: Engine, work: Callable[[], _T]) -> _T:
        """Do the engine's work, once more with nothing known where something went wrong in it."""
        try:
            return work()
        except (BadMessage, CannotFit, StorageError):
            raise  # before anything was taken in, or because the policy says so
        except Exception as error:  # noqa: BLE001 - a view is due whatever happened
            # A dictionary that was written to while it was read, or a fault of ours: what is
            # known of the history is worth less than the history.
            _LOG.exception("taking the history in anew: %s", type(error).__name__)
            engine.start_over()
            return work()
        except BaseException:
            engine.start_over()
            raise

    def _told(self, view: View, one: DecisionSet | None) -> View:
        if self._moved is not None:
            view, self._moved = replace(view, degraded=view.degraded or self._moved), None
        if one is not None and self.on_compaction is not None:
            try:
                self.on_compaction(one, view)
            except Exception as error:  # noqa: BLE001 - the host's own fault costs no request
                _LOG.exception("on_compaction: %s", type(error).__name__)
        return view

    def rescue(
        self,
        refusal: Refusal,
        messages: list[Any],
        *,
        policy: Policy | None = None,
        human: int | None = None,
        now: float | None = None,
        **request: Any,
    ) -> View | None:
        """Return another view of messages of which the provider has refused the first.

        At once, without asking anybody for a summary. None where there is nothing to try, or
        where it was tried already and no request has succeeded since.

        Args:
            refusal: what `compactor.refusals.classify` made of the answer.
            messages: as for `view`, like all others.
            policy: as for `view`.
            human: as for `view`.
            now: as for `view`.
            request: as for `view`.

        Raises:
            CannotFit: where even the smallest view is too large; it names what takes the room.
            BadMessage, BadPolicy, StorageError, Closed: as `view`.

        """
        self._check_open()
        settings, engine = policy or self._policy, self._engine
        if engine is None or switched_off() or refusal.kind is RefusalKind.NONE:
            return None
        with self._lock:
            arguments = self._reader.read(request)
            check_list(messages, human)
            turn = self._new_turn(messages, arguments, settings, human, now)
            made = self._safely(engine, lambda: engine.rescue(turn, refusal))
            return None if made is None else self._told(*made)

    def recover(self, error_or_reply: object, messages: list[Any], **request: Any) -> View:
        """Return the view to send once more, after the provider refused one for its length.

        Args:
            error_or_reply: the exception of the provider's SDK, or a reply that stopped because
                the window was full.
            messages: as for `view`.
            request: as for `view`.

        Raises:
            CannotFit: where even the smallest view is too large, or the rescue is used up.
            Exception: the very error, where it was no such refusal, or the rescue is used up.
            BadMessage, BadPolicy, StorageError, Closed: as `view`.

        """
        view = self.rescue(refusal_of(error_or_reply), messages, **request)
        if view is not None:
            return view
        if isinstance(error_or_reply, BaseException):
            raise error_or_reply
        message = "the window was full, and a rescue has been tried"
        raise CannotFit(message, hint="Raise the window, or start a new session.")

    def render(self, messages: list[Any]) -> list[Any]:
        """Return what the sets in force make of messages; decides and records nothing.

        Costs work in proportion to the history.

        Raises:
            BadMessage: for messages that are not JSON.

        """
        check_list(messages, None)
        if self._engine is None or switched_off():
            return messages
        with self._lock:
            return self._engine.render(messages)

    def _summarize(self, engine: Engine, wanted: Wanted, policy: Policy) -> None:
        """Have a summary made while other threads go on; only one is made at a time."""
        with self._summarizing:
            with self._lock:
                if engine.has_made(wanted):
                    return
            made = self._summaries.make(wanted, policy.summary)
            with self._lock:
                engine.shelve(made)

    async def aview(self, messages: list[Any], **arguments: Any) -> View:
        """Return what `view` returns, worked out in a thread."""
        return await asyncio.to_thread(self.view, messages, **arguments)

    def _check_open(self) -> None:
        if self._closed:
            message = "this session is closed"
            raise Closed(message, hint="Open it again: Compactor.open(workspace, session).")

    def explain(
        self, messages: list[Any], *, policy: Policy | None = None, **request: Any
    ) -> Explanation:
        """Say what a view would decide now, why, what it saves and what it costs: decides nothing.

        Costs work in proportion to the history. Arguments and errors as for `view`.
        """
        self._check_open()
        check_list(messages, None)
        settings = policy or self._policy
        with self._lock:
            arguments = Reader().read(request)
            space, recorder, engine = room(arguments, settings), self._recorder, self._engine
            now = Situation(
                readable=self._wire.offers(arguments.values.get("tools"), notes.READ_TOOL),
                held_back=recorder is not None and recorder.undone,
                pins=recorder.pins if recorder else {},
                can_wait=True,
                read_only=arguments.read_only,
            )
            sets = engine.renderer.ledger.sets if engine else ()
            sent = engine.sent if engine else 0
            return explain(self._wire, messages, sets, space, settings, now, sent)

    def compact(self, focus: str | None = None) -> None:
        """Have the next view compact, whatever its size; with it somebody's request is done.

        Args:
            focus: what this one summary should look at.

        Raises:
            Closed: after `close`.

        """
        self._check_open()
        with self._lock:
            if self._engine is not None:
                self._engine.manual = Manual(focus)

    @property
    def tools(self) -> list[JsonObject]:
        """Definitions of the engine's tools, for the request's `tools`; new dictionaries.

        `compact_context`, by which the model asks for a compaction, where the policy's
        `manual_tool` says so.
        """
        return [copy.deepcopy(manual.DEFINITION)] if self._policy.manual_tool else []

    def owns(self, call: object) -> bool:
        """Tell whether a tool call (an SDK object or its dictionary) is for `run` to answer."""
        return self._policy.manual_tool and manual.owns(call)

    def run(self, call: object) -> JsonObject:
        """Answer a call of one of the engine's tools with a result block.

        It goes into the batch with the other results. What the model does wrong is told in the
        result; a compaction that it asks for takes place with the next view.

        Raises:
            BadMessage: for a call of another tool.
            Closed: after `close`.

        """
        self._check_open()
        call_id, given = manual.arguments(call)
        with self._lock:
            engine = self._engine
            if engine is None or switched_off():
                return manual.result(call_id, "Compaction is switched off.", failed=True)
            asked, text = manual.granted(given, engine.effects(self._policy), self._policy.gate)
            if asked is not None:
                engine.manual = asked
            return manual.result(call_id, text, failed=asked is None)

    def client(self, client: _T) -> _T:
        """Return a client like this one, of the Anthropic SDK, whose requests carry the views.

        Requests of this conversation are sent as `view` makes them, observed, and once more where
        the provider refuses one for its length. Everything else passes as it is: other endpoints,
        requests of other conversations and about this one (`is_own`), and, with one warning, those
        that have the provider compact (`context_management`, `thread`, `compaction`). A count of
        tokens counts what would be sent. A new conversation, or a sub-agent's, needs a session of
        its own. The client that was passed stays as it is.

        Besides the SDK's own errors its calls raise `CannotFit`, and `StorageError` where the
        policy says so.

        Raises:
            TypeError: for another client.

        """
        from .integrations.anthropic import derived

        return derived(self, client)

    def runner(self, client: object, **arguments: Any) -> Any:
        """Return the SDK's tool runner over such a client, with the engine's tools beside others.

        Args:
            client: as for `client`; an asynchronous one gives an asynchronous runner.
            arguments: those of `client.beta.messages.tool_runner`.

        """
        from .integrations.anthropic import runner

        return runner(self, client, arguments)

    @property
    def runner_tools(self) -> list[Any]:
        """The engine's tools in the form that the SDK's tool runner takes."""
        from .integrations.anthropic import runnable

        return runnable(self)

    @property
    def async_runner_tools(self) -> list[Any]:
        """The same for the SDK's asynchronous tool runner."""
        from .integrations.anthropic import runnable

        return runnable(self, asynchronous=True)

    def is_own(self, body: Mapping[str, Any]) -> bool:
        """Tell whether a request is of this conversation, or sent beside it (a title, a probe).

        Args:
            body: what `messages.create` sends.

        Raises:
            BadMessage: for messages that are not JSON.

        """
        with self._lock:
            if self._engine is None or self._recall is None or switched_off():
                return False
            try:
                return self._recognizer.is_own(body, self._engine.renderer, self._recall.history)
            except (StorageError, OSError) as error:
                _LOG.warning("it is not known what this session was about: %s", error)
                return True

    def undo(self) -> DecisionSet | None:
        """Take back the newest compaction; what was shortened on arrival stays so.

        Automatic compaction then waits until the prompt would not fit the window otherwise.
        Returns the set that is no longer in force, None where there is none.

        Raises:
            CannotFit: where the view without it would not fit; nothing has changed then.
            StorageError: where the disk refuses; a later view records it.
            Closed: after `close`.

        """
        self._check_open()
        with self._lock:
            return self._engine.undo() if self._engine else None

    def pin(self, key: str, text: str) -> None:
        """Have a text stand in the note of every later archive or summary, under its key.

        Raises:
            BadMessage: where one of them is not text.
            StorageError: where the disk refuses; nothing is pinned then.
            Closed: after `close`.

        """
        if not (isinstance(key, str) and isinstance(text, str)):
            message = "pin: key and text are strings"
            raise BadMessage(message, hint='pin("decision", "we keep the old API")')
        self._pin(key, text)

    def unpin(self, key: str) -> None:
        """Let a pinned text go; harmless where there is none. Raises as `pin`."""
        self._pin(key, None)

    def _pin(self, key: str, text: str | None) -> None:
        self._check_open()
        with self._lock:
            if self._recorder is not None and self._recorder.pins.get(key) != text:
                self._recorder.pin(key, text)

    def child(self, name: str, *, policy: Policy | None = None) -> "Compactor":
        """Open the session of a sub-agent, `<this session>.<name>`, which names this one.

        Raises:
            StorageError: as `open`.
            Closed: after `close`.

        """
        self._check_open()
        own, settings = f"{self.session}.{name}", policy or self._policy
        if self._place is None:
            return Compactor(own, settings, self._format, None, None)
        return Compactor._opened(
            own, settings, self._format, self._place, wait=0, parent=self.session
        )

    def observe(self, reply_or_usage: object) -> None:
        """Learn from the answer to the last view: what it measured, and that it was answered.

        Args:
            reply_or_usage: the provider's reply, or the usage report in it; an SDK object or
                its dictionary.

        Raises:
            BadMessage: for what is neither.
            Closed: after `close`.

        """
        self._check_open()
        reply = plain(reply_or_usage, "reply")
        usage = reply.get("usage", reply) if isinstance(reply, dict) else None
        used = self._wire.used_tokens(usage) if isinstance(usage, dict) else None
        if used is None:
            message = "observe: neither a reply nor a usage report"
            raise BadMessage(message, hint="Pass what messages.create returned, or its usage.")
        if self._engine is None or self._recorder is None:
            return
        facts: JsonObject = {"usage": usage}
        if reply.get("stop_reason") is not None:
            facts["stop_reason"] = reply["stop_reason"]
        content = reply.get("content")
        said = {"role": "assistant", "content": content} if isinstance(content, list) else None
        with self._lock:
            if said is not None:
                self._engine.renderer.index.digest(said)  # refuses here what it would refuse later
            anchor = self._engine.observe(used)
            facts["anchor"] = [anchor.measured, anchor.estimated]
            if self._recorder.calibration != self._engine.calibration:
                self._recorder.calibration = self._engine.calibration
                facts["calibration"] = self._recorder.calibration.encode()
            self._recorder.answered(facts, said, self._engine.sent)

    def handles(self) -> list[str]:
        """Return every handle that a note of this session has named, oldest first."""
        return list(self._engine.renderer.ledger.contents) if self._engine else []

    def read(self, handle: str) -> bytes:
        """Return the exact original behind a handle.

        That is the UTF-8 of what was one text, else JSON: of a result's blocks, of a call's
        input, of a list of messages.

        Raises:
            UnknownHandle: for a handle that this session did not issue.
            StorageError: where the vault cannot give it, and the history at hand does not have it.

        """
        if self._engine is None or self._recall is None:
            message = "no such handle in this session"
            raise UnknownHandle(message, hint="Compactor.handles() lists them.")
        with self._lock:
            return self._recall.read(handle, self._engine.renderer)

    def flush(self) -> None:
        """Make all that was recorded durable.

        Raises:
            StorageError, OSError: where the disk refuses.

        """
        if self._recorder is not None:
            with self._lock:
                self._recorder.flush()

    def close(self) -> None:
        """Make everything durable, say so in the transcript, and release the session.

        Raises:
            StorageError: where the disk refuses; the session is released all the same.

        """
        if not self._closed:
            self._closed = True
            if self._recall is not None:
                self._recall.close()
            if self._recorder is not None:
                with self._lock:
                    self._recorder.close()

    def __enter__(self) -> Self:
        """Return the session itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it; a refusal of the disk does not hide an error of the loop."""
        try:
            self.close()
        except (StorageError, OSError) as refused:
            if error is None:
                raise
            _LOG.warning("closing: %s", refused)
