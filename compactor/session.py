"""A session: what a loop calls before and after each request.

One request runs through `view` from top to bottom: take in the history, plan a set, check what it
makes of the view, store it, render.
"""

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from compactor.storage import Keys, MissingKey, StorageError, Vault, new_name

from . import notes
from .check import violations
from .decisions import DecisionSet
from .describe import Largest, stats
from .errors import BadMessage, Closed, UnknownHandle
from .index import Edit
from .messages import JsonObject, canonical, plain
from .originals import original
from .plan import plan
from .policy import Policy
from .recorder import Prepared, Recorder
from .render import Renderer
from .tokens import DEFAULT_WINDOW, Anchor, Budget, budget, estimate_bytes
from .transcript import Transcript, vault_root
from .view import Stats, View
from .wire import Wire, wire_format

_LOG = logging.getLogger("compactor")
_SUCCESSORS, _LONGEST_BASE = 1_000, 60
# Arguments of `messages.create` that say how to reach the provider, not what to ask.
_TRANSPORT = ("extra_headers", "extra_query", "timeout")
_SLOTS = ("system", "tools")


class Compactor:
    """Makes compacted views of one growing conversation and keeps everything that they leave out.

    Open one with `Compactor.open`. A context manager; one writer a session; not for several
    threads at once.
    """

    def __init__(
        self,
        session: str,
        policy: Policy,
        wire: Wire,
        recorder: Recorder | None,
        open_transcript: Callable[[], Transcript] | None,
    ) -> None:
        """Use `Compactor.open` instead."""
        self.session = session
        self._policy = policy
        self._wire = wire
        self._recorder = recorder
        self._open_transcript = open_transcript
        self._transcript: Transcript | None = None
        self._renderer = Renderer(wire, policy.not_human)
        self._renderer.put(recorder.sets if recorder else ())
        self._sent = 0  # messages of the last view
        self._estimated = 0  # tokens that were estimated for it
        self._overhead = 0  # and for system prompt and tools beside it
        self._anchor: Anchor | None = None
        self._refused: str | None = None  # why the last turn was not stored
        self._largest = Largest()
        # What an earlier process left: length and chain digest of its last view, its anchor.
        self._left = (*recorder.sent, recorder.anchor) if recorder and recorder.sent else None
        self._shown = self._left  # the same of the last view of this process
        self._lock = threading.RLock()
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
    ) -> Self:
        """Open a session, or go on with it where it exists.

        Args:
            workspace: the folder whose `.transcripts` holds the encrypted transcript (the
                environment's `COMPACTOR_HOME` names another place for it).
            session: 1 to 64 of `a-z 0-9 . _ -`; None makes a new one. Where it exists and its key
                is gone (a fresh container with an old workspace), it is left alone and
                `<session>.2` goes on in its place; the first view's `degraded` says so.
            policy: the settings; None for the measured defaults.
            wire: the wire format of the messages.
            keys: the host's keys; None for those of the environment or the user.
            wait: seconds to wait while another writer holds the session.

        Raises:
            StorageError: where the name, the vault, the key or the lock refuses.

        """
        name = new_name() if session is None else session
        settings, format_ = policy or Policy(), wire_format(wire)
        if _switched_off():
            return cls(name, settings, format_, None, None)
        root, held = vault_root(workspace), keys or Keys.default()
        recorder = _recorder(lambda: Vault.create(root, held), name, wire, wait)
        own = recorder.session
        made = cls(own, settings, format_, recorder, lambda: Transcript.open(root, own, keys=held))
        if own != name:
            made._moved = f"the key of session {name} is missing: it goes on as {own}"
            _LOG.warning("%s", made._moved)
        weakref.finalize(made, _close_late, recorder)
        return made

    def view(self, messages: list[Any], *, policy: Policy | None = None, **request: Any) -> View:
        """Return what to send in the place of `messages`, which stay as they are.

        Args:
            messages: the whole history in wire form: what earlier calls had, and what is new.
            policy: other settings for this call.
            request: the other arguments of the provider's call (`system`, `tools`, `model`,
                `max_tokens`, …): counted, and recorded beside the view.

        Raises:
            BadMessage: for messages or arguments that are not JSON. Never because of size.
            BadPolicy: where `max_tokens` leaves no room in the window.
            Closed: after `close`.

        """
        self._check_open()
        settings = policy or self._policy
        with self._lock:
            if self._recorder is None or _switched_off():
                return _untouched(messages, settings)
            arguments = _arguments(request)
            room = _budget(arguments, settings)
            _check_list(messages)
            try:
                return self._turn(self._recorder, messages, arguments, room, settings)
            except BadMessage:
                raise  # before anything was taken in
            except Exception as error:  # noqa: BLE001 - a view is due whatever happened
                # A dictionary that was written to while it was read, or a fault of ours: what is
                # known of the history is worth less than the history.
                _LOG.exception("taking the history in anew: %s", type(error).__name__)
                self._start_over(self._recorder)
                return self._turn(self._recorder, messages, arguments, room, settings)
            except BaseException:
                self._start_over(self._recorder)
                raise

    def _start_over(self, recorder: Recorder) -> None:
        """Forget what is known of the history; the next view takes it in anew.

        Only recorded sets stay in force, and what is stored is compared with the history then.
        """
        recorder.abandon()
        self._renderer = Renderer(self._wire, self._policy.not_human)
        self._renderer.put(recorder.sets)
        self._sent, self._largest = 0, Largest()
        self._left = self._shown

    def _check_open(self) -> None:
        if self._closed:
            message = "this session is closed"
            raise Closed(message, hint="Open it again: Compactor.open(workspace, session).")

    def _turn(
        self,
        recorder: Recorder,
        messages: list[Any],
        arguments: JsonObject,
        room: Budget,
        policy: Policy,
    ) -> View:
        edit = self._take_in(messages)
        room = replace(room, anchor=self._anchor)
        one = self._decide(arguments, room, policy)
        shown = self._renderer.messages(messages)
        prepared = Prepared(arguments, self._renderer.chain[len(messages)], self._renderer.marks)
        refused = self._store(recorder, edit, one, prepared)
        if one is not None and refused is not None:
            one, shown = None, self._renderer.messages(messages)
        moved, self._moved = self._moved, None
        return self._describe(messages, shown, one, room, refused or moved)

    def _take_in(self, messages: list[Any]) -> Edit:
        renderer, left = self._renderer, self._left
        edit = renderer.update(messages)
        self._left = None
        if left is not None and renderer.chain[left[0] : left[0] + 1] == [left[1]]:
            # An earlier process sent this very prefix: go on as if it were this one.
            self._sent, self._anchor = left[0], left[2]
            renderer.changed = left[0]
        if renderer.changed < self._sent:
            self._anchor = None
        return edit

    def _decide(self, arguments: JsonObject, room: Budget, policy: Policy) -> DecisionSet | None:
        """Plan a set and put it in force, unless what it makes of the view fails the check."""
        renderer = self._renderer
        readable = self._wire.offers(arguments.get("tools"), notes.READ_TOOL)
        one = plan(self._wire, renderer.index, renderer.ledger, room, policy, readable=readable)
        if one is None:
            return None
        renderer.adopt(one)
        found = violations(renderer, one)
        if found:
            renderer.withdraw()
            _LOG.error("a compaction failed its check and was dropped: %s", found[0].what)
            return None
        return one

    def _store(
        self, recorder: Recorder, edit: Edit, one: DecisionSet | None, prepared: Prepared
    ) -> str | None:
        """Store the turn; where the disk refuses, the set is taken out of force."""
        refused = None
        try:
            recorder.turn(self._renderer.index, edit, one, prepared)
        except (StorageError, OSError) as error:
            if one is not None:
                self._renderer.withdraw()
            refused = f"{type(error).__name__}: {error}"
        if refused is not None and refused != self._refused:
            _LOG.warning("nothing new is hidden: %s", refused)
        self._refused = refused
        return refused

    def _describe(
        self,
        messages: list[Any],
        shown: list[Any],
        one: DecisionSet | None,
        room: Budget,
        degraded: str | None,
    ) -> View:
        renderer, sent = self._renderer, self._sent
        stable = min(renderer.changed, sent)
        rewrites = stable if stable < min(sent, len(messages)) else None
        if rewrites is not None:
            self._anchor = None
        self._sent, self._estimated = len(messages), renderer.estimated
        self._shown = len(messages), renderer.chain[len(messages)], self._anchor
        self._overhead = room.overhead
        rewritten = range(stable, sent if rewrites is not None else stable)
        measured = stats(renderer, one, room, rewritten)
        if one is not None:
            _LOG.info(
                "compacted (%s): %d to %d tokens (estimated); in view %d persisted, %d masked, "
                "%d messages archived",
                *(one.reason, one.before, one.after),
                *(measured.persisted, measured.masked, measured.archived_messages),
            )
        over = measured.view_tokens > room.messages
        return View(
            messages=shown,
            changed=shown is not messages,
            decisions=one.decisions if one else (),
            rewrites_from=None if rewrites is None else renderer.offset(rewrites),
            stable_prefix=renderer.offset(stable),
            stats=measured,
            over_budget=over,
            largest=self._largest.of(renderer) if over else (),
            unfinished=renderer.index.open_ended(),
            degraded=degraded,
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
        self._anchor = Anchor(used - self._overhead, self._estimated)
        if self._shown is not None:
            self._shown = (*self._shown[:2], self._anchor)
        if self._recorder is None:
            return
        anchor = [self._anchor.measured, self._anchor.estimated]
        facts: JsonObject = {"usage": usage, "anchor": anchor}
        if reply.get("stop_reason") is not None:
            facts["stop_reason"] = reply["stop_reason"]
        content = reply.get("content")
        said = {"role": "assistant", "content": content} if isinstance(content, list) else None
        if said is not None:
            self._renderer.index.digest(said)  # refuses here what it would refuse later
        self._recorder.answered(facts, said, self._sent)

    def handles(self) -> list[str]:
        """Return every handle that a note of this session has named, oldest first."""
        return list(self._renderer.ledger.contents)

    def read(self, handle: str) -> bytes:
        """Return the exact original behind a handle.

        That is the UTF-8 of what was one text, else JSON: of a result's blocks, of a call's
        input, of a list of messages.

        Raises:
            UnknownHandle: for a handle that this session did not issue.
            StorageError: where the vault cannot give it, and the history at hand does not have it.

        """
        if handle not in self._renderer.ledger.contents or self._open_transcript is None:
            message = "no such handle in this session"
            raise UnknownHandle(message, hint="Compactor.handles() lists them.")
        try:
            if self._transcript is None:
                self._transcript = self._open_transcript()
            return self._transcript.read(handle)
        except (StorageError, OSError):
            # The vault may have been replaced under the running session: look anew next time.
            transcript, self._transcript = self._transcript, None
            if transcript is not None:
                transcript.close()
            found = original(self._renderer, handle)
            if found is None:
                raise
            return found

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
            if self._transcript is not None:
                self._transcript.close()
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


def _recorder(open_vault: Callable[[], Vault], name: str, wire: str, wait: float) -> Recorder:
    """Open a session for writing, or the first of its successors whose key is here."""
    lost: MissingKey | None = None
    for number in range(1, _SUCCESSORS):
        own = name if number == 1 else f"{name[:_LONGEST_BASE].rstrip('._-')}.{number}"
        try:
            return Recorder(open_vault, own, wire, wait, continues=name if number > 1 else None)
        except MissingKey as error:
            lost = lost or error
    assert lost is not None  # noqa: S101 - the loop has run
    raise lost


def _switched_off() -> bool:
    return os.environ.get("COMPACTOR", "").strip().lower() == "off"


def _close_late(recorder: Recorder) -> None:
    """Close a session that its owner forgot, at the latest when the interpreter ends."""
    with suppress(Exception):
        recorder.close()


def _arguments(request: Mapping[str, Any]) -> JsonObject:
    """Sort a request's arguments into slots: system, tools, and all else as options."""
    given = {
        name: plain(value, name)
        for name, value in request.items()
        if name not in _TRANSPORT and type(value).__name__ not in {"NotGiven", "Omit"}
    }
    slots: JsonObject = {slot: given.pop(slot) for slot in _SLOTS if given.get(slot) is not None}
    options = {name: value for name, value in given.items() if value is not None}
    return {**slots, "options": options} if options else slots


def _budget(arguments: JsonObject, policy: Policy) -> Budget:
    output = arguments.get("options", {}).get("max_tokens") or 0
    if not isinstance(output, int):
        message = "max_tokens: a number is needed"
        raise BadMessage(message, hint="Pass what messages.create takes.")
    sent = [canonical(arguments[slot]) for slot in _SLOTS if slot in arguments]
    return budget(policy.window, output, sum(estimate_bytes(len(data)) for data in sent))


def _check_list(messages: object) -> None:
    if not isinstance(messages, list):
        message = f"messages: a list is needed, not a {type(messages).__name__}"
        raise BadMessage(message, hint="Pass the history as a list of messages.")


def _untouched(messages: list[Any], policy: Policy) -> View:
    """Return the history itself: switched off, nothing is looked at or counted."""
    stats = Stats(
        original_chars=0,
        view_chars=0,
        original_tokens=0,
        view_tokens=0,
        window=policy.window or DEFAULT_WINDOW,
        persisted=0,
        masked=0,
        archived_messages=0,
        rewritten_tokens=0,
    )
    return View(
        messages=messages,
        changed=False,
        decisions=(),
        rewrites_from=None,
        stable_prefix=0,
        stats=stats,
        over_budget=False,
        largest=(),
        unfinished=False,
        degraded=None,
    )
