"""The clients: Producer, Consumer and Admin, their asynchronous twins, and what is built on them.

What always holds: they speak only versions that both sides know, so they work with Tidelog and with Apache Kafka; every
wait has a time limit; every failure is a `ClientError` whose text is meant for a person. The core is coroutines on one
event loop: the user's, or that of a thread behind a synchronous client.
"""
