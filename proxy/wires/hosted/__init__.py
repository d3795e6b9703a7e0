"""Tools of providers that server tools run: their declarations, the pages that they find, and citations."""
