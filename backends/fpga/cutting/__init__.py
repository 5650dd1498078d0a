"""Folding and cutting as one search: where to cut so that every board, folded, is fastest."""
