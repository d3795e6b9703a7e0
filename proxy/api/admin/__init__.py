"""``/admin``: the record, the tools and approvals, for administrators."""
