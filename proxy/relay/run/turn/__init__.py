"""One turn of the model: its request upstream, and its answer read to the end."""
