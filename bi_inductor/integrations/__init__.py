"""Other projects that run batch-invariant through this one. Nothing here is imported unless that project asks."""
