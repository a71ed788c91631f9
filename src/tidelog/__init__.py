"""Tidelog: an event streaming platform for Python and Spark teams.

Importing this package is cheap on purpose: `tidelog serve` must answer its first client within half a second.
"""

__version__ = "0.1.0"
