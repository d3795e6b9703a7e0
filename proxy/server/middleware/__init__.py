"""Every request and answer passes through this: access log, browser rules, admission."""
