"""The HTTP surface: what each path is answered with."""
