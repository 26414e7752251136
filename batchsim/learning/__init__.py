"""Sample efficiency: what a batch costs in responses."""
