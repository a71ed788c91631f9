"""The clients: Producer, Consumer and Admin, their asyncio counterparts, and the tools built on them.

What always holds: they use only protocol versions that both sides know, so they work with Tidelog and with Apache
Kafka. Every wait has a time limit. Every failure is a `ClientError` with a message written for people. The core is a
set of coroutines on one event loop: the user's own, or that of a background thread for the synchronous clients.
"""
