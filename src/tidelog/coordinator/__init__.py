"""Consumer groups as pure state machines: requests, times and the outcome of writes come in, actions come out.

Nothing here opens a socket or a file, starts a thread or reads a clock; `tidelog.broker.group_service` does all of it.
"""
