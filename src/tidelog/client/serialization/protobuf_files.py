"""Protobuf files as a registry stores them: encoded descriptors, or the text of a .proto file.

What always holds: the encoded descriptor is registered, as Confluent's Python serializer does. Either form can be read,
because other clients register text and not every registry converts it. Text needs Protobuf's compiler, which comes with
grpcio-tools. Google's own types come from the installed library.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tidelog.client.errors import MissingExtraError, SerializationError
from tidelog.client.serialization.contract import missing_extra
from tidelog.client.serialization.registry import SchemaRegistry
from tidelog.client.serialization.schema import Schema, SchemaType
from tidelog.client.serialization.schema_serializer import referenced

try:
    from google.protobuf import descriptor_pb2
    from google.protobuf.descriptor import Descriptor, FileDescriptor
    from google.protobuf.descriptor_pool import Default, DescriptorPool
    from google.protobuf.message import DecodeError
except ImportError as missing:
    raise missing_extra("ProtobufSerializer", "protobuf", "protobuf") from missing

_COMPILE_TIMEOUT_S = 60
_ROOT = "schema.proto"

# Files that every reader has, so they are not registered.
_KNOWN_PREFIXES = ("google/protobuf/", "google/type/", "confluent/")


def is_known(name: str) -> bool:
    return name.startswith(_KNOWN_PREFIXES)


def text_of(file: FileDescriptor) -> str:
    """The file in its registered form."""
    return base64.standard_b64encode(file.serialized_pb).decode("ascii")


def indexes_of(message: Descriptor) -> list[int]:
    """The path to a message within its file."""
    path: list[int] = []
    while message.containing_type is not None:
        path.append([nested.name for nested in message.containing_type.nested_types].index(message.name))
        message = message.containing_type
    path.append(list(message.file.message_types_by_name).index(message.name))
    return path[::-1]


def message_at(file: FileDescriptor, indexes: Iterable[int]) -> Descriptor:
    """The message at a path."""
    messages = list(file.message_types_by_name.values())
    found: Descriptor | None = None
    for index in indexes:
        if index >= len(messages):
            raise SerializationError(f"the schema has no message number {index} where the record's path looks for it")
        found = messages[index]
        messages = list(found.nested_types)
    if found is None:
        raise SerializationError("the record names no message of its schema")
    return found


def load(registry: SchemaRegistry, schema: Schema) -> FileDescriptor:
    """The file of a schema and its imports, in a pool of their own, so that versions do not conflict."""
    if schema.type is not SchemaType.PROTOBUF:
        raise SerializationError(f"the schema is of type {schema.type}, not PROTOBUF")
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    for reference, needed in referenced(registry, schema, serialized=True):
        if reference.name not in files and not is_known(reference.name):
            file = _file_of(needed, files)
            file.name = reference.name
            files[file.name] = file
    root = _file_of(schema, files)
    root.name = root.name or _ROOT
    pool = DescriptorPool()
    for file in (*files.values(), root):
        _add(pool, file, files)
    return pool.FindFileByName(root.name)


def _file_of(
    schema: Schema, files: dict[str, descriptor_pb2.FileDescriptorProto]
) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of one file, decoded or compiled; `files` are those it may import."""
    try:
        encoded = base64.b64decode(schema.text, validate=True)
    except (binascii.Error, ValueError):
        return _compile(schema.text, files)
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(encoded)
    except DecodeError as error:
        raise SerializationError(f"the registry's Protobuf schema can't be decoded: {error}") from error


def _add(
    pool: DescriptorPool,
    file: descriptor_pb2.FileDescriptorProto,
    files: dict[str, descriptor_pb2.FileDescriptorProto],
) -> None:
    """Add a file, after the files that it imports, unless they are there."""
    try:
        pool.FindFileByName(file.name)
    except KeyError:
        for name in file.dependency:
            _add(pool, files[name] if name in files else _installed(name), files)
        try:
            pool.Add(file)
        except TypeError as error:
            raise SerializationError(f"the Protobuf file {file.name} can't be used: {error}") from error


def _installed(name: str) -> descriptor_pb2.FileDescriptorProto:
    """An imported file that is not among the references: one of those that come with libraries."""
    if is_known(name):
        try:
            importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            file = descriptor_pb2.FileDescriptorProto()
            Default().FindFileByName(name).CopyToProto(file)
        except (ImportError, KeyError) as error:
            raise SerializationError(f"the schema imports {name}, which no installed library has") from error
        return file
    raise SerializationError(f"the schema imports {name}, which is not among its references")


def _compile(text: str, files: dict[str, descriptor_pb2.FileDescriptorProto]) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of a .proto file's text, compiled by Protobuf's own compiler in a process of its own."""
    try:
        importlib.import_module("grpc_tools")
    except ImportError as error:
        raise MissingExtraError(
            "the registry gave the text of a .proto file, which needs Protobuf's compiler: pip install grpcio-tools"
        ) from error
    with tempfile.TemporaryDirectory(prefix="tidelog-proto-") as directory:
        source, result, imports = (Path(directory) / name for name in (_ROOT, "result", "imports"))
        source.write_text(text, encoding="utf-8")
        known = descriptor_pb2.FileDescriptorSet(file=_with_imports(text, files))
        imports.write_bytes(known.SerializeToString())
        arguments = [f"--proto_path={directory}", f"--descriptor_set_in={imports}", f"--descriptor_set_out={result}"]
        done = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *arguments, _ROOT],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMPILE_TIMEOUT_S,
        )
        if done.returncode != 0:
            # The compiler's log is mixed with its messages about files, which begin with the file's name.
            lines = done.stderr.splitlines()
            said = [line for line in lines if line.partition(":")[0].endswith(".proto")] or lines
            raise SerializationError(f"the registry's .proto file can't be compiled: {'; '.join(said)}")
        return descriptor_pb2.FileDescriptorSet.FromString(result.read_bytes()).file[0]


def _with_imports(
    text: str, files: dict[str, descriptor_pb2.FileDescriptorProto]
) -> list[descriptor_pb2.FileDescriptorProto]:
    """The files that a compiler may need: the known ones, their imports, and the text's imports."""
    found: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def add(file: descriptor_pb2.FileDescriptorProto) -> None:
        if file.name not in found:
            for name in file.dependency:
                add(files[name] if name in files else _installed(name))
            found[file.name] = file

    for file in files.values():
        add(file)
    for name in _imports_in(text):
        if name not in found and is_known(name):
            add(_installed(name))
    return list(found.values())


def _imports_in(text: str) -> list[str]:
    """The quoted names in import lines; one too many does no harm."""
    names = []
    for statement in text.replace(";", ";\n").splitlines():
        words = statement.strip()
        if words.startswith("import") and words.count('"') == 2:
            names.append(words.split('"')[1])
    return names
