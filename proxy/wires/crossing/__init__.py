"""What every dialect needs to read requests as conversations and to write conversations as requests."""
