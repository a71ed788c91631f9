"""Parses values into columns, with a Spark expression for each format.

What always holds: the same expression always decides whether a value can be parsed; a value that can't be parsed gives
an error, never an exception. Spark itself parses JSON and text; Avro and Protobuf are parsed by functions over Arrow
arrays on executors (`avro_rows`, `protobuf_rows`), because pyspark doesn't include the jars for them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from tidelog.pipeline.errors import DeclarationError
from tidelog.pipeline.formats import Avro, Format, Json, Protobuf, Raw, Text

if TYPE_CHECKING:
    from pyspark.sql import Column

# Why a row was rejected, as "Class: message"; null for good rows. User columns can't have this name.
ERROR = "__tidelog_error"
PARSED = "__tidelog_parsed"
_UNPARSED = "__tidelog_unparsed"
NOT_UTF8 = "UnicodeDecodeError: the value is not UTF-8"
TOMBSTONE = "NullValueError: the value is null (a tombstone); to allow these, set tombstones='skip' or 'keep'"


def over_arrays(function: Callable[..., Any], made: DataType) -> Callable[..., Column]:
    """Turns a function over Arrow arrays into one over columns."""
    with warnings.catch_warnings():
        # pyspark warns that it would rather infer the kind of a function from its type hints.
        warnings.simplefilter("ignore", UserWarning)
        return arrow_udf(function, made, ArrowUDFType.SCALAR)


class Decoder:
    """How one format parses values."""

    # The type in which the source should return the value; a string doesn't have to be copied before it is parsed.
    value_type = "binary"
    has_key = False

    def __init__(self, schema: StructType) -> None:
        self.schema = schema

    def parsed(self, value: Column) -> Column | None:
        """An expression that is evaluated once per row and passed to `columns` and `error`; None if there is none."""
        return None

    def columns(self, value: Column, parsed: Column) -> list[Column]:
        raise NotImplementedError

    def error(self, value: Column, parsed: Column) -> Column | None:
        """Why this value can't be parsed, null if it can; None if every value can be parsed."""
        raise NotImplementedError

    def explain(self, value: Column, error: Column) -> Column:
        """A more detailed error; used only for dead letters."""
        return error


class JsonDecoder(Decoder):
    value_type = "string"

    def __init__(self, format_: Json, where: str) -> None:
        super().__init__(struct_type(format_.schema, where))
        self._options = {**format_.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNPARSED}
        self._required = [field.name for field in self.schema.fields if not field.nullable]
        self._read = StructType([*self.schema.fields, StructField(_UNPARSED, StringType())])

    def parsed(self, value: Column) -> Column | None:
        return sf.from_json(value.cast("string"), self._read, self._options)

    def columns(self, value: Column, parsed: Column) -> list[Column]:
        return [parsed.getField(field.name).alias(field.name) for field in self.schema.fields]

    def error(self, value: Column, parsed: Column) -> Column | None:
        unparsed = parsed.isNull() | parsed.getField(_UNPARSED).isNotNull() | ~sf.is_valid_utf8(value.cast("string"))
        error = sf.when(unparsed, sf.lit("JsonError: the value is not a JSON object of this schema"))
        for name in self._required:
            missing = sf.lit(f"MissingFieldError: {name} is NOT NULL, but missing or null")
            error = error.when(parsed.getField(name).isNull(), missing)
        return error

    def explain(self, value: Column, error: Column) -> Column:
        from tidelog.pipeline.rows.json_reasons import JsonReasons

        reasons = over_arrays(JsonReasons(self.schema.json()).explain, StringType())
        return sf.coalesce(reasons(value.cast("binary"), error), error)


class TextDecoder(Decoder):
    value_type = "string"

    def __init__(self) -> None:
        super().__init__(StructType([StructField("value", StringType())]))

    def columns(self, value: Column, parsed: Column) -> list[Column]:
        return [value.cast("string").alias("value")]

    def error(self, value: Column, parsed: Column) -> Column | None:
        return sf.when(~sf.is_valid_utf8(value.cast("string")), sf.lit(NOT_UTF8))


class RawDecoder(Decoder):
    has_key = True

    def __init__(self) -> None:
        super().__init__(StructType([StructField("key", BinaryType()), StructField("value", BinaryType())]))

    def columns(self, value: Column, parsed: Column) -> list[Column]:
        return [value.alias("value")]

    def error(self, value: Column, parsed: Column) -> Column | None:
        return None


class FunctionDecoder(Decoder):
    """Parses with a function over Arrow arrays that returns the columns and the error of each value."""

    def __init__(self, schema: StructType, function: Any) -> None:
        super().__init__(schema)
        self._function = over_arrays(function, StructType([*schema.fields, StructField(ERROR, StringType())]))

    def parsed(self, value: Column) -> Column | None:
        return self._function(value)

    def columns(self, value: Column, parsed: Column) -> list[Column]:
        return [parsed.getField(field.name).alias(field.name) for field in self.schema.fields]

    def error(self, value: Column, parsed: Column) -> Column | None:
        return parsed.getField(ERROR)


def decoder_of(format_: Format | None, topics: Sequence[str], where: str) -> Decoder:
    """The decoder for this format."""
    if isinstance(format_, Json):
        return JsonDecoder(format_, where)
    if isinstance(format_, Text):
        return TextDecoder()
    if isinstance(format_, Raw):
        return RawDecoder()
    if isinstance(format_, Avro):
        from tidelog.pipeline.rows.avro_rows import avro_reader

        return FunctionDecoder(*avro_reader(format_, topics, where))
    if isinstance(format_, Protobuf):
        from tidelog.pipeline.rows.protobuf_rows import protobuf_reader

        return FunctionDecoder(*protobuf_reader(format_, topics, where))
    raise DeclarationError(f"{where}: {type(format_).__name__} is not a format for reading")


def struct_type(schema: object, where: str) -> StructType:
    """The columns of a schema given as DDL or as a StructType."""
    if isinstance(schema, StructType):
        return schema
    if not isinstance(schema, str):
        raise DeclarationError(f"{where}: a schema must be DDL, such as 'id long, name string', or a StructType")
    try:
        parsed = cast(StructType, StructType.fromDDL(schema))
    except Exception as error:  # noqa: BLE001 - Spark reports bad DDL with several kinds of errors
        reason = " ".join(str(error).split("JVM stacktrace")[0].split())
        raise DeclarationError(f"{where}: the schema {schema!r} can't be read: {reason[:300]}") from None
    for field in parsed.fields:
        if field.name.startswith("__tidelog_"):
            raise DeclarationError(f"{where}: a column can't be called {field.name!r}")
    return parsed
