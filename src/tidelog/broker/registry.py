"""Which handler serves which API in which versions.

What always holds: an API has one handler; the versions a handler is registered for lie within those its messages are
declared for; ApiVersions answers from here and the dispatcher looks up here, so what is advertised is what is served.
A version that Kafka may still change is served only by brokers whose unstable.api.versions.enable is true.
It does not import the handlers: `tidelog.broker.handlers.load_all` does, once, when a broker starts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.common.light_dataclass import dataclass
from tidelog.protocol import Api, Message, request_class, response_class, response_header_has_tags

if TYPE_CHECKING:
    from tidelog.broker.request_context import RequestContext
    from tidelog.common.settings import Settings

# A handler takes one API's request and the context; keeping its exact type lets tests call it with checked arguments.
HandlerT = TypeVar("HandlerT", bound="Callable[[Any, RequestContext], Any]")

# A produce may be taken up while earlier produces of its connection still wait for replicas; their answers keep their
# order all the same. No other request may: it could see the state that an unfinished request is about to change.
_OVERLAPPING_API_KEYS = frozenset({0})

# A fetch that waits for records changes nothing and is asked again after a reconnect: a shutdown need not wait for it,
# nor for brokers that wait for changes of the metadata in FollowCluster. Nor for members that wait for others in
# JoinGroup and SyncGroup: they join again, and may wait for minutes.
_CUTTABLE_API_KEYS = frozenset({1, 11, 14, 10001})

# A client that joins a group has to send more requests after the answer, so one that has closed its side is gone for
# good. Others may have closed it after their last request, and still read the answer.
_ENDED_BY_EOF_API_KEYS = frozenset({11})


class CloseConnection(Exception):  # noqa: N818 - it is a request to close, raised by choice, and the peer's fault
    """Raised by a handler (or the dispatcher) to close the connection without an answer; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Handler:
    """One API as this broker serves it."""

    api: Api
    version_min: int
    version_max: int
    # The types of one API's messages are known to its handler only; the dispatcher passes them through.
    handle: Callable[[Any, RequestContext], Any]
    # One version more, which Kafka has not settled yet.
    unstable_version: int | None = None
    may_overlap: bool = False
    may_be_cut: bool = False
    is_ended_by_eof: bool = False
    # Whether only the controller can answer it, so that other brokers pass it on (KIP-590).
    on_controller: bool = False
    # Whether part of such a request is for the broker that was asked: then its handler passes on the rest.
    is_partly_local: bool = False
    # Whether only brokers send it, to each other.
    is_internal: bool = False
    # What every request would otherwise ask of the API again: its classes, and from which version on headers have tags.
    request_class: type[Message] = field(init=False)
    response_class: type[Message] = field(init=False)
    request_tags_from: int = field(init=False)
    response_tags_from: int = field(init=False)

    def __post_init__(self) -> None:
        has_tags = functools.partial(response_header_has_tags, self.api)
        object.__setattr__(self, "request_class", request_class(self.api))
        object.__setattr__(self, "response_class", response_class(self.api))
        object.__setattr__(self, "request_tags_from", self._first_version(self.api.is_flexible))
        object.__setattr__(self, "response_tags_from", self._first_version(has_tags))

    def _first_version(self, holds: Callable[[int], bool]) -> int:
        """The first version for which something holds, as for all later ones; past the last if it never does."""
        last = self.version_max if self.unstable_version is None else self.unstable_version
        return next((version for version in range(self.version_min, last + 1) if holds(version)), last + 1)

    def last_version(self, settings: Settings) -> int:
        """The last version that a broker with these settings serves."""
        if self.unstable_version is not None and settings.get_bool("unstable.api.versions.enable"):
            return self.unstable_version
        return self.version_max


_handlers: dict[int, Handler] = {}


def handles(
    api: Api,
    versions: str,
    *,
    unstable: int | None = None,
    on_controller: bool = False,
    partly_local: bool = False,
    internal: bool = False,
) -> Callable[[HandlerT], HandlerT]:
    """Register a function as the handler of an API for versions "first-last" (or one version).

    `unstable` is the one after these if Kafka has not settled it yet. With `on_controller` the handler runs on the
    controller, whichever broker the client has asked, save with `partly_local`, where it runs on the broker that was
    asked and passes on what is not about that broker; with `internal` the API is for brokers and clients don't see it.
    The function answers at once, returns a future of the answer, or is a coroutine function; None means that the
    peer expects no answer. A future is cancelled when its connection goes away. Whoever may have much to answer is a
    generator function that yields after each small piece of work (`tidelog.common.steps`) and returns any of these.
    """
    version_min, version_max = _parse_versions(versions)
    declared_min, declared_max = api.versions
    if (
        not declared_min
        <= version_min
        <= version_max
        <= (version_max if unstable is None else unstable)
        <= declared_max
    ):
        raise ValueError(f"{api.name} is declared for {declared_min}-{declared_max}, not for {versions}")

    def register(handle: HandlerT) -> HandlerT:
        known = _handlers.get(api.key)
        if known is not None and known.handle.__qualname__ != handle.__qualname__:
            raise ValueError(f"{api.name} already has the handler {known.handle.__qualname__}")
        _handlers[api.key] = Handler(
            api,
            version_min,
            version_max,
            handle,
            unstable,
            may_overlap=api.key in _OVERLAPPING_API_KEYS,
            may_be_cut=api.key in _CUTTABLE_API_KEYS,
            is_ended_by_eof=api.key in _ENDED_BY_EOF_API_KEYS,
            on_controller=on_controller,
            is_partly_local=partly_local,
            is_internal=internal,
        )
        return handle

    return register


def find_handler(api_key: int) -> Handler | None:
    return _handlers.get(api_key)


def registered_handlers() -> Iterator[Handler]:
    """All handlers, by API key."""
    return iter(sorted(_handlers.values(), key=lambda handler: handler.api.key))


def _parse_versions(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)
