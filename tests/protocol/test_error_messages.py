"""Error messages may quote anything that a client sent, and still fit into an answer."""

from __future__ import annotations

import pytest

from tidelog.common.steps import run_through
from tidelog.protocol import all_apis, decode, encode, encode_in_steps, response_class
from tidelog.protocol.messages.k19_create_topics import CreatableTopicResult, CreateTopicsResponse
from tidelog.protocol.messages.k32_describe_configs import DescribeConfigsResponse, DescribeConfigsResult
from tidelog.protocol.schema import fields_of
from tidelog.protocol.wire import ERROR_MESSAGE_BYTES_MAX


@pytest.mark.parametrize("version", [2, 7])
@pytest.mark.parametrize(
    "quoted", ["x" * 40_000, "\N{LATIN SMALL LETTER A WITH DIAERESIS}" * 20_000, "\N{GRINNING FACE}" * 9_000]
)
def test_a_message_that_is_too_long_is_cut_between_letters(version: int, quoted: str) -> None:
    message = f"no topic {quoted} is here"
    response = CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=3, error_message=message)])
    raw = encode(response, version)
    assert raw == b"".join(run_through(encode_in_steps(response, version)))  # type: ignore[arg-type]  # all are bytes
    text = decode(CreateTopicsResponse, raw, version).topics[0].error_message
    assert text is not None
    assert text.endswith("...")
    assert message.startswith(text.removesuffix("..."))
    assert ERROR_MESSAGE_BYTES_MAX - 4 <= len(text.encode()) - 3 <= ERROR_MESSAGE_BYTES_MAX


def test_a_message_that_fits_is_left_alone() -> None:
    for message in (None, "", "a" * ERROR_MESSAGE_BYTES_MAX):
        response = DescribeConfigsResponse(results=[DescribeConfigsResult(error_message=message)])
        assert decode(DescribeConfigsResponse, encode(response, 4), 4).results[0].error_message == message


def test_every_message_field_is_known_by_its_name() -> None:
    """What has another name is not shortened: a field for messages that is named otherwise has to be looked at."""
    names = {
        each.name
        for api in all_apis()
        for cls in _structs(response_class(api))
        for each in fields_of(cls)
        if "message" in each.name and each.wire is not None and each.wire.name == "string"
    }
    assert all(name.endswith("error_message") for name in names), names


def _structs(cls: type) -> list[type]:
    found = [cls]
    for each in fields_of(cls):
        if each.struct is not None:
            found += _structs(each.struct)
    return found
