"""Torture of a real cluster: workloads while things break, and a check of everything that clients saw.

Workers write a history of what they asked and what they were told (`history`). Afterwards the checker reads all
histories of a workload and looks for anomalies: things that no interleaving of the operations could explain
(`anomalies` lists the kinds with their exact rules).
"""
