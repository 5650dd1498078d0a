"""Speed and memory, each measured against a peer or a bound in the same run."""
