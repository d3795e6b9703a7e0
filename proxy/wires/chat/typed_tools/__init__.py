"""Chat's custom tools on upstreams that know functions alone."""
