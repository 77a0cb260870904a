"""Curves of a report: throughput by devices and by links, against traffic, loss, rounds, memory, faults."""
