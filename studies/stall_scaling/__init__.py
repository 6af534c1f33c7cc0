"""How communication stalls grow with a model, measured on this machine, with the simulator beside it."""
