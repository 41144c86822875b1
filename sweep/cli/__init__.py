"""The command ``sweep``: from arguments to objects to `sweep.run`, `sweep.simulate` and `sweep.compare`."""
