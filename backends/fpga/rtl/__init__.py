"""SystemVerilog of a stage: an independent reference for cycles, and for the cycle simulator."""
