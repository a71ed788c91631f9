"""The result of a call about several items: for each of them its value or its error.

What always holds: no error gets lost. Reading the value of an item that failed raises its error, and so does iterating
over all values; errors that nobody has looked at are logged when the results are discarded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, Self, TypeVar

from tidelog.client.errors import ClientError, InvalidResponseError

logger = logging.getLogger(__name__)

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class Results(Mapping[KeyT, ValueT], Generic[KeyT, ValueT]):
    """A mapping from the items of a call to their results, in the order given."""

    def __init__(
        self, keys: Iterable[KeyT], values: Mapping[KeyT, ValueT], errors: Mapping[KeyT, ClientError] | None = None
    ) -> None:
        self._values: dict[KeyT, ValueT] = {}
        self._errors: dict[KeyT, ClientError] = {}
        self._keys = tuple(dict.fromkeys(keys))
        # Without errors there is nothing to overlook.
        self._is_looked_at = True
        for key in self._keys:
            if key in values:
                self._values[key] = values[key]
            else:
                found = None if errors is None else errors.get(key)
                self._errors[key] = found or InvalidResponseError(f"the broker's response is missing {_shown(key)}")
                self._is_looked_at = False

    def __getitem__(self, key: KeyT) -> ValueT:
        """The item's value; raises its error, or KeyError if the item was not in the call."""
        error = self._errors.get(key)
        if error is not None:
            self._is_looked_at = True
            raise error
        return self._values[key]

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._values or key in self._errors

    @property
    def errors(self) -> Mapping[KeyT, ClientError]:
        """The items that failed, and why."""
        self._is_looked_at = True
        return dict(self._errors)

    @property
    def succeeded(self) -> dict[KeyT, ValueT]:
        """The values of the items that succeeded."""
        return dict(self._values)

    def raise_for_errors(self) -> Self:
        """Raise the first error, if any."""
        for error in self.errors.values():
            if len(self._errors) > 1:
                error.add_note(f"and {len(self._errors) - 1} more of {len(self)} failed")
            raise error
        return self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Results):
            return self._values == other._values and self._errors == other._errors
        if isinstance(other, Mapping):
            return not self._errors and self._values == dict(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of any mapping that compares by its content

    def __repr__(self) -> str:
        self._is_looked_at = True
        return f"Results({self._values!r}, errors={self._errors!r})"

    def __del__(self) -> None:
        if not getattr(self, "_is_looked_at", True):
            for error in self._errors.values():
                logger.error("an error of an admin call was never checked: %s", error)


def _shown(key: object) -> str:
    return repr(key) if isinstance(key, str) else str(key)
