"""Exchanges with a cost of their own: one file each, a `Communication` that says what is sent and what it takes beside."""
