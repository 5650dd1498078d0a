"""From a `StageDesign` to a directory of HLS C++ that g++ simulates and a vendor tool takes."""
