"""All settings of a broker, of a topic and of a group, in one table.

What always holds: names, types and defaults are those of Kafka 4.3 (a row that differs says so in its help), and a
broker setting that provides the default of a topic's or a group's setting has the same default.
"""

from __future__ import annotations

from tidelog.common.settings import SettingsTable
from tidelog.server.settings_rows_broker import broker_rows
from tidelog.server.settings_rows_groups import group_rows
from tidelog.server.settings_rows_storage import storage_rows
from tidelog.server.settings_rows_topic import topic_rows
from tidelog.server.settings_rows_transactions import transaction_rows

TABLE = SettingsTable([*broker_rows(), *group_rows(), *storage_rows(), *topic_rows(), *transaction_rows()])
