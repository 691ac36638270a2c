"""The Anthropic SDK: a derived client whose requests carry a session's views.

One middleware does it. It runs once for each attempt of the SDK's to send a request, so the SDK's
own retries, streams, errors and tool runners stay what they are.
"""

import asyncio
import copy
import logging
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from anthropic import (
    APIRequest,
    APIResponse,
    AsyncAPIResponse,
    AsyncCallNext,
    AsyncStream,
    CallNext,
    Middleware,
    Stream,
)
from anthropic.lib.tools import BetaAsyncBuiltinFunctionTool, BetaBuiltinFunctionTool, ToolError

from compactor.errors import BadMessage, BadPolicy, CompactorError
from compactor.messages import JsonObject
from compactor.refusals import Refusal, RefusalKind, classify
from compactor.view import View

from .anthropic_stream import listen, listening

if TYPE_CHECKING:
    from compactor.session import Compactor

_LOG = logging.getLogger("compactor")
_T = TypeVar("_T")

_MESSAGES, _COUNT = "/v1/messages", "/v1/messages/count_tokens"
# Arguments by which the provider compacts, or keeps the history itself.
_RIVALS = ("thread", "context_management", "compaction")
# What means something else to a view; as the body's it could only come by `extra_body`.
_NO_ARGUMENTS = frozenset({"messages", "policy", "human", "now"})

_warned: "weakref.WeakSet[Compactor]" = weakref.WeakSet()


@dataclass(slots=True)
class _Prepared:
    """A request's body as the SDK hands it in, in each attempt the same object, and as it is sent.

    `arguments` are those of its view.
    """

    asked: JsonObject
    sent: JsonObject
    arguments: JsonObject


class Compacting(Middleware):
    """Puts the views of a session into the requests of a client."""

    def __init__(self, session: "Compactor", betas: str | None = None) -> None:
        """Serve this session; `betas` are those that the client sends where a request has none."""
        self.session = session
        self._betas = betas
        self._newest: _Prepared | None = None

    def handle(self, request: APIRequest, call_next: CallNext) -> APIResponse[Any]:
        """Send one attempt of a request; if it is refused and a rescue is left, once more."""
        if _is_post(request, _COUNT):
            return call_next(self._counting(request))
        prepared = self._prepare(request) if _is_post(request, _MESSAGES) else None
        if prepared is None:
            return call_next(request)
        response = call_next(_with_body(request, prepared.sent))
        if not response.http_response.is_success:
            refusal = classify(response.status_code, response.read())
            if self._rescue(prepared, refusal):
                response = call_next(_with_body(request, prepared.sent))
        if response.http_response.is_success:
            self._attend(prepared, response.parse() if request.stream else _reply(response))
        return response

    async def handle_async(
        self, request: APIRequest, call_next: AsyncCallNext
    ) -> AsyncAPIResponse[Any]:
        """Do what `handle` does; the engine works in threads."""
        if _is_post(request, _COUNT):
            return await call_next(await asyncio.to_thread(self._counting, request))
        prepared = None
        if _is_post(request, _MESSAGES):
            prepared = await asyncio.to_thread(self._prepare, request)
        if prepared is None:
            return await call_next(request)
        response = await call_next(_with_body(request, prepared.sent))
        if not response.http_response.is_success:
            refusal = classify(response.status_code, await response.read())
            if await asyncio.to_thread(self._rescue, prepared, refusal):
                response = await call_next(_with_body(request, prepared.sent))
        if response.http_response.is_success:
            self._attend(prepared, await response.parse() if request.stream else _reply(response))
        return response

    def _prepare(self, request: APIRequest) -> _Prepared | None:
        """Make the body to send; None where the request is none of the engine's."""
        asked, newest = request.json, self._newest
        if newest is not None and newest.asked is asked:
            return newest  # an attempt more: it sends the same bytes and decides nothing
        if not isinstance(asked, dict):
            return None
        arguments = _arguments(asked, _betas(request.headers) or self._betas)
        try:
            if not self.session.is_own(asked) or self._has_rival(asked):
                return None
            view = self.session.view(asked["messages"], **arguments)
        except (BadMessage, BadPolicy) as error:  # the provider may see it otherwise
            _LOG.warning("a request passes unchanged: %s", error)
            return None
        self._newest = _Prepared(asked, _filled(asked, view), arguments)
        return self._newest

    def _has_rival(self, body: JsonObject) -> bool:
        """Tell whether somebody else compacts this request; say so once a session."""
        rival = next((name for name in _RIVALS if body.get(name)), None)
        if rival is not None and self.session not in _warned:
            _warned.add(self.session)
            _LOG.warning("requests with `%s` pass unchanged: one compacts, not two", rival)
        return rival is not None

    def _counting(self, request: APIRequest) -> APIRequest:
        """Have what a next request would send counted, by the sets in force."""
        body = request.json
        try:
            if isinstance(body, dict) and self.session.is_own(body):
                messages = self.session.render(body["messages"])
                return _with_body(request, {**body, "messages": messages})
        except BadMessage as error:
            _LOG.warning("a request passes unchanged: %s", error)
        return request

    def _rescue(self, prepared: _Prepared, refusal: Refusal) -> bool:
        """Make another body of a refused one; False where the refusal stands."""
        if refusal.kind is RefusalKind.NONE:
            return False
        view = self.session.rescue(refusal, prepared.asked["messages"], **prepared.arguments)
        if view is None:
            return False
        _LOG.info("refused (%s): sent once more", refusal.kind)
        prepared.sent = _filled(prepared.asked, view)
        return True

    def _attend(self, prepared: _Prepared, answer: object) -> None:
        """Learn from an answer, of a stream once it has ended."""
        if isinstance(answer, Stream | AsyncStream):
            listen(answer, lambda reply: self._observe(prepared, reply))
        elif answer is not None:
            self._observe(prepared, answer)

    def _observe(self, prepared: _Prepared, reply: object) -> None:
        if prepared is not self._newest:
            return  # the session has gone on: what it would measure is another view
        try:
            self.session.observe(reply)
        except CompactorError as error:
            _LOG.warning("a reply is not known: %s", error)


def derived(session: "Compactor", client: _T) -> _T:
    """Return a client like this one whose requests carry the session's views.

    Raises:
        TypeError: for what is no client of a recent Anthropic SDK.

    """
    extend = getattr(client, "with_middleware", None)
    if extend is None:
        message = f"a client of anthropic 2.10 or newer is needed, not a {type(client).__name__}"
        raise TypeError(message)
    held = cast("Iterable[object]", getattr(client, "middleware", ()))
    if any(isinstance(one, Compacting) and one.session is session for one in held):
        return client
    betas = _betas(getattr(client, "default_headers", {}))
    return cast("_T", extend(Compacting(session, betas)))


def runner(session: "Compactor", client: object, arguments: Mapping[str, Any]) -> Any:
    """Return the SDK's tool runner over the derived client, with the engine's tools beside others.

    It sends the whole history each time: what the provider keeps, no view could replace.
    """
    own = runnable(session, asynchronous=hasattr(client, "__aenter__"))
    tools = [*(arguments.get("tools") or ()), *own]
    messages = cast("Any", derived(session, client)).beta.messages
    return messages.tool_runner(**{**arguments, "tools": tools, "thread": False})


def runnable(session: "Compactor", *, asynchronous: bool = False) -> list[Any]:
    """Return the session's tools as the SDK's tool runners run them."""
    made = _AsyncTool if asynchronous else _Tool
    return [made(session, definition) for definition in session.tools]


class _Tool(BetaBuiltinFunctionTool):
    def __init__(self, session: "Compactor", definition: JsonObject) -> None:
        self._session, self._definition = session, definition

    def to_dict(self) -> Any:
        return self._definition

    def call(self, input: object) -> Any:  # noqa: A002 - its name above
        return _result(self._session, self._definition, input)


class _AsyncTool(BetaAsyncBuiltinFunctionTool):
    def __init__(self, session: "Compactor", definition: JsonObject) -> None:
        self._session, self._definition = session, definition

    def to_dict(self) -> Any:
        return self._definition

    async def call(self, input: object) -> Any:  # noqa: A002 - its name above
        return await asyncio.to_thread(_result, self._session, self._definition, input)


def _result(session: "Compactor", definition: JsonObject, given: object) -> Any:
    """Run a call whose identifier only the runner knows, and return the result's content."""
    call = {"type": "tool_use", "id": "", "name": definition["name"], "input": given}
    block = session.run(call)
    if block.get("is_error"):
        raise ToolError(block["content"])
    return block["content"]


def _is_post(request: APIRequest, path: str) -> bool:
    return request.method.lower() == "post" and urlsplit(request.url).path == path


def _arguments(body: JsonObject, betas: str | None) -> JsonObject:
    """Return a body's other arguments as `messages.create` takes them; betas go as a header."""
    arguments = {name: value for name, value in body.items() if name not in _NO_ARGUMENTS}
    return {**arguments, "betas": betas.split(",")} if betas else arguments


def _betas(headers: Mapping[str, object]) -> str | None:
    found = (value for name, value in headers.items() if name.lower() == "anthropic-beta")
    return next((value for value in found if isinstance(value, str)), None)


def _filled(body: JsonObject, view: View) -> JsonObject:
    return {**body, "messages": view.messages, **view.request_hints}


def _with_body(request: APIRequest, body: JsonObject) -> APIRequest:
    """Return a copy with this body, and with streams that can be listened to.

    `APIRequest.copy` would copy the messages, which may be many megabytes.
    """
    made = copy.copy(request)
    made.options = copy.copy(request.options)
    made.options.json_data = body
    if (stream_cls := cast("Any", made.stream_cls)) is not None:
        made.stream_cls = listening(stream_cls)
    return made


def _reply(response: APIResponse[Any] | AsyncAPIResponse[Any]) -> object:
    """Return a reply as JSON; None where it is none, or where the caller is to read it."""
    whole = response.http_response
    try:
        return whole.json() if whole.is_closed else None
    except ValueError:
        return None
