"""`python -m foretrain.cli`."""

from foretrain.cli import main

main()
