"""`tidelog configs`: show and change the settings of topics, brokers and groups, and levels of loggers, at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.app import App
from tidelog.cli.errors import CommandError
from tidelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Json,
    Timeout,
    administration,
    checked,
    optional_topic_name,
)
from tidelog.cli.output import print_json, print_line, print_table
from tidelog.cli.suggestions import suggestion
from tidelog.cli.text import parse_pair, plural

if TYPE_CHECKING:
    from tidelog.client.admin import ConfigEntry
    from tidelog.protocol.config_values import ConfigChange, ConfigResource

configs = App(help="Show and change settings at run time, and log levels.")


Topic = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", callback=optional_topic_name, help="The settings of this topic."),
]
Broker = Annotated[
    int | None, typer.Option("--broker", metavar="ID", min=0, help="The settings of the broker with this id.")
]
Group = Annotated[
    str | None, typer.Option("--group", "-G", metavar="GROUP", help="The settings of this consumer group.")
]
Loggers = Annotated[
    bool,
    typer.Option("--loggers", help="With --broker: its log levels instead of settings; they last until it restarts."),
]
AllBrokers = Annotated[bool, typer.Option("--all-brokers", help="The defaults of all brokers in the cluster.")]
ValidateOnly = Annotated[bool, typer.Option("--validate-only", help="Check the request without carrying it out.")]


def add_to(app: App) -> None:
    app.add_typer(configs, name="configs")


@configs.command(epilog="Example: tidelog configs describe --topic orders --all")
def describe(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these settings.")] = None,
    topic: Topic = None,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    group: Group = None,
    loggers: Loggers = False,
    everything: Annotated[bool, typer.Option("--all", help="Include settings that have their default value.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show settings and where their values come from."""
    resource = _resource(topic, broker, all_brokers, group, loggers)
    with administration(bootstrap, timeout, topics=[topic] if topic else ()) as admin:
        entries = admin.describe_configs(resource, keys or None)[resource]
        for key in keys or ():
            if key not in entries:
                known = admin.describe_configs(resource)[resource]
                raise CommandError(f"{resource} has no setting {key!r}{suggestion(key, known)}")
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
    pairs: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Settings and their new values.")],
    topic: Topic = None,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    group: Group = None,
    loggers: Loggers = False,
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
    _change(_resource(topic, broker, all_brokers, group, loggers), changes, validate_only, bootstrap, timeout, json)


@configs.command(epilog="Example: tidelog configs delete --topic orders retention.ms")
def delete(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Settings to reset.")],
    topic: Topic = None,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    group: Group = None,
    loggers: Loggers = False,
    validate_only: ValidateOnly = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Reset settings to their defaults."""
    from tidelog.protocol.config_values import AlterOperation, ConfigChange

    changes = [ConfigChange(key, AlterOperation.DELETE) for key in keys]
    _change(_resource(topic, broker, all_brokers, group, loggers), changes, validate_only, bootstrap, timeout, json)


def _change(
    resource: ConfigResource,
    changes: list[ConfigChange],
    validate_only: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    from tidelog.protocol.config_values import ResourceType

    topics = [resource.name] if resource.type is ResourceType.TOPIC else ()
    with administration(bootstrap, timeout_s, topics=topics) as admin:
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


def _resource(
    topic: str | None, broker: int | None, all_brokers: bool, group: str | None, loggers: bool
) -> ConfigResource:
    from tidelog.protocol.config_values import ConfigResource, ResourceType

    if (topic is not None) + (broker is not None) + all_brokers + (group is not None) != 1:
        raise typer.BadParameter(
            "say whose settings: one of --topic TOPIC, --broker ID, --all-brokers and --group GROUP"
        )
    if loggers:
        if broker is None:
            raise typer.BadParameter("say whose loggers: --loggers goes with --broker ID")
        return ConfigResource(ResourceType.BROKER_LOGGER, str(broker))
    if topic is not None:
        return ConfigResource(ResourceType.TOPIC, topic)
    if group is not None:
        return ConfigResource(ResourceType.GROUP, group)
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
