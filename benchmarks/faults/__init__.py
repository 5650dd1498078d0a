"""Faults injected into emitted directories: does ``pipec verify`` report them? `make faults`."""
