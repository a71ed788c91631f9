from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scenario.cli.conftest import Command

DEADLINE_S = 60


def wait_ready(process: subprocess.Popen[bytes]) -> str:
    """The address of the ready line."""
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    match = re.search(r"ready on (\S+:\d+)", line)
    if match is None:
        assert process.stderr is not None
        raise AssertionError(f"not ready: {line!r} {process.stderr.read().decode()}")
    return match[1]


@pytest.fixture
def command(make_command: Callable[[str], Command]) -> Command:
    return make_command("127.0.0.1:1")


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_it_is_told_to_stop_and_keeps_its_data(
    make_command: Callable[[str], Command], command: Command, tmp_path: Path, ending: signal.Signals
) -> None:
    for expected in ([], ["kept"]):
        process = command.start("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
        client = make_command(wait_ready(process))
        assert [row["topic"] for row in client("topics", "list", "--json").ok().json()] == expected
        if not expected:
            client("topics", "create", "kept").ok()
            client("produce", "kept", stdin=b"precious\n").ok()
        else:
            assert client("consume", "kept", "--from-beginning", "--exit-at-end").ok().text == "precious\n"
        process.send_signal(ending)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err
        assert out == b""


def test_settings_by_file_environment_and_option(
    make_command: Callable[[str], Command], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("num.partitions = 4\n[log.retention]\nms = 111\n", encoding="utf-8")
    arguments = ["--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), "--config", str(config)]
    process = command.start("serve", *arguments, "--set", "log.retention.ms=222", "--log-json", "--log-level", "debug")
    client = make_command(wait_ready(process))
    client("topics", "create", "t").ok()
    [described] = client("topics", "describe", "t", "--json").ok().json()
    assert len(described["partitions"]) == 4
    [row] = client("configs", "describe", "--topic", "t", "retention.ms", "--json").ok().json()
    assert row["value"] == "222"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "num.partitionz=3"], "did you mean 'num.partitions'?"),
        (["--set", "num.partitions=many"], "num.partitions=many: expected a whole number"),
        (["--set", "num.partitions"], "expected key=value"),
        (["--listen", "nonsense"], "HOST:PORT"),
        (["--config", "/does/not/exist.toml"], "/does/not/exist.toml"),
        (["--log-level", "loud"], "--log-level"),
        (["--what"], "see 'tidelog serve --help'"),
    ],
)
def test_refuses_to_start_on_a_bad_setting(command: Command, tmp_path: Path, arguments: list[str], words: str) -> None:
    result = command("serve", "--data", str(tmp_path / "data"), *arguments)
    assert words in result.refused(2)
    assert result.out == b""
    assert not (tmp_path / "data").exists()


def test_refuses_to_start_on_a_busy_port(command: Command, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        result = command("serve", "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "data"))
    assert str(port) in result.refused(2)


def test_refuses_to_start_on_a_locked_data_directory(command: Command, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    wait_ready(command.start("serve", "--listen", "127.0.0.1:0", "--data", data))
    result = command("serve", "--listen", "127.0.0.1:0", "--data", data)
    assert data in result.refused(2)


def test_a_broker_never_imports_what_only_commands_need() -> None:
    code = (
        "import sys\n"
        "import tidelog.cli.main, tidelog.server.serve, tidelog.server.settings_load\n"
        "unneeded = ('typer', 'rich', 'click', 'pyarrow', 'kazoo',"
        " 'tidelog.client.admin', 'tidelog.client.consumer', 'tidelog.client.producer')\n"
        "print(*(name for name in unneeded if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    assert done.stdout.split() == []
