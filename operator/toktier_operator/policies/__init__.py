"""Decisions, as pure functions of what is observed."""
