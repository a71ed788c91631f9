"""The commands around versions, as a user types them, with versions that need no Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

import plain_version
from plain_shop import Shop, wait_until
from tidelog.cli.main import run


class Terminal:
    """Runs commands and gives what they printed."""

    def __init__(self, shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
        self._shop = shop
        self._capsys = capsys

    def __call__(self, *arguments: str, bootstrap: bool = True) -> tuple[int, str, str]:
        self._capsys.readouterr()
        options = ["--state", str(self._shop.state_dir)]
        if bootstrap:
            options += ["--bootstrap", self._shop.bootstrap]
        code = run(["pipeline", *arguments, *options])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def json(self, *arguments: str, bootstrap: bool = True) -> Any:
        _, out, _ = self(*arguments, "--json", bootstrap=bootstrap)
        return json.loads(out)


@pytest.fixture
def terminal(shop: Shop, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(shop, capsys)


def _run_both_to_rest(shop: Shop) -> None:
    shop.start_orders()
    shop.host(1, "live")
    shop.wait_for_batches(1, 5)
    shop.host(2, "shadow")
    shop.wait_for_batches(2, 2)
    shop.stop_orders()
    shop.wait_for_all(1)
    shop.wait_for_all(2)


def test_diff_promote_and_history(shop: Shop, terminal: Terminal) -> None:
    _run_both_to_rest(shop)
    code, out, _ = terminal("diff", "totals", "--samples", "1")
    assert code == 1
    assert out.splitlines()[0] == "totals: version 2 beside live version 1"
    assert "both at orders-0 " in out
    assert "keys, values as JSON" in out
    document = terminal.json("diff", str(plain_version.declaring_file(shop.state_dir, 2)))
    assert document["is_same_position"] is True
    (output,) = document["outputs"]
    assert output["added"] + output["changed"] + output["missing"] > 0
    changed = next(sample for sample in output["samples"] if sample["kind"] == "changed")
    assert changed["new"]["total"] == 2 * changed["live"]["total"]

    code, out, err = terminal("promote", "totals")
    assert code == 0
    assert "version 2 of totals is live, instead of version 1" in out
    assert f"totals: {output['added']} keys added, {output['changed']} changed, {output['missing']} removed" in out
    assert "undo with: tidelog pipeline rollback totals" in out
    assert "tidelog: switching readers" in err

    wait_until(lambda: not shop.hosts[1][1].is_alive(), "version 1 to end")
    code, out, _ = terminal("history", "totals", bootstrap=False)
    assert code == 0
    events = [line.split()[1] for line in out.splitlines()[1:]]
    assert events[0] == "version"
    assert events[-1] == "promote-done"
    history = terminal.json("history", "totals", bootstrap=False)
    assert history["live_version"] == 2
    assert [version["is_live"] for version in history["versions"]] == [False, True]
    (switch,) = history["switches"]
    assert (switch["from_version"], switch["to_version"], switch["outcome"]) == (1, 2, "done")
    assert switch["old_offsets"] == switch["new_offsets"]
    assert switch["outputs"]["totals"]["added"] == output["added"]
    assert [(run["version"], run["role"]) for run in history["runs"]] == [(1, "live"), (2, "shadow"), (2, "live")]

    code, _, err = terminal("diff", "totals")
    assert code == 1
    assert "no version of totals was replayed beside version 2" in err


def test_equal_outputs_end_with_zero(shop: Shop, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_version, "contribution", lambda version, key, amount: amount)
    _run_both_to_rest(shop)
    code, out, _ = terminal("diff", "totals")
    assert code == 0
    row = next(line for line in out.splitlines() if line.startswith("totals  "))
    assert row.split()[1:5] == ["0", "0", "0", str(len(shop.expected(1)))]


def test_what_is_refused_says_what_to_do(shop: Shop, terminal: Terminal) -> None:
    code, _, err = terminal("promote", "totals")
    assert code == 1
    assert "there is no pipeline 'totals' in this state directory" in err
    _run_both_to_rest(shop)
    code, _, err = terminal("replay", str(plain_version.declaring_file(shop.state_dir, 1)))
    assert code == 1
    assert "version 1 of totals is the live one; give the new code another version in its file" in err
    code, _, err = terminal("rollback", "totals")
    assert code == 1
    assert "version 1 of totals has been live from the start: there is nothing to roll back to" in err
    code, _, err = terminal("promote", "totals", "--version", "7")
    assert code == 1
    assert "totals has no version 7; it has 1, 2" in err
    code, _, err = terminal("promote", "totals", "--abandon")
    assert code == 1
    assert "there is no promote of totals to abandon" in err
    code, _, err = terminal("run", str(plain_version.declaring_file(shop.state_dir, 2)))
    assert code == 1
    assert "version 1 of totals is live, not version 2" in err
