"""Cost graphs from files: dnn-partitioning JSON and PipeDream profiles."""
