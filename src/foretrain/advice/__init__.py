"""Advice: which one change makes a plan faster, or makes it fit; every change is simulated and can be pasted."""
