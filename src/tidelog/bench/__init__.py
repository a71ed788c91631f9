"""Measurements side by side with the systems people use today, on one machine, in one run.

What always holds: both sides get the same client, the same data and their default settings, one after the other in
every run; what is reported is the median of the runs and the ratio. Nothing here is imported by the broker.
"""
