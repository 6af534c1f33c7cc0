"""The testbed's own tests; `foretrain-testbed` runs the whole experiment."""
