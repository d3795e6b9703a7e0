"""The tools that come with the product. Providers offer them like any other tool: off until allowed."""
