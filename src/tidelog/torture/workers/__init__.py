"""The worker processes of the torture's workloads: each is an ordinary application with public clients.

A worker does its work until it is told to end, notes in its history what it asked and what it was told, and shows its
progress in a small file. `worker` has what all of them share.
"""
