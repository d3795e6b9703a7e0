"""The command ``toolrelay approvals``: lists approvals and decides about them."""
