"""Measure real machines: operators, links, data and training runs, and what is made of them."""
