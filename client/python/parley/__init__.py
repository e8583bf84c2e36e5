"""Parley keeps the conversations of agent services; this package speaks to it.

Begin with ``parley.v1``, the messages and services of the contract.
"""
