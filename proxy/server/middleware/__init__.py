"""The layers around every request: access log, browser rules, admission."""
