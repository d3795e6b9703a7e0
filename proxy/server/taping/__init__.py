"""The bytes of a run on both sides of the wire, kept with the run or captured on demand."""
