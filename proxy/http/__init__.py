"""HTTP basics for every package: header sections, the rules for passing headers on, decoded bodies."""
