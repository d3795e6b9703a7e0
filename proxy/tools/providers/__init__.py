"""The built-in kinds of tool providers: functions and modules."""
