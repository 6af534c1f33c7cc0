"""Conformance kits: what every variant of a noun must hold, said once and run on each."""
