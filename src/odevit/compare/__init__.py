"""Train systems of the family on the same data, budget, updates, batches and seeds, and put them on one page."""
