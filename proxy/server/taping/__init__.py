"""The bytes of runs on both sides of the wire: noted as they pass, kept with the run or captured if asked."""
