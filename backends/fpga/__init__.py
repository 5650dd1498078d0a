"""The FPGA backend: a stage becomes a streaming dataflow of engines in HLS C++."""
