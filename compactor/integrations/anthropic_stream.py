"""Streams of the Anthropic SDK that are listened to: each event passes, the reply is kept."""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, closing
from functools import cache
from typing import Any, cast, get_origin

from anthropic import AsyncStream

from compactor.messages import JsonObject

_LOG = logging.getLogger("compactor")

# What a delta of each type adds to, and where it has the addition.
_ADDS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("input", "partial_json"),
    "citations_delta": ("citations", "citation"),
}

Heard = Callable[[JsonObject], object]


@cache
def listening(stream_cls: Any) -> Any:
    """Return a subclass of a stream class of the SDK that `listen` can be called on."""
    origin = get_origin(stream_cls) or stream_cls
    return _asynchronous(stream_cls) if issubclass(origin, AsyncStream) else _plain(stream_cls)


def listen(stream: object, heard: Heard) -> None:
    """Have a stream of such a class tell its whole reply, once its last event has arrived.

    A stream that is cut, or that nobody reads to its end, tells nothing.
    """
    if hasattr(stream, "ear"):
        stream.ear = _Ear(heard)


class _Ear:
    """Puts a reply together; whatever goes wrong with that is no matter of the stream's."""

    def __init__(self, heard: Heard) -> None:
        self._heard: Heard | None = heard
        self._reply = Reply()

    def hear(self, event: Any) -> None:
        if self._heard is None:
            return
        try:
            reply = self._reply.take(_json(event))
            if reply is not None:
                heard, self._heard = self._heard, None
                heard(reply)
        except Exception as error:  # noqa: BLE001 - the host's stream goes on
            self._heard = None
            _LOG.exception("a streamed reply is not known: %s", type(error).__name__)


def _plain(stream_cls: type[Any]) -> type[Any]:
    class ListeningStream(stream_cls):  # type: ignore[misc]
        ear: _Ear | None = None

        def __stream__(self) -> Iterator[Any]:
            with closing(cast("Generator[Any]", super().__stream__())) as events:
                for event in events:
                    if self.ear is not None:
                        self.ear.hear(event)
                    yield event

    return ListeningStream


def _asynchronous(stream_cls: type[Any]) -> type[Any]:
    class ListeningAsyncStream(stream_cls):  # type: ignore[misc]
        ear: _Ear | None = None

        async def __stream__(self) -> AsyncIterator[Any]:
            async with aclosing(cast("AsyncGenerator[Any]", super().__stream__())) as events:
                async for event in events:
                    if self.ear is not None:
                        self.ear.hear(event)
                    yield event

    return ListeningAsyncStream


class Reply:
    """Puts the message of a stream together from its events (as JSON).

    https://platform.claude.com/docs/en/build-with-claude/streaming
    """

    def __init__(self) -> None:
        """Have heard nothing yet."""
        self._message: JsonObject = {}
        self._blocks: dict[int, JsonObject] = {}
        self._added: dict[tuple[int, str], list[Any]] = {}
        self._whole = True  # whether each delta was understood

    def take(self, event: Mapping[str, Any]) -> JsonObject | None:
        """Take in one event; return the message with the last one.

        Where the stream had a delta of an unknown type, the message comes without its content.
        """
        match event.get("type"):
            case "message_start":
                self._message = dict(event["message"])
            case "content_block_start":
                self._blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                self._add(event["index"], event["delta"])
            case "message_delta":
                self._end(event)
            case "message_stop":
                return self._finished()
        return None

    def _add(self, index: int, delta: Mapping[str, Any]) -> None:
        name, where = _ADDS.get(delta["type"], ("", ""))
        if name:
            self._added.setdefault((index, name), []).append(delta[where])
        else:
            self._whole = False

    def _end(self, event: Mapping[str, Any]) -> None:
        """Take in how the reply ended; counts are of the whole, and those left out stand."""
        more = {name: value for name, value in event.items() if name not in {"type", "delta"}}
        counts = more.pop("usage", None) or {}
        known = {name: count for name, count in counts.items() if count is not None}
        self._message |= {**more, **event.get("delta", {})}
        self._message["usage"] = {**(self._message.get("usage") or {}), **known}

    def _finished(self) -> JsonObject:
        for (index, name), parts in self._added.items():
            block = self._blocks[index]
            if name == "citations":
                block[name] = [*(block.get(name) or ()), *parts]
            elif name != "input":
                block[name] = "".join([block.get(name) or "", *parts])
            elif written := "".join(parts):
                try:
                    block[name] = json.loads(written)
                except ValueError:  # the answer was cut off inside
                    self._whole = False
        if not self._whole:
            return {name: value for name, value in self._message.items() if name != "content"}
        return {**self._message, "content": [self._blocks[at] for at in sorted(self._blocks)]}


def _json(event: Any) -> Mapping[str, Any]:
    if isinstance(event, Mapping):
        return event
    own = getattr(event, "to_dict", None)
    return cast("Mapping[str, Any]", own(warnings=False)) if callable(own) else {}
