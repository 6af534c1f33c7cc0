"""Studies that are not part of the product: each a folder, run as `python -m studies.NAME`."""
