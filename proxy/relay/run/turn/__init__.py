"""One turn of the model: the proxy sends the request and reads the answer to its end."""
