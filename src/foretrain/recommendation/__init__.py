"""Cloud offers for a training job: which machines, how many, with which plan, at what price."""
