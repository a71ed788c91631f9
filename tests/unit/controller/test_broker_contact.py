"""Who counts as silent: turns without a question, and no time that this process stood still."""

from __future__ import annotations

from tidelog.controller.broker_contact import SILENT_TURNS, BrokerContact


def turns(contact: BrokerContact, count: int, *node_ids: int) -> set[int]:
    silent: set[int] = set()
    for _ in range(count):
        silent = contact.take_turn(node_ids)
    return silent


def test_a_broker_is_silent_after_some_turns_without_a_question() -> None:
    contact = BrokerContact()
    assert turns(contact, SILENT_TURNS - 1, 1, 2) == set()
    with contact.asking(1):
        pass
    assert turns(contact, 1, 1, 2) == {2}
    assert turns(contact, SILENT_TURNS - 2, 1, 2) == {2}
    assert turns(contact, 1, 1, 2) == {1, 2}
    with contact.asking(2):
        assert turns(contact, 1, 1, 2) == {1}


def test_a_broker_whose_question_waits_is_in_contact() -> None:
    contact = BrokerContact()
    with contact.asking(1):
        # A second one, over another connection, ends first.
        with contact.asking(1):
            pass
        assert turns(contact, 3 * SILENT_TURNS, 1) == set()
    assert turns(contact, SILENT_TURNS - 1, 1) == set()
    assert turns(contact, 1, 1) == {1}


def test_a_new_controller_gives_everyone_time() -> None:
    contact = BrokerContact()
    assert turns(contact, SILENT_TURNS, 1) == {1}
    contact.forget()
    assert turns(contact, SILENT_TURNS - 1, 1) == set()
