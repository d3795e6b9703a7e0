"""The bytes of a run on both sides of the proxy, kept with the run or captured on demand."""
