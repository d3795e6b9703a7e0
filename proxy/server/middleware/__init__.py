"""What every request passes on its way in and out: access log, browsers, admission."""
