"""Systems of the family on the same data, budget, updates, batches and seeds."""
