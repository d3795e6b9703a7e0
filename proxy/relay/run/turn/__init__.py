"""One turn of the model: the proxy sends its request, and reads the answer to its end."""
