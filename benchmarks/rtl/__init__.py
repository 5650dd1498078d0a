"""The cycle simulator against SystemVerilog: configurations, runner, table."""
