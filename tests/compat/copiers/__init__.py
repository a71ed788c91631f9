"""Copiers from one topic to another in transactions, as processes of their own, so that they can be killed.

Every program takes its options as one JSON argument, is led by lines on its standard input, and tells in JSON lines
what becomes of its transactions. The key of each record it writes names what it means to do with the transaction.
"""
