"""A linter over emitted HLS C++: what a vendor tool would say only after minutes, or never."""
