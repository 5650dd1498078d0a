"""Training and evaluation with batches, as loops of one process have them."""
