"""HTTP basics for every package: header sections, the rules for forwarding headers, decoded bodies."""
