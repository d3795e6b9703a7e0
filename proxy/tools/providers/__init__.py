"""The providers of tools that are Python functions, and the loader of modules with such tools."""
