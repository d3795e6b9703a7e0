"""What every package needs of HTTP: header sections, which headers cross, and bodies as they are decoded."""
