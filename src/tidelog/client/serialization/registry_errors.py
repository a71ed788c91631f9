"""Errors between a serializer and the schema registry."""

from __future__ import annotations

from typing import Self

from tidelog.client.errors import RetriableError, SerializationError


class SchemaRegistryError(SerializationError):
    """The registry refused; `status` is the HTTP status, `error_code` the registry's own, or -1 if it gave none."""

    def __init__(self, message: str, *, status: int = -1, error_code: int = -1) -> None:
        self.message = message
        self.status = status
        self.error_code = error_code
        super().__init__(message)

    def told_at(self, where: str) -> Self:
        """The same error, with the place where it matters in front."""
        return type(self)(f"{where}: {self.message}", status=self.status, error_code=self.error_code)

    def __reduce__(self) -> tuple[object, ...]:
        return (_remake, (type(self), self.message, self.status, self.error_code))


class SchemaNotFoundError(SchemaRegistryError):
    """The registry knows no such subject, version or schema."""


class IncompatibleSchemaError(SchemaRegistryError):
    """The registry does not accept the schema as the next version of its subject."""


class SchemaRegistryUnavailableError(SchemaRegistryError, RetriableError):
    """No registry answered, or it is unavailable; trying again may help."""


def _remake(cls: type[SchemaRegistryError], message: str, status: int, error_code: int) -> SchemaRegistryError:
    return cls(message, status=status, error_code=error_code)
