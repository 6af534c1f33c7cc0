"""A testbed: real PyTorch training over shaped links between network namespaces, beside its prediction.

One file each: `topologies` (which hosts are cabled), `hosts` (the namespaces that stand for them), `models` (what is
trained, as modules and as documents), `worker` (one rank), `prediction`, `experiment` (what is run), `report`.
Run it with `make testbed` (see docs/testbed.md). It needs root on Linux and the extra `[torch]`.
"""
