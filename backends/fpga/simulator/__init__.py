"""The simulator of the one semantics, `pipec.backends.fpga.runs`: C++ that g++ compiles."""
