"""Consumer groups as pure state machines: requests, timers and the outcomes of writes go in, actions come out.

Nothing here opens a socket or a file, starts a thread or reads a clock; `tidelog.broker.group_service` does all of it.
"""
