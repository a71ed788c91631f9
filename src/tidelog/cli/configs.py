"""`tidelog configs`: settings of topics and brokers that can change while the broker runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Json,
    Timeout,
    administration,
    checked,
    topic_name,
)
from tidelog.cli.output import print_json, print_line, print_table
from tidelog.cli.text import parse_pair, plural

if TYPE_CHECKING:
    from tidelog.client.admin import ConfigEntry
    from tidelog.protocol.config_values import ConfigChange, ConfigResource

configs = typer.Typer(no_args_is_help=True, help="Show and change settings of topics and brokers.")


def _check_topic(text: str | None) -> str | None:
    return None if text is None else topic_name(text)


Topic = Annotated[
    str | None, typer.Option("--topic", metavar="TOPIC", callback=_check_topic, help="Settings of this topic.")
]
Broker = Annotated[int | None, typer.Option("--broker", metavar="ID", min=0, help="Settings of the broker of this id.")]
AllBrokers = Annotated[
    bool, typer.Option("--all-brokers", help="Settings that hold for every broker that has no own ones.")
]
ValidateOnly = Annotated[bool, typer.Option("--validate-only", help="Only check whether it would work.")]


def add_to(app: typer.Typer) -> None:
    app.add_typer(configs, name="configs")


@configs.command(epilog="Example: tidelog configs describe --topic orders --all")
def describe(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these settings.")] = None,
    topic: Topic = None,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    everything: Annotated[bool, typer.Option("--all", help="Show settings that have their default, too.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show settings, where their values come from, and which can't be changed while the broker runs."""
    resource = _resource(topic, broker, all_brokers)
    with administration(bootstrap, timeout) as admin:
        entries = admin.describe_configs(resource, keys or None)[resource]
    shown = [entry for entry in entries.values() if everything or keys or not entry.is_default]
    if json:
        print_json([_document(entry) for entry in shown])
        return
    if not shown:
        print_line(f"{resource}: all settings have their defaults; --all shows them")
        return
    rows = [[entry.name, _value_text(entry), entry.source.label, "no" if entry.read_only else "yes"] for entry in shown]
    print_table(["setting", "value", "source", "changeable"], rows)


@configs.command("set", epilog="Example: tidelog configs set --topic orders retention.ms=3600000 segment.ms=60000")
def set_(
    pairs: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Settings with their new values.")],
    topic: Topic = None,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    validate_only: ValidateOnly = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Change settings while the broker runs."""
    from tidelog.protocol.config_values import AlterOperation, ConfigChange

    changes = []
    for text in pairs:
        key, value = checked(lambda text: parse_pair(text, "retention.ms=3600000"), text, "KEY=VALUE")
        changes.append(ConfigChange(key, AlterOperation.SET, value))
    _change(_resource(topic, broker, all_brokers), changes, validate_only, bootstrap, timeout, json)


@configs.command(epilog="Example: tidelog configs delete --topic orders retention.ms")
def delete(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Settings that return to their defaults.")],
    topic: Topic = None,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    validate_only: ValidateOnly = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Return settings to their defaults."""
    from tidelog.protocol.config_values import AlterOperation, ConfigChange

    changes = [ConfigChange(key, AlterOperation.DELETE) for key in keys]
    _change(_resource(topic, broker, all_brokers), changes, validate_only, bootstrap, timeout, json)


def _change(
    resource: ConfigResource,
    changes: list[ConfigChange],
    validate_only: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    with administration(bootstrap, timeout_s) as admin:
        admin.incremental_alter_configs({resource: changes}, validate_only=validate_only).raise_for_errors()
    if as_json:
        print_json(
            {
                "resource": str(resource),
                "changes": [
                    {"key": change.name, "operation": change.operation.name.lower(), "value": change.value}
                    for change in changes
                ],
                "validate_only": validate_only,
            }
        )
    else:
        print_line(f"{'would change' if validate_only else 'changed'} {plural(len(changes), 'setting')} of {resource}")


def _resource(topic: str | None, broker: int | None, all_brokers: bool) -> ConfigResource:
    from tidelog.protocol.config_values import ConfigResource, ResourceType

    if (topic is not None) + (broker is not None) + all_brokers != 1:
        raise typer.BadParameter("say whose settings: one of --topic TOPIC, --broker ID and --all-brokers")
    if topic is not None:
        return ConfigResource(ResourceType.TOPIC, topic)
    return ConfigResource(ResourceType.BROKER, "" if broker is None else str(broker))


def _value_text(entry: ConfigEntry) -> str:
    if entry.sensitive:
        return "(hidden)"
    return "(none)" if entry.value is None else entry.value


def _document(entry: ConfigEntry) -> dict[str, object]:
    return {
        "key": entry.name,
        "value": entry.value,
        "source": entry.source.name,
        "read_only": entry.read_only,
        "sensitive": entry.sensitive,
    }
