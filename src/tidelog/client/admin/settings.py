"""The settings of admin clients: those that every client has."""

from __future__ import annotations

from tidelog.client.settings import CLIENT_SETTINGS, ClientOptions, ClientSettingsTable


class AdminOptions(ClientOptions, total=False):
    """The settings of an admin client as keyword arguments."""


ADMIN_SETTINGS = ClientSettingsTable("Admin", CLIENT_SETTINGS)
