"""What `import pipec` offers, one module per idea; `pipec/__init__.py` finds the names lazily."""
